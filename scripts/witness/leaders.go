package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// record is what is read of an audit event.
type record struct {
	Stage          string
	Verb           string
	StageTimestamp time.Time
	User           struct{ Username string }
	ObjectRef      struct{ Resource string }
	ResponseStatus struct{ Code int }
}

// role returns who leads when r is written: controllers, scheduler, or nobody.
func (r *record) role() string {
	switch {
	case r.Stage != "ResponseComplete" || r.ResponseStatus.Code >= 300, r.ObjectRef.Resource == "leases", r.ObjectRef.Resource == "events":
		return ""
	case r.Verb != "create" && r.Verb != "update" && r.Verb != "patch" && r.Verb != "delete":
		return ""
	case r.User.Username == "system:kube-scheduler":
		return "scheduler"
	case r.User.Username == "system:kube-controller-manager", strings.HasPrefix(r.User.Username, "system:serviceaccount:kube-system:"):
		return "controllers"
	}
	return ""
}

// span is the time between the first and the last write of a role.
type span struct {
	file        string
	first, last time.Time
	writes      int
}

func leaders(files []string) error {
	var f faults
	for _, role := range []string{"controllers", "scheduler"} {
		var spans []span
		for _, file := range files {
			s, err := spanOf(file, role)
			if err != nil {
				return err
			}
			if s.writes > 0 {
				spans = append(spans, s)
				fmt.Printf("%s at %s: %d writes\n", role, file, s.writes)
			}
		}
		if len(spans) < 2 {
			f.addf("the %s acted in %d of %d logs: nothing to compare", role, len(spans), len(files))
		}
		for i, a := range spans {
			for _, b := range spans[i+1:] {
				if !a.last.Before(b.first) && !b.last.Before(a.first) {
					f.addf("the %s acted at %s until %v, and at %s from %v on", role, a.file, a.last, b.file, b.first)
				}
			}
		}
	}
	return f.err()
}

func spanOf(file, role string) (span, error) {
	s := span{file: file}
	f, err := os.Open(file)
	if err != nil {
		return s, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return s, fmt.Errorf("%s: %w", file, err)
		}
		if r.role() != role {
			continue
		}
		if s.writes++; s.first.IsZero() {
			s.first = r.StageTimestamp
		}
		s.last = r.StageTimestamp
	}
	return s, lines.Err()
}
