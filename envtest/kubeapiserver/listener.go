package kubeapiserver

import (
	"net"
	"sync"
	"sync/atomic"

	"github.com/karve-k8s/karve/server/ports"
)

// listen binds the port immediately. A client that connects before the server is ready waits:
// one that is refused tries again after 100 ms or more, and so does envtest.
func (p *program) listen() error {
	serving := p.flags.SecureServing
	if serving.PermitPortSharing || serving.PermitAddressSharing || serving.BindPort == 0 {
		return nil // upstream's own has an option for it, or reports what is wrong with it
	}
	l, err := ports.Port{Option: "secure-port", Address: serving.BindAddress.String(), Number: serving.BindPort}.Listen()
	if err != nil {
		return err
	}
	p.listener = &heldListener{Listener: l, open: make(chan struct{})}
	serving.Listener = p.listener
	return nil
}

// release closes the listener, unless the API server has it.
func (p *program) release() {
	if p.listener != nil && !p.listener.served.Load() {
		p.listener.Close()
	}
}

// heldListener lets connections wait until it is released or closed.
type heldListener struct {
	net.Listener
	open   chan struct{}
	once   sync.Once
	served atomic.Bool // the API server has it, and closes it
}

func (l *heldListener) release() { l.once.Do(func() { close(l.open) }) }

func (l *heldListener) Accept() (net.Conn, error) {
	<-l.open
	return l.Listener.Accept()
}

func (l *heldListener) Close() error {
	err := l.Listener.Close()
	l.release() // Accept returns that it is closed
	return err
}
