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

func TestALineThatIsInTimeStays(t *testing.T) {
	var l line
	ours, theirs := net.Pipe()
	defer theirs.Close()
	l.dial(func(context.Context, string, string) (net.Conn, error) { return ours, nil })(t.Context(), "", "")
	_, ended := l.limited(t.Context(), time.Hour)
	if err := ended(); err != nil {
		t.Error(err)
	}
	go theirs.Write([]byte("x"))
	if _, err := ours.Read(make([]byte, 1)); err != nil {
		t.Errorf("the connection has ended: %v", err)
	}
}

func TestTheErrorOfALineThatWasCut(t *testing.T) {
	cut, other := errors.New("late"), errors.New("use of closed network connection")
	for _, c := range []struct {
		err    error
		fenced bool
		want   error
	}{
		{nil, false, nil}, {nil, true, nil},
		{unknown{other}, true, unknown{other}},
		{errTakenBack, false, errTakenBack},
		{other, true, errTakenBack},
		{lost{other}, false, lost{cut}},
	} {
		if got := ofCut(c.err, cut, c.fenced); got != c.want {
			t.Errorf("%v, fenced %v: %v, want %v", c.err, c.fenced, got, c.want)
		}
	}
}
