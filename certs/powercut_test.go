package certs

import (
	"errors"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var errPowerCut = errors.New("power cut")

// cutAfter lets n steps succeed and none after them. Nothing is cleaned up.
func cutAfter(n int) (fault func(step, path string) error, steps *int) {
	steps = new(int)
	return func(string, string) error {
		*steps++
		if *steps > n {
			return errPowerCut
		}
		return nil
	}, steps
}

// TestPowerCut cuts the power after every step of the first start, and of a renewal of
// everything. The next start must work, and must not touch the user's file.
func TestPowerCut(t *testing.T) {
	user := newUserCA(t, "their front proxy CA", ecKey(t), nil, today.AddDate(20, 0, 0))
	for _, c := range []struct {
		name    string
		prepare func(b *testbed)
		after   time.Time
	}{
		{"first start", func(*testbed) {}, today},
		{"renewal after 9 years", func(b *testbed) { b.ensure(t); b.now = today.AddDate(9, 0, 0) }, today.AddDate(9, 0, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			for n := 0; ; n++ {
				b := newTestbed(t)
				crt, key := string(encodeCerts(certsOf(user))), string(keyPEM(t, user.key, "PRIVATE KEY"))
				b.put(t, "front-proxy-ca.crt", []byte(crt))
				b.put(t, "front-proxy-ca.key", []byte(key))
				c.prepare(b)

				cfg := b.Config
				fault, steps := cutAfter(n)
				cfg.fault = fault
				_, _, err := Ensure(cfg)
				if err == nil {
					if *steps > n || n < 20 {
						t.Fatalf("%d steps of %d and no error", *steps, n)
					}
					return // no cut came
				}
				if !errors.Is(err, errPowerCut) {
					t.Fatalf("after step %d: %v", n, err)
				}
				b.ensure(t)
				b.verify(t, c.after)
				files := b.files(t)
				if files["front-proxy-ca.crt"] != crt || files["front-proxy-ca.key"] != key {
					t.Fatalf("after step %d: the user's CA was overwritten", n)
				}
				for name := range files {
					if strings.HasSuffix(name, ".tmp") {
						t.Errorf("after step %d: %s is left", n, name)
					}
				}
				before := files
				b.ensure(t)
				if diff := changed(before, b.files(t)); len(diff) != 0 {
					t.Errorf("after step %d: still changing: %v", n, diff)
				}
			}
		})
	}
}

// TestLostRenames loses any set of the renames that no directory sync had made permanent:
// some keys and no certificate, or all keys and some certificates.
func TestLostRenames(t *testing.T) {
	whole := newTestbed(t)
	whole.ensure(t)
	all := whole.files(t)
	names := slices.Sorted(maps.Keys(all))
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 120 {
		b := newTestbed(t)
		b.now = today.Add(time.Hour) // a CA made again has another name
		keys := map[string]string{}
		for _, n := range names {
			isKey := filepath.Ext(n) == ".key"
			switch {
			case round%2 == 0 && (!isKey || rng.IntN(2) == 0):
				continue // keys only
			case !isKey && rng.IntN(2) == 0:
				continue
			}
			b.put(t, n, []byte(all[n]))
			if isKey {
				keys[n] = all[n]
			}
		}
		if _, _, err := Ensure(b.Config); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		b.verify(t, b.now)
		after := b.files(t)
		for n, data := range keys {
			if after[n] != data {
				t.Errorf("round %d: %s was replaced", round, n)
			}
		}
	}
}
