package durability

import (
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"
)

// What clients see through the API server is linearizable across kills, stops, resets and restores,
// in each durability mode, and each watch reports what the lists contain. KARVE_HISTORIES is the
// number of lives; the default is a short history.
func TestHistories(t *testing.T) {
	for _, c := range []struct{ collection, mode string }{{"configmaps", "full"}, {"leases", "relaxed"}} {
		t.Run(c.collection+" "+c.mode, func(t *testing.T) {
			h := newServerHistory(t, collections[c.collection], "--durability", c.mode)
			copies := t.TempDir()
			snapshot, backup := filepath.Join(copies, "snapshot"), filepath.Join(copies, "backup")
			work := func(most time.Duration) { time.Sleep(time.Duration(rand.Int64N(int64(most)))) }
			lives := max(rounds(t, 5), 5)
			for n := range lives {
				api := h.start()
				h.live(api, n%4 != 3, func() {
					work(2 * time.Second)
					switch n % 5 {
					case 1:
						h.command(input{action: save, slot: snapshotSlot}, "snapshot", "--overwrite", "--data-dir", h.server.DataDir, snapshot)
						h.command(input{action: save, slot: backupSlot}, "backup", "create", "--overwrite", "--data-dir", h.server.DataDir, backup)
					case 2, 3:
						h.command(input{action: reset, slot: snapshotSlot}, "reset", "--yes", "--no-backup", "--data-dir", h.server.DataDir, snapshot)
					}
					work(2 * time.Second)
				})
				if n%5 == 3 {
					h.command(input{action: restore, slot: backupSlot}, "datastore", "restore", "--data-dir", h.server.DataDir, backup)
				}
			}
			h.look()
			h.check()
			if h.unknown == 0 {
				t.Error("no call was in progress at a kill")
			}
		})
	}
}
