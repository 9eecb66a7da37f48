package loopback

import (
	"testing"
	"time"

	"github.com/karve-k8s/karve/certs"
)

// The clients in this process do not keep a certificate that has ended because the clock
// was set: the controllers would have no identity for minutes.
func TestClientCertificateWhenTheClockIsSet(t *testing.T) {
	var off time.Duration // by which the clock was set
	now := func() time.Time { return time.Now().Add(off) }
	store, _, err := certs.Ensure(certs.Config{Dir: t.TempDir(), Hostname: "board", NoSync: true, Now: func() time.Time { return now().Round(0) }})
	if err != nil {
		t.Fatal(err)
	}
	c := &clientCertificate{cert: store.CertFile(certs.ControllerManager), key: store.KeyFile(certs.ControllerManager), now: now}
	end := func() time.Time {
		chain, err := c.chain()
		if err != nil {
			t.Fatal(err)
		}
		return chain[0].NotAfter
	}
	first := end()
	off = 3 * 365 * 24 * time.Hour
	end() // read before it is renewed
	if _, _, err := store.Renew(); err != nil {
		t.Fatal(err)
	}
	c.read = c.now() // as if that read were within the time for which it is kept
	if got := end(); !got.After(now()) || !got.After(first) {
		t.Errorf("the certificate in use ends at %v, and it is %v", got, now())
	}
}
