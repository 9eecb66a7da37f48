package status

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/control"
)

// describeManifests writes a line for each file, and one for each problem.
func describeManifests(all control.Manifests, line func(name, format string, args ...any)) {
	if all.Problem != "" {
		line("manifests", "%s", output.Printable(all.Problem))
	}
	if text := all.InNoFile(); text != "" {
		line("manifests", "%s", output.Printable(text))
	}
	for _, f := range all.Files {
		line("manifests", "%s: %s, objects: %d", output.Printable(f.File), f.State, f.Objects)
		for _, p := range f.Problems {
			line("", "%s", output.Printable(p))
		}
	}
}

// table writes the status for people, a line for each fact.
func (s *ServerStatus) table(w io.Writer) {
	s.serverTable(w)
	s.nodesTable(w)
}

func (s *ServerStatus) serverTable(w io.Writer) {
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	state := s.State
	if s.Problem != "" {
		state += ": " + output.Printable(s.Problem)
	}
	line("state", "%s", state)
	line("data directory", "%s", output.Printable(s.DataDir))
	if s.PID != 0 {
		line("process", "%d", s.PID)
	}
	if s.Since != nil {
		line("since", "%s (%v)", s.Since.Local().Format(time.DateTime), time.Since(*s.Since).Round(time.Second))
	}
	if s.URL != "" {
		line("address", "%s", output.Printable(s.URL))
	}
	if s.AdvertisedURL != "" {
		line("for users", "%s", output.Printable(s.AdvertisedURL))
	}
	if s.Page != "" {
		line("page", "%s", output.Page(s.Page))
	}
	if s.Version != "" {
		line("version", "%s", output.Printable(s.Version))
	}
	if m := s.Memory; m != nil && m.Anonymous > 0 {
		limit := ""
		if m.Limit > 0 {
			limit = fmt.Sprintf(", limit %s", mebi(m.Limit))
		}
		line("memory", "%s anonymous%s", mebi(m.Anonymous), limit)
	}
	for _, l := range s.Leases {
		line("leader", "%s", l)
	}
	for _, n := range s.Notices {
		line("notice", "%s", output.Printable(n))
	}
	for _, t := range s.Tunnels {
		line("SSH tunnel", "%s", describeTunnel(t))
	}
	if s.Manifests != nil {
		describeManifests(*s.Manifests, line)
	}
	switch d := s.Datastore; {
	case d != nil:
		line("datastore", "revision %d, %s and a WAL of %s (%s)", d.Revision, mebi(d.Bytes), mebi(d.WALBytes), d.Path)
	case s.Elsewhere != "":
		line("datastore", "%s", s.Elsewhere)
		return
	default:
		line("datastore", "none yet")
	}
	if b := s.LastBackup; b != nil {
		gone := ""
		if !options.Exists(b.File) {
			gone = ", which no longer exists"
		}
		line("last backup", "%s (%v ago) at revision %d: %s%s", b.Time.Local().Format(time.DateTime), time.Since(b.Time).Round(time.Second), b.Revision, b.File, gone)
	} else {
		line("last backup", "never")
	}
	if f := s.BackupFailure; f != nil {
		line("backup failed", "%s: %s", f.Time.Local().Format(time.DateTime), output.Printable(f.Problem))
	}
}

func mebi(bytes int64) string { return fmt.Sprintf("%.1f Mi", float64(bytes)/(1<<20)) }

// describeTunnel is a tunnel for people.
func describeTunnel(t control.Tunnel) string {
	parts := []string{fmt.Sprintf("%s for %v", t.State, time.Since(t.Since).Round(time.Second))}
	if t.Address != "" {
		parts = append(parts, "to "+t.Address)
	}
	if t.Connections > 0 {
		parts = append(parts, fmt.Sprintf("open connections: %d", t.Connections))
	}
	text := t.Node + ": " + strings.Join(parts, ", ")
	if t.Problem != "" {
		text += ": " + t.Problem
	}
	return output.Printable(text)
}
