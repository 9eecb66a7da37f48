package sqlitefile

import (
	"path/filepath"
	"syscall"
	"testing"
)

// The driver has no call for the system's error of a statement. Where its fields are
// called something else one day, a used-up quota would be a broken disk.
func TestSystemError(t *testing.T) {
	c, err := Connect(filepath.Join(t.TempDir(), "x.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	err = c.Exec("ATTACH '" + filepath.Join(t.TempDir(), "none", "y.db") + "' AS y")
	if err == nil {
		err = c.Exec("CREATE TABLE y.t (a)")
	}
	if err == nil || c.errno() != syscall.ENOENT {
		t.Errorf("%v: the system's error is %v, want %v", err, c.errno(), syscall.ENOENT)
	}
}
