package external

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// commitOf commits a batch, as if its writes had waited together.
func commitOf(w *writer, batch ...*write) {
	for _, one := range batch {
		one.answer = make(chan written, 1)
	}
	w.commit(batch)
}

// refusing is a database with an answer to each transaction.
type refusing struct {
	answer  func(ctx context.Context, batch []*write) error
	batches int
}

func (r *refusing) insert(ctx context.Context, batch []*write, _ *keyRange, _ int64) ([]int64, error) {
	r.batches++
	if err := r.answer(ctx, batch); err != nil {
		return nil, err
	}
	return slices.Repeat([]int64{1}, len(batch)), nil
}

func (*refusing) ping(context.Context) error { return nil }
func (*refusing) primary() *sql.DB           { return nil }
func (*refusing) close()                     {}

func writesOf(ctx context.Context, n int) (batch []*write) {
	for range n {
		batch = append(batch, &write{ctx: ctx, key: "good"})
	}
	return batch
}

// What is left of a batch that was refused is not tried on a connection that has gone, nor after the end.
func TestTheRestOfABatchIsNotWritten(t *testing.T) {
	gone := errors.New("gone")
	for name, test := range map[string]struct {
		second error // of the second transaction
		end    bool
		want   error // of the writes after it
	}{
		"not committed": {tagged{gone, errUnsent}, false, gone},
		"unknown":       {tagged{gone, ErrUncertain}, false, gone},
		"ended":         {nil, true, errClosed},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			table := &refusing{}
			table.answer = func(_ context.Context, batch []*write) error {
				if table.batches == 1 {
					return &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "22001"}
				}
				if test.end {
					end()
				}
				return test.second
			}
			batch := writesOf(t.Context(), 8)
			commitOf(newWriter(ctx, table), batch...)
			for i, one := range batch {
				got := <-one.answer
				if i == 0 {
					if outcomeOf(got.err) != outcomeOf(test.second) {
						t.Errorf("write %d: %+v, want the answer of its transaction", i, got)
					}
				} else if !errors.Is(got.err, test.want) {
					t.Errorf("write %d: %+v, want that it was not written: %v", i, got, test.want)
				}
			}
			if table.batches != 2 {
				t.Errorf("%d transactions, want 2", table.batches)
			}
		})
	}
}

func TestAnUnknownOutcomeIsThatOfTheWholeBatch(t *testing.T) {
	gone := errors.New("gone")
	table := &refusing{answer: func(context.Context, []*write) error { return gone }}
	batch := writesOf(t.Context(), 2)
	commitOf(newWriter(t.Context(), table), batch...)
	for _, one := range batch {
		if got := <-one.answer; outcomeOf(got.err) != unknown {
			t.Errorf("%+v, want an unknown outcome for both writes", got)
		}
	}
	if table.batches != 1 {
		t.Errorf("%d transactions, want 1", table.batches)
	}
}
