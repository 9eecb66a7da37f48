package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/karve-k8s/karve/certs"
)

const (
	// pollEvery is how often a starting control plane is asked. A measured time is so much too
	// long at most.
	pollEvery = 2 * time.Millisecond

	// startTimeout bounds the start of a control plane.
	startTimeout = 3 * time.Minute
)

// A prober asks a starting control plane until it answers. It uses one connection and little CPU
// time, because it shares the CPU with the control plane.
type prober struct {
	cluster *cluster
	base    string // URL without a path
	client  *http.Client
}

// probe waits for the administrator's certificate, which Karve issues at its first start.
func (c *cluster) probe(ctx context.Context) (*prober, error) {
	var admin tls.Certificate
	err := c.poll(ctx, func() (err error) {
		admin, err = tls.LoadX509KeyPair(c.file(certs.Admin, ".crt"), c.file(certs.Admin, ".key"))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the administrator's certificate: %w", err)
	}
	return &prober{cluster: c, base: "https://" + c.host, client: &http.Client{
		Timeout: startTimeout,
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 1,
			// The authority may not exist yet, and the connection is on loopback.
			TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{admin}, InsecureSkipVerify: true},
		},
	}}, nil
}

// close closes the connection.
func (p *prober) close() { p.client.CloseIdleConnections() }

// await polls the paths one after the other, each until the answer is a 2xx.
func (p *prober) await(ctx context.Context, paths ...string) error {
	for _, path := range paths {
		err := p.cluster.poll(ctx, func() error {
			_, err := p.do(ctx, http.MethodGet, path, nil)
			return err
		})
		if err != nil {
			return fmt.Errorf("wait for %s: %w", path, err)
		}
	}
	return nil
}

// poll calls ask until it succeeds, startTimeout is over or a process has ended.
func (c *cluster) poll(ctx context.Context, ask func() error) error {
	deadline := time.Now().Add(startTimeout)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return nil
		}
		if failed := c.failed(); failed != nil {
			return failed
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no success after %v: %w", startTimeout, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// do sends one request, of JSON unless a header says otherwise, and returns the body of the response. A response other
// than a 2xx is an error. header is the name of one header and its value.
func (p *prober) do(ctx context.Context, method, path string, body []byte, header ...string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if len(header) == 2 {
		req.Header.Set(header[0], header[1])
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %.200s", method, path, resp.Status, answer)
	}
	return answer, nil
}
