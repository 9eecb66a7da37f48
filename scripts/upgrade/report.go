package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// facts are what one release has of something: a name and what is to be said about it.
type facts map[string]string

// section is one heading of the report.
type section struct {
	title string
	look  string // what a maintainer does with it
	facts func(*release) (facts, error)
	// asDiff prints changed facts as a unified diff, because they have many lines.
	asDiff bool
	// onlyNew leaves out what is gone.
	onlyNew bool
	// gone says where a fact may have gone that the newer release does not have; it may be nil.
	gone func(after *release, name string) string
}

// report prints, section by section, how two releases differ.
func report(out io.Writer, before, after *release, sections []section) error {
	var table, body strings.Builder
	for _, s := range sections {
		a, err := s.facts(before)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", s.title, before.version, err)
		}
		b, err := s.facts(after)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", s.title, after.version, err)
		}
		if len(a) == 0 || len(b) == 0 {
			return fmt.Errorf("%s: found %d in %s and %d in %s: upstream has moved them, and this program has to follow", s.title, len(a), before.version, len(b), after.version)
		}
		c := compare(a, b)
		if s.onlyNew {
			c.removed = nil
		}
		fmt.Fprintf(&table, "%-24s %4d new %4d gone %4d changed, of %d\n", s.title, len(c.added), len(c.removed), len(c.changed), len(b))
		if err := c.print(&body, s, a, b, before, after); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "# Kubernetes %s → %s: what changed upstream that concerns Karve\n\n%s%s", before.version, after.version, &table, &body)
	return err
}

type changes struct{ added, removed, changed []string }

func compare(before, after facts) changes {
	var c changes
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if text, ok := after[name]; !ok {
			c.removed = append(c.removed, name)
		} else if text != before[name] {
			c.changed = append(c.changed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if _, ok := before[name]; !ok {
			c.added = append(c.added, name)
		}
	}
	return c
}

func (c changes) print(out *strings.Builder, s section, a, b facts, before, after *release) error {
	fmt.Fprintf(out, "\n## %s\n\n%s\n\n", s.title, s.look)
	if len(c.added)+len(c.removed)+len(c.changed) == 0 {
		fmt.Fprintln(out, "No change.")
		return nil
	}
	line := func(sign, name, text string) {
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("%s %s  %s", sign, name, text), " "))
	}
	for _, name := range c.added {
		if s.asDiff {
			line("+", name, "")
		} else {
			line("+", name, b[name])
		}
	}
	for _, name := range c.removed {
		switch {
		case s.gone != nil:
			line("-", name, s.gone(after, name))
		case s.asDiff:
			line("-", name, "")
		default:
			line("-", name, a[name])
		}
	}
	for _, name := range c.changed {
		if !s.asDiff {
			fmt.Fprintf(out, "~ %s\n    was  %s\n    is   %s\n", name, cmp.Or(a[name], "-"), cmp.Or(b[name], "-"))
			continue
		}
		diff, err := unified(a[name], b[name], before.version, after.version)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "~ %s\n%s", name, diff)
	}
	return nil
}

// unified returns what diff -u prints for two texts.
func unified(before, after, oldName, newName string) (string, error) {
	dir, err := os.MkdirTemp("", "karve-upgrade-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	for name, text := range map[string]string{"before": before, "after": after} {
		if !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	diff := exec.Command("diff", "-u", "--label", oldName, "--label", newName, "before", "after")
	diff.Dir = dir
	out, err := diff.Output()
	if diff.ProcessState != nil && diff.ProcessState.ExitCode() == 1 { // they differ
		err = nil
	}
	if err != nil {
		return "", fmt.Errorf("diff: %w", err)
	}
	return string(out), nil
}
