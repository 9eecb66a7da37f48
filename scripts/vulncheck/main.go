// Command vulncheck runs govulncheck on a build of Karve, and fails for every
// vulnerability in code that is in the program, unless accepted has a reason:
//
//	go run ./scripts/vulncheck [-db URL] [-if-reachable] [BINARY]
//
// BINARY must have its symbol table (no -ldflags=-s); without one, this tree is built.
// It looks at the program and not at the source, from which govulncheck would build a
// call graph of all of Kubernetes, in more than 20 GB of memory.
package main

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	scanner  = "golang.org/x/vuln/cmd/govulncheck@v1.8.0"
	database = "https://vuln.go.dev"
)

// accepted are the vulnerabilities that the program has in name only, with the reason.
var accepted = map[string]string{
	"GO-2025-3521": "CVE-2025-1767, gitRepo volumes: it is in the kubelet, and there is none in Karve",
	"GO-2025-3547": "CVE-2024-7598, a NetworkPolicy deleted before the Pods of its namespace: fixed upstream by deleting Pods first (OrderedNamespaceDeletion, since 1.33); the database names no version with the fix",
}

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "vulncheck:", err)
		}
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("vulncheck", flag.ContinueOnError)
	flags.SetOutput(stderr)
	db := flags.String("db", database, "`URL` of the vulnerability database; file:///DIR is a copy")
	lenient := flags.Bool("if-reachable", false, "say that nothing was checked, and succeed, if the database cannot be reached")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp
	}
	if flags.NArg() > 1 {
		return fmt.Errorf("got %d arguments, want one binary at most", flags.NArg())
	}
	if err := reach(ctx, *db); err != nil {
		if !*lenient {
			return fmt.Errorf("the vulnerability database: %w", err)
		}
		fmt.Fprintf(stdout, "vulncheck: NOT RUN: the vulnerability database cannot be reached: %v\n", err)
		return nil
	}
	binary := flags.Arg(0)
	if binary == "" {
		dir, err := os.MkdirTemp("", "karve-vulncheck-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "karve")
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-w", "-o", binary, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		build.Stderr = stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build karve: %w", err)
		}
	}
	if program, err := elf.Open(binary); err == nil { // other systems' are believed
		_, err := program.Symbols()
		program.Close()
		if errors.Is(err, elf.ErrNoSymbols) {
			return fmt.Errorf("%s has no symbol table, so nobody can tell what is in it: build it without -ldflags=-s", binary)
		}
	}
	scan := exec.CommandContext(ctx, "go", "run", scanner, "-db", *db, "-mode", "binary", "-format", "json", binary)
	scan.Stderr = stderr
	out, err := scan.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", scanner, err)
	}
	found, err := read(out)
	if err != nil {
		return fmt.Errorf("read what %s prints: %w", scanner, err)
	}
	return judge(stdout, found)
}

// reach says why a database cannot be read.
func reach(ctx context.Context, db string) error {
	at, err := url.Parse(db)
	if err != nil {
		return err
	}
	if at.Scheme == "file" {
		_, err := os.Stat(at.Path)
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(db, "/")+"/index/db.json", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", req.URL, resp.Status)
	}
	return nil
}

// A finding is one vulnerability of a module that is in the program.
type finding struct {
	id, summary, module, version, fixed string
	symbols                             []string // vulnerable code that is in the program; none: it has other parts of the module
}

// A message is one of those that govulncheck prints, one after the other.
type message struct {
	OSV *struct {
		ID, Summary string
	}
	Finding *struct {
		OSV          string
		FixedVersion string `json:"fixed_version"`
		Trace        []struct{ Module, Version, Package, Function, Receiver string }
	}
}

func read(output []byte) ([]finding, error) {
	summaries, all := map[string]string{}, map[string]*finding{}
	in := json.NewDecoder(strings.NewReader(string(output)))
	for {
		var m message
		if err := in.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if m.OSV != nil {
			summaries[m.OSV.ID] = m.OSV.Summary
		}
		if m.Finding == nil || len(m.Finding.Trace) == 0 {
			continue
		}
		at := m.Finding.Trace[0]
		f := all[m.Finding.OSV]
		if f == nil {
			f = &finding{id: m.Finding.OSV, module: at.Module, version: at.Version, fixed: m.Finding.FixedVersion}
			all[f.id] = f
		}
		if at.Function != "" {
			f.symbols = append(f.symbols, strings.TrimPrefix(at.Receiver+"."+at.Function, "."))
		}
	}
	var found []finding
	for _, id := range slices.Sorted(maps.Keys(all)) {
		all[id].summary = summaries[id]
		found = append(found, *all[id])
	}
	return found, nil
}

// judge prints the findings, and returns an error if one of them has no reason, or a
// reason no finding.
func judge(w io.Writer, found []finding) error {
	var wrong []error
	seen := map[string]bool{}
	for _, f := range found {
		fix := "no version has a fix"
		if f.fixed != "" {
			fix = "fixed in " + f.fixed
		}
		what := fmt.Sprintf("%s in %s %s (%s): %s", f.id, f.module, f.version, fix, f.summary)
		switch reason, ok := accepted[f.id]; {
		case len(f.symbols) == 0:
			fmt.Fprintf(w, "not in the program: %s\n", what)
		case ok:
			seen[f.id] = true
			fmt.Fprintf(w, "accepted: %s\n    %s\n", what, reason)
		default:
			wrong = append(wrong, fmt.Errorf("%s; the program has %s", what, strings.Join(f.symbols[:min(3, len(f.symbols))], ", ")))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(accepted)) {
		if !seen[id] {
			wrong = append(wrong, fmt.Errorf("%s is no finding any more: remove its reason", id))
		}
	}
	if len(wrong) == 0 {
		fmt.Fprintf(w, "vulncheck: no vulnerability in the program without a reason\n")
	}
	return errors.Join(wrong...)
}
