package directory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Of two machines that share a directory, one can use it: whoever was there first, until
// it has let go, also if it was killed.
func TestTwoHosts(t *testing.T) {
	dir := t.TempDir()
	one := claim{Host: "one", Boot: "b1", PID: 11}
	two := claim{Host: "two", Boot: "b2", PID: 22}
	claims := func(host claim, want bool) {
		t.Helper()
		err := claimDir(dir, host)
		if want && err != nil {
			t.Errorf("%+v is refused: %v", host, err)
		}
		if !want && (!errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "machine one") || !strings.Contains(err.Error(), filepath.Join(dir, claimFile))) {
			t.Errorf("%+v: got %v, want ErrLocked, which names the machine and the file", host, err)
		}
	}
	claims(one, true)
	claims(two, false)
	claims(claim{Host: "one", Boot: "b3"}, false)      // a clone of its disk, or started again
	claims(claim{Host: "container", Boot: "b1"}, true) // killed, and started in a container
	claims(one, true)
	claims(claim{Host: "one"}, false)
	if err := unclaim(dir); err != nil {
		t.Fatal(err)
	}
	claims(two, true)
	if err := os.WriteFile(filepath.Join(dir, claimFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := claimDir(dir, two); !errors.Is(err, ErrLocked) { // cut off by a loss of power: whose it was is not known
		t.Errorf("a claim that cannot be read: %v, want %v", err, ErrLocked)
	}
}

func TestHostsAtOnce(t *testing.T) {
	for range 50 {
		dir := t.TempDir()
		var won sync.Map
		var both sync.WaitGroup
		for _, name := range []string{"one", "two"} {
			both.Go(func() {
				if claimDir(dir, claim{Host: name, Boot: name}) == nil {
					won.Store(name, true)
				}
			})
		}
		both.Wait()
		winners := 0
		won.Range(func(any, any) bool { winners++; return true })
		if winners != 1 {
			t.Fatalf("%d of two machines that claim a directory at once have it", winners)
		}
	}
}

// A lock on a local disk has no claim: the disk may come from another machine.
func TestNoClaimOnALocalDisk(t *testing.T) {
	dir := t.TempDir()
	if networked(dir) {
		t.Skip("temporary files are on a network's file system here")
	}
	lock, err := Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if left, _ := filepath.Glob(filepath.Join(dir, claimFile)); len(left) > 0 {
		t.Errorf("%v is there", left)
	}
	if host := thisHost(); !host.sameHost(host) {
		t.Errorf("%+v does not know itself", host)
	}
}
