package insecure

import (
	"net"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/internal/ownports"
)

// OwnOnly restricts l to root and the server's user. It applies the rules of [Guard] to the
// connections of a protocol other than HTTP: it closes those of all other users when it
// accepts them, with at most one warning a minute. Where the owner of a connection is not
// known ([OwnersKnown]), it closes every connection. Like [Serve], it keeps this process' own clients
// from l.
func OwnOnly(l net.Listener, log *logrus.Entry) net.Listener {
	return &ownListener{Listener: l, owners: thisProcess(), log: log, remove: ownports.Add(l)}
}

type ownListener struct {
	net.Listener
	owners owners
	log    *logrus.Entry
	warned time.Time
	remove func()
}

func (l *ownListener) Close() error {
	l.remove()
	return l.Listener.Close()
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
