package datastore

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// pwrote matches strace's line of a write that wrote something.
var pwrote = regexp.MustCompile(`pwrite64\(.*, (\d+), \d+\) += (\d+)`)

// TestShortWrites fills a disk until a write of the WAL or of the database is incomplete, and then
// frees space. The engine continues, and nothing is lost. XFS often makes such short writes, ext4
// sometimes, btrfs never.
func TestShortWrites(t *testing.T) {
	strace := traceable(t)
	for system, divides := range map[string]bool{"ext4": false, "xfs": true, "btrfs": false} {
		t.Run(system, func(t *testing.T) {
			if testing.Short() {
				t.Skip("a file system takes ten seconds or more")
			}
			root := loopMount(t, system)
			short := 0
			for n := 0; n == 0 || divides && short == 0 && n < 10; n++ {
				dir := filepath.Join(root, fmt.Sprint(n))
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				// The database is there before the disk is full.
				e, lock := openLocked(t, dir, Options{})
				put(t, e, "/begin", "x")
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				lock.Close()
				filler, trace := filepath.Join(root, "filler"), filepath.Join(t.TempDir(), "trace")
				leaveRoom(t, filler, int64(600+n*3)<<10)
				freed := false
				heard, said, ended := faultyRun(t, dir, []string{strace, "-f", "-qq", "-o", trace, "-e", "trace=pwrite64", "-s", "0"}, func(heard *testimony) {
					if heard.full > 3 && !freed {
						freed = true
						if err := os.Remove(filler); err != nil {
							t.Error(err)
						}
					}
				})
				if ended != nil {
					t.Errorf("the engine did not continue once there was space: %v: %s", ended, said)
				}
				if !freed {
					os.Remove(filler)
				}
				if err := afterFault(t, dir, heard, newLedger()); err != nil {
					t.Error(err)
				}
				text, err := os.ReadFile(trace)
				if err != nil {
					t.Fatal(err)
				}
				for _, line := range pwrote.FindAllSubmatch(text, -1) {
					asked, _ := strconv.Atoi(string(line[1]))
					did, _ := strconv.Atoi(string(line[2]))
					if did < asked {
						short++
					}
				}
				t.Logf("%d writes acknowledged, %d without room", len(heard.acks), heard.full)
			}
			if divides && short == 0 {
				t.Error("no write was incomplete: this tests nothing")
			}
			t.Logf("%d writes did less than was asked", short)
		})
	}
}
