package external

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A program that writes without the lock, as kine itself does, can commit a revision after a later one. A list
// and a watch therefore wait for every revision up to the newest one. A revision that is not there is either
// in a transaction that runs, or in none. kine's own way to tell is to fill the gap with a row that is no event: the
// database lets that wait for the transaction, and a program that still has the number takes another one.

const (
	// gapWindow is how far below the newest revision others' transactions can be. Compactions leave as many rows.
	gapWindow = compactRetain
	// gapTries bounds how often new gaps are filled before a call fails.
	gapTries = 20
)

// errGaps is the error of a call during which there were always new gaps.
var errGaps = status.Error(codes.Unavailable, "revisions of the datastore became visible out of order for too long")

// gapless is the log of a SQL database without gaps.
type gapless struct {
	dialect *generic.Generic
	taken   func(error) bool // tells whether the error of an INSERT is that the revision is there
	wake    func(int64)
}

// newest returns the newest revision, when no revision before it can become visible any more. It is 0 if
// the table is empty.
func (g *gapless) newest(ctx context.Context) (int64, error) {
	for range gapTries {
		var least, newest, rows sql.NullInt64
		row := g.dialect.DB.QueryRowContext(ctx, fmt.Sprintf("SELECT MIN(id), MAX(id), COUNT(*) FROM kine WHERE id > (SELECT GREATEST(MAX(id), %[1]d) - %[1]d FROM kine)", gapWindow))
		if err := row.Scan(&least, &newest, &rows); err != nil {
			return 0, err
		}
		if rows.Int64 == 0 || rows.Int64 == newest.Int64-least.Int64+1 {
			return newest.Int64, nil
		}
		ids, err := g.from(ctx, least.Int64, newest.Int64)
		if err != nil {
			return 0, err
		}
		if err := g.fill(ctx, missing(least.Int64, ids), newest.Int64); err != nil {
			return 0, err
		}
	}
	return 0, errGaps
}

// from returns the revisions from least to most.
func (g *gapless) from(ctx context.Context, least, most int64) (ids []int64, err error) {
	rows, err := g.dialect.DB.QueryContext(ctx, fmt.Sprintf("SELECT id FROM kine WHERE id >= %d AND id <= %d ORDER BY id", least, most))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// fill fills gaps below newest. A revision that has become visible meanwhile is none.
func (g *gapless) fill(ctx context.Context, gaps []int64, newest int64) error {
	for _, gap := range gaps {
		if err := g.dialect.Fill(ctx, gap); err != nil && !g.taken(err) {
			return err
		}
	}
	if len(gaps) > 0 {
		g.wake(newest)
	}
	return ctx.Err()
}

// missing returns the revisions that ids, in order, lack between each other, and from first on. A wider gap than gapWindow
// is of a sequence that was raised.
func missing(first int64, ids []int64) (gaps []int64) {
	next := first
	for _, id := range ids {
		if id-next <= gapWindow {
			for ; next < id; next++ {
				gaps = append(gaps, next)
			}
		}
		next = id + 1
	}
	return gaps
}

// watch begins a watch of kine's whose history has no gaps, and reads that history.
func (b *Backend) watch(ctx context.Context, revision int64) (from server.WatchResult, history server.EventBatch, cancel context.CancelFunc, err error) {
	if revision == 0 && b.log != nil {
		newest, err := b.log.newest(ctx)
		if err != nil {
			return from, history, func() {}, err
		}
		if newest > 0 {
			revision = newest + 1
		}
	}
	for range gapTries {
		once, cancel := context.WithCancel(ctx)
		err := contain(func() error {
			from = b.backend.Watch(once, revision)
			return nil
		})
		if err != nil || from.CompactRevision != 0 {
			return from, history, cancel, err
		}
		history = <-from.Eventc
		if b.log == nil {
			return from, history, cancel, nil
		}
		ids := make([]int64, len(history.Events))
		for i, e := range history.Events {
			ids[i] = e.KV.ModRevision
		}
		gaps := missing(max(revision, 2), ids) // kine's history begins after the first revision
		if len(gaps) == 0 {
			return from, history, cancel, nil
		}
		cancel()
		if err := b.log.fill(ctx, gaps, history.CurrentRev); err != nil {
			return from, history, func() {}, err
		}
	}
	return from, history, func() {}, errGaps
}
