package egress

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// Towards returns a selector for webhooks that kubeconfigs name: those for authentication, authorization
// and audit. Upstream lets nobody change their HTTP clients, so it is the dialer of the control plane
// that does not go where a redirect leads: it connects to addresses in the kubeconfigs only. They are read with
// each connection, because upstream may have read them again. A selector that is nil stays nil.
func Towards(selector *egressselector.EgressSelector, kubeconfigs func() ([]string, error)) (*egressselector.EgressSelector, error) {
	files, err := kubeconfigs()
	if selector == nil || err != nil || len(files) == 0 {
		return selector, nil // upstream reports the error
	}
	dialers, err := dialersOf(selector)
	if err != nil {
		return nil, err
	}
	if dial := dialers[egressselector.ControlPlane]; dial != nil {
		t := &pinnedSelector{dial: dial, kubeconfigs: kubeconfigs, named: map[string]bool{}}
		dialers[egressselector.ControlPlane] = t.connect
	}
	return egressselector.NewEgressSelectorWithMap(dialers), nil
}

// pinnedSelector dials only the addresses in the kubeconfigs.
type pinnedSelector struct {
	dial        utilnet.DialFunc
	kubeconfigs func() ([]string, error)

	mu    sync.Mutex
	named map[string]bool // addresses in the kubeconfigs, now or earlier: upstream keeps a client until a new file is right
}

func (t *pinnedSelector) connect(ctx context.Context, network, address string) (net.Conn, error) {
	if !t.isNamed(address) {
		return nil, fmt.Errorf("%w: %q", ErrRedirect, address)
	}
	return t.dial(ctx, network, address)
}

func (t *pinnedSelector) isNamed(address string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	files, _ := t.kubeconfigs() // what cannot be read names nothing
	for _, file := range files {
		if config, err := webhook.LoadKubeconfig(file, nil); err == nil {
			if at, err := connectsTo(config); err == nil {
				t.named[at] = true
			}
		}
	}
	return t.named[address]
}

// connectsTo returns the address that a client connects to: the server's, or that of the proxy before it.
func connectsTo(config *rest.Config) (string, error) {
	to, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return "", err
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = utilnet.NewProxierWithNoProxyCIDR(http.ProxyFromEnvironment)
	}
	var through *url.URL
	if through, err = proxy(&http.Request{URL: to}); err != nil {
		return "", err
	} else if through != nil {
		to = through
	}
	port := to.Port()
	if port == "" { // net/http's
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[to.Scheme]
	}
	return net.JoinHostPort(to.Hostname(), port), nil
}
