package memory

import (
	"fmt"
	"os"
	"strings"
	"syscall"
)

// mapping is a part of this process' address space.
type mapping struct {
	start, end uintptr
	text       string // its lines in smaps, after the first
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
		if kilobytes(m.text, "Anonymous:") != 0 {
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
func readOnlyProgram() (all []mapping, err error) {
	path, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return nil, err
	}
	ours := false
	for line := range strings.Lines(string(text)) {
		var m mapping
		var rights, offset string
		if n, _ := fmt.Sscanf(line, "%x-%x %s %s", &m.start, &m.end, &rights, &offset); n == 4 {
			ours = strings.HasSuffix(line, " "+path+"\n") && (rights == "r-xp" || rights == "r--p")
			if ours {
				all = append(all, m)
			}
		} else if ours {
			all[len(all)-1].text += line
		}
	}
	return all, nil
}
