package external

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/query"
	"github.com/k3s-io/kine/pkg/server"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A program that writes without the lock, as kine itself does, can commit a revision after a later one. A list
// and a watch therefore wait for every revision up to the newest one. A revision that is not there is either
// in a transaction that runs, or in none. kine's own way to tell is to fill the gap with a row that is no event: the
// database lets that wait for the transaction, and a program that still has the number fails or takes another one. kine's
// own PostgreSQL driver takes another one. Its MySQL driver reports a create as done that is not, so a gap is looked at twice.

const (
	// gapWindow is how far below the newest revision others' transactions can be. Compactions leave as many rows.
	gapWindow = compactRetain
	// gapTries bounds how often the history of a watch is read, and how often a gap is filled beside other servers.
	gapTries = 20
	// gapPause is between two looks at a gap. A row that is written alone is there after it.
	gapPause = 5 * time.Millisecond
	// fillEnd is how much longer a fill takes than it waits for a transaction.
	fillEnd = 2 * time.Second
)

// errGaps is the error of a watch during whose begin there were always new gaps.
var errGaps = status.Error(codes.Unavailable, "revisions of the datastore became visible out of order for too long")

// errOpen is the error of calls that have waited for a gap.
func errOpen(gap int64, waited time.Duration) error {
	return status.Errorf(codes.Unavailable, "lists and watches wait for revision %d of the datastore, and have waited for %v: another program has had a transaction open for that long; end it", gap, waited)
}

// gapless is the log of a SQL database without gaps.
type gapless struct {
	life     context.Context
	db       *sql.DB
	since    string           // selects the least and the newest revision and their number, from one on
	filler   *generic.Generic // kine's statement, on a connection of its own
	wait     time.Duration    // for a transaction
	taken    func(error) bool // tells whether the error of an INSERT is that the revision is there
	pause    func(context.Context)
	wake     func(int64)
	warn     func(error)
	fills    singleflight.Group
	complete atomic.Int64 // no revision up to it is missing; 0: not known
}

func newGapless(life context.Context, kind *driver, dsn string, dialect *generic.Generic, rows inserter) (*gapless, error) {
	g := &gapless{
		life:   life,
		db:     dialect.DB,
		since:  query.New("SELECT MIN(id), MAX(id), COUNT(*) FROM kine WHERE id >= ?", kind.param, kind.numbered, "Gaps").Query,
		filler: &generic.Generic{FillSQL: dialect.FillSQL, ErrCode: dialect.ErrCode},
		taken:  rows.taken,
		pause: func(ctx context.Context) {
			select {
			case <-time.After(gapPause):
			case <-ctx.Done():
			}
		},
	}
	return g, g.waitFor(kind, dsn, lockLimit)
}

// waitFor opens the connection on which gaps are filled. A fill waits so long for a transaction.
func (g *gapless) waitFor(kind *driver, dsn string, wait time.Duration) error {
	db, err := kind.fills(dsn, wait)
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	db.SetConnMaxIdleTime(idleTime)
	g.filler.DB, g.wait = db, wait
	return nil
}

// newest returns the newest revision, when no revision before it can become visible any more. It is 0 if
// the table is empty.
func (g *gapless) newest(ctx context.Context) (int64, error) {
	var least, newest, rows sql.NullInt64
	from := g.complete.Load()
	if from != 0 {
		if err := g.db.QueryRowContext(ctx, g.since, from).Scan(&least, &newest, &rows); err != nil {
			return 0, err
		}
		switch {
		case newest.Int64-from >= gapWindow: // what is between may have been compacted
			from = 0
		case least.Int64 != from: // the table was restored from a backup
			g.complete.CompareAndSwap(from, 0)
			from = 0
		}
	}
	if from == 0 {
		current, err := g.revision(ctx, generic.CurrentRevSQL)
		if err != nil {
			return 0, err
		}
		if err := g.db.QueryRowContext(ctx, g.since, max(current-gapWindow, 0)+1).Scan(&least, &newest, &rows); err != nil {
			return 0, err
		}
	}
	if rows.Int64 > 0 && rows.Int64 != newest.Int64-least.Int64+1 {
		if err := g.fill(ctx, least.Int64, newest.Int64); err != nil {
			return 0, err
		}
	}
	for old := g.complete.Load(); old < newest.Int64 && !g.complete.CompareAndSwap(old, newest.Int64); old = g.complete.Load() {
	}
	return newest.Int64, nil
}

// upTo waits until no revision up to one can become visible any more.
func (g *gapless) upTo(ctx context.Context, revision int64) error {
	if revision <= g.complete.Load() {
		return nil
	}
	_, err := g.newest(ctx)
	return err
}

// compacted returns the revision up to which history was removed.
func (g *gapless) compacted(ctx context.Context) (int64, error) {
	return g.revision(ctx, generic.CompactRevSQL)
}

// revision returns the revision that a statement selects, or 0 if the table is empty.
func (g *gapless) revision(ctx context.Context, statement string) (int64, error) {
	var revision sql.NullInt64
	err := g.db.QueryRowContext(ctx, statement).Scan(&revision)
	return revision.Int64, err
}

