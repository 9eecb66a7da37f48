package datastore

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestLeases(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	l, err := e.Grant(t.Context(), 0, 100)
	if err != nil || l.ID <= 0 {
		t.Fatalf("grant: %+v, %v", l, err)
	}
	if _, err := e.Grant(t.Context(), l.ID, 100); !errors.Is(err, ErrLeaseExists) {
		t.Errorf("grant of the same id: %v", err)
	}
	if _, err := e.Grant(t.Context(), 7, 0); err == nil {
		t.Error("a TTL of 0 was granted")
	}
	if _, err := e.Put(t.Context(), PutRequest{Key: "/a", Lease: l.ID + 1}); !errors.Is(err, ErrLeaseNotFound) {
		t.Errorf("put with no such lease: %v", err)
	}
	for _, key := range []string{"/a", "/b", "/c", "/d"} {
		if _, err := e.Put(t.Context(), PutRequest{Key: key, Lease: l.ID}); err != nil {
			t.Fatal(err)
		}
	}
	put(t, e, "/b", "no longer attached")
	if _, err := e.Delete(t.Context(), DeleteRequest{Key: "/c"}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Put(t.Context(), PutRequest{Key: "/d", IgnoreLease: true}); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()

	e = openTest(t, dir, Options{})
	info, err := e.TimeToLive(t.Context(), l.ID, true)
	if err != nil || info.TTL != 100 || !slices.Equal(info.Keys, []string{"/a", "/d"}) {
		t.Fatalf("after a start: %+v, %v; want the keys /a and /d", info, err)
	}
	before := e.Revision()
	if err := e.Revoke(t.Context(), l.ID); err != nil {
		t.Fatal(err)
	}
	if got := e.Revision(); got != before+1 {
		t.Errorf("revoking took the revision from %d to %d, want one", before, got)
	}
	if get(t, e, "/a", 0) != nil || get(t, e, "/d", 0) != nil || get(t, e, "/b", 0) == nil {
		t.Error("the keys of the lease are there, or another one is not")
	}
	if err := e.Revoke(t.Context(), l.ID); !errors.Is(err, ErrLeaseNotFound) {
		t.Errorf("revoked again: %v", err)
	}
	if got, err := e.Leases(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("leases: %v, %v, want none", got, err)
	}
}

func TestLeaseExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := OpenEngine(nil, Options{Durability: Memory})
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		for id := int64(1); id <= 3; id++ {
			if _, err := e.Grant(t.Context(), id, 10*id); err != nil {
				t.Fatal(err)
			}
			if _, err := e.Put(t.Context(), PutRequest{Key: fmt.Sprint("/", id), Lease: id}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(9 * time.Second)
		if _, err := e.KeepAlive(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			wait time.Duration
			want []int64
		}{{2, []int64{1, 2, 3}}, {9, []int64{3}}, {10, nil}} { // 11 s, 20 s, 30 s
			time.Sleep(step.wait * time.Second)
			synctest.Wait()
			leases, err := e.Leases(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, l := range leases {
				got = append(got, l.ID)
			}
			slices.Sort(got)
			if !slices.Equal(got, step.want) {
				t.Errorf("leases: %v, want %v", got, step.want)
			}
			if n := e.Stats().Keys; n != int64(len(step.want)) {
				t.Errorf("%d keys, want %d", n, len(step.want))
			}
		}
		if _, err := e.KeepAlive(t.Context(), 1); !errors.Is(err, ErrLeaseNotFound) {
			t.Errorf("keep alive of an expired lease: %v", err)
		}
	})
}
