package durability

import (
	"fmt"
	"maps"
	"slices"
	"testing"
)

// A listed is the result of a list: the objects at a revision.
type listed struct {
	revision int64
	objects  map[string]version
}

// A change is an event of a watch.
type change struct {
	kind     string // ADDED, MODIFIED, DELETED
	key      string
	version  version
	revision int64
}

// A replay has the events of one watch since a list.
type replay struct {
	from    listed
	changes []change
	through int64 // the revision of the last event or bookmark
}

func (r *replay) add(e Event) error {
	revision := e.Object.Revision()
	if revision < r.through || revision == r.through && e.Type != "BOOKMARK" {
		return fmt.Errorf("event %s of %s at %d after one at %d", e.Type, e.Object.Key(), revision, r.through)
	}
	r.through = revision
	if e.Type != "BOOKMARK" {
		r.changes = append(r.changes, change{e.Type, e.Object.Metadata.Name, version{e.Object.Value(), revision}, revision})
	}
	return nil
}

// check applies the changes one after the other, and compares the result with each list and each
// write whose revision is within them. It returns how many lists and writes it has compared.
func (r *replay) check(lists []listed, writes map[int64]change) (compared int, err error) {
	is := maps.Clone(r.from.objects)
	lists = slices.SortedFunc(slices.Values(lists), func(a, b listed) int { return int(a.revision - b.revision) })
	within := func(until int64) error { // the lists of revisions before that
		for len(lists) > 0 && lists[0].revision < until {
			l := lists[0]
			lists = lists[1:]
			if l.revision < r.from.revision {
				continue
			}
			if !maps.Equal(l.objects, is) {
				return fmt.Errorf("the list at %d differs from the one at %d with the events of the watch since: %s", l.revision, r.from.revision, difference(l.objects, is))
			}
			compared++
		}
		return nil
	}
	told := map[int64]bool{}
	for _, c := range r.changes {
		if err := within(c.revision); err != nil {
			return compared, err
		}
		before, there := is[c.key]
		switch {
		case (c.kind == "ADDED") == there:
			return compared, fmt.Errorf("event %s of %s at %d, which was %v before", c.kind, c.key, c.revision, before)
		case c.kind == "DELETED":
			delete(is, c.key)
		default:
			is[c.key] = c.version
		}
		told[c.revision] = true
		if w, ok := writes[c.revision]; ok && (w.key != c.key || w.version != c.version) {
			return compared, fmt.Errorf("the watch has %s as %v at %d, and the write of that revision was %s as %v", c.key, c.version, c.revision, w.key, w.version)
		}
	}
	if err := within(r.through + 1); err != nil {
		return compared, err
	}
	for revision, w := range writes {
		if revision <= r.from.revision || revision > r.through {
			continue
		}
		if !told[revision] {
			return compared, fmt.Errorf("the watch from %d to %d has no event for %s, which was written at %d", r.from.revision, r.through, w.key, revision)
		}
		compared++
	}
	return compared, nil
}

// agree checks that replays, of watches at any server, have the same events: what happened at a
// revision is the same for each, and no replay lacks a revision within it.
func agree(replays []*replay) error {
	all := map[int64]change{}
	for _, r := range replays {
		for _, c := range r.changes {
			if other, ok := all[c.revision]; ok && other != c {
				return fmt.Errorf("at %d, one watch has %v, and another one %v", c.revision, other, c)
			}
			all[c.revision] = c
		}
	}
	for _, r := range replays {
		told := map[int64]bool{}
		for _, c := range r.changes {
			told[c.revision] = true
		}
		for revision, c := range all {
			if revision > r.from.revision && revision <= r.through && !told[revision] {
				return fmt.Errorf("the watch from %d to %d has no event at %d, and another one has %v", r.from.revision, r.through, revision, c)
			}
		}
	}
	return nil
}

func difference(list, replayed map[string]version) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(merge(list, replayed))) {
		if list[key] != replayed[key] {
			all = append(all, fmt.Sprintf("%s is %v in the list and %v by the events", key, list[key], replayed[key]))
		}
	}
	return fmt.Sprint(all)
}

func merge(a, b map[string]version) map[string]version {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// A replay notices each way in which a watch can be wrong.
func TestReplayNotices(t *testing.T) {
	v := func(value string, rv int64) version { return version{value, rv} }
	from := listed{10, map[string]version{"a": v("1", 5)}}
	good := []change{{"ADDED", "b", v("2", 11), 11}, {"MODIFIED", "a", v("3", 12), 12}, {"DELETED", "b", v("2", 13), 13}}
	at := func(revision int64, objects map[string]version) []listed { return []listed{{revision, objects}} }
	whole := map[string]version{"a": v("3", 12)}
	for name, c := range map[string]struct {
		changes []change
		lists   []listed
		writes  map[int64]change
		fails   bool
	}{
		"the list at the end":          {changes: good, lists: at(13, whole)},
		"an event is missing":          {changes: good[:2], lists: at(13, whole), fails: true},
		"an addition is missing":       {changes: good[1:], fails: true},
		"a write without an event":     {changes: good[:1], writes: map[int64]change{12: good[1]}, fails: true},
		"a write with another's event": {changes: good, writes: map[int64]change{12: good[0]}, fails: true},
	} {
		r := &replay{from: from, changes: c.changes, through: 13}
		if _, err := r.check(c.lists, c.writes); (err != nil) != c.fails {
			t.Errorf("%s: got %v, want an error: %v", name, err, c.fails)
		}
	}
	other := func(changes ...change) []*replay {
		return []*replay{{from: from, changes: good, through: 13}, {from: from, changes: changes, through: 13}}
	}
	for name, c := range map[string]struct {
		replays []*replay
		fails   bool
	}{
		"two that are the same": {other(good...), false},
		"an event is missing":   {other(good[0], good[2]), true},
		"another value":         {other(good[0], change{"MODIFIED", "a", v("4", 12), 12}, good[2]), true},
	} {
		if err := agree(c.replays); (err != nil) != c.fails {
			t.Errorf("%s: got %v, want an error: %v", name, err, c.fails)
		}
	}
	r := &replay{through: 12}
	if err := r.add(Event{Type: "MODIFIED", Object: Object{Metadata: Metadata{Name: "a", ResourceVersion: "11"}}}); err == nil {
		t.Error("an event of the past is accepted")
	}
}
