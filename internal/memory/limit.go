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

// The share of the memory there is that auto lets the Go runtime use: of a control
// group, nearly all; of a whole machine, half, since others live there too.
const (
	cgroupShare  = 0.8
	machineShare = 0.5
)

// ErrSize is a text that is not a size.
var ErrSize = errors.New("want auto, or a number of bytes such as 200Mi (Ki, Mi or Gi)")

// Limit reads a limit in bytes: a number with or without Ki, Mi or Gi, or auto. Auto
// is GOMEMLIMIT if it is set; else 80 % of the smallest limit of this process'
// control groups, and no more than half of the machine's memory; but not less than
// Least. Where neither is known, it is NoLimit.
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
		return 0, fmt.Errorf("want %dMi at least", Least>>20)
	}
	return bytes, nil
}

// choose is auto's choice, with a function that reads the system's files.
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

// Machine is MemTotal of /proc/meminfo (proc_meminfo(5)) in bytes; 0 if
// unknown. read reads a file, as os.ReadFile does.
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

// Group is the smallest limit of the control groups that this process is in
// (cgroups(7)), in bytes; 0 if there is none. A container sees its own group as
// the root, at a path that /proc/self/cgroup may not tell, so the roots count too.
// read reads a file, as os.ReadFile does.
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
	// Version 1 says that there is no limit with a number near the largest.
	if smallest > math.MaxInt64/2 {
		return 0
	}
	return smallest
}

// number is 0 for what is not one, such as "max".
func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
