package directory

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Stamp is the form of the time in the names of files that are kept: backups, snapshots and databases.
const Stamp = "20060102T150405Z"

// Kept returns the files in dir whose names are prefix, a [Stamp] and perhaps the number that [Unused] gives, sorted by the time.
func Kept(dir, prefix string) (files []string, err error) {
	entries, err := os.ReadDir(dir) // by name
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		at, number, numbered := strings.Cut(rest, ".")
		_, noTime := time.Parse(Stamp, at)
		_, noNumber := strconv.ParseUint(number, 10, 32)
		if ok && e.Type().IsRegular() && noTime == nil && numbered == (noNumber == nil) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, err
}

// Surplus returns which of names, sorted by the time in them, to remove so that keep stay with made, which is the newest: first
// those that a wrong clock has dated after it, then the oldest.
func Surplus(names []string, made string, keep int) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == made })
	after, _ := slices.BinarySearch(names, made)
	order := slices.Concat(names[after:], names[:after])
	return order[:max(0, len(order)-(keep-1))]
}
