package insecure

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/websocket"
)

// target stands for the API: it remembers the attempts that got through to it, and
// has a secret in each answer.
type target struct {
	mu  sync.Mutex
	got map[string]bool
}

const secret = "top secret"

func (a *target) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	attempt := r.URL.Query().Get("attempt")
	if attempt == "" {
		http.NotFound(w, r) // the browser's own wishes, such as /favicon.ico
		return
	}
	a.mu.Lock()
	a.got[attempt+" "+r.Method] = true
	a.mu.Unlock()
	if r.Header.Get("Upgrade") == "websocket" {
		websocket.Server{Handler: func(c *websocket.Conn) { _ = websocket.Message.Send(c, secret) }}.ServeHTTP(w, r)
		return
	}
	if attempt == "eventsource" {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", secret)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, "%q", secret)
}

// take is what has got through since the last time.
func (a *target) take() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	got := slices.Sorted(maps.Keys(a.got))
	a.got = map[string]bool{}
	return got
}

// site serves the page that tries everything, and gives what it reports to next for
// any other path.
func site(t *testing.T, reports chan map[string]string, next http.Handler) http.Handler {
	page, err := os.ReadFile(filepath.Join("testdata", "page.html"))
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/page.html", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Write(page)
	})
	mux.HandleFunc("/report", func(_ http.ResponseWriter, r *http.Request) {
		report := map[string]string{}
		if err := json.NewDecoder(r.Body).Decode(&report); err != nil {
			t.Errorf("the page's report: %v", err)
		}
		reports <- report
	})
	mux.Handle("/", next)
	return mux
}

// TestPagesInABrowser has Chromium open pages that try every kind of request: pages
// of other ports reach nothing, and the port's own page everything.
func TestPagesInABrowser(t *testing.T) {
	reports := make(chan map[string]string, 1)
	api := &target{got: map[string]bool{}}
	// The port, with a page of its own: one that a Pod serves through it, say.
	addr, _ := start(t, site(t, reports, api), Options{ShutdownTimeout: time.Second})
	_, guarded, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	listenHTTP := func(h http.Handler) (port string) {
		l := listen(t, "127.0.0.1:0")
		srv := &http.Server{Handler: h}
		go srv.Serve(l)
		t.Cleanup(func() { srv.Close() })
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return port
	}
	other := listenHTTP(site(t, reports, http.NotFoundHandler()))
	open := listenHTTP(api) // the same without a guard

	everything := []string{
		"beacon POST", "blob POST", "blob-nocors POST", "delete DELETE", "eventsource GET", "form POST", "frame GET",
		"get GET", "get-nocors GET", "image GET", "json POST", "json-nocors POST", "script GET", "style GET",
		"text POST", "text-nocors POST", "websocket GET", "xhr GET",
	}
	// What needs no preflight.
	simple := slices.DeleteFunc(slices.Clone(everything), func(s string) bool { return s == "delete DELETE" || s == "json POST" })
	simple = append(simple, "delete OPTIONS", "json OPTIONS")
	slices.Sort(simple)
	for _, tc := range []struct {
		name, page, target string
		want               []string // what gets through
		reads              string   // one attempt, of those, whose answer the page reads
	}{
		// Typed into the address bar.
		{"own page", "http://localhost:" + guarded, "http://localhost:" + guarded, everything, "get"},
		{"own page by address", "http://127.0.0.1:" + guarded, "http://127.0.0.1:" + guarded, everything, "websocket"},
		{"another port", "http://localhost:" + other, "http://localhost:" + guarded, nil, ""},
		{"another port, by address", "http://127.0.0.1:" + other, "http://127.0.0.1:" + guarded, nil, ""},
		{"another port, another name", "http://127.0.0.1:" + other, "http://localhost:" + guarded, nil, ""},
		{"a name below localhost", "http://evil.localhost:" + other, "http://localhost:" + guarded, nil, ""},
		{"the same port, another name", "http://127.0.0.1:" + guarded, "http://localhost:" + guarded, nil, ""},
		// Without the guard the page would get through.
		{"no guard", "http://localhost:" + other, "http://localhost:" + open, simple, "websocket"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			browse(t, tc.page+"/page.html?target="+url.QueryEscape(tc.target))
			var report map[string]string
			select {
			case report = <-reports:
			case <-time.After(2 * time.Minute):
				t.Fatal("no report of the page in two minutes")
			}
			if got := api.take(); !slices.Equal(got, tc.want) {
				t.Errorf("got through: %q, want %q", got, tc.want)
			}
			for attempt, text := range report {
				if tc.want == nil && text != "" {
					t.Errorf("%s: the page read %q", attempt, text)
				}
			}
			if tc.reads != "" && !strings.Contains(report[tc.reads], secret) {
				t.Errorf("%s: the page read %q, want the secret", tc.reads, report[tc.reads])
			}
			if len(report) != len(everything) {
				t.Errorf("the page reports of %d attempts, want %d", len(report), len(everything))
			}
		})
	}
}

// browse opens a page in Chromium until the test ends.
func browse(t *testing.T, address string) {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed (Debian's package chromium); CI has it")
	}
	// Not t.TempDir: Chromium makes a socket below it, whose path must be short.
	profile, err := os.MkdirTemp("", "karve-page-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage",
		"--remote-debugging-port=0", "--user-data-dir="+profile, address)
	cmd.Env = append(os.Environ(), "HOME="+profile, "TMPDIR="+profile)
	cmd.Stdout, cmd.Stderr = &said, &said
	// Its processes are ended together.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Chromium said:\n%s", &said)
		}
		if err := os.RemoveAll(profile); err != nil {
			t.Error(err)
		}
	})
}
