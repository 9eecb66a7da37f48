// Witness writes to the servers of one cluster, watches each of them, and says at the end what went wrong:
//
//	go run ./scripts/witness KUBECONFIG…         until SIGTERM
//	go run ./scripts/witness leaders AUDITLOG…
//
// A server may be away at any time, and a file may appear later. Everything that a server has acknowledged must be
// there at the end, with its uid. A read at another server must have it immediately. A watch must have each event
// once, in the order of the revisions, and all watches must have the same. A Deployment keeps controllers and
// scheduler at work.
//
// The second form reads audit logs, one of each life of a server: two must not have writes of controllers, or
// of the scheduler, at the same time.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

// faults are what went wrong.
type faults struct {
	mu  sync.Mutex
	all []string
}

func (f *faults) addf(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = append(f.all, fmt.Sprintf(format, args...))
}

// err is the first faults as one error.
func (f *faults) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var problems []error
	for _, one := range f.all[:min(len(f.all), 20)] {
		problems = append(problems, errors.New(one))
	}
	if more := len(f.all) - len(problems); more > 0 {
		problems = append(problems, fmt.Errorf("and %d more", more))
	}
	return errors.Join(problems...)
}

func main() {
	err := errors.New("usage: witness KUBECONFIG… | witness leaders AUDITLOG…")
	switch args := os.Args[1:]; {
	case len(args) > 1 && args[0] == "leaders":
		err = leaders(args[1:])
	case len(args) > 0 && args[0] != "leaders":
		err = run(args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "witness:", err)
		os.Exit(1)
	}
}

func run(kubeconfigs []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	w := &world{}
	for _, file := range kubeconfigs {
		w.servers = append(w.servers, &server{file: file})
	}
	if err := w.begin(ctx); err != nil {
		return err
	}
	watching, end := context.WithCancel(context.Background())
	defer end()
	var watchers sync.WaitGroup
	for _, s := range w.servers {
		v := &watcher{server: s, world: w}
		w.watchers = append(w.watchers, v)
		watchers.Go(func() { v.run(watching) })
	}
	for !slices.ContainsFunc(w.watchers, func(v *watcher) bool { return v.position() > 0 }) { // one has every write
		time.Sleep(10 * time.Millisecond)
	}
	var work sync.WaitGroup
	for i := range writers {
		work.Go(func() { w.write(ctx, i) })
	}
	work.Go(func() { w.scale(ctx) })
	fmt.Println("writing")
	work.Wait()

	last, err := w.finish(watching)
	if err != nil {
		return err
	}
	if err := w.caughtUp(last); err != nil {
		w.addf("%v", err)
	}
	end()
	watchers.Wait()
	w.compare()
	w.checkObjects()
	lists := 0
	for _, v := range w.watchers {
		lists += len(v.segments)
	}
	fmt.Printf("%d acknowledged writes, %d of them after an attempt without an answer; %d reads at another server; %d lists and %d events of %d watches; controllers answered after %v at most\n",
		len(w.writes), w.doubts, w.reads, lists, w.events(), len(w.watchers), w.slowest.Round(10*time.Millisecond))
	return w.err()
}

// caughtUp waits until every watch has the last write.
func (w *world) caughtUp(last int64) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		behind := slices.IndexFunc(w.watchers, func(v *watcher) bool { return v.position() < last })
		if behind < 0 {
			return nil
		}
		if time.Now().After(deadline) {
			v := w.watchers[behind]
			return fmt.Errorf("the watch at %s is at revision %d a minute after the last write, at %d", v.server.file, v.position(), last)
		}
	}
}

// event is one that a watch had.
type event struct {
	revision int64
	kind     string
	name     string
}

// compare compares what the watches had with each other, and with what was acknowledged.
func (w *world) compare() {
	all := map[int64]event{}
	for _, v := range w.watchers {
		for _, s := range v.segments {
			for _, e := range s.events {
				if other, there := all[e.revision]; there && other != e {
					w.addf("the watches have %v and %v at the same revision", e, other)
				}
				all[e.revision] = e
			}
		}
	}
	for _, one := range w.writes {
		if one.revision != 0 && all[one.revision].name != one.name {
			w.addf("no watch has the acknowledged write of %s at %d", one.name, one.revision)
		}
	}
	sorted := make([]event, 0, len(all))
	for _, e := range all {
		sorted = append(sorted, e)
	}
	slices.SortFunc(sorted, func(a, b event) int { return cmp.Compare(a.revision, b.revision) })
	for _, v := range w.watchers {
		for _, s := range v.segments {
			s.compare(sorted, func(format string, args ...any) { w.addf(v.server.file+": "+format, args...) })
		}
	}
}

// compare checks the list at the begin of a segment, and its events.
func (s *segment) compare(all []event, addf func(string, ...any)) {
	there := map[string]bool{}
	var want []event
	for _, e := range all {
		switch {
		case e.revision > s.to:
		case e.revision > s.from:
			want = append(want, e)
		case e.kind == "DELETED":
			delete(there, e.name)
		default:
			there[e.name] = true
		}
	}
	for name := range there {
		if !s.listed[name] {
			addf("the list at %d lacks %s", s.from, name)
		}
	}
	for name := range s.listed {
		if !there[name] {
			addf("the list at %d has %s, which is not there", s.from, name)
		}
	}
	have := map[int64]bool{}
	for _, e := range s.events {
		have[e.revision] = true
	}
	for _, e := range want {
		if !have[e.revision] {
			addf("the watch from %d to %d lacks %v", s.from, s.to, e)
		}
	}
}
