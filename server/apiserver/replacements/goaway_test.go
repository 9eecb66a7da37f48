package replacements

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	certutil "k8s.io/client-go/util/cert"
)

// Upstream's server keeps an idle HTTP/2 connection open for a second when it stops, and for less
// if all clients are on this machine.
func TestGoAway(t *testing.T) {
	cert, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	content, err := dynamiccertificates.NewStaticCertKeyContent("test", cert, key)
	if err != nil {
		t.Fatal(err)
	}
	stop := func(change func(*genericapiserver.Config)) time.Duration {
		t.Helper()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c := &genericapiserver.Config{
			SecureServing:         &genericapiserver.SecureServingInfo{Listener: l, Cert: content},
			BuildHandlerChainFunc: func(api http.Handler, _ *genericapiserver.Config) http.Handler { return api },
		}
		change(c)
		end := make(chan struct{})
		ended, _, err := c.SecureServing.Serve(c.BuildHandlerChainFunc(http.NotFoundHandler(), c), time.Minute, end)
		if err != nil {
			t.Fatal(err)
		}
		idleClient(t, l.Addr().String())
		began := time.Now()
		close(end)
		<-ended
		return time.Since(began)
	}
	usual := stop(func(*genericapiserver.Config) {})
	if usual < time.Second {
		t.Errorf("upstream's server stops in %v, want a second at least: is this deviation still of use?", usual)
	}
	if short := stop(CloseIdle); short >= usual {
		t.Errorf("a stop takes %v, and upstream's %v", short, usual)
	}
}

// idleClient connects with HTTP/2, and reads everything until the server hangs up. net/http's own
// client would hang up first from Go 1.27 on; others do not.
func idleClient(t *testing.T, address string) {
	t.Helper()
	c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(c, c)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	for { // until the server has acknowledged: it serves this connection
		f, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		s, ok := f.(*http2.SettingsFrame)
		if ok && s.IsAck() {
			break
		}
		if ok {
			if err := framer.WriteSettingsAck(); err != nil {
				t.Fatal(err)
			}
		}
	}
	go io.Copy(io.Discard, c)
}

// Clients on other machines have upstream's second.
func TestGoAwayOfOtherMachines(t *testing.T) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := &genericapiserver.Config{SecureServing: &genericapiserver.SecureServingInfo{Listener: l}}
	CloseIdle(c)
	if c.SecureServing.Listener != l {
		t.Errorf("the listener is %T, want upstream's own", c.SecureServing.Listener)
	}
}
