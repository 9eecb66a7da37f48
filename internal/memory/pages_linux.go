package memory

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// mapping is a part of this process' address space.
type mapping struct {
	start, end uintptr
	resident   int64 // bytes
	own        int64 // bytes that belong to this process alone, not to the file
}

// dropProgram releases the pages of this program's code and constants. A start has touched
// most of them, and a running server uses a third. What is used again comes back from the
// page cache, and the kernel can use the rest for others.
func dropProgram() error {
	program, err := readOnlyProgram()
	if err != nil {
		return err
	}
	for _, m := range program {
		if m.own != 0 {
			continue // relocated, or a debugger's: the file does not have it
		}
		if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, m.start, m.end-m.start, syscall.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}

// readOnlyProgram reads where this program's file is mapped and cannot be written
// (proc_pid_smaps(5)).
func readOnlyProgram() ([]mapping, error) {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	var all []mapping
	var current *mapping
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		var m mapping
		var rights, skip string
		if n, _ := fmt.Sscanf(line, "%x-%x %s %s", &m.start, &m.end, &rights, &skip); n == 4 {
			current = nil
			if strings.HasSuffix(line, " "+path) && (rights == "r-xp" || rights == "r--p") {
				all = append(all, m)
				current = &all[len(all)-1]
			}
			continue
		}
		if current == nil {
			continue
		}
		for name, field := range map[string]*int64{"Rss:": &current.resident, "Anonymous:": &current.own} {
			if value, ok := strings.CutPrefix(line, name); ok {
				*field = number(strings.TrimSuffix(strings.TrimSpace(value), " kB")) << 10
			}
		}
	}
	return all, nil
}
