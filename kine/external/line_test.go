package external

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
)

// What a cut takes back never comes: the other end sees a reset, not the end of what was sent.
func TestALineThatIsCutIsReset(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	read := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			defer conn.Close()
			_, err = conn.Read(make([]byte, 1))
		}
		read <- err
	}()
	var l line
	l.cut() // there is none yet
	if _, err := l.dial(new(net.Dialer).DialContext)(t.Context(), "tcp", listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	ctx, ended := l.limited(t.Context(), time.Millisecond)
	if err := eventually.Receive(t, "the end", read); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the other end has %v, want that the connection was reset", err)
	}
	if err := ended(); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("%v, and the driver's context has %v", err, ctx.Err())
	}
}
