package datastore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Another process starts and stops while readers come at any moment. They see consistent contents,
// or get the error that the file is in use. Each start waits for them.
func TestReadersDuringStartsAndStops(t *testing.T) {
	dir := writtenStore(t, true)
	path := filepath.Join(dir, EngineFile)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), "KARVE_CRASH_DIR="+dir, "KARVE_CRASH_MODE=restarts-full")
	var said bytes.Buffer
	child.Stdout, child.Stderr = &said, &said
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	var last int64
	reads, refused := 0, 0
	for running := true; running; reads++ {
		select {
		case err := <-ended:
			running = false
			if err != nil {
				t.Fatalf("%v: %s", err, &said)
			}
		default:
		}
		v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(path), nil)
		if errors.Is(err, sqlitefile.ErrBusy) {
			refused++
			continue
		}
		if err != nil || !v.OK || v.Revision < last {
			t.Fatalf("read %d: %+v, %v; want it sound, at revision %d at least", reads, v, err, last)
		}
		last = v.Revision
		if _, err := backup.Write(t.Context(), sqlitefile.ClosedFile(path), filepath.Join(t.TempDir(), "b")); err != nil && !errors.Is(err, sqlitefile.ErrBusy) {
			t.Fatalf("backup %d: %v", reads, err)
		}
	}
	if want := int64(301 + restarts*30); last != want {
		t.Errorf("revision %d at the end, want %d", last, want)
	}
	t.Logf("%d reads, of which %d met a running engine", reads, refused)
}

// restarts is the number of times that restartingChild starts and stops an engine.
const restarts = 15

func restartingChild(dir string) error {
	for i := range restarts {
		lock, err := directory.Acquire(dir)
		if err != nil {
			return err
		}
		e, err := OpenEngine(lock, Options{BallastBytes: -1})
		if err != nil {
			return err
		}
		for j := range 30 {
			value := []byte(strings.Repeat(fmt.Sprint(i), 500))
			if _, err := e.Put(context.Background(), PutRequest{Key: fmt.Sprint("/k/", j), Value: value}); err != nil {
				return err
			}
		}
		if err := errors.Join(e.Close(), lock.Close()); err != nil {
			return err
		}
	}
	return nil
}
