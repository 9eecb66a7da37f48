// Package machine reads what the machine reports about its processes and disks. It is for
// Linux only, as the benchmarks are.
package machine

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// OwnPID is the process of the benchmark.
var OwnPID = os.Getpid()

// AnonymousMemory is RssAnon of a process, in bytes: memory that the kernel cannot reclaim, as it
// can pages of mapped files.
func AnonymousMemory(pid int) (int64, error) {
	kb, err := procField(fmt.Sprintf("/proc/%d/status", pid), "RssAnon")
	return kb << 10, err
}

// ResidentMemory is VmRSS of a process, in bytes.
func ResidentMemory(pid int) (int64, error) {
	kb, err := procField(fmt.Sprintf("/proc/%d/status", pid), "VmRSS")
	return kb << 10, err
}

// PeakMemory is VmHWM of a process, in bytes: the largest resident memory so far.
func PeakMemory(pid int) (int64, error) {
	n, err := procField(fmt.Sprintf("/proc/%d/status", pid), "VmHWM")
	return n << 10, err
}

// WrittenBytes is the number of bytes that a process has caused to be written to disks.
func WrittenBytes(pid int) (int64, error) {
	return procField(fmt.Sprintf("/proc/%d/io", pid), "write_bytes")
}

// procField reads a number from a file of lines "name: value [kB]".
func procField(file, name string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), name+":"); ok {
			return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 64)
		}
	}
	return 0, fmt.Errorf("read %s: it is not in %s", name, file)
}

// Describe describes the machine, with the time of a durable write to the disk of a directory.
func Describe(dir string) (string, error) {
	memory, err := procField("/proc/meminfo", "MemTotal")
	if err != nil {
		return "", err
	}
	p50, p99, err := ProbeDisk(dir)
	if err != nil {
		return "", fmt.Errorf("probe disk: %w", err)
	}
	return fmt.Sprintf("%d cores (%s), %.1f GB, %s, %s/%s; an append of 1 KB is durable in %.3g ms (p99 %.3g ms)",
		runtime.NumCPU(), Processor(), float64(memory)*1024/1e9, runtime.Version(), runtime.GOOS, runtime.GOARCH, p50, p99), nil
}

// Processor is the name of this machine's Processor.
func Processor() string {
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return runtime.GOARCH
}

// CPUTime is the time that a process has used on all cores. Its resolution is a nanosecond, whereas
// /proc/PID/stat has hundredths of a second.
func CPUTime(pid int) (time.Duration, error) {
	var ts unix.Timespec
	clock := int32(^pid<<3 | 2) // clock_getcpuclockid(3)
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// BusyTime is the time that all cores together were busy. In a virtual machine it includes the time
// that other guests took.
func BusyTime() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read load: %w", err)
	}
	line, _, _ := strings.Cut(string(stat), "\n")
	var ticks int64
	for i, field := range strings.Fields(line) {
		// cpu user nice system idle iowait irq softirq steal; guests are in user.
		if i == 0 || i == 4 || i == 5 || i > 8 {
			continue
		}
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read load: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * (time.Second / 100), nil // USER_HZ is 100 everywhere
}

// OwnTime is the CPU time of this process and of the children that it has waited for.
func OwnTime() (total time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return total
}

// TimeWithChildren is the CPU time of a process and of the children that it has waited for, in hundredths of a second; 0 if it
// is gone.
func TimeWithChildren(pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(stat), ") ") // the name of the program may have spaces
	var ticks int64
	if fields := strings.Fields(after); len(fields) > 14 {
		for _, field := range fields[11:15] { // utime, stime, cutime, cstime
			n, _ := strconv.ParseInt(field, 10, 64)
			ticks += n
		}
	}
	return time.Duration(ticks) * (time.Second / 100)
}
