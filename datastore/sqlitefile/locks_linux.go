package sqlitefile

import (
	"bufio"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// SQLite locks these bytes of a database, whatever its size
// (https://sqlite.org/fileformat2.html#the_lock_byte_page).
const (
	lockBytes    = 1 << 30
	lockBytesEnd = lockBytes + 512
)

// LockingProcesses returns the processes that have locked the database at path, according to
// /proc/locks. It does not open the file, because closing it would drop this process' own locks.
func LockingProcesses(path string) (pids []int) {
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return nil
	}
	defer f.Close()
	inode := strconv.FormatUint(stat.Ino, 10)
	// 1: POSIX  ADVISORY  READ 4711 08:02:131085 1073741826 1073742335
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 8 || fields[1] != "POSIX" || !strings.HasSuffix(fields[5], ":"+inode) {
			continue // the device is not compared: on btrfs, stat(2) returns another one
		}
		begin, err := strconv.ParseInt(fields[6], 10, 64)
		pid, noPID := strconv.Atoi(fields[4])
		if err == nil && begin >= lockBytes && begin < lockBytesEnd && noPID == nil && pid > 0 && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}
