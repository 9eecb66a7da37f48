package certs

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var leaves = []Name{Serving, FrontProxyClient, KubeletClient, Admin, ControllerManager, Scheduler}

func TestRenewByAge(t *testing.T) {
	due := dueAt(today, today.Add(leafLife))
	caDue := dueAt(today, today.Add(caLife))
	for _, c := range []struct {
		name string
		now  time.Time
		want []Name
	}{
		{"at once", today, nil},
		{"a second before the last third", due.Add(-time.Second), nil},
		{"the last third", due, leaves},
		{"expired", today.AddDate(2, 0, 0), leaves},
		{"clock back in 1970", time.Unix(60, 0), nil},
		{"the last third of the authorities", caDue, append([]Name{ServerCA, ClientCA, FrontProxyCA}, leaves...)},
		{"14 years later", today.AddDate(14, 0, 0), append([]Name{ServerCA, ClientCA, FrontProxyCA}, leaves...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newTestbed(t)
			s, _ := b.ensure(t)
			before, oldCA := b.files(t), b.cert(t, ServerCA)
			b.now = c.now
			got, _, err := s.Renew()
			fatal(t, err)
			if !slices.Equal(got, c.want) {
				t.Errorf("renewed %v, want %v", got, c.want)
			}
			b.verify(t, c.now)
			for _, f := range changed(before, b.files(t)) {
				if !strings.HasSuffix(f, ".crt") {
					t.Errorf("%s was changed", f)
				}
			}
			if newCA := b.cert(t, ServerCA); slices.Contains(c.want, ServerCA) && c.now.Before(oldCA.NotAfter) {
				// A client that still has the former certificate accepts the new leaf.
				if err := b.cert(t, Serving).CheckSignatureFrom(oldCA); err != nil || !signedBy(b.cert(t, Serving), oldCA) {
					t.Errorf("new leaf under the former CA: %v", err)
				}
				if newCA.Subject.String() != oldCA.Subject.String() || !slices.Equal(newCA.SubjectKeyId, oldCA.SubjectKeyId) {
					t.Errorf("the CA has become another: %v, %v", newCA.Subject, oldCA.Subject)
				}
			}
			if again, _, err := s.Renew(); err != nil || len(again) != 0 {
				t.Errorf("a second Renew: %v %v", again, err)
			}
			if next := s.NextDue(); len(c.want) > 0 && !next.After(c.now) {
				t.Errorf("NextDue %v is not after %v", next, c.now)
			}
		})
	}
}

// TestNoClock boots in 1970, and then learns the time.
func TestNoClock(t *testing.T) {
	for _, year := range []int{1970, 2026, 2027, 2040} {
		b := newTestbed(t)
		b.now = time.Unix(42, 0)
		s, notes := b.ensure(t)
		if !strings.Contains(texts(notes), "clock is earlier than this program") {
			t.Errorf("notes: %q", texts(notes))
		}
		b.verify(t, b.now, today, reference.Add(leafLife-day))
		b.now = time.Date(year, time.December, 1, 0, 0, 0, 0, time.UTC)
		renewed, _, err := s.Renew()
		fatal(t, err)
		if want := year > 2026; (len(renewed) > 0) != want {
			t.Errorf("in %d: renewed %v", year, renewed)
		}
		b.verify(t, b.now)
	}
}

func TestClockBeforeCA(t *testing.T) {
	b := newTestbed(t)
	b.now = today.AddDate(3, 0, 0)
	b.ensure(t)
	b.now = today
	_, notes := b.ensure(t)
	if !strings.Contains(texts(notes), "earlier than the creation of the certificate authorities on 2029-11-2") {
		t.Errorf("notes: %q", texts(notes))
	}
	b.verify(t, b.now)
}

