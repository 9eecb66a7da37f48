package certs

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestEtcdMember(t *testing.T) {
	now := today
	cfg := Config{Dir: filepath.Join(t.TempDir(), "new"), NoSync: true, Now: func() time.Time { return now }}
	all := []Name{EtcdCA, EtcdServer, EtcdPeer, EtcdClient}
	writes := func(newAuthority bool, want []Name, names ...string) {
		t.Helper()
		cfg.ExtraSANs = names
		if got, _, err := EtcdMember(cfg, newAuthority); err != nil || !slices.Equal(got, want) {
			t.Fatalf("wrote %v, %v, want %v", got, err, want)
		}
	}
	refuses := func(newAuthority bool, want string, names ...string) {
		t.Helper()
		cfg.ExtraSANs = names
		if _, _, err := EtcdMember(cfg, newAuthority); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(cfg.Dir, file))
		info, statErr := os.Stat(filepath.Join(cfg.Dir, file))
		fatal(t, errors.Join(err, statErr))
		if private := info.Mode().Perm() == 0o600; private != (filepath.Ext(file) == ".key") {
			t.Errorf("%s has mode %v", file, info.Mode())
		}
		return string(text)
	}

	refuses(true, "192.0.2.300", "192.0.2.300")
	refuses(true, "give the names and addresses")
	refuses(false, "add --new-authority", "board1")
	if _, err := os.Stat(cfg.Dir); err == nil {
		t.Error("what is refused makes the directory")
	}
	writes(true, all, "board1", "192.0.2.11")
	refuses(true, "leave out --new-authority", "board1")
	for _, e := range memberTable[1:] {
		cert := read(string(e.name) + ".crt")
		for _, usage := range e.usage {
			if !accepts(t, read("etcd-ca.crt"), cert, []x509.ExtKeyUsage{usage}, now) {
				t.Errorf("%s is not accepted for %v", e.name, usage)
			}
		}
		if p, err := loadPair(cfg.Dir, e); err != nil || e.withSAN && p.main.VerifyHostname("192.0.2.11") != nil || !p.matches() {
			t.Errorf("%s: %v, %v", e.name, p, err)
		}
	}

	writes(false, nil)
	now = now.Add(leafLife * 3 / 4)
	key := read("etcd-server.key")
	writes(false, all[1:])
	if read("etcd-server.key") != key {
		t.Error("the renewal has made another key")
	}
	writes(false, all[1:3], "board1", "192.0.2.21")

	ca, caKey := read("etcd-ca.crt"), read("etcd-ca.key")
	first := read("etcd-peer.crt")
	cfg.Dir = t.TempDir()
	for file, text := range map[string]string{"etcd-ca.crt": ca, "etcd-ca.key": caKey} {
		fatal(t, os.WriteFile(filepath.Join(cfg.Dir, file), []byte(text), fileMode))
	}
	writes(false, all[1:], "board2", "192.0.2.12")
	if !accepts(t, ca, read("etcd-peer.crt"), forServers, now) || read("etcd-peer.crt") == first {
		t.Error("the second machine does not have a certificate of the same authority")
	}
	fatal(t, os.Remove(filepath.Join(cfg.Dir, "etcd-ca.key")))
	refuses(false, "copy both", "board2")
	b := newTestbed(t)
	b.ensure(t)
	cfg.Dir = b.Dir
	refuses(true, "name another directory", "board1")
}
