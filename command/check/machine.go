package check

import (
	"errors"
	"io/fs"
	"strconv"
	"strings"

	"github.com/karve-k8s/karve/internal/memory"
)

// controlGroup checks the memory controller. The server itself needs it only for limits.
// Raspberry Pi OS has it switched off, and a kubelet does not start then.
func (h *host) controlGroup() Finding {
	const missing = "for limits, and for a kubelet on this machine: boot with cgroup_enable=memory (Raspberry Pi: in /boot/firmware/cmdline.txt)"
	if text, err := h.read("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		for controller := range strings.FieldsSeq(string(text)) {
			if controller == "memory" {
				return found("cgroup", OK, "", "v2, with the memory controller")
			}
		}
		return found("cgroup", Warn, missing, "v2, without the memory controller")
	}
	text, err := h.read("/proc/cgroups")
	if err != nil {
		return notKnown("cgroup", err)
	}
	for line := range strings.Lines(string(text)) { // name, hierarchy, groups, enabled
		if f := strings.Fields(line); len(f) == 4 && f[0] == "memory" && f[3] == "1" {
			if _, err := fs.Stat(h.root, "sys/fs/cgroup/memory"); errors.Is(err, fs.ErrNotExist) {
				return found("cgroup", Warn, missing, "the memory controller is not mounted")
			}
			return found("cgroup", Warn, "a kubelet on this machine wants v2: boot with systemd.unified_cgroup_hierarchy=1", "v1, with the memory controller")
		}
	}
	return found("cgroup", Warn, missing, "v1, without the memory controller")
}

// easyMemory is how much should be free. With less, a start takes memory from other
// programs, or the kernel ends one.
const easyMemory = 256 << 20

func (h *host) memory(limit int64) Finding {
	total := memory.Machine(h.read)
	if total == 0 {
		return notKnown("memory", nil)
	}
	most, have, text := total, total, size(total)
	if available := h.available(); available > 0 {
		have, text = available, text+", "+size(available)+" available"
	}
	if group := memory.Group(h.read); group > 0 {
		most, have, text = min(most, group), min(have, group), text+", limit of the control group "+size(group)
	}
	if limit > 0 && limit < memory.NoLimit {
		text += ", --memory-limit " + size(limit)
	}
	switch {
	case most < memory.Least:
		return found("memory", Fail, "give the control group or the machine more memory", "%s; an idle server needs more than %s", text, size(memory.Least))
	case have < easyMemory:
		return found("memory", Warn, "stop something, or leave parts out (--disable-controllers)", "%s; little is available", text)
	case limit > most && limit < memory.NoLimit:
		return found("memory", Warn, "set a smaller --memory-limit", "%s; the limit is higher than that", text)
	}
	return found("memory", OK, "", "%s", text)
}

// available returns MemAvailable of /proc/meminfo in bytes; 0 if unknown.
func (h *host) available() int64 {
	text, err := h.read("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemAvailable:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			return n << 10
		}
	}
	return 0
}
