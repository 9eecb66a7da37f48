package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
)

// stateDir is where an upgrade keeps its state, its report and what it builds; git ignores it.
const stateDir = "build/upgrade"

// state is how far an upgrade has come.
type state struct {
	From, To string
	Seconds  map[string]float64 // of the steps that succeeded
}

// loadState returns the state of an upgrade to a version, or nil if none has begun. One to
// another version is an error.
func loadState(to string) (*state, error) {
	file := filepath.Join(stateDir, "state.json")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil || s.From == "" || s.Seconds == nil {
		return nil, fmt.Errorf("%s is damaged: rm -r %s forgets the upgrade", file, stateDir)
	}
	if s.To != to {
		return nil, fmt.Errorf("an upgrade from %s to %s has begun: finish it, or forget it by rm -r %s", s.From, s.To, stateDir)
	}
	return &s, nil
}

func (s *state) save() error {
	text, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(stateDir, "state.json"), append(text, '\n'), 0o644)
}

// finish forgets the steps, so that the next upgrade begins anew.
func (s *state) finish() error { return os.Remove(filepath.Join(stateDir, "state.json")) }

func (s *state) clone() *state { return &state{s.From, s.To, maps.Clone(s.Seconds)} }

func (s *state) reportFile() string {
	return filepath.Join(stateDir, "report-"+s.From+"-"+s.To+".txt")
}
