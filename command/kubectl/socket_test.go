package kubectl

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/control"
)

// What passes requests on needs the token, and connections can be upgraded, as exec and port-forward do.
func TestPassOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, control.APISocket))
	if err != nil {
		t.Skipf("no unix sockets in %s: %v", dir, err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("the server gets the token")
		}
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprint(w, r.Header.Get("Impersonate-User"), r.URL.RequestURI())
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		c, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		line, _ := both.ReadString('\n')
		io.WriteString(c, line)
	})}
	go server.Serve(l)
	defer server.Close()
	url, token, err := passOn(dir)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(headers ...string) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/v1/pods?watch=1&n=%2F", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		return http.DefaultClient.Do(r)
	}
	for _, wrong := range []string{"A: b", "Authorization: Bearer ", "Authorization: Bearer " + token + "x", "Authorization: " + token} {
		answer, err := ask(wrong)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Body.Close(); answer.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: got %s, want 401", wrong, answer.Status)
		}
	}
	right := "Authorization: Bearer " + token
	answer, err := ask(right, "Impersonate-User: jane")
	if err != nil {
		t.Fatal(err)
	}
	text, _ := io.ReadAll(answer.Body)
	if answer.Body.Close(); string(text) != "jane/api/v1/pods?watch=1&n=%2F" {
		t.Errorf("got %q", text)
	}
	if answer, err = ask(right, "Connection: Upgrade", "Upgrade: echo"); err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	stream, ok := answer.Body.(io.ReadWriter)
	if !ok {
		t.Fatalf("got %s, want an upgraded connection", answer.Status)
	}
	io.WriteString(stream, "hello\n")
	if line, err := bufio.NewReader(stream).ReadString('\n'); line != "hello\n" {
		t.Errorf("got %q, %v through the upgraded connection", line, err)
	}
}

// A data directory may be another user's, and so may the server there.
func TestRefusalIsPrintable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, control.APISocket))
	if err != nil {
		t.Skipf("no unix sockets in %s: %v", dir, err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no \x1b[2J access", http.StatusForbidden)
	})}
	go server.Serve(l)
	defer server.Close()
	if err := refused(dir); err == nil || strings.Contains(err.Error(), "\x1b") || !strings.Contains(err.Error(), "access") {
		t.Errorf("got %q, want the reason without control characters", err)
	}
}
