package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/karve-k8s/karve/bench/measure"
)

// formats are the values of -o.
var formats = []string{"table", "json", "bench"}

// An output says where the figures go, and how they are printed.
type output struct {
	format string
	file   string
}

func (o *output) register(flags *flag.FlagSet) {
	flags.StringVar(&o.format, "o", "table", "`FORMAT` of the output: table, json (with every round), or bench (Go's benchmark format, for benchstat)")
	flags.StringVar(&o.file, "record", "", "`FILE` that gets every figure in Go's benchmark format, whatever is printed")
}

// check returns an error for an output that is not possible, before anything is measured.
func (o *output) check() error {
	if !slices.Contains(formats, o.format) {
		return fmt.Errorf("-o is %q, want table, json or bench", o.format)
	}
	if o.file == "" {
		return nil
	}
	info, err := os.Stat(filepath.Dir(o.file))
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", filepath.Dir(o.file))
	}
	if err != nil {
		return fmt.Errorf("-record: %w", err)
	}
	return nil
}

// A reporter has measured. JSON is what json.Marshal makes of it.
type reporter interface {
	print(w io.Writer) error
	record() *measure.Record
}

// write prints the figures and writes the file.
func (o *output) write(stdout io.Writer, r reporter) error {
	if o.file != "" {
		var text strings.Builder
		if err := r.record().Write(&text); err != nil {
			return err
		}
		if err := os.WriteFile(o.file, []byte(text.String()), 0o644); err != nil {
			return fmt.Errorf("-record: %w", err)
		}
	}
	switch o.format {
	case "json":
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	case "bench":
		return r.record().Write(stdout)
	}
	return r.print(stdout)
}

// newRecord returns the record of a command, with what there is to say about every run.
// args are the command's options.
func newRecord(command, machine string, args []string, otherLoad float64) *measure.Record {
	name := strings.ToUpper(command[:1]) + command[1:]
	if command == "api" {
		name = "API"
	}
	r := &measure.Record{Benchmark: name, CPU: processor()}
	r.Remark("command", "scripts/bench "+strings.Join(append([]string{command}, withoutPaths(args)...), " "))
	r.Remark("date", time.Now().UTC().Format(time.DateOnly))
	r.Remark("machine", machine)
	r.Remark("peers", peerVersions())
	if otherLoad > quiet {
		r.Remark("disturbed", fmt.Sprintf("other processes used up to %.0f %% of the machine", 100*otherLoad))
	}
	return r
}

// withoutPaths leaves out the options that name a file or a directory of this machine.
func withoutPaths(args []string) (kept []string) {
	paths := []string{"record", "karve", "dir", "profile"}
	for i := 0; i < len(args); i++ {
		name, _, hasValue := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		if !strings.HasPrefix(args[i], "-") || !slices.Contains(paths, name) {
			kept = append(kept, args[i])
		} else if !hasValue {
			i++
		}
	}
	return kept
}

// peerVersions are those of the programs that Karve is compared with.
func peerVersions() string {
	versions := []string{"kube-apiserver " + kubernetesVersion}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == etcdPackage {
				versions = append([]string{"etcd " + dep.Version}, versions...)
			}
		}
	}
	return strings.Join(versions, ", ")
}

// A lineReport is a table of lines that are not medians of rounds.
type lineReport struct {
	head, foot string
	lines      table
	figures    *measure.Record
}

func (r *lineReport) record() *measure.Record { return r.figures }

// MarshalJSON implements json.Marshaler.
func (r *lineReport) MarshalJSON() ([]byte, error) { return json.Marshal(r.figures) }

func (r *lineReport) print(w io.Writer) error {
	fmt.Fprintln(w, r.head)
	r.lines.print(w)
	_, err := io.WriteString(w, r.foot)
	return err
}
