package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
)

// The dialer of webhooks in kubeconfigs connects to what these name, as net/http asks for it, and to
// nothing else. A kubeconfig may change; a client that has the old one goes on.
func TestTowards(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	name := func(server, proxy string) {
		t.Helper()
		text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c"}}],
			"clusters": [{"name": "c", "cluster": {"server": %q, "proxy-url": %q}}]}`, server, proxy)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reached := errors.New("reached")
	all := egressselector.NewEgressSelectorWithMap(map[egressselector.EgressType]utilnet.DialFunc{
		egressselector.ControlPlane: func(context.Context, string, string) (net.Conn, error) { return nil, reached },
	})
	selector, err := Towards(all, func() ([]string, error) { return []string{file}, nil })
	if err != nil {
		t.Fatal(err)
	}
	dial, err := selector.Lookup(egressselector.ControlPlane.AsNetworkContext())
	if err != nil {
		t.Fatal(err)
	}
	want := func(address string, want error) {
		t.Helper()
		if _, err := dial(t.Context(), "tcp", address); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", address, err, want)
		}
	}
	want("hook.example:443", ErrRedirect) // the file is not there
	name("https://hook.example/path?query", "")
	want("hook.example:443", reached)
	want("hook.example:80", ErrRedirect)
	want("other.example:443", ErrRedirect)
	name("http://[2001:db8::1]:8443", "")
	want("[2001:db8::1]:8443", reached)
	want("hook.example:443", reached)
	name("https://far.example", "http://proxy.example:3128")
	want("proxy.example:3128", reached)
	want("far.example:443", ErrRedirect)
	name("https://far.example", "socks5://proxy.example")
	want("proxy.example:1080", reached)

	same, err := Towards(all, func() ([]string, error) { return nil, nil })
	if same != all || err != nil {
		t.Errorf("without a webhook: got %v, %v, want the same selector", same, err)
	}
}

// A redirect at the same host is followed.
func TestStaying(t *testing.T) {
	passed := errors.New("passed")
	s := sameHostTransport{roundTripper(func(*http.Request) (*http.Response, error) { return nil, passed })}
	for to, want := range map[string]error{
		"https://hook.example/other": passed, "https://hook.example:8443/": ErrRedirect, "http://hook.example/": ErrRedirect, "https://other.example/": ErrRedirect,
	} {
		from, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://hook.example/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.RoundTrip(from); !errors.Is(err, passed) { //nolint:bodyclose // there is none
			t.Fatal(err)
		}
		next, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, nil)
		if err != nil {
			t.Fatal(err)
		}
		next.Response = &http.Response{Request: from}
		if _, err := s.RoundTrip(next); !errors.Is(err, want) { //nolint:bodyclose // there is none
			t.Errorf("%s: got %v, want %v", to, err, want)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
