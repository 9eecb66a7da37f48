package manifests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/control"
)

// survey finds the objects that the server has made and no file describes, and forgets others that no file describes. While a part of a
// file cannot be read there are none, since any object may be in that.
func (w *watcher) survey(ctx context.Context) error {
	w.strays = nil
	inv, err := w.load(ctx)
	if err != nil || slices.ContainsFunc(slices.Collect(maps.Values(w.known)), func(s *state) bool { return s.partial }) {
		return err
	}
	files := w.describing()
	left := inventory{}
	for _, i := range inv {
		if files[i] == nil {
			stray := w.find(ctx, i)
			if stray == nil {
				continue
			}
			w.strays = append(w.strays, *stray)
		}
		left = append(left, i)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return w.store(ctx, left)
}

// Prune returns the objects that no file describes any more, and deletes those of them that are in agreed, which a call with nil has returned.
// With all, it does so without any file, too.
func (m *Manifests) Prune(ctx context.Context, agreed []control.Stray, all bool) (strays []control.Stray, err error) {
	err = m.during(ctx, func(ctx context.Context, w *watcher) error {
		w.look(ctx, changed)
		if err := errors.Join(ctx.Err(), w.mayPrune(all)); err != nil {
			return err
		}
		defer w.mapper.Reset()
		if err := w.survey(ctx); err != nil {
			return err
		}
		if agreed == nil {
			strays = w.strays
			w.count(ctx, strays)
			return nil
		}
		strays = w.remove(ctx, agreed)
		w.Changed()
		err := w.survey(ctx)
		w.tell(w, err)
		return err
	})
	return strays, err
}

// mayPrune refuses while the files may be less than what is meant.
func (w *watcher) mayPrune(all bool) error {
	now := w.Status()
	if now.Problem != "" {
		return fmt.Errorf("nothing is deleted: %s", now.Problem)
	}
	var failed []string
	described := 0
	for _, f := range now.Files {
		described += len(w.known[f.File].ids)
		if len(f.Problems) > 0 {
			failed = append(failed, f.File+": "+strings.Join(f.Problems, "; "))
		}
	}
	switch {
	case len(failed) > 0:
		return fmt.Errorf("nothing is deleted while a file has a problem: correct or remove it first\n%s", strings.Join(failed, "\n"))
	case described == 0 && !all:
		return fmt.Errorf("no file in %s describes an object: is its disk mounted? To delete the objects of all files, use --all", w.Dir)
	}
	return nil
}

// remove deletes those strays that were agreed on and are still the same objects, and returns them. Namespaces and definitions go last.
func (w *watcher) remove(ctx context.Context, agreed []control.Stray) (removed []control.Stray) {
	for _, early := range []bool{false, true} {
		for _, s := range w.strays {
			kind, _, _ := id(s.Object).split()
			if first(kind) != early || !slices.ContainsFunc(agreed, func(a control.Stray) bool { return a.Object == s.Object && a.UID == s.UID }) {
				continue
			}
			if s.Problem == "" {
				if err := w.delete(ctx, id(s.Object), s.UID); err != nil {
					s.Problem = withoutQuotes(err)
				} else {
					w.Log.Infof("manifests: deleted %s, as karve manifests prune asked", s.Object)
				}
			}
			removed = append(removed, s)
		}
	}
	return removed
}
