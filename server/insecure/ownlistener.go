package insecure

import (
	"net"
	"time"

	"github.com/sirupsen/logrus"
)

// OwnOnly is l for root and the user the server runs as. It closes all other
// connections when it accepts them, with a warning a minute at most: it asks what
// [Guard] asks of a connection, for a protocol that is not HTTP. Where the owner of
// a connection is not known ([OwnersKnown]) it closes every connection.
func OwnOnly(l net.Listener, log *logrus.Entry) net.Listener {
	return &ownListener{Listener: l, owners: thisProcess(), log: log}
}

type ownListener struct {
	net.Listener
	owners owners
	log    *logrus.Entry
	warned time.Time
}

// Accept waits for the next connection that is not refused.
func (l *ownListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return c, err
		}
		why := l.owners.judge(c, &Options{})
		if why == "" {
			return c, nil
		}
		c.Close()
		if time.Since(l.warned) > time.Minute {
			l.warned = time.Now()
			l.log.Warnf("refused a connection to %s: %s", l.Addr(), why)
		}
	}
}
