package server_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/insecure"
)

// While a load balancer still sends requests, the server handles them: /readyz fails first,
// and both listeners stay open for the delay.
func TestShutdownDelay(t *testing.T) {
	const delay = 3 * time.Second
	c := start(t, func(config *server.Config) {
		config.APIServerArgs = []string{"shutdown-delay-duration=" + delay.String()}
	})
	clients := map[string]*rest.Config{"secure": c.admin, "insecure": {Host: c.InsecureURL, Dial: insecure.Dial}}
	began := time.Now()
	c.cancel()
	for name, config := range clients {
		eventually.Nil(t, name+" /readyz fails", func() error {
			status, body := get(t, httpClient(t, config), config.Host+"/readyz")
			if status == http.StatusOK {
				return errors.New(body)
			}
			return nil
		})
	}
	for name, config := range clients {
		// Each request has its own connection, as from a load balancer.
		fresh := rest.CopyConfig(config)
		fresh.Dial = insecure.Dial // never shared
		for _, path := range []string{"/api/v1/namespaces/default", "/livez"} {
			answer, err := httpClient(t, fresh).Get(config.Host + path)
			if time.Since(began) > delay { // too late to tell
				t.Skip("this machine is too busy")
			}
			fatal(t, err)
			answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Errorf("%s %s, %v after the signal: got %s", name, path, time.Since(began), answer.Status)
			}
		}
	}
	c.down(t)
	if took := time.Since(began); took < delay {
		t.Errorf("the stop took %v, want the delay of %v at least", took, delay)
	}
	for name, config := range clients {
		if answer, err := httpClient(t, config).Get(config.Host + "/livez"); err == nil {
			answer.Body.Close()
			t.Errorf("%s listener still answers after the stop", name)
		}
	}
}
