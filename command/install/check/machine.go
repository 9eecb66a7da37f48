package check

import (
	"strconv"
	"strings"

	"github.com/karve-k8s/karve/internal/memory"
)

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
