package certs

import (
	"crypto/x509"
	"errors"
	"maps"
	"slices"
	"testing"

	"k8s.io/client-go/util/keyutil"
)

// rotateShared returns the material of a cluster before and after each step, and the fingerprints of all keys.
func rotateShared(t *testing.T) (steps [4]Shared, rotated []string) {
	t.Helper()
	at := makeShared(t, newTestbed(t))
	steps[0] = maps.Clone(at)
	add := func(s Shared) { rotated = slices.AppendSeq(rotated, maps.Values(fingerprints(t, s))) }
	add(at)
	next := Shared{}
	for _, serviceAccount := range []bool{false, true} {
		made, err := at.Introduce(serviceAccount, nil, today)
		fatal(t, err)
		maps.Copy(next, made)
	}
	add(next)
	steps[1] = maps.Clone(at)
	maps.Copy(at, next)
	steps[2] = maps.Clone(at)
	for serviceAccount, want := range map[bool]int{false: 3, true: 1} {
		if dropped, err := at.DropFormer(serviceAccount, rotated); err != nil || len(dropped) != want {
			t.Fatalf("dropped %v: %v", dropped, err)
		}
	}
	steps[3] = at
	return steps, rotated
}

// Servers that are one step apart accept what the other one has issued, with the bridge or, as certificates for kubelets are, without it.
// Before and after the rotation, they refuse each other.
func TestServersInOtherSteps(t *testing.T) {
	steps, rotated := rotateShared(t)
	var servers []*testbed
	var bundles []string
	for _, material := range steps {
		b := newTestbed(t)
		if _, err := material.Take(b.Config, rotated); err != nil {
			t.Fatal(err)
		}
		store, _ := b.ensure(t)
		b.verify(t, today)
		bundle, err := store.NodeBundle()
		fatal(t, err)
		servers, bundles = append(servers, b), append(bundles, string(bundle))
	}
	for _, tc := range []struct {
		signs, trusts int
		want          bool
	}{{0, 1, true}, {1, 0, true}, {1, 2, true}, {2, 1, true}, {2, 3, true}, {3, 2, true}, {0, 3, false}, {3, 0, false}} {
		signer, truster := servers[tc.signs].files(t), servers[tc.trusts].files(t)
		check := func(what, trust, chain string, usage []x509.ExtKeyUsage) {
			t.Helper()
			if got := accepts(t, trust, chain, usage, today); got != tc.want {
				t.Errorf("%s of step %d in step %d: accepted: %v, want %v", what, tc.signs, tc.trusts, got, tc.want)
			}
		}
		for _, e := range table {
			if e.kind != KindLeaf || e.etcd {
				continue
			}
			trust, chain := truster[string(e.signer)+".crt"], signer[string(e.name)+".crt"]
			check(string(e.name), trust, chain, e.usage)
			alone, err := parseCerts("", []byte(chain))
			fatal(t, err)
			check(string(e.name)+" alone", trust, string(encodeCerts(alone[:1])), e.usage)
			if e.name == Serving || e.name == KubeletClient {
				check(string(e.name)+" for a node", bundles[tc.trusts], chain, e.usage)
			}
		}
		private, err1 := keyutil.PublicKeysFromFile(keyFile(servers[tc.signs].Dir, ServiceAccount))
		public, err2 := keyutil.PublicKeysFromFile(keyFile(servers[tc.trusts].Dir, ServiceAccount))
		fatal(t, errors.Join(err1, err2))
		if got := slices.ContainsFunc(public, func(key any) bool { return samePublic(key, private[0]) }); got != tc.want {
			t.Errorf("a token of step %d in step %d: accepted: %v, want %v", tc.signs, tc.trusts, got, tc.want)
		}
	}
}

// A new server takes the keys, and another one takes one step or several, with a power cut after every step of that. The next start goes on. What a
// user has added stays.
func TestPowerCutWhileTaking(t *testing.T) {
	steps, rotated := rotateShared(t)
	user := encodeCerts(certsOf(newUserCA(t, "their CA", ecKey(t), nil, today.AddDate(20, 0, 0))))
	take := func(from, to, n int) (cut bool) {
		t.Helper()
		b := newTestbed(t)
		if from >= 0 {
			_, err := steps[from].Take(b.Config, rotated)
			fatal(t, err)
			b.put(t, "client-ca.crt", slices.Concat(user, []byte(b.files(t)["client-ca.crt"])))
			b.ensure(t)
		}
		config := b.Config
		config.fault, _ = cutAfter(n)
		taken, err := steps[to].Take(config, rotated)
		if cut = err != nil; cut && !errors.Is(err, errPowerCut) || !cut && taken != (from >= 0 && from != to) {
			t.Fatalf("taken: %v, %v", taken, err)
		}
		for name, sum := range fingerprints(t, readShared(t, b)) {
			if !slices.Contains(rotated, sum) {
				t.Errorf("%s is another key", name)
			}
		}
		if _, err := steps[to].Take(b.Config, rotated); err != nil {
			t.Fatal(err)
		}
		b.ensure(t)
		b.verify(t, today)
		got := readShared(t, b)
		for _, e := range table {
			if !e.shared() {
				continue
			}
			has, err1 := got.pair(e)
			want, err2 := steps[to].pair(e)
			fatal(t, errors.Join(err1, err2))
			if !slices.Equal(has.rotatedOf(rotated), want.rotatedOf(rotated)) {
				t.Errorf("%s has the keys %v, want %v", e.name, has.rotatedOf(rotated), want.rotatedOf(rotated))
			}
			extra := slices.DeleteFunc(has.certs, func(c *x509.Certificate) bool { return isRotated(c.PublicKey, rotated) })
			if from >= 0 && e.name == ClientCA && string(encodeCerts(extra)) != string(user) {
				t.Error("what the user has added is gone")
			}
		}
		if again, err := steps[to].Take(b.Config, rotated); err != nil || again {
			t.Errorf("taken again: %v, %v", again, err)
		}
		return cut
	}
	for from := -1; from < len(steps); from++ { // -1: from nothing
		for to := max(from, 0); to < len(steps); to++ {
			for n := 0; take(from, to, n) && !t.Failed(); n++ {
			}
			if t.Failed() {
				t.Fatalf("from step %d to %d", from, to)
			}
		}
	}
}