func TestRenewByCause(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(t *testing.T, b *testbed, s *Store)
		want []Name
		note string
	}{
		{"address added", func(_ *testing.T, b *testbed, _ *Store) { b.addrs = append(b.addrs, "10.9.8.7/24") }, []Name{Serving}, "new: 10.9.8.7"},
		{"address removed", func(_ *testing.T, b *testbed, _ *Store) { b.addrs = nil }, nil, ""},
		{"name added", func(_ *testing.T, _ *testbed, s *Store) { s.cfg.ExtraSANs = []string{"API.example.com"} }, []Name{Serving}, "new: api.example.com"},
		{"host renamed", func(_ *testing.T, _ *testbed, s *Store) { s.cfg.Hostname = "raft" }, []Name{Serving}, "new: raft; gone: board"},
		{"addresses hidden", func(_ *testing.T, _ *testbed, s *Store) {
			s.cfg.InterfaceAddrs = func() ([]net.Addr, error) { return nil, errors.New("sealed") }
		}, nil, "sealed"},
		{"leaf removed", func(t *testing.T, b *testbed, _ *Store) { b.remove(t, "admin.crt") }, []Name{Admin}, ""},
		{"leaf key removed", func(t *testing.T, b *testbed, _ *Store) { b.remove(t, "admin.key") }, []Name{Admin}, "its key is missing"},
		{"leaf key replaced", func(t *testing.T, b *testbed, _ *Store) {
			b.put(t, "scheduler.key", keyPEM(t, rsaKey(t), "PRIVATE KEY"))
		}, []Name{Scheduler}, "it has another key"},
		{"authority replaced", func(t *testing.T, b *testbed, _ *Store) {
			ca := newUserCA(t, "theirs", ecKey(t), nil, today.AddDate(20, 0, 0))
			b.put(t, "front-proxy-ca.crt", encodeCerts(certsOf(ca)))
			b.put(t, "front-proxy-ca.key", keyPEM(t, ca.key, "EC PRIVATE KEY"))
		}, []Name{FrontProxyClient}, "front-proxy-ca did not sign it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newTestbed(t)
			s, _ := b.ensure(t)
			c.do(t, b, s)
			got, notes, err := s.Renew()
			fatal(t, err)
			if !slices.Equal(got, c.want) {
				t.Errorf("renewed %v, want %v", got, c.want)
			}
			if !strings.Contains(texts(notes), c.note) {
				t.Errorf("notes %q, want %q", texts(notes), c.note)
			}
			b.verify(t, b.now)
			if again, _, err := s.Renew(); err != nil || len(again) != 0 {
				t.Errorf("a second Renew: %v %v", again, err)
			}
		})
	}
}

func TestRenewNeverMakesAuthorities(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	b.remove(t, "server-ca.crt", "server-ca.key", "service-account.key")
	b.now = today.AddDate(0, 10, 0)
	renewed, _, err := s.Renew()
	if !errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "server-ca.crt") || strings.Count(err.Error(), "--cluster-token-file brings it back") < 2 || !strings.Contains(err.Error(), "service-account.key") {
		t.Errorf("error %v", err)
	}
	if slices.Contains(renewed, Serving) || !slices.Contains(renewed, Admin) {
		t.Errorf("renewed %v: want those of the other authorities", renewed)
	}
	if _, err := os.Stat(s.CertFile(ServerCA)); err == nil {
		t.Error("made a new authority")
	}
	b.ensure(t)
	b.verify(t, b.now)
}

func TestForceRenew(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	for _, c := range []struct {
		names, want []Name
		err         string
	}{
		{nil, leaves, ""},
		{[]Name{Admin}, []Name{Admin}, ""},
		{[]Name{ServerCA}, []Name{ServerCA}, ""},
		{[]Name{ServiceAccount}, nil, "rotate-ca --service-account-key"},
		{[]Name{"admn"}, nil, "unknown certificate"},
	} {
		before := b.files(t)
		got, _, err := s.ForceRenew(c.names...)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("ForceRenew(%v): error %v, want %q", c.names, err, c.err)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("ForceRenew(%v) = %v, want %v", c.names, got, c.want)
		}
		if diff := changed(before, b.files(t)); len(diff) != len(c.want) {
			t.Errorf("ForceRenew(%v) changed %v", c.names, diff)
		}
		b.verify(t, b.now)
	}
}

func TestRenewConcurrently(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	b.now = today.AddDate(1, 0, 0)
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range 8 {
		wg.Go(func() {
			got, _, err := s.Renew()
			if err != nil {
				t.Error(err)
			}
			_ = s.NextDue()
			mu.Lock()
			total += len(got)
			mu.Unlock()
		})
	}
	wg.Wait()
	if total != len(leaves) {
		t.Errorf("%d renewals, want %d", total, len(leaves))
	}
	b.verify(t, b.now)
}

// TestSymlink renews the file behind a link, and keeps the link.
func TestSymlink(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	elsewhere := filepath.Join(t.TempDir(), "admin.crt")
	fatal(t, os.Rename(s.CertFile(Admin), elsewhere))
	fatal(t, os.Symlink(elsewhere, s.CertFile(Admin)))
	if got, _, err := s.ForceRenew(Admin); err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	if to, err := os.Readlink(s.CertFile(Admin)); err != nil || to != elsewhere {
		t.Errorf("the link is %q, %v", to, err)
	}
	fatal(t, os.Remove(elsewhere))
	if _, _, err := s.Renew(); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a dangling link: %v", err)
	}
}
