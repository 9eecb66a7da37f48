package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/component-base/metrics/testutil"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/snapshot"
)

func TestParseSchedule(t *testing.T) {
	for _, text := range []string{"@daily", "0 3 * * *", "@every 12h"} {
		if _, err := ParseSchedule(text); err != nil {
			t.Error(err)
		}
	}
	for _, text := range []string{"daily", "0 0 3 * * *", "0 25 * * *", "0 0 30 2 *", "TZ=0", "CRON_TZ=UTC 0 3 * * *"} {
		if _, err := ParseSchedule(text); err == nil || !strings.Contains(err.Error(), "--backup-schedule") {
			t.Errorf("%q: got %v, want an error that names the option", text, err)
		}
	}
}

// A backup that was missed follows a minute after the start, and no clock that was wrong keeps one away.
func TestNextBackup(t *testing.T) {
	daily, err := ParseSchedule("0 3 * * *")
	if err != nil {
		t.Fatal(err)
	}
	often, err := ParseSchedule("@every 1s")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 5, 5, 12, 0, 0, 0, time.UTC)
	for name, test := range map[string]struct {
		schedule interface{ Next(time.Time) time.Time }
		last     time.Time
		want     time.Time
	}{
		"the first":             {daily, time.Time{}, now.Add(overdueDelay)},
		"missed":                {daily, now.AddDate(0, 0, -1), now.Add(overdueDelay)},
		"made":                  {daily, now.Add(-time.Hour), time.Date(2026, 5, 6, 3, 0, 0, 0, time.UTC)},
		"made in the future":    {daily, now.AddDate(1, 0, 0), now.Add(overdueDelay)},
		"more than each minute": {often, time.Time{}, now.Add(time.Second)},
	} {
		s := Scheduled{Schedule: test.schedule}
		if got := s.next(test.last, now); !got.Equal(test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestScheduledBackups(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "certs", "service-account.key")
	if err := errors.Join(os.MkdirAll(filepath.Dir(key), 0o700), os.WriteFile(key, []byte("ours"), 0o600)); err != nil {
		t.Fatal(err)
	}
	engine := enginetest.Open(t, dir, datastore.Options{})
	var reported []error
	quiet := logrus.New()
	quiet.Out = io.Discard
	s := &Scheduled{
		Options: Options{DataDir: dir, Log: quiet}, Dir: filepath.Join(dir, BackupsDir), Keep: 2, engine: engine,
		Report: func(_ context.Context, err error) { reported = append(reported, err) },
	}
	put := func() {
		t.Helper()
		if _, err := engine.Put(t.Context(), datastore.PutRequest{Key: "/registry/a", Value: []byte("v")}); err != nil {
			t.Fatal(err)
		}
	}
	record := func() (*backup.Record, *backup.Failure) {
		t.Helper()
		last, err := backup.Last(engine.Path())
		failure, failureErr := backup.LastFailure(engine.Path())
		if err := errors.Join(err, failureErr); err != nil {
			t.Fatal(err)
		}
		return last, failure
	}

	put()
	s.once(t.Context())
	first := s.files()
	last, failure := record()
	if len(first) != 1 || failure != nil || last == nil || filepath.Base(last.File) != first[0] || last.Revision != engine.Revision() {
		t.Fatalf("got files %q, record %+v, failure %+v", first, last, failure)
	}
	err := snapshot.WithFile(last.File, func(made *snapshot.Snapshot) error {
		_, err := made.Verify(t.Context(), t.TempDir())
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if made, err := s.backUp(t.Context()); made != nil || err != nil {
		t.Errorf("unchanged: got %+v, %v, want no backup", made, err)
	}
	manifest := filepath.Join(dir, "manifests", "a.yaml")
	if err := errors.Join(os.Mkdir(filepath.Dir(manifest), 0o700), os.WriteFile(manifest, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	s.free = func(string) (int64, bool) { return snapshot.Space(0), true }
	if made, err := s.backUp(t.Context()); err == nil {
		t.Errorf("a new manifest: got %+v, want that it tries", made)
	}
	s.free = nil

	// Only the oldest of its own go, and only after a new one.
	name := func(year, day int) string {
		return time.Date(year, 1, day, 0, 0, 0, 0, time.UTC).Format(scheduledPrefix + directory.Stamp + BackupSuffix)
	}
	whole, err := os.ReadFile(last.File)
	if err != nil {
		t.Fatal(err)
	}
	for day := range 3 {
		if err := os.WriteFile(filepath.Join(s.Dir, name(2020, 1+day)), whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	users := []string{"karve-20200101T000000Z.backup", "scheduled-mine.backup", "scheduled-20200101T000000Z.backup.txt"}
	for _, name := range users {
		if err := os.WriteFile(filepath.Join(s.Dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Another cluster's are of the same revision, and the newest.
	if err := os.WriteFile(key, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if files := s.files(); len(files) > 0 {
		t.Errorf("another cluster counts %q", files)
	}
	theirs := filepath.Join(s.Dir, name(2099, 1))
	if made, err := s.backUp(t.Context()); err != nil || made == nil {
		t.Errorf("the first backup of another cluster: got %+v, %v", made, err)
	} else if err := os.Rename(made.To, theirs); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, []byte("ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	users = append(users, filepath.Base(theirs))

	put()
	s.free = func(string) (int64, bool) { return snapshot.Space(0), true }
	s.once(t.Context())
	stopped, stop := context.WithCancel(t.Context())
	stop()
	failedBackup.Set(0) // as in the next process
	if s.Schedule, err = ParseSchedule("@yearly"); err != nil {
		t.Fatal(err)
	}
	s.Connect = func() Connection { return Connection{Engine: engine} }
	if err := s.Run(stopped, func() {}); err != nil {
		t.Error(err)
	}
	if failed, err := testutil.GetGaugeMetricValue(failedBackup); err != nil || failed != 1 {
		t.Errorf("after a restart: got karve_backup_failed %v, %v, want 1", failed, err)
	}
	if _, failure = record(); failure == nil || len(reported) != 1 || !strings.Contains(failure.Problem, "MiB free") || len(s.files()) != 4 {
		t.Errorf("without space: got failure %+v, reports %v and files %q", failure, reported, s.files())
	}
	s.free = nil
	if err := os.Rename(filepath.Join(s.Dir, first[0]), filepath.Join(s.Dir, "scheduled-20200104T000000Z.backup")); err != nil { // a second ago
		t.Fatal(err)
	}
	s.once(t.Context())
	last, failure = record()
	if got := fmt.Sprint(s.files()); failure != nil || got != fmt.Sprint([]string{"scheduled-20200104T000000Z.backup", filepath.Base(last.File)}) {
		t.Errorf("got files %s and failure %+v, want the two newest", got, failure)
	}
	for _, name := range users {
		if _, err := os.Stat(filepath.Join(s.Dir, name)); err != nil {
			t.Errorf("a file of the user's is gone: %v", err)
		}
	}
	if left := enginetest.Glob(t, s.Dir, ".*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}

	// A disk that is not mounted is not replaced by a directory.
	s.Dir = filepath.Join(t.TempDir(), "mnt")
	s.once(t.Context())
	if _, err := os.Stat(s.Dir); err == nil || len(reported) != 2 {
		t.Errorf("got %v and reports %v, want a failure and no directory", err, reported)
	}

	// Another directory has the name of the data directory: nothing is written there.
	os.Remove(engine.Path() + ".backup-failure")
	s.Held = func() error { return directory.ErrReplaced }
	s.once(t.Context())
	if _, failure = record(); failure != nil || len(reported) != 3 {
		t.Errorf("got failure %v and reports %v, want a report and no record", failure, reported)
	}
}
