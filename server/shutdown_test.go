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
	failed := time.Since(began)
	if failed > delay/2 {
		t.Fatalf("/readyz failed only %v after the signal, too late to look at the delay of %v", failed, delay)
	}
	requests := 0
	for time.Since(began) < delay-500*time.Millisecond {
		for name, config := range clients {
			// Each request has its own connection, as from a load balancer.
			fresh := rest.CopyConfig(config)
			fresh.Dial = insecure.Dial // never shared
			if status, body := get(t, httpClient(t, fresh), config.Host+"/api/v1/namespaces/default"); status != http.StatusOK {
				t.Fatalf("%s, %v after the signal: got %d, want %d: %s", name, time.Since(began), status, http.StatusOK, body)
			}
			if status, _ := get(t, httpClient(t, fresh), config.Host+"/livez"); status != http.StatusOK {
				t.Errorf("%s /livez, %v after the signal: got %d, want %d", name, time.Since(began), status, http.StatusOK)
			}
			requests++
		}
	}
	if requests < 4 {
		t.Errorf("only %d requests were tried", requests)
	}
	fatal(t, c.stop())
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
