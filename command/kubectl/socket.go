package kubectl

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"path/filepath"
	"strings"

	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/control"
)

// refused returns why the server refuses this user at the socket in a data directory.
func refused(dir string) error {
	client := http.Client{Transport: transport(dir), Timeout: dialTimeout}
	defer client.CloseIdleConnections()
	answer, err := client.Get("http://localhost/version")
	if err != nil {
		return nil // kubectl says it, or waits for a server that is starting
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 4096))
	return errors.New(output.Printable(strings.TrimSpace(string(text))))
}

func transport(dir string) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return control.DialSocket(ctx, filepath.Join(dir, control.APISocket))
		},
		DisableCompression: true,
	}
}

// passOn listens on a loopback port, and passes requests with the token on to the socket with the API in a data
// directory until the process ends. kubectl needs it because its exec and port-forward connect by TCP, whatever dialer
// its configuration has. No other user of the machine knows the token.
func passOn(dir string) (url, token string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	token = rand.Text()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "localhost"
			r.Out.Header.Del("Authorization")
		},
		Transport: transport(dir),
	}
	want := []byte("Bearer " + token)
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) == 0 {
			http.Error(w, "this port belongs to a kubectl of another user", http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	return "http://" + l.Addr().String(), token, nil
}
