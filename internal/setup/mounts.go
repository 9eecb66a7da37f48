package setup

import (
	"path/filepath"
	"slices"
	"strings"
)

// MountTable is the kernel's list of mounts, for [MountsBelow] and [Mounted].
const MountTable = "/proc/self/mountinfo"

// MountsBelow returns what a table has below a directory without links, which may be a file system of its own.
func MountsBelow(table, dir string) []string {
	var all []string
	for line := range strings.SplitSeq(table, "\n") {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(fields[4])
		if strings.HasPrefix(point, dir+"/") {
			all = append(all, point)
		}
	}
	return all
}

// Mounted reports whether something is mounted at a path without links, or below it.
func Mounted(table, path string) bool {
	return len(MountsBelow(table, path)) > 0 || slices.Contains(MountsBelow(table, filepath.Dir(path)), path)
}
