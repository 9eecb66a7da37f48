package memory

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Auto is the text that lets Limit choose.
const Auto = "auto"

// NoLimit is a limit that is never reached.
const NoLimit = int64(math.MaxInt64)

// Least is the smallest limit that Limit accepts, in bytes. With 64 Mi, an idle
// server spends half a core on collecting; with 96, no more than without a limit.
const Least = 96 << 20

// ErrSize means that a text is not a size.
var ErrSize = errors.New("want auto, or a number of bytes such as 200Mi (Ki, Mi or Gi)")

// Limit parses a limit in bytes: a quantity of Kubernetes, or auto. Auto is
// GOMEMLIMIT if that is set. Otherwise it is 80 % of the smallest limit of this process'
// control groups, at most half of the machine's memory, where other programs run too, and at
// least Least. If neither is known, it is NoLimit.
func Limit(text string) (int64, error) {
	if text == Auto {
		if os.Getenv("GOMEMLIMIT") != "" {
			return debug.SetMemoryLimit(-1), nil // the runtime has read it
		}
		return choose(os.ReadFile), nil
	}
	size, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, ErrSize
	}
	if size.Value() < Least {
		return 0, fmt.Errorf("want at least %dMi", Least>>20)
	}
	return size.Value(), nil
}

// choose makes auto's choice, with a function that reads the system's files.
func choose(read func(string) ([]byte, error)) int64 {
	limit := NoLimit
	if total := Machine(read); total > 0 {
		limit = total / 2
	}
	if group := Group(read); group > 0 {
		limit = min(limit, group/5*4)
	}
	return max(limit, Least)
}

// Machine returns MemTotal of /proc/meminfo (proc_meminfo(5)) in bytes; 0 if unknown. read
// reads a file, as os.ReadFile does.
func Machine(read func(string) ([]byte, error)) int64 {
	text, _ := read("/proc/meminfo")
	return kilobytes(string(text), "MemTotal:")
}

// Anonymous returns RssAnon of a process in bytes, the memory that the kernel cannot reclaim
// (proc_pid_status(5)). 0 is unknown.
func Anonymous(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return kilobytes(string(text), "RssAnon:")
}

// kilobytes returns the value of a line such as "MemTotal: 2048 kB" in bytes; 0 if there is none.
func kilobytes(text, name string) int64 {
	_, rest, _ := strings.Cut("\n"+text, "\n"+name)
	value, _, _ := strings.Cut(rest, " kB")
	return number(value) << 10
}

// Group returns the smallest limit of the control groups of this process (cgroups(7)), in
// bytes; 0 if there is none. A container sees its own group as the root, at a path that
// /proc/self/cgroup may not show, so the roots count too. read reads a file, as os.ReadFile
// does.
func Group(read func(string) ([]byte, error)) int64 {
	text, _ := read("/proc/self/cgroup")
	smallest := NoLimit
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || fields[1] != "" && fields[1] != "memory" {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if fields[1] == "memory" { // version 1
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		for group, last := path.Clean("/"+fields[2]), false; !last; group = path.Dir(group) {
			limit, _ := read(path.Join(root, group, file))
			if n := number(string(limit)); n > 0 {
				smallest = min(smallest, n)
			}
			last = group == "/"
		}
	}
	// Version 1 expresses "no limit" by a number near the largest.
	if smallest > math.MaxInt64/2 {
		return 0
	}
	return smallest
}

// number returns 0 for what is no number, such as "max".
func number(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
