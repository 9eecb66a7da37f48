package datadir

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/certs"
)

// Renewing one certificate leaves the serving certificate alone, although this machine may have
// addresses that it is not valid for, and although the command knows none of the server's options.
func TestRenewLeavesOtherCertificates(t *testing.T) {
	t.Parallel()
	for _, domain := range []string{"", "cluster.example"} {
		dataDir := t.TempDir()
		dir := filepath.Join(dataDir, "certs")
		store, _, err := certs.Ensure(certs.Config{
			Dir: dir, ClusterDomain: domain, NoSync: true, ExtraSANs: []string{"192.0.2.1", "board.example"},
			InterfaceAddrs: func() ([]net.Addr, error) { return nil, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		read := func(name certs.Name) []byte {
			content, err := os.ReadFile(store.CertFile(name))
			if err != nil {
				t.Fatal(err)
			}
			return content
		}
		serving, admin := read(certs.Serving), read(certs.Admin)
		app := &cli.App{Commands: []*cli.Command{Certs()}, Writer: io.Discard, ErrWriter: t.Output()}
		if err := app.Run([]string{"karve", "certs", "renew", "--data-dir", dataDir, string(certs.Admin)}); err != nil {
			t.Fatalf("domain %q: %v", domain, err)
		}
		if bytes.Equal(read(certs.Admin), admin) {
			t.Errorf("domain %q: the named certificate has not been renewed", domain)
		}
		if !bytes.Equal(read(certs.Serving), serving) {
			t.Errorf("domain %q: the serving certificate has been issued again", domain)
		}
	}
}
