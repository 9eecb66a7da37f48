// Package machine reads what the machine reports about its processes and disks. It is for
// Linux only, as the benchmarks are.
package machine

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// OwnPID is the process of the benchmark.
var OwnPID = os.Getpid()

// status reads a size of a process, in bytes.
func status(pid int, size func(procfs.ProcStatus) uint64) (int64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	s, err := p.NewStatus()
	return int64(size(s)), err
}

// AnonymousMemory is RssAnon of a process, in bytes: memory that the kernel cannot reclaim, as it
// can pages of mapped files.
func AnonymousMemory(pid int) (int64, error) {
	return status(pid, func(s procfs.ProcStatus) uint64 { return s.RssAnon })
}

// ResidentMemory is VmRSS of a process, in bytes.
func ResidentMemory(pid int) (int64, error) {
	return status(pid, func(s procfs.ProcStatus) uint64 { return s.VmRSS })
}

// PeakMemory is VmHWM of a process, in bytes: the largest resident memory so far.
func PeakMemory(pid int) (int64, error) {
	return status(pid, func(s procfs.ProcStatus) uint64 { return s.VmHWM })
}

// WrittenBytes is the number of bytes that a process has caused to be written to disks.
func WrittenBytes(pid int) (int64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	io, err := p.IO()
	return int64(io.WriteBytes), err
}

// Describe describes the machine, with the time of a durable write to the disk of a directory.
func Describe(dir string) (string, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return "", err
	}
	memory, err := fs.Meminfo()
	if err != nil {
		return "", err
	}
	sync, err := probeDisk(dir)
	if err != nil {
		return "", fmt.Errorf("probe disk: %w", err)
	}
	return fmt.Sprintf("%d cores (%s), %.1f GB, %s, %s/%s; an append of 1 KB is durable in %v (p99 %v)",
		runtime.NumCPU(), Processor(), float64(*memory.MemTotalBytes)/1e9, runtime.Version(), runtime.GOOS, runtime.GOARCH, sync.P50, sync.P99), nil
}

// Processor is the name of this machine's Processor.
func Processor() string {
	if fs, err := procfs.NewDefaultFS(); err == nil {
		if all, err := fs.CPUInfo(); err == nil && len(all) > 0 && all[0].ModelName != "" {
			return all[0].ModelName
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
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return 0, err
	}
	all := stat.CPUTotal // guests are in user
	return time.Duration((all.User + all.Nice + all.System + all.IRQ + all.SoftIRQ + all.Steal) * float64(time.Second)), nil
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
