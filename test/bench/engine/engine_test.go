package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
)

// tiny is a plan for tests: every row once or a few times.
var tiny = plan{Keys: 4 * listKeys, Part: 1000, Most: 200 * time.Millisecond}

// TestMeasure runs every row against the engine in process and every peer that
// is served, all in this process.
func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("opens four databases")
	}
	for _, p := range peers {
		t.Run(p.role, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			b := &bench{plan: tiny, peer: machine.OwnPID, dir: t.TempDir(), file: files[p.role], progress: func(load.Result) {}}
			if open, ok := local[p.role]; ok {
				s, closeStore, err := open(ctx, b.dir)
				if err != nil {
					t.Fatal(err)
				}
				defer closeStore()
				b.store = s
			} else {
				s, err := servers[p.role](ctx, b.dir)
				if err != nil {
					t.Fatal(err)
				}
				defer s.close()
				r, hangUp, err := dial(s.endpoint)
				if err != nil {
					t.Fatal(err)
				}
				defer hangUp()
				b.store = r
			}

			r, err := b.measure(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range r.Rows {
				if row.Ops == 0 || row.PerSecond <= 0 || row.P99 < row.P50 {
					t.Errorf("row is %+v", row)
				}
			}
			if live := int64(tiny.Keys * valueBytes); r.DiskWritten < live || r.Database < live {
				t.Errorf("disk is %d, database %d, but the values alone are %d", r.DiskWritten, r.Database, live)
			}
			if found, err := b.store.count(ctx, keyPrefix); err != nil || found != 0 {
				t.Errorf("after the deletes count = %d, %v, want 0", found, err)
			}
			if _, err := b.store.put(ctx, b.keys[0], []byte("x"), 1); !errors.Is(err, errConflict) {
				t.Errorf("put at a wrong revision: %v, want %v", err, errConflict)
			}
		})
	}
}

func TestTable(t *testing.T) {
	row := func(peer string, n int, perSecond float64) *round {
		return &round{Peer: peer, Round: n, Rows: []load.Result{{Row: "create", PerSecond: perSecond}}}
	}
	rep := &storageReport{
		roles:    []string{"karve-socket", "etcd"},
		FsyncP50: []float64{1}, FsyncP99: []float64{1},
		Rounds: []*round{
			row("karve-socket", 1, 9000), row("karve-socket", 2, 3000), row("karve-socket", 3, 4000),
			row("etcd", 1, 2000), row("etcd", 2, 1000), row("etcd", 3, 5000),
		},
	}
	var out strings.Builder
	if err := rep.Print(&out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "create") {
			got = strings.Fields(line)
		}
	}
	if want := "create /s 4,000 2,000 – – 2.00"; strings.Join(got, " ") != want {
		t.Errorf("line is %q, want %q", strings.Join(got, " "), want)
	}
}

func TestChoose(t *testing.T) {
	if roles, err := choose(""); err != nil || len(roles) != len(peers) {
		t.Errorf("choose of nothing = %v, %v, want all", roles, err)
	}
	if roles, err := choose("etcd,karve,etcd"); err != nil || strings.Join(roles, " ") != "etcd karve" {
		t.Errorf("choose = %v, %v, want etcd and karve", roles, err)
	}
	if _, err := choose("consul"); err == nil {
		t.Error("choose took a peer that is not there")
	}
}
