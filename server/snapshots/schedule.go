package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/snapshot"
)

const (
	// BackupsDir is the directory in the data directory for backups.
	BackupsDir = "backups"
	// BackupSuffix ends the name of a backup.
	BackupSuffix = ".backup"

	scheduledPrefix = "scheduled-" // with another name, a backup is the user's, and stays
)

// overdueDelay is from the start to a backup that was missed: the start has precedence.
const overdueDelay = time.Minute

var (
	lastSuccess = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "karve_backup_last_success_timestamp_seconds", StabilityLevel: metrics.ALPHA,
		Help: "When a scheduled backup last succeeded, or was not necessary because nothing had changed.",
	})
	failedBackup = metrics.NewGauge(&metrics.GaugeOpts{
		Name: "karve_backup_failed", StabilityLevel: metrics.ALPHA, Help: "1 if the last scheduled backup failed.",
	})
	registerBackups = sync.OnceFunc(func() { legacyregistry.MustRegister(lastSuccess, failedBackup) })
)

// ParseSchedule parses --backup-schedule.
func ParseSchedule(text string) (cron.Schedule, error) {
	if strings.HasPrefix(text, "TZ=") || strings.HasPrefix(text, "CRON_TZ=") { // the parser panics if nothing follows
		return nil, fmt.Errorf("--backup-schedule %q: times are in the server's time zone (TZ): leave out another", text)
	}
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return nil, fmt.Errorf("--backup-schedule %q: want five fields of cron, such as \"0 3 * * *\", or @daily: %w", text, err)
	}
	if schedule.Next(time.Now()).IsZero() {
		return nil, fmt.Errorf("--backup-schedule %q: this time never comes", text)
	}
	return schedule, nil
}

// Scheduled is the part that backs up the cluster at set times. Its backups are those of `karve backup create`.
type Scheduled struct {
	Options
	Schedule cron.Schedule
	Dir      string // is created if it is [BackupsDir] in the data directory
	Keep     int    // how many stay
	// Report is called with each failure.
	Report func(context.Context, error)

	engine *datastore.Engine
	free   func(dir string) (bytes int64, known bool) // for tests
}

// Run makes backups until ctx ends.
func (s *Scheduled) Run(ctx context.Context, ready func()) error {
	registerBackups()
	s.engine = s.Connect().Engine
	failure, err := backup.LastFailure(s.engine.Path()) // what karve status reads
	failedBackup.Set(map[bool]float64{true: 1}[failure != nil || err != nil])
	ready() // no start waits for the disk of the backups, which are opened to see whose they are
	last := time.Time{}
	if files := s.files(); len(files) > 0 {
		last = madeAt(files[len(files)-1])
		lastSuccess.Set(float64(last.Unix()))
	}
	for {
		timer := time.NewTimer(time.Until(s.next(last, time.Now())))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		s.once(ctx)
		last = time.Now()
	}
}

// next returns when to make the next backup. One that was missed, because the server did not run, follows soon.
func (s *Scheduled) next(last, now time.Time) time.Time {
	soon := s.Schedule.Next(now)
	if overdue := now.Add(overdueDelay); overdue.Before(soon) {
		soon = overdue
	}
	if last.IsZero() || last.After(now) { // the clock was wrong
		return soon
	}
	if next := s.Schedule.Next(last.In(now.Location())); next.After(soon) {
		return next
	}
	return soon
}

// once makes a backup, and records and reports how it went.
func (s *Scheduled) once(ctx context.Context) {
	made, err := s.backUp(ctx)
	if ctx.Err() != nil {
		return // the server stops
	}
	switch {
	case err != nil:
		failedBackup.Set(1)
		s.Log.Errorf("the scheduled backup failed: %v", err)
		s.Report(ctx, err)
	case made == nil:
		s.Log.Debugf("no backup: nothing has changed since the last one")
	default:
		s.Log.Infof("backed up %d keys at revision %d to %s", made.Keys, made.Revision, made.To)
	}
	if err == nil {
		failedBackup.Set(0)
		lastSuccess.Set(float64(time.Now().Unix()))
	}
	if s.held() != nil {
		return // the records would be another server's
	}
	recorded := backup.SetFailure(s.engine.Path(), err, time.Now())
	if made != nil {
		recorded = errors.Join(recorded, backup.SetLast(made, time.Now()))
	}
	if recorded != nil {
		s.Log.Warnf("karve status will not show this backup: %v", recorded)
	}
}

