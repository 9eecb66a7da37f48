package memory

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Anonymous returns RssAnon of a process in bytes, the memory that the kernel cannot reclaim
// (proc_pid_status(5)). 0 is unknown.
func Anonymous(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "RssAnon:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}
