package certificates

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/certs"
)

// settable is a clock that NTP can set. In a synctest bubble time.Now is what has
// elapsed.
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

func (s *settable) clock() clock {
	began := time.Now()
	return func() (time.Time, time.Duration) { return s.now(), time.Since(began) }
}

func TestClockThatIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var machine settable
		steps := watchClock(ctx, machine.clock())
		none := func(what string) {
			t.Helper()
			time.Sleep(5 * clockCheck)
			synctest.Wait()
			select {
			case step := <-steps:
				t.Errorf("%s: got a step of %v, want none", what, step)
			default:
			}
		}
		none("nothing happens")
		machine.set(30 * time.Second)
		none("slewed")
		for _, by := range []time.Duration{56 * 365 * 24 * time.Hour, -3 * time.Hour, 2 * time.Minute, -100 * 365 * 24 * time.Hour} {
			machine.set(by)
			select {
			case step := <-steps:
				if step != by {
					t.Errorf("set by %v: got %v", by, step)
				}
			case <-time.After(2 * clockCheck):
				t.Errorf("set by %v: not noticed", by)
			}
			none("after it")
		}
		cancel()
		synctest.Wait()
	})
}

// Certificates that were made while the clock said 1970 have ended when it is set
// to a day long after: they are renewed within seconds, not at the next look.
func TestCertificatesWhenTheClockIsSet(t *testing.T) {
	if renewCheck < 10*clockCheck {
		t.Fatal("the next look is as soon: this tests nothing")
	}
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
	steps := make(chan time.Duration)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { c.keepFresh(ctx, steps); close(ended) }()
	defer func() { cancel(); <-ended }()

	day := func(year int) time.Duration {
		by := time.Date(year, time.June, 1, 0, 0, 0, 0, time.UTC).Sub(machine.now())
		machine.set(by)
		return by
	}
	steps <- day(2026) // they count from the program's own date, so they are still good
	steps <- 0         // received when the first has been dealt with
	if serial() != made {
		t.Error("renewed in a year in which they are good")
	}
	for _, year := range []int{2029, 2045} {
		before := serial()
		steps <- day(year)
		steps <- 0
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
	steps <- day(1999)
	steps <- 0
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
