package external

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// line is the connection to the database under that of a writer, whose transactions end it when they take too long. A driver closes
// it as well, but then the system goes on for minutes to send what the database has not received. A COMMIT that was
// cut off with its server would come when the network is back, and another server may lead by then.
type line struct {
	mu   sync.Mutex
	conn net.Conn
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// dial remembers the connections of another dial. A writer has one at a time.
func (l *line) dial(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conn = conn
		return conn, err
	}
}

// cut ends the connection, and takes back what has not been received.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn == nil {
		return
	}
	if tcp, ok := l.conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	l.conn.Close()
}

// limited returns the context of a transaction, which the driver does not see ending: the driver would close the connection itself. The line is
// cut after limit, or when ctx ends. ended stops that, and returns why the line was cut, or nil.
func (l *line) limited(ctx context.Context, limit time.Duration) (_ context.Context, ended func() error) {
	forDriver := context.WithoutCancel(ctx)
	ctx, cancel := context.WithTimeout(ctx, limit)
	stop := context.AfterFunc(ctx, l.cut)
	return forDriver, func() error {
		defer cancel()
		if stop() {
			return nil
		}
		return fmt.Errorf("the transaction was not answered in %v: %w", limit.Round(time.Millisecond), context.Cause(ctx))
	}
}
