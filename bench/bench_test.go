package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
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
			b := &bench{plan: tiny, peer: ownPID, dir: t.TempDir(), file: files[p.role], told: func(result) {}}
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

// TestScale runs every line at a small size.
func TestScale(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 6,000 revisions")
	}
	s := &scaling{plan: scalePlan{few: 100, many: 1000, reads: 20, revisions: 5000}, dir: t.TempDir(), stderr: io.Discard, figures: newRecord("scale", "", nil, 0)}
	if err := s.measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, cells := range s.lines {
		if len(cells) != 5 || cells[2] == "0" || cells[2] == "NaN" {
			t.Errorf("line is %q", cells)
		}
	}
}

func TestDriveBounds(t *testing.T) {
	nothing := func(context.Context, int, int, int) error { return nil }
	res, err := drive(t.Context(), load{4, 10, time.Minute}, nothing)
	if err != nil || res.Ops != 10 {
		t.Errorf("bounded by count: %d operations, %v, want 10", res.Ops, err)
	}
	began := time.Now()
	res, err = drive(t.Context(), load{4, 1 << 30 / 4096, 50 * time.Millisecond}, func(ctx context.Context, _, _, _ int) error {
		time.Sleep(time.Millisecond)
		return nil
	})
	if took := time.Since(began); err != nil || res.Ops == 0 || took > 10*time.Second {
		t.Errorf("bounded by time: %d operations in %v, %v", res.Ops, took, err)
	}
	broken := errors.New("broken")
	if _, err := drive(t.Context(), load{4, 10, time.Minute}, func(context.Context, int, int, int) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("failing operation: %v, want %v", err, broken)
	}
}

// eventTwice answers each event twice, as no peer may.
type eventTwice struct {
	store
	events chan int64
}

func (e eventTwice) watch(ctx context.Context, _ string) (func() ([]int64, error), error) {
	return func() ([]int64, error) {
		select {
		case rev := <-e.events:
			return []int64{rev, rev}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, nil
}

func TestFanOutRefusesOtherEvents(t *testing.T) {
	s := eventTwice{events: make(chan int64, 1)}
	_, err := fanOut(t.Context(), s, 1, 10, time.Minute, func(_ context.Context, n int) (int64, error) {
		s.events <- int64(n)
		return int64(n), nil
	})
	if !errors.Is(err, errWrong) {
		t.Errorf("event that comes twice: %v, want %v", err, errWrong)
	}
}

func TestTable(t *testing.T) {
	row := func(peer string, n int, perSecond float64) *round {
		return &round{Peer: peer, Round: n, Rows: []result{{Row: "create", PerSecond: perSecond}}}
	}
	rep := &report{
		roles:    []string{"karve-socket", "etcd"},
		FsyncP50: []float64{1}, FsyncP99: []float64{1},
		Rounds: []*round{
			row("karve-socket", 1, 9000), row("karve-socket", 2, 3000), row("karve-socket", 3, 4000),
			row("etcd", 1, 2000), row("etcd", 2, 1000), row("etcd", 3, 5000),
		},
	}
	var out strings.Builder
	if err := rep.print(&out); err != nil {
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

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{
		1234567: "1,234,567", 1000: "1,000", 999.4: "999", 12.34: "12.3", 1.234: "1.23", 0.1234: "0.123", 0.0012: "0.00120", 0: "0",
	} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
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