// backUp makes a backup, verifies it, places it, and removes old ones. It returns nil if nothing has changed
// since the last one.
func (s *Scheduled) backUp(ctx context.Context) (*backup.Result, error) {
	if err := s.held(); err != nil {
		return nil, err
	}
	if s.Dir == filepath.Join(s.DataDir, BackupsDir) { // any other may be on a disk that is not mounted
		if err := atomicfile.MakeDir(s.Dir); err != nil {
			return nil, err
		}
	}
	files := s.files()
	if len(files) > 0 {
		same := false
		err := snapshot.WithFile(filepath.Join(s.Dir, files[len(files)-1]), func(old *snapshot.Snapshot) error {
			same = old.Revision == s.engine.Revision() && s.source(s.engine).HasManifests(old)
			return nil
		})
		if err == nil && same {
			return nil, nil
		}
	}
	temp, err := directory.NewTempDir(s.Dir) // removes what a kill has left
	if err != nil {
		return nil, err
	}
	defer temp.Remove()
	if err := s.checkSpace(); err != nil {
		return nil, err
	}
	made := &backup.Result{From: s.engine.Path()}
	info, err := snapshot.MakeVerified(ctx, temp, func(w io.Writer, scratch string) error {
		_, err := s.write(ctx, s.engine, scratch, w)
		return err
	})
	if err != nil {
		return nil, err
	}
	made.Revision, made.Keys = info.Revision, info.Keys
	if info, err := os.Stat(temp.File()); err == nil {
		made.Bytes = info.Size()
	}
	err = fs.ErrExist
	for at := time.Now().UTC(); errors.Is(err, fs.ErrExist); at = at.Add(time.Second) { // another cluster's may be of the same second
		made.To = filepath.Join(s.Dir, scheduledPrefix+at.Format(directory.Stamp)+BackupSuffix)
		err = atomicfile.RenameNew(temp.File(), made.To)
	}
	if err != nil {
		return nil, err
	}
	s.prune(files, filepath.Base(made.To))
	return made, nil
}

// checkSpace returns an error unless there is space for a backup. While it is made,
// there are two copies of the database.
func (s *Scheduled) checkSpace() error {
	free := s.free
	if free == nil {
		free = directory.FreeBytes
	}
	if err := snapshot.CheckSpace(s.Dir, snapshot.Space(snapshot.SizeOf(s.engine.Path())), free); err != nil {
		return fmt.Errorf("%w, or name another disk with --backup-dir", err)
	}
	return nil
}

// files returns the names of this cluster's scheduled backups, the oldest first. Those of another cluster may be in the same directory.
func (s *Scheduled) files() (names []string) {
	fork, _ := snapshot.ForkOf(context.Background(), s.engine.Source()) // in memory there is none
	entries, _ := os.ReadDir(s.Dir)                                     // making a backup reports the error
	for _, e := range entries {
		if !e.Type().IsRegular() || madeAt(e.Name()).IsZero() {
			continue
		}
		err := snapshot.WithFile(filepath.Join(s.Dir, e.Name()), func(b *snapshot.Snapshot) error {
			if b.Fork != fork {
				return ErrAnotherCluster
			}
			return sameCluster(b, s.DataDir)
		})
		if err == nil {
			names = append(names, e.Name())
		}
	}
	return names // as os.ReadDir sorts them
}

// madeAt returns when a scheduled backup was made, or zero for any other file.
func madeAt(name string) time.Time {
	at, err := time.Parse(scheduledPrefix+directory.Stamp+BackupSuffix, name)
	if err != nil {
		return time.Time{}
	}
	return at
}

// prune removes the oldest of the scheduled backups before the one that was just made, which stays.
func (s *Scheduled) prune(before []string, made string) {
	for _, name := range directory.Surplus(before, made, s.Keep) {
		if err := os.Remove(filepath.Join(s.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.Log.Warnf("an old backup stays: %v", err)
		}
	}
}
