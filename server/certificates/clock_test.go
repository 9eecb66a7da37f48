package certificates

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/certs"
)

// settable is a clock that NTP can set.
type settable struct {
	mu  sync.Mutex
	off time.Duration
}

func (s *settable) now() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Round(0).Add(s.off)
}

func (s *settable) set(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off += by
}

// renewNow makes keepFresh renew what is due, and waits until it has.
func renewNow(c *Certificates) {
	done := make(chan struct{})
	c.asked <- func() { close(done) }
	<-done
}

// Certificates that were made while the clock said 1970 have ended when it is set
// to a day long after: they are renewed. TestRenewalWhenTheClockIsSet tests how soon.
func TestCertificatesWhenTheClockIsSet(t *testing.T) {
	dir := t.TempDir()
	machine := settable{off: -time.Since(time.Unix(42, 0))}
	store, _, err := certs.Ensure(certs.Config{Dir: dir, Hostname: "board", NoSync: true, Now: machine.now})
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(t.Output())
	kubeletClient := filepath.Join(dir, string(certs.KubeletClient)+".crt")
	c := New(Config{DataDir: t.TempDir(), Server: "https://127.0.0.1:6443", DatastoreClient: kubeletClient, Log: log})
	c.use(store)
	serial := func() string {
		b, err := os.ReadFile(kubeletClient)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	made := serial()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { c.keepFresh(ctx); close(ended) }()
	defer func() { cancel(); <-ended }()

	day := func(year int) {
		machine.set(time.Date(year, time.June, 1, 0, 0, 0, 0, time.UTC).Sub(machine.now()))
		renewNow(c)
	}
	day(2026) // they count from the program's own date, so they are still good
	if serial() != made {
		t.Error("renewed in a year in which they are good")
	}
	for _, year := range []int{2029, 2045} {
		before := serial()
		day(year)
		if serial() == before {
			t.Errorf("set to %d: not renewed", year)
		}
		infos, err := certs.List(dir, machine.now())
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range infos {
			if !i.NotAfter.IsZero() && i.DaysLeft < 100 {
				t.Errorf("set to %d: %s has %d days left", year, i.Name, i.DaysLeft)
			}
			if got := measured(t)[string(i.Name)]; !i.NotAfter.IsZero() && got != i.NotAfter.Unix() {
				t.Errorf("set to %d: the metric of %s is %d, want %d", year, i.Name, got, i.NotAfter.Unix())
			}
		}
	}
	if ends := measured(t); ends["datastore-client"] != ends[string(certs.KubeletClient)] {
		t.Errorf("the metric of the datastore's certificate is %d", ends["datastore-client"])
	}
	before := serial()
	day(1999)
	if serial() != before {
		t.Error("renewed because the clock was set back")
	}
}

// measured returns the metric of each certificate.
func measured(t *testing.T) map[string]int64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string]int64{}
	for _, family := range families {
		if family.GetName() == "karve_certificate_expiration_timestamp_seconds" {
			for _, m := range family.GetMetric() {
				ends[m.GetLabel()[0].GetValue()] = int64(m.GetGauge().GetValue())
			}
		}
	}
	return ends
}
