package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/snapshot"
)

// The names of backups that the server makes. It removes old ones of its own only.
const (
	BackupPrefix = "karve-"
	BackupSuffix = ".backup"
)

// BackupName is the name of a backup of this time.
func BackupName(at time.Time) string {
	return BackupPrefix + at.UTC().Format("20060102T150405Z") + BackupSuffix
}

var (
	lastGood = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "karve_backup_last_success_timestamp_seconds", Help: "When the newest good backup of --backup-schedule was made, in seconds since 1970; 0 is never.",
		StabilityLevel: metrics.ALPHA,
	})
	failures = metrics.NewCounter(&metrics.CounterOpts{
		Name: "karve_backup_failures_total", Help: "Backups of --backup-schedule that failed since the start.", StabilityLevel: metrics.ALPHA,
	})
	registerBackups = sync.OnceFunc(func() { legacyregistry.MustRegister(lastGood, failures) })
)

// Schedule makes backups while the server runs.
type Schedule struct {
	When      cron.Schedule
	Dir       string
	Retention int // how many backups stay
	Log       *logrus.Logger
	// Failed is told of each backup that fails, for example to write an Event. It may fail itself.
	Failed func(ctx context.Context, why error)

	mu    sync.Mutex
	state control.Backups
}

// ParseSchedule reads --backup-schedule, in cron's syntax.
func ParseSchedule(text string) (cron.Schedule, error) {
	when, err := cron.ParseStandard(text)
	if err != nil {
		return nil, fmt.Errorf("--backup-schedule %q: want five fields as in a crontab, such as \"30 3 * * *\", or @daily: %w", text, err)
	}
	return when, nil
}

// look is how often the clock is read: it may be set while the server waits.
const look = time.Minute

// Run makes backups until ctx ends. A backup that was due while the server did not run is not made up for. from is called for each.
func (s *Schedule) Run(ctx context.Context, engine *datastore.Engine, from func() snapshot.Source) {
	registerBackups()
	s.note(nil)
	for {
		for due := s.When.Next(time.Now()); ; {
			left := time.Until(due)
			if left <= 0 {
				break
			}
			select {
			case <-time.After(min(left, look)):
			case <-ctx.Done():
				return
			}
		}
		err := s.make(ctx, engine.Revision(), from())
		if ctx.Err() != nil {
			return
		}
		s.note(err)
		if err != nil {
			failures.Inc()
			s.Log.Errorf("the backup of --backup-schedule failed: %v", err)
			s.Failed(ctx, err)
		}
	}
}

// make makes a backup, unless the newest has the same revision, and removes those beyond the retention.
func (s *Schedule) make(ctx context.Context, revision int64, from snapshot.Source) error {
	if err := atomicfile.MakeDir(s.Dir); err != nil {
		return err
	}
	if newest := s.newest(); newest != nil && newest.Revision == revision {
		return nil
	}
	// The copy of the database and the file are there at the same time.
	if err := directory.NeedSpace(s.Dir, 2*sizeOf(from)); err != nil {
		return err
	}
	file := filepath.Join(s.Dir, BackupName(time.Now()))
	from.Sum = true
	if _, err := snapshot.Make(ctx, from, file, false); err != nil {
		return err
	}
	err := snapshot.WithFile(file, func(made *snapshot.Snapshot) error {
		_, err := made.Verify(ctx, s.Dir)
		return err
	})
	if err != nil {
		return errors.Join(err, os.Remove(file))
	}
	s.Log.Infof("made the backup %s", file)
	return s.prune()
}

// sizeOf is the size of the database to back up; 0 if it is not known.
func sizeOf(from snapshot.Source) int64 {
	info, err := os.Stat(filepath.Join(from.StoreDir, datastore.EngineFile))
	if err != nil {
		return 0
	}
	return info.Size()
}

// files are the backups, the oldest first.
func (s *Schedule) files() ([]string, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, BackupPrefix) && strings.HasSuffix(name, BackupSuffix) && e.Type().IsRegular() {
			all = append(all, filepath.Join(s.Dir, name))
		}
	}
	slices.Sort(all)
	return all, err
}

// newest is what the newest backup says of itself; nil if there is none.
func (s *Schedule) newest() *snapshot.Info {
	files, _ := s.files() // the next backup reports the error
	for _, file := range slices.Backward(files) {
		var info *snapshot.Info
		if err := snapshot.WithFile(file, func(b *snapshot.Snapshot) error { info = &b.Info; return nil }); err == nil {
			return info
		}
	}
	return nil
}

// prune removes the oldest backups.
func (s *Schedule) prune() error {
	files, err := s.files()
	for len(files) > s.Retention && err == nil {
		err = os.Remove(files[0])
		s.Log.Infof("removed the backup %s: --backup-retention is %d", files[0], s.Retention)
		files = files[1:]
	}
	return err
}

// note records the result of a backup.
func (s *Schedule) note(err error) {
	next, newest := s.When.Next(time.Now()), s.newest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = control.Backups{Dir: s.Dir, Next: &next}
	if newest != nil {
		s.state.Last = &newest.Time
		lastGood.Set(float64(newest.Time.Unix()))
	}
	if err != nil {
		s.state.Problem = err.Error()
	}
}

// State is what `karve status` shows.
func (s *Schedule) State() control.Backups {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}
