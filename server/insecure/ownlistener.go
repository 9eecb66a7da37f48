package insecure

import (
	"net"
	"time"

	"github.com/sirupsen/logrus"
)

// OwnOnly restricts l to root and the server's user. It applies the rules of [Guard] to the
// connections of a protocol other than HTTP: it closes those of all other users when it
// accepts them, with at most one warning a minute. Where the owner of a connection is not
// known ([OwnersKnown]), it closes every connection.
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
