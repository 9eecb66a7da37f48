package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A document has a table between two lines that are comments in Markdown.
const (
	tableFrom = "<!-- The table is written by go run ./scripts/chart -->\n"
	tableTo   = "<!-- end of the table -->\n"
)

// A document is a file with a table of figures.
type document struct {
	file    string
	figures []string // the labels of the lines; empty: all
	sources bool     // the table is below the machine, the versions and the date
}

var documents = []document{
	{file: "docs/figures.md", sources: true},
	{file: "README.md", figures: []string{"cold start, until RBAC and namespaces exist", "idle: anonymous memory", "idle: disk writes"}},
}

// A line is one line of the table.
type line struct {
	row
	format    func(value float64) string
	karveOnly bool // the peer cannot do it
}

// These print a figure, which is in base units.
func seconds(v float64) string   { return digits(v) + " s" }
func millis(v float64) string    { return digits(v*1e3) + " ms" }
func micros(v float64) string    { return grouped(v*1e6) + " µs" }
func perSecond(v float64) string { return digits(v) + "/s" }
func megabytes(v float64) string { return digits(v/1e6) + " MB" }
func kilobytes(v float64) string { return digits(v/1e3) + " kB/s" }
func percent(v float64) string   { return digits(v*1e2) + " %" }
func plain(v float64) string     { return digits(v) }

// digits prints about three digits that count.
func digits(v float64) string {
	switch {
	case v >= 100:
		return grouped(v)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v == 0:
		return "0"
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// tableLines are the table, from top to bottom.
var tableLines = []line{
	{row{"cold start, until RBAC and namespaces exist", "start", "cold-empty-data-directory", "sec/op"}, seconds, false},
	{row{"CPU time of that", "start", "cold-empty-data-directory", "CPU-sec/op"}, seconds, false},
	{row{"warm start", "start", "warm-existing-data-directory", "sec/op"}, seconds, false},
	{row{"CPU time of that", "start", "warm-existing-data-directory", "CPU-sec/op"}, seconds, false},
	{row{"stop without clients", "start", "stop-SIGTERM-gone", "sec/op"}, seconds, false},
	{row{"`karve run -- kubectl get namespaces`", "start", "karve-run-kubectl-get-namespaces", "sec/op"}, seconds, true},
	{row{"the same, 20 one after another", "start", "karve-run-20-one-after-another", "sec/op"}, seconds, true},
	{row{"idle: anonymous memory", "footprint", "anonymous-memory-RssAnon", "B"}, megabytes, false},
	{row{"idle: resident memory (RSS)", "footprint", "RSS-in-all", "B"}, megabytes, false},
	{row{"idle: CPU, of one core", "footprint", "idle-CPU", "cores"}, percent, false},
	{row{"idle: disk writes", "footprint", "idle-disk-writes", "written-B/sec"}, kilobytes, false},
	{row{"idle: goroutines", "footprint", "goroutines", "goroutines"}, plain, false},
	{row{"size of the binaries", "footprint", "binary", "B"}, megabytes, false},
	{row{"create, 32 clients", "api", "create-32-clients", "op/sec"}, perSecond, false},
	{row{"update, 32 clients", "api", "update-32-clients", "op/sec"}, perSecond, false},
	{row{"delete, 32 clients", "api", "delete-32-clients", "op/sec"}, perSecond, false},
	{row{"get, 32 clients", "api", "get-32-clients", "op/sec"}, perSecond, false},
	{row{"list of 2,000 objects, 4 clients", "api", "list-2-000-4-clients", "op/sec"}, perSecond, false},
	{row{"create, p99", "api", "create-32-clients", "p99-sec"}, millis, false},
	{row{"update, p99", "api", "update-32-clients", "p99-sec"}, millis, false},
	{row{"delete, p99", "api", "delete-32-clients", "p99-sec"}, millis, false},
	{row{"CPU time of the servers for a create", "api", "create-32-clients", "server-CPU-sec/op"}, micros, false},
	{row{"… for an update", "api", "update-32-clients", "server-CPU-sec/op"}, micros, false},
	{row{"… for a delete", "api", "delete-32-clients", "server-CPU-sec/op"}, micros, false},
	{row{"… for a get", "api", "get-32-clients", "server-CPU-sec/op"}, micros, false},
	{row{"update → watch event, p50", "api", "update-watch-event", "p50-sec"}, millis, false},
	{row{"Namespace → default ServiceAccount", "api", "Namespace-default-ServiceAccount", "p50-sec"}, millis, true},
	{row{"Deployment → 20 Pods", "api", "Deployment-20-Pods-created", "p50-sec"}, millis, true},
	{row{"Namespace with 20 Pods → gone", "api", "Namespace-with-20-Pods-deleted-gone", "p50-sec"}, millis, true},
	{row{"anonymous memory after 2,000 objects and 10,000 writes", "api", "memory-after-2-000-objects-10-000-writes", "B"}, megabytes, false},
	{row{"anonymous memory, peak", "api", "memory-peak", "B"}, megabytes, false},
}

// write replaces the table in a document's text with one of the records.
func (d document) write(text []byte, records map[string]*record) ([]byte, error) {
	before, rest, found := bytes.Cut(text, []byte(tableFrom))
	_, after, ends := bytes.Cut(rest, []byte(tableTo))
	if !found || !ends {
		return nil, fmt.Errorf("%s has no place for the table: want the lines %s and %s", d.file, strings.TrimSpace(tableFrom), strings.TrimSpace(tableTo))
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(tableFrom)
	if d.sources {
		for _, line := range source(records) {
			fmt.Fprintf(&out, "%s.\n", line)
		}
	}
	out.WriteString("\n| | etcd + kube-apiserver | Karve | ratio |\n|---|---|---|---|\n")
	for _, l := range tableLines {
		if len(d.figures) > 0 && !slices.Contains(d.figures, l.label) {
			continue
		}
		cells, err := l.cells(records)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "| %s | %s |\n", l.label, strings.Join(cells, " | "))
	}
	out.WriteString("\n" + tableTo)
	out.Write(after)
	return out.Bytes(), nil
}

// cells are the peer's figure, Karve's, and the one divided by the other.
func (l line) cells(records map[string]*record) ([]string, error) {
	rec := records[l.record]
	own, err := rec.median(figure{l.figure, karve, l.unit})
	if err != nil {
		return nil, err
	}
	if l.karveOnly {
		return []string{"–", l.format(own), ""}, nil
	}
	other, err := rec.median(figure{l.figure, peer, l.unit})
	if err != nil {
		return nil, err
	}
	ratio := "–"
	if other > 0 {
		ratio = strconv.FormatFloat(own/other, 'f', 2, 64)
	}
	return []string{l.format(other), l.format(own), ratio}, nil
}
