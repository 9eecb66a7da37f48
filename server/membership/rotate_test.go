package membership

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/certs"
)

// rotate takes steps that all servers have taken, and checks that they are those that are wanted.
func (c Cluster) rotate(t *testing.T, token *Token, k Kind, want ...Step) {
	t.Helper()
	for _, step := range want {
		drop := step == Dropped || step == Finished
		if got, err := c.RotateKeys(t.Context(), token, k, drop, func(string) error { return nil }); err != nil || got != step {
			t.Fatalf("got the step %q, %v, want %q", got, err, step)
		}
	}
}

// formers returns how many certificates s trusts as authorities of servers besides its own.
func (s Server) formers(t *testing.T) int {
	t.Helper()
	return strings.Count(content(t, s.Certs.Dir)["server-ca.crt"], "BEGIN") - 1
}

// A server takes each step when it starts. One that was away takes all of them, and others are refused.
func TestRotateShared(t *testing.T) {
	for _, database := range []bool{false, true} {
		c, token := clusterIn(emptyStore(t, database), prefix), newToken(t)
		one, away, without, stranger := newServer(t, token), newServer(t, token), newServer(t, nil), started(t, token)
		c.join(t, one)
		c.join(t, away)
		if _, err := c.RotateKeys(t.Context(), token, Authorities, true, nil); err == nil {
			t.Error("dropped before there was a rotation")
		}
		before := one.keys(t)
		c.rotate(t, token, Authorities, Introduced)
		c.rotate(t, token, ServiceAccountKey, Introduced)
		if _, err := c.RotateKeys(t.Context(), token, Authorities, true, nil); err == nil || !strings.Contains(err.Error(), "do not sign yet") {
			t.Errorf("dropped before the new keys sign: %v", err)
		}
		if done := c.join(t, one); !done.Taken || !maps.Equal(before, one.keys(t)) || one.formers(t) != 2 {
			t.Errorf("got %+v, want the new authorities trusted", done)
		} else if steps := done.Steps; !strings.Contains(steps, "introduced") || c.join(t, one) != (Outcome{Steps: steps}) {
			t.Error("the next start does something else")
		}

		next := newToken(t)
		if err := c.Rotate(t.Context(), token, next, nil); err != nil {
			t.Fatal(err)
		}
		one.Token, away.Token, stranger.Token = next, next, next
		stored, late := c.stored(t), errors.New("late")
		if _, err := c.RotateKeys(t.Context(), next, Authorities, false, func(step string) error {
			if !strings.Contains(stored, step) {
				t.Errorf("the step %s is not in the record", step)
			}
			return late
		}); !errors.Is(err, late) || c.stored(t) != stored {
			t.Errorf("a server is late: got %v", err)
		}
		c.rotate(t, next, Authorities, Switched, Switched)
		c.rotate(t, next, ServiceAccountKey, Switched)
		c.join(t, one)
		after := one.keys(t)
		for name, key := range after {
			if key == before[name] {
				t.Errorf("%s has the same key", name)
			}
		}
		without.Certs = away.Certs
		c.refused(t, without, "are not the cluster's", "--cluster-token-file")
		c.refused(t, stranger, "are not the cluster's")

		c.rotate(t, next, Authorities, Dropped, Finished)
		c.rotate(t, next, ServiceAccountKey, Dropped, Finished)
		for _, s := range []Server{one, away, newServer(t, next)} {
			if c.join(t, s); !maps.Equal(s.keys(t), after) || s.formers(t) != 0 {
				t.Errorf("got %v and %d former authorities, want %v and none", s.keys(t), s.formers(t), after)
			}
		}
		c.rotate(t, next, Authorities, Introduced)
	}
}

// The token is lost between two steps. The server that has the keys may not know what was introduced, or what was dropped.
func TestLostTokenDuringARotation(t *testing.T) {
	all := []Step{Introduced, Switched, Dropped}
	for n, at := range all {
		for _, behind := range []bool{false, true} {
			if behind && at == Switched {
				continue // its keys are not the cluster's: it is refused
			}
			c, token, next := emptyCluster(t), newToken(t), newToken(t)
			one := newServer(t, token)
			for _, step := range all[:n+1] {
				c.join(t, one)
				c.rotate(t, token, Authorities, step)
			}
			if !behind {
				c.join(t, one)
			}
			keys := one.keys(t)
			if err := c.Reseal(t.Context(), one.Certs.Dir, next, nil); err != nil {
				t.Fatal(err)
			}
			two := newServer(t, next)
			want, then := 0, []Step{Introduced, Switched}
			if at == Switched {
				want, then = 2, []Step{Switched, Dropped}
			}
			if c.join(t, two); !maps.Equal(two.keys(t), keys) || two.formers(t) != want {
				t.Errorf("%s: another server has the keys %v and trusts %d others, want %v and %d", at, two.keys(t), two.formers(t), keys, want)
			}
			c.rotate(t, next, Authorities, then...)
		}
	}
}

// The datastore is a backup from before the rotation: servers keep their keys, and are refused until the user moves those away.
func TestABackupFromBeforeTheRotation(t *testing.T) {
	c, token := emptyCluster(t), newToken(t)
	one := newServer(t, token)
	c.join(t, one)
	backup, before := c.stored(t), one.keys(t)
	for _, step := range []Step{Introduced, Switched, Dropped} {
		c.rotate(t, token, Authorities, step)
		c.join(t, one)
		if step == Introduced {
			continue // its keys are the same
		}
		rotated := c.stored(t)
		c.put(t, c.key(), backup)
		c.refused(t, one, "are not the cluster's", "move these files away")
		c.put(t, c.key(), rotated)
	}
	c.put(t, c.key(), backup)
	one.lose(t, certs.ServerCA, certs.ClientCA, certs.FrontProxyCA)
	if c.join(t, one); !maps.Equal(before, one.keys(t)) {
		t.Error("the keys are not those of the backup")
	}
}
