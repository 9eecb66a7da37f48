package main

import (
	"bytes"
	"fmt"
	"strings"
)

// The table of docs/datastore.md is beside that of etcd + kube-apiserver: it compares Karve on several datastores.
const (
	datastoresFile   = "docs/datastore.md"
	datastoresRecord = "datastores"
)

// datastores are the columns, as the record names them.
var datastores = []struct{ title, peer string }{
	{"SQLite", "sqlite"}, {"PostgreSQL", "postgresql"}, {"MariaDB", "mariadb"}, {"one etcd", "one-etcd"}, {"three etcds", "three-etcds"},
}

// A datastoreLine has the figures of a row, in a cell.
type datastoreLine struct {
	label, row string
	units      []string
	format     func(value float64) string
}

// datastoreLines are the table, from top to bottom.
var datastoreLines = []datastoreLine{
	{"creates", "create-32-clients", []string{"op/sec"}, perSecond},
	{"a create, p50 and p99", "create-32-clients", []string{"p50-sec", "p99-sec"}, millis},
	{"updates", "update-32-clients", []string{"op/sec"}, perSecond},
	{"an update, p50 and p99", "update-32-clients", []string{"p50-sec", "p99-sec"}, millis},
	{"deletes", "delete-32-clients", []string{"op/sec"}, perSecond},
	{"a delete, p50 and p99", "delete-32-clients", []string{"p50-sec", "p99-sec"}, millis},
	{"gets", "get-32-clients", []string{"op/sec"}, perSecond},
	{"a get, p50 and p99", "get-32-clients", []string{"p50-sec", "p99-sec"}, millis},
	{"update until its watch event, p50 and p99", "update-watch-event", []string{"p50-sec", "p99-sec"}, millis},
	{"start of a new cluster", "cold-empty-data-directory", []string{"sec/op"}, seconds},
	{"start again", "warm-existing-data-directory", []string{"sec/op"}, seconds},
	{"CPU time of the server for a create", "create-32-clients", []string{"server-CPU-sec/op"}, micros},
	{"… of the datastore's own processes", "create-32-clients", []string{"datastore-CPU-sec/op"}, micros},
	{"CPU time of the server for a get", "get-32-clients", []string{"server-CPU-sec/op"}, micros},
	{"… of the datastore's own processes", "get-32-clients", []string{"datastore-CPU-sec/op"}, micros},
}

// writeDatastores replaces the table in the text of docs/datastore.md with one of a record.
func writeDatastores(text []byte, rec *record) ([]byte, error) {
	before, rest, found := bytes.Cut(text, []byte(tableFrom))
	_, after, ends := bytes.Cut(rest, []byte(tableTo))
	if !found || !ends {
		return nil, fmt.Errorf("%s has no place for the table: want the lines %s and %s", datastoresFile, strings.TrimSpace(tableFrom), strings.TrimSpace(tableTo))
	}
	var out bytes.Buffer
	out.Write(before)
	out.WriteString(tableFrom)
	machine, _, _ := strings.Cut(rec.remarks["machine"], ";")
	fmt.Fprintf(&out, "Medians, with 32 clients and the datastore on the same machine: %s.\n", machine)
	versions := []string{rec.remarks["date"]}
	for _, d := range datastores[1:] {
		versions = append(versions, d.title+" "+rec.remarks[d.peer])
	}
	if disturbed := rec.remarks["disturbed"]; disturbed != "" {
		versions = append(versions, disturbed)
	}
	fmt.Fprintf(&out, "%s; recorded by `%s`.\n\n|", strings.Join(versions, ", "), rec.remarks["command"])
	for _, d := range datastores {
		out.WriteString(" | " + d.title)
	}
	out.WriteString(" |\n|---|" + strings.Repeat("---|", len(datastores)) + "\n")
	for _, l := range datastoreLines {
		out.WriteString("| " + l.label)
		for _, d := range datastores {
			var cells []string
			for _, unit := range l.units {
				if d.peer == "sqlite" && strings.HasPrefix(unit, "datastore-") {
					cells = append(cells, "–") // it is in the server's process
					continue
				}
				value, err := rec.median(figure{l.row, d.peer, unit})
				if err != nil {
					return nil, err
				}
				cells = append(cells, l.format(value))
			}
			out.WriteString(" | " + strings.Join(cells, ", "))
		}
		out.WriteString(" |\n")
	}
	out.WriteString("\n" + tableTo)
	out.Write(after)
	return out.Bytes(), nil
}
