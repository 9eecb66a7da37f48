// Package filewatch reads files again when they have changed. One watcher, and so one inotify
// instance, serves all files that the process follows: a user has 128 instances by default, and
// upstream's code takes one for each file.
package filewatch

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// every is how often files are read that nothing tells of, as upstream does. Tests change it.
var every = time.Minute

const (
	// firstRetry is the time until files that cannot be used are read again. It doubles each time.
	firstRetry = 10 * time.Millisecond
	// patience is how long files may be unusable before that is a problem: a certificate and its
	// key are replaced one after the other.
	patience = time.Second
)

// Runner is one of upstream's file readers: a ControllerRunner of package dynamiccertificates.
type Runner interface {
	RunOnce(context.Context) error
	Run(ctx context.Context, workers int)
}

// Reader makes one of upstream's file readers follow its files with the watcher of this process instead
// of a watcher of its own.
type Reader struct {
	Upstream Runner
	Files    []string
}

// RunOnce reads the files.
func (r Reader) RunOnce(ctx context.Context) error { return r.Upstream.RunOnce(ctx) }

// Run reads the files whenever they have changed, until ctx ends.
func (r Reader) Run(ctx context.Context, _ int) {
	// This ends the goroutines of the queue that upstream's own loop would use.
	ended, end := context.WithCancel(ctx)
	end()
	r.Upstream.Run(ended, 1)
	Follow(ctx, r.RunOnce, r.Files...)
}

// Follow calls read now, when one of the files may have changed, and every minute, until ctx ends. If
// read fails, it calls it again soon, and logs an error that does not go away.
func Follow(ctx context.Context, read func(context.Context) error, files ...string) {
	f := &follower{files: files, changed: make(chan struct{}, 1)}
	shared.join(f)
	defer shared.leave(f)
	var failing time.Time // since when; zero: the files can be used
	retry, told := firstRetry, ""
	for {
		shared.watch(f) // first, so that no change after the read is missed
		next := every
		if err := read(ctx); err == nil {
			failing, retry, told = time.Time{}, firstRetry, ""
		} else {
			if failing.IsZero() {
				failing = time.Now()
			}
			if time.Since(failing) >= patience && err.Error() != told {
				told = err.Error()
				klog.ErrorS(err, "Files have changed and cannot be used: what was read of them before stays in use", "files", files)
			}
			next, retry = retry, min(2*retry, every)
		}
		timer := time.NewTimer(next)
		select {
		case <-f.changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// follower is one call of Follow.
type follower struct {
	files   []string
	changed chan struct{}   // has room for one
	paths   map[string]bool // whose changes count; guarded by watcher.mu
}

// watcher watches the directories in which files and the links to them are. In a directory, a file
// can be replaced by another of its name.
type watcher struct {
	open func() (*fsnotify.Watcher, error)

	mu        sync.Mutex // never held while notify is called, which may wait for a reader of its events
	followers map[*follower]bool

	using  sync.Mutex
	notify *fsnotify.Watcher // nil: there is none
	told   map[string]bool   // what was logged
}

func newWatcher(open func() (*fsnotify.Watcher, error)) *watcher {
	return &watcher{open: open, followers: map[*follower]bool{}, told: map[string]bool{}}
}

var shared = newWatcher(fsnotify.NewWatcher)

func (w *watcher) join(f *follower) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.followers[f] = true
}

// leave ends the watcher with its last follower.
func (w *watcher) leave(f *follower) {
	w.using.Lock()
	defer w.using.Unlock()
	w.mu.Lock()
	delete(w.followers, f)
	last := len(w.followers) == 0
	w.mu.Unlock()
	if last {
		if w.notify != nil {
			_ = w.notify.Close()
		}
		w.notify, w.told = nil, map[string]bool{}
	}
}

// watch adds what f follows now to what is watched. A link may lead elsewhere since the last call, and
// a directory may be another one of the same name. Watches that nobody needs any more stay: their
// events are ignored, and those of deleted directories end by themselves.
func (w *watcher) watch(f *follower) {
	paths := map[string]bool{}
	var all []string
	for _, file := range f.files {
		all = append(all, steps(file)...)
	}
	for _, path := range all {
		paths[path], paths[filepath.Dir(path)] = true, true
	}
	w.mu.Lock()
	f.paths = paths
	w.mu.Unlock()

	w.using.Lock()
	defer w.using.Unlock()
	if w.notify == nil {
		notify, err := w.open()
		if err != nil {
			w.tell(notWatched("files", err))
			return
		}
		w.notify = notify
		go w.receive(notify)
	}
	for _, path := range all {
		err := w.notify.Add(filepath.Dir(path))
		if err != nil { // this user may read the file and not its directory
			err = w.notify.Add(path)
		}
		if err != nil {
			w.tell(notWatched(path, err))
		}
	}
}

// tell logs a warning once.
func (w *watcher) tell(warning string) {
	if warning != "" && !w.told[warning] {
		w.told[warning] = true
		klog.Warning(warning)
	}
}

// receive wakes followers until notify is closed.
func (w *watcher) receive(notify *fsnotify.Watcher) {
	for {
		select {
		case event, ok := <-notify.Events:
			if !ok {
				return
			}
			w.wake(filepath.Clean(event.Name))
		case _, ok := <-notify.Errors: // events may be lost
			if !ok {
				return
			}
			w.wake("")
		}
	}
}

// wake wakes the followers of a path; empty: all.
func (w *watcher) wake(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for f := range w.followers {
		if path == "" || f.paths[path] {
			select {
			case f.changed <- struct{}{}:
			default: // it reads the files in any case
			}
		}
	}
}
