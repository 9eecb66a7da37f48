package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What the machine tells about a process and a disk. Linux only, as the
// benchmark is.

var ownPID = os.Getpid()

// anonymousMemory is RssAnon of a process in bytes: what the kernel cannot
// reclaim, as opposed to pages of files that it has mapped.
func anonymousMemory(pid int) (int64, error) {
	kb, err := procField(fmt.Sprintf("/proc/%d/status", pid), "RssAnon")
	return kb << 10, err
}

// residentMemory is all memory that a process has, in bytes.
func residentMemory(pid int) (int64, error) {
	kb, err := procField(fmt.Sprintf("/proc/%d/status", pid), "VmRSS")
	return kb << 10, err
}

// peakMemory is the most resident memory that a process has had, in bytes.
func peakMemory(pid int) (int64, error) {
	n, err := procField(fmt.Sprintf("/proc/%d/status", pid), "VmHWM")
	return n << 10, err
}

// writtenBytes is what a process has caused to be written to disks.
func writtenBytes(pid int) (int64, error) {
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
	return 0, fmt.Errorf("read %s: %s does not tell it", name, file)
}

// describeMachine says where figures come from, with how long the disk of a
// directory takes for a durable write.
func describeMachine(dir string) (string, error) {
	memory, err := procField("/proc/meminfo", "MemTotal")
	if err != nil {
		return "", err
	}
	p50, p99, err := probeDisk(dir)
	if err != nil {
		return "", fmt.Errorf("probe disk: %w", err)
	}
	return fmt.Sprintf("%d cores (%s), %s MB, %s, %s/%s; an append of 1 KB is durable in %s ms (p99 %s ms)",
		runtime.NumCPU(), processor(), number(float64(memory)*1024/1e6), runtime.Version(), runtime.GOOS, runtime.GOARCH, number(p50), number(p99)), nil
}

// processor is the name of this machine's processor.
func processor() string {
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				return strings.TrimSpace(value)
			}
		}
	}
	return runtime.GOARCH
}

// cpuTime is the time a process has used on all cores, to the nanosecond; that
// in /proc/PID/stat comes in hundredths of a second.
func cpuTime(pid int) (time.Duration, error) {
	var ts unix.Timespec
	clock := int32(^pid<<3 | 2) // clock_getcpuclockid(3)
	if err := unix.ClockGettime(clock, &ts); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// busyTime is the time all cores together have spent on anything, also on
// other machines where this one is a guest.
func busyTime() (time.Duration, error) {
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

// diskBytes is what the files of a directory occupy, with what is preallocated.
func diskBytes(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		total += info.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	return total, err
}

// ignoreGone: a peer may remove a file while its directory is being read.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// settledDisk waits until the size of a directory has been the same for half a
// second, two seconds at most: a peer may give back space in the background.
func settledDisk(ctx context.Context, dir string) (int64, error) {
	const step, same, most = 50 * time.Millisecond, 10, 40
	size, err := diskBytes(dir)
	for i, unchanged := 0, 0; err == nil && unchanged < same && i < most; i++ {
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(step):
		}
		var now int64
		if now, err = diskBytes(dir); now == size {
			unchanged++
		} else {
			unchanged, size = 0, now
		}
	}
	return size, err
}

// probeDisk is how long the disk takes to make 1 KB of a growing file durable,
// in milliseconds: no write that is durable can be faster for one client.
func probeDisk(dir string) (p50, p99 float64, err error) {
	f, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return 0, 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	took := make([]time.Duration, 200)
	block := make([]byte, 1024)
	for i := range took {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, 0, fmt.Errorf("sync probe: %w", err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return milliseconds(quantile(took, 0.50)), milliseconds(quantile(took, 0.99)), nil
}

// workPlace makes a directory as workDir does, and describes the machine. The caller
// removes the directory.
func workPlace(dir string) (work, machine string, err error) {
	if work, err = workDir(dir); err != nil {
		return "", "", err
	}
	if machine, err = describeMachine(work); err != nil {
		os.RemoveAll(work)
		return "", "", err
	}
	return work, machine, nil
}

// workDir makes a directory on a disk, below dir or where temporary files are.
func workDir(dir string) (string, error) {
	work, err := os.MkdirTemp(dir, "kb-") // short: a socket's path has 107 bytes
	if err != nil {
		return "", fmt.Errorf("make work directory: %w", err)
	}
	volatile, err := inMemory(work)
	if err == nil && volatile {
		err = fmt.Errorf("%s is not on a disk, where a sync costs nothing: choose another with -dir", filepath.Dir(work))
	}
	if err != nil {
		os.Remove(work)
		return "", err
	}
	return work, nil
}

// inMemory tells whether a directory is on a file system without a disk.
func inMemory(dir string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return false, fmt.Errorf("look at %s: %w", dir, err)
	}
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC, nil
}
