package insecure

import (
	"net"
	"time"

	"github.com/sirupsen/logrus"
)

// OwnOnly lets in what l accepts from root and the user the server runs as, and
// closes all other connections at once, with a warning a minute at most: what
// [Guard] does, for a protocol that is not HTTP. On systems other than Linux the
// owner of a connection is not known, and every local user is let in.
func OwnOnly(l net.Listener, log *logrus.Entry) net.Listener {
	return &ownListener{Listener: l, owners: thisProcess(), log: log}
}

type ownListener struct {
	net.Listener
	owners owners
	log    *logrus.Entry
	warned time.Time
}

// Accept waits for the next connection that is let in.
func (l *ownListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || !l.owners.known {
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
