package certificates

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/certs"
)

// text is what a log has written, to be read meanwhile.
type text struct {
	mu  sync.Mutex
	all strings.Builder
}

func (w *text) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.Write(p)
}

func (w *text) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

// A certificate that is renewed while the server starts writes no kubeconfig, whose
// presence says that the cluster answers; the one that is written then carries it.
func TestRenewalDuringTheStart(t *testing.T) {
	machine := settable{}
	dir := t.TempDir()
	store, _, err := certs.Ensure(certs.Config{Dir: filepath.Join(dir, "certs"), Hostname: "board", NoSync: true, Now: machine.now})
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	log := logrus.New()
	log.SetOutput(io.Discard)
	c := New(Config{DataDir: dir, Server: "https://127.0.0.1:6443", KubeconfigCopy: copied, KubeconfigCopyMode: 0o600, Log: log})
	c.use(store)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { c.keepFresh(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()
	renew := func() {
		machine.set(3 * 365 * 24 * time.Hour)
		renewNow(c)
	}
	carries := func(path string) bool {
		k := certs.Kubeconfig{Server: c.config.Server, CAFile: store.CertFile(certs.ServerCA), CertFile: store.CertFile(certs.Admin), KeyFile: store.KeyFile(certs.Admin)}
		want := filepath.Join(t.TempDir(), "want")
		if err := certs.WriteKubeconfig(want, k); err != nil {
			t.Fatal(err)
		}
		a, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(want)
		return err == nil && string(a) == string(b)
	}

	renew()
	for _, path := range []string{c.KubeconfigPath(), copied} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s before the server is ready: %v", path, err)
		}
	}
	if err := c.Publish(); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"ready", "renewed"} {
		for _, path := range []string{c.KubeconfigPath(), copied} {
			if !carries(path) {
				t.Errorf("%s: %s does not carry the certificates of now", when, path)
			}
		}
		renew()
	}
}

// A certificate that ends because the clock was set is renewed within a minute, and not at the hourly
// renewal. As the fake clock cannot be set, the day on which it is due moves instead.
func TestRenewalWhenTheClockIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var renewals, due atomic.Int64
		due.Store(time.Now().AddDate(1, 0, 0).Unix())
		log := logrus.New()
		log.SetOutput(io.Discard)
		r := renewer{
			renew: func() ([]certs.Name, []certs.Note, error) {
				renewals.Add(1)
				due.Store(time.Now().AddDate(1, 0, 0).Unix())
				return []certs.Name{certs.Serving}, nil, nil
			},
			nextDue: func() time.Time { return time.Unix(due.Load(), 0) },
			publish: func() error { return nil },
			log:     log,
		}
		go r.run(ctx, nil)
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if got := renewals.Load(); got != 0 {
			t.Errorf("%d renewals before the clock is set, want 0", got)
		}
		due.Store(time.Now().AddDate(-1, 0, 0).Unix())
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := renewals.Load(); got != 1 {
			t.Errorf("%d renewals in the minute after, want 1", got)
		}
		time.Sleep(59 * time.Minute)
		synctest.Wait()
		if got := renewals.Load(); got != 1 {
			t.Errorf("%d renewals in the hour after, want 1", got)
		}
		cancel()
		synctest.Wait()
	})
}
