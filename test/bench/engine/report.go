package engine

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/karve-k8s/karve/test/bench/report"
)

// Print writes the medians as a table, with the ratios of Karve's columns to etcd's.
func (rep *storageReport) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s; %d keys of %d bytes; medians of %d round(s); etcd API on a unix socket;\nGo API and client: in process, the engine itself and etcd's client on it\n",
		rep.Machine, rep.Plan.Keys, valueBytes, len(rep.FsyncP50))
	fmt.Fprintf(w, "this disk makes an append of 1 KB durable in %s ms (p99 %s ms)\n",
		report.Number(report.Median(rep.FsyncP50)), report.Number(report.Median(rep.FsyncP99)))
	fmt.Fprint(w, "ratios: karve / etcd; more is better in lines of /s, less in all others\n\n")

	var t report.Table
	head := []string{"", ""}
	for _, p := range peers {
		if slices.Contains(rep.roles, p.role) {
			head = append(head, p.title)
		}
	}
	t = append(t, append(head, "Go API / etcd", "client / etcd", "socket / etcd"))

	for i, name := range rep.rowNames() {
		rep.line(&t, name, "/s", func(r *round) float64 { return r.Rows[i].PerSecond })
		rep.line(&t, "", "p50 ms", func(r *round) float64 { return r.Rows[i].P50 })
		rep.line(&t, "", "p99 ms", func(r *round) float64 { return r.Rows[i].P99 })
		rep.line(&t, "", "CPU us", func(r *round) float64 { return r.Rows[i].CPU })
	}
	const mb = 1 << 20
	rep.line(&t, "memory, empty", "MB", func(r *round) float64 { return float64(r.MemoryEmpty) / mb })
	rep.line(&t, "memory after the run", "MB", func(r *round) float64 { return float64(r.MemoryAfter) / mb })
	rep.line(&t, "memory gained", "MB", func(r *round) float64 { return float64(r.MemoryAfter-r.MemoryEmpty) / mb })
	rep.line(&t, "disk after the updates", "MB", func(r *round) float64 { return float64(r.DiskWritten) / mb })
	rep.line(&t, "disk after compaction", "MB", func(r *round) float64 { return float64(r.DiskCompacted) / mb })
	rep.line(&t, "database and WAL, compacted", "MB", func(r *round) float64 { return float64(r.Database) / mb })
	rep.line(&t, "database and WAL / live data", "", func(r *round) float64 {
		return float64(r.Database) / float64(rep.Plan.Keys*valueBytes)
	})
	rep.line(&t, "CPU, whole run", "s", func(r *round) float64 { return r.CPU })
	rep.line(&t, "CPU with its client", "s", func(r *round) float64 { return r.CPUWithClient })
	rep.line(&t, "CPU of other processes", "%", func(r *round) float64 { return 100 * r.OtherLoad })
	t.Print(w)
	if other := rep.mostOtherLoad(); other > report.Quiet {
		fmt.Fprintf(w, "\nDISTURBED: other processes used up to %.0f %% of the machine. Compare only CPU us.\n", 100*other)
	}
	_, err := fmt.Fprint(w, "\nCPU us: of one operation, for the peer and its client together. In process, memory and CPU include the client.\n"+
		"A row ends after a number of operations or at a time limit, so compare CPU of the whole run only where no row was cut short.\n")
	return err
}

func (rep *storageReport) mostOtherLoad() (most float64) {
	for _, r := range rep.Rounds {
		most = max(most, r.OtherLoad)
	}
	return most
}

// Record implements report.Reporter.
func (rep *storageReport) Record() *report.Record {
	rec := report.NewRecord("storage", rep.Machine, rep.args, rep.mostOtherLoad())
	for _, r := range rep.Rounds {
		for _, row := range r.Rows {
			rec.Add(row.Row, r.Peer, row.PerSecond, "/s")
			rec.Add(row.Row, r.Peer, row.P50, "p50 ms")
			rec.Add(row.Row, r.Peer, row.P99, "p99 ms")
			rec.Add(row.Row, r.Peer, row.CPU, "CPU us")
		}
		rec.Add("memory, empty", r.Peer, float64(r.MemoryEmpty), "B")
		rec.Add("memory after the run", r.Peer, float64(r.MemoryAfter), "B")
		rec.Add("disk after the updates", r.Peer, float64(r.DiskWritten), "B")
		rec.Add("disk after compaction", r.Peer, float64(r.DiskCompacted), "B")
		rec.Add("database and WAL, compacted", r.Peer, float64(r.Database), "B")
		rec.Add("whole run", r.Peer, r.CPU, "CPU s")
	}
	return rec
}

func (rep *storageReport) rowNames() []string {
	var names []string
	if len(rep.Rounds) > 0 {
		for _, r := range rep.Rounds[0].Rows {
			names = append(names, r.Row)
		}
	}
	return names
}

// line adds a line with the medians of one figure to t.
func (rep *storageReport) line(t *report.Table, name, unit string, figure func(*round) float64) {
	cells := []string{name, unit}
	found := map[string]float64{}
	for _, p := range peers {
		if !slices.Contains(rep.roles, p.role) {
			continue
		}
		var values []float64
		for _, r := range rep.Rounds {
			if r.Peer == p.role {
				values = append(values, figure(r))
			}
		}
		cell := "–"
		if len(values) > 0 {
			found[p.role] = report.Median(values)
			cell = report.Number(found[p.role])
		}
		cells = append(cells, cell)
	}
	for _, role := range []string{roleDirect, roleClient, "karve-socket"} {
		own, ok := found[role]
		etcd := found["etcd"]
		if !ok || etcd <= 0 || unit == "%" {
			cells = append(cells, "–")
			continue
		}
		cells = append(cells, strconv.FormatFloat(own/etcd, 'f', 2, 64))
	}
	*t = append(*t, cells)
}
