package certificates

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/certs"
)

// A server with an expired certificate is not ready, and says which it is. An old authority is no reason.
func TestExpiredCertificatesAreNotReady(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	dir := t.TempDir()
	c := New(Config{DataDir: dir, Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Run(ctx, cancel); err != nil {
		t.Fatal(err)
	}
	if err := c.Check(time.Now(), ""); err != nil {
		t.Errorf("new certificates: %v", err)
	}
	later := time.Now().AddDate(20, 0, 0)
	err := c.Check(later, "")
	for _, name := range []certs.Name{certs.Serving, certs.KubeletClient, certs.Scheduler} {
		if err == nil || !strings.Contains(err.Error(), string(name)+".crt has expired") {
			t.Errorf("after twenty years: got %v, want %s", err, name)
		}
	}
	if err != nil && strings.Contains(err.Error(), "-ca.crt") {
		t.Errorf("got %v, want no authority", err)
	}
	users := filepath.Join(dir, "certs", "server-ca.crt") // a user's certificate may be its own authority
	if err := c.Check(later, users); err == nil || !strings.Contains(err.Error(), users) {
		t.Errorf("the user's certificate: got %v", err)
	}
}