// from returns the revisions from least to most.
func (g *gapless) from(ctx context.Context, least, most int64) (ids []int64, err error) {
	rows, err := g.db.QueryContext(ctx, fmt.Sprintf("SELECT id FROM kine WHERE id >= %d AND id <= %d ORDER BY id", least, most))
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

// fill fills the gaps from least on, as far as the last row up to most. A revision that has become visible or was compacted
// meanwhile is no gap.
func (g *gapless) fill(ctx context.Context, least, most int64) error {
	for filled := false; ; filled = true {
		g.pause(ctx)
		ids, err := g.from(ctx, least, most)
		if err != nil {
			return err
		}
		gaps := missing(least, ids)
		if len(gaps) > 0 {
			compacted, err := g.compacted(ctx)
			if err != nil {
				return err
			}
			gaps = slices.DeleteFunc(gaps, func(gap int64) bool { return gap <= compacted })
		}
		if len(gaps) == 0 {
			if filled {
				g.wake(most)
			}
			return ctx.Err()
		}
		if err := g.fillAll(ctx, gaps); err != nil {
			return err
		}
	}
}

// fillOne fills a gap that may be wider than gapWindow.
func (g *gapless) fillOne(ctx context.Context, gap int64) error {
	for {
		if there, err := g.from(ctx, gap, gap); err != nil || len(there) > 0 {
			return err
		}
		if err := g.fillAll(ctx, []int64{gap}); err != nil {
			return err
		}
	}
}

// fillAll fills gaps, or waits until others have filled theirs: then the caller looks again. Nobody fills what was filled: a
// crash of PostgreSQL leaves out up to 32 revisions, and then many list at the same time.
func (g *gapless) fillAll(ctx context.Context, gaps []int64) error {
	filled := g.fills.DoChan("", func() (any, error) {
		for _, gap := range gaps {
			if err := g.try(gap); err != nil {
				return gap, err
			}
		}
		return nil, nil
	})
	select {
	case r := <-filled:
		if gap, _ := r.Val.(int64); r.Err != nil && !slices.Contains(gaps, gap) {
			return ctx.Err() // of a gap that the caller does not have
		}
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// try fills a gap, beside other servers that do. When the transaction behind a gap is rolled back, InnoDB lets all
// who wait for it run into a deadlock, but one.
func (g *gapless) try(gap int64) error {
	ctx, cancel := context.WithTimeout(g.life, g.wait+fillEnd)
	defer cancel()
	for began, tries := time.Now(), 1; ; tries++ {
		if there, err := g.from(ctx, gap, gap); err != nil || len(there) > 0 {
			return err
		}
		err := g.filler.Fill(ctx, gap)
		switch {
		case err == nil, g.taken(err):
			return nil
		case lockedOut(err):
			return errOpen(gap, time.Since(began).Round(time.Second))
		case !conflicts(err) || tries == gapTries:
			return fmt.Errorf("revision %d is missing, and cannot be filled: %w", gap, err)
		}
	}
}

// lockedOut recognises that a statement has waited too long for a transaction: lock_not_available,
// ER_LOCK_WAIT_TIMEOUT.
func lockedOut(err error) bool { return code(err) == "55P03" || number(err) == 1205 }

// conflicts recognises that a statement was ended for the sake of another one, and can be tried again:
// deadlock_detected, serialization_failure, ER_LOCK_DEADLOCK.
func conflicts(err error) bool {
	return code(err) == "40P01" || code(err) == "40001" || number(err) == 1213
}

// insist calls body until it succeeds, or until ctx ends. The first failure is a warning.
func (g *gapless) insist(ctx context.Context, body func(context.Context) error) error {
	for first := true; ; first = false {
		limited, cancel := context.WithTimeout(ctx, eventsLimit)
		err := body(limited)
		cancel()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if first {
			g.warn(err)
		}
		pause(ctx)
	}
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

// watch begins a watch of kine's whose history has no gaps, and reads that history. start is the revision from which it is,
// which is another one than the caller's if that is 0.
func (b *Backend) watch(ctx context.Context, revision int64) (from server.WatchResult, history server.EventBatch, start int64, cancel context.CancelFunc, err error) {
	if revision == 0 && b.log != nil {
		newest, err := b.log.newest(ctx)
		if err != nil {
			return from, history, revision, func() {}, err
		}
		if newest > 0 {
			revision = newest + 1
		}
	}
	for range gapTries {
		once, cancel := context.WithCancel(ctx)
		if from, history, err = b.begin(once, revision); err != nil || from.CompactRevision != 0 || b.log == nil {
			return from, history, revision, cancel, err
		}
		ids := make([]int64, len(history.Events))
		for i, e := range history.Events {
			ids[i] = e.KV.ModRevision
		}
		first := max(revision, 2) // kine's history begins after the first revision
		if len(missing(first, ids)) == 0 {
			return from, history, revision, cancel, nil
		}
		cancel()
		if err := b.log.fill(ctx, first, ids[len(ids)-1]); err != nil {
			return from, history, revision, func() {}, err
		}
	}
	return from, history, revision, func() {}, errGaps
}
