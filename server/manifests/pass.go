package manifests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/panics"
)

// batch is a unit that is being applied.
type batch struct {
	*state
	objects []object
}

// pass applies units, and finds what no file describes if all units are known. The error is of the whole pass; those of the units are in their states.
func (w *watcher) pass(ctx context.Context, todo []*unit, all bool) (err error) {
	if w.cluster == nil {
		if w.cluster, err = connect(w.client); err != nil {
			return err
		}
	}
	w.mapper.Reset()
	defer w.mapper.Reset() // gives back its memory
	inv, err := w.load(ctx)
	if err != nil {
		return err
	}
	batches := w.read(todo)
	for _, early := range []bool{true, false} {
		found := w.resolveAll(batches, early)
		for _, d := range found {
			inv = append(inv, d.id)
		}
		if err := w.store(ctx, inv.with()); err != nil { // before there are objects
			for _, b := range batches {
				delete(w.known, b.File)
			}
			return err
		}
		w.applyAll(ctx, found)
		if len(found) > 0 && early {
			w.mapper.Reset()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w.share()
	w.log()
	if !all {
		return nil
	}
	return w.survey(ctx)
}

// read reads units, whose former states are forgotten.
func (w *watcher) read(todo []*unit) (batches []batch) {
	now := time.Now().UTC().Truncate(time.Second)
	for _, u := range todo {
		b := batch{state: &state{Manifest: control.Manifest{File: u.name, At: &now}, stamp: u.stamp}}
		err := panics.Catch(func() (err error) { b.objects, err = u.read(); return err })
		if err != nil {
			b.Problems, b.partial = strings.Split(withoutQuotes(err), "\n"), true
		}
		batches, w.known[u.name] = append(batches, b), b.state
	}
	return batches
}

// resolveAll finds out where the API has the objects of units: those that others may need, or the others.
func (w *watcher) resolveAll(batches []batch, early bool) (all []*desired) {
	for _, b := range batches {
		for _, o := range b.objects {
			if first(o.GroupVersionKind().GroupKind()) != early {
				continue
			}
			d, err := w.resolve(o)
			switch {
			case err != nil:
				b.partial = true
				b.refused(o, err)
			case slices.Contains(b.ids, d.id):
				b.refused(o, errors.New("it is in this file twice"))
			default:
				d.of = b.state
				b.ids, all = append(b.ids, d.id), append(all, d)
			}
		}
	}
	return all
}

// applyAll applies objects. One that several files describe is that of the first file by name, however they came about.
func (w *watcher) applyAll(ctx context.Context, all []*desired) {
	files := w.describing()
	for _, d := range all {
		if files[d.id][0] != d.of.File {
			d.of.again = true // until the other file is without it
			continue
		}
		if err := w.apply(ctx, d); err != nil {
			d.of.refused(d.object, err)
		} else if d.of.Objects++; d.mapping.GroupVersionKind.GroupKind() == definitions {
			w.established(ctx, d)
		}
	}
}

// describing returns the files that describe each object, sorted.
func (w *watcher) describing() map[id][]string {
	files := map[id][]string{}
	for _, name := range slices.Sorted(maps.Keys(w.known)) {
		for _, i := range w.known[name].ids {
			files[i] = append(files[i], name)
		}
	}
	return files
}

// refused records why an object was not applied.
func (s *state) refused(o object, err error) {
	text := fmt.Sprintf("%s: %s %s: %s", o.where, o.GetKind(), o.GetName(), withoutQuotes(err))
	s.Problems, s.again = append(s.Problems, strings.ReplaceAll(text, "\n", "; ")), true
}

// share names the objects that several units describe, in each of them.
func (w *watcher) share() {
	for _, s := range w.known {
		s.shared = nil
	}
	files := w.describing()
	for _, i := range slices.Sorted(maps.Keys(files)) {
		for at, name := range files[i] {
			if others := slices.Delete(slices.Clone(files[i]), at, at+1); len(others) > 0 {
				w.known[name].shared = append(w.known[name].shared, fmt.Sprintf("%s is in %s, too", i, strings.Join(others, ", ")))
			}
		}
	}
}

// log logs the states that are new.
func (w *watcher) log() {
	maps.DeleteFunc(w.logged, func(name, _ string) bool { return w.known[name] == nil })
	for _, name := range slices.Sorted(maps.Keys(w.known)) {
		s := w.known[name].told()
		level, text := logrus.InfoLevel, fmt.Sprintf("applied, objects: %d", s.Objects)
		if len(s.Problems) > 0 {
			level, text = logrus.WarnLevel, strings.Join(s.Problems, "; ")
		}
		if now := w.known[name].stamp + text; w.logged[name] != now {
			w.logged[name] = now
			w.Log.Logf(level, "manifests: %s: %s", name, text)
		}
	}
}
