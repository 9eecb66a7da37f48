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
)

// Auto is the text that lets Limit choose.
const Auto = "auto"

// NoLimit is a limit that is never reached.
const NoLimit = int64(math.MaxInt64)

// Least is the smallest limit that Limit accepts, in bytes. With 64 Mi, an idle
// server spends half a core on collecting; with 96, no more than without a limit.
const Least = 96 << 20

// The share of the memory that auto lets the Go runtime use: nearly all of a control
// group's, and half of a whole machine's, where other programs run too.
const (
	cgroupShare  = 0.8
	machineShare = 0.5
)

// ErrSize means that a text is not a size.
var ErrSize = errors.New("want auto, or a number of bytes such as 200Mi (Ki, Mi or Gi)")

// Limit parses a limit in bytes: a number with or without Ki, Mi or Gi, or auto. Auto is
// GOMEMLIMIT if that is set. Otherwise it is 80 % of the smallest limit of this process'
// control groups, at most half of the machine's memory, and at least Least. If neither is
// known, it is NoLimit.
func Limit(text string) (int64, error) {
	if text == Auto {
		if os.Getenv("GOMEMLIMIT") != "" {
			return debug.SetMemoryLimit(-1), nil // the runtime has read it
		}
		return choose(os.ReadFile), nil
	}
	digits, shift := text, 0
	for suffix, s := range map[string]int{"Ki": 10, "Mi": 20, "Gi": 30} {
		if before, ok := strings.CutSuffix(text, suffix); ok {
			digits, shift = before, s
		}
	}
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, ErrSize
	}
	bytes := int64(n) << shift
	if bytes < Least {
		return 0, fmt.Errorf("want at least %dMi", Least>>20)
	}
	return bytes, nil
}

// choose makes auto's choice, with a function that reads the system's files.
func choose(read func(string) ([]byte, error)) int64 {
	limit := NoLimit
	if total := Machine(read); total > 0 {
		limit = int64(float64(total) * machineShare)
	}
	if group := Group(read); group > 0 {
		limit = min(limit, int64(float64(group)*cgroupShare))
	}
	return max(limit, Least)
}

// Machine returns MemTotal of /proc/meminfo (proc_meminfo(5)) in bytes; 0 if unknown. read
// reads a file, as os.ReadFile does.
func Machine(read func(string) ([]byte, error)) int64 {
	text, err := read("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			return number(strings.TrimSuffix(strings.TrimSpace(rest), " kB")) << 10
		}
	}
	return 0
}

// Group returns the smallest limit of the control groups of this process (cgroups(7)), in
// bytes; 0 if there is none. A container sees its own group as the root, at a path that
// /proc/self/cgroup may not show, so the roots count too. read reads a file, as os.ReadFile
// does.
func Group(read func(string) ([]byte, error)) int64 {
	text, err := read("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	smallest := NoLimit
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if fields[1] != "" {
			if fields[1] != "memory" {
				continue
			}
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			if limit, err := read(path.Join(root, group, file)); err == nil {
				if n := number(strings.TrimSpace(string(limit))); n > 0 {
					smallest = min(smallest, n)
				}
			}
			if group == "/" {
				break
			}
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
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
