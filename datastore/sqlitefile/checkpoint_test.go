package sqlitefile

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// A checkpoint comes when the WAL has its target size, however small the commits are: their
// estimate is several times what they write.
func TestCheckpointAtTheSizeOfTheWAL(t *testing.T) {
	t.Run("full", func(t *testing.T) { checkpointsAtTheSize(t, false, walTargetFull) })
	t.Run("relaxed", func(t *testing.T) { checkpointsAtTheSize(t, true, walTargetRelaxed) })
}

func checkpointsAtTheSize(t *testing.T, relaxed bool, walTarget int64) {
	f, err := Open(filepath.Join(t.TempDir(), FileName), relaxed)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(false)
	checkpoints := 0
	f.OnStep(func(step string) error {
		if step == "checkpoint" {
			checkpoints++
		}
		return nil
	})
	commits := int64(0)
	for ; checkpoints < 3; commits++ {
		r := oneRow{Row{ID: RowID(commits+2, 0), Key: "/k", Create: 2, Version: commits + 1}, []byte(strings.Repeat(fmt.Sprint(commits%10), 400))}
		if err := f.Commit(Batch{Rows: &r}); err != nil {
			t.Fatal(err)
		}
		if err := f.Checkpoint(false, true); err != nil {
			t.Fatal(err)
		}
		if checkpoints == 0 && f.WALBytes() > walTarget+1<<16 {
			t.Fatalf("no checkpoint although the WAL has %d bytes, its target is %d", f.WALBytes(), walTarget)
		}
	}
	// A WAL that is restarted keeps its size, so this is the largest that it was.
	if got := f.WALBytes(); got < walTarget*3/4 || got > walTarget+1<<16 {
		t.Errorf("the WAL has %d bytes after three checkpoints and %d commits, its target is %d", got, commits, walTarget)
	}
}
