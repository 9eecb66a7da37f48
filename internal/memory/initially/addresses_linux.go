package initially

import (
	"os"
	"strconv"
	"syscall"
)

// leastAddresses is the smallest limit of addresses (ulimit -v) with which a server can start, in bytes. Go reserves many more
// than it uses, and ends a process without enough of them with a stack, often before main.
const leastAddresses = 1536 << 20

func init() {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &limit); err != nil {
		return
	}
	if problem := fewAddresses(os.Args, limit.Cur); problem != "" {
		_, _ = os.Stderr.WriteString("karve: " + problem + "\n")
		os.Exit(1)
	}
}

// fewAddresses says what is wrong with a limit for a command that starts a server. Others need less.
func fewAddresses(args []string, limit uint64) string {
	if len(args) < 2 || args[1] != "server" && args[1] != "run" || limit >= leastAddresses || strconv.IntSize < 64 {
		return ""
	}
	return "ulimit -v " + strconv.FormatUint(limit>>10, 10) + ": a server needs " + strconv.Itoa(leastAddresses>>10) +
		" at least: remove the limit (ulimit -v unlimited); --memory-limit limits the memory"
}
