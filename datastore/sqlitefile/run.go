package sqlitefile

import (
	"fmt"
	"math/rand/v2"
	"net/url"
)

// A database carries a random number, the meta row "run". A start changes it if the last stop was in order, and every
// backup has its own. Each generation of a WAL has the page of the meta table, because it begins with a change of the row
// "clean". So the number without the WAL differs from that with it if somebody has put a database beside
// the WAL of another. SQLite would copy that WAL into it.

// newRun returns the rows of a database that gets a new number in place of before.
func newRun(before int64) Metas { return Metas{"run": rand.Int64(), "run_before": before} }

// metasAlone reads the meta table without the WAL. It returns nil if that is not possible: after a power loss in the middle of a
// checkpoint, only the WAL has all pages.
func metasAlone(path string) (Metas, error) {
	c, err := Connect(path, url.Values{"mode": {"ro"}, "immutable": {"1"}})
	if err != nil {
		return nil, Explain(path, err)
	}
	defer c.Close()
	metas, err := c.Metas()
	if err != nil {
		return nil, nil
	}
	return metas, nil
}

// checkRun refuses a database that is beside the WAL of another. The meta table was read without the WAL, and with it.
func checkRun(path string, alone, with Metas) error {
	switch alone["run"] {
	case with["run"]:
		return nil
	case with["run_before"]:
		if with.state().open() { // killed before the number was in the database itself
			return nil
		}
	}
	return fmt.Errorf("%w: move %s-wal away, and %s is used as it is", ErrForeignWAL, path, path)
}

// checkRunOf is [checkRun] for a database that c reads with its WAL, unless a server has it open.
func checkRunOf(path string, c *Connection) error {
	if !HasWAL(path) || inUse(path) {
		return nil
	}
	with, err := c.Metas()
	if err != nil {
		return Explain(path, err)
	}
	alone, err := metasAlone(path)
	if err != nil || alone == nil || inUse(path) {
		return err
	}
	return checkRun(path, alone, with)
}
