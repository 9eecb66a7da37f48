package simulate

import (
	"io"
	"net"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// silentStream is a client that neither sends anything nor closes its stream, until it leaves.
type silentStream struct {
	left  chan struct{}
	ended atomic.Bool // the last read has returned
}

func (s *silentStream) Read([]byte) (int, error) {
	<-s.left
	s.ended.Store(true)
	return 0, io.EOF
}

func (s *silentStream) Write(p []byte) (int, error) { return len(p), nil }
func (s *silentStream) Close() error                { return nil }

// What reads from a client has ended when a port-forward has: the simulation's end waits for it.
func TestPortForwardWaitsForWhatReadsFromItsClient(t *testing.T) {
	process, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	go func() {
		if conn, err := process.Accept(); err == nil {
			conn.Close()
		}
	}()
	s, _ := newSimulation(t)
	at := process.Addr().(*net.TCPAddr).AddrPort()
	s.Defaults.Targets = Targets{at}
	p := newPod(corev1.RestartPolicyAlways, Listen, "80="+at.String())
	p.Spec.NodeName, p.Status.PodIP = Name(0), "100.64.0.2"
	add(t, s.PodInformer, p)
	client := &silentStream{left: make(chan struct{})}
	forward := &taking{pod: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, of: s, ends: make(chan struct{})}
	if err := forward.PortForward(t.Context(), "", "", 80, client); err != nil {
		t.Fatal(err)
	}
	go close(client.left)
	forward.copies.Wait()
	if !client.ended.Load() {
		t.Error("something still reads from the client")
	}
}
