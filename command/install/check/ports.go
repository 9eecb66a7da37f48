package check

import (
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/karve-k8s/karve/internal/procnet"
)

// ports tries each port, and names the process that has it, as far as this user may see.
// What the server to be replaced has counts as free. What the server of the data directory
// has, whose pid is own, is no problem of the port: that this server runs is a finding about the
// data directory.
func (h *host) ports(ports []Port, replaced, own int) []Finding {
	var all []Finding
	for _, p := range ports {
		check := "port " + p.Option
		err := p.Try()
		switch {
		case err == nil && p.Number == 0:
			all = append(all, found(check, OK, "", "any free port"))
		case err == nil:
			all = append(all, found(check, OK, "", "%d is free", p.Number))
		default:
			owner, who := h.listener(p.Number), ""
			if owner.pid != 0 && owner.pid == replaced {
				all = append(all, found(check, OK, "", "%d is used by %s, which this replaces", p.Number, owner))
				continue
			}
			if owner.pid != 0 && owner.pid == own {
				all = append(all, found(check, OK, "", "%d is used by the server of this data directory, %s", p.Number, owner))
				continue
			}
			if owner.pid != 0 {
				who = ": it is " + owner.String()
			}
			all = append(all, found(check, Fail, "stop that program, or choose another port with --"+p.Option, "%v%s", err, who))
		}
	}
	return all
}

// listener returns the process that listens on a TCP port. Its pid is 0 if there is none,
// or none that this user may see.
func (h *host) listener(port int) process {
	sockets := map[string]bool{}
	for _, s := range h.listening() {
		if int(s.Local.Port()) == port {
			sockets[link(s)] = true
		}
	}
	if len(sockets) == 0 {
		return process{}
	}
	for _, p := range h.processes() {
		if slices.ContainsFunc(h.descriptors(p.pid), func(link string) bool { return sockets[link] }) {
			return p
		}
	}
	return process{}
}

// descriptors returns what a process' open files link to (proc_pid_fd(5)).
func (h *host) descriptors(pid int) []string {
	dir := fmt.Sprintf("proc/%d/fd", pid)
	entries, err := fs.ReadDir(h.root, dir)
	if err != nil {
		return nil
	}
	var links []string
	for _, e := range entries {
		if to, err := fs.ReadLink(h.root, dir+"/"+e.Name()); err == nil {
			links = append(links, to)
		}
	}
	return links
}

// listening reads the kernel's tables of TCP sockets.
func (h *host) listening() []procnet.Socket {
	var all []procnet.Socket
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := h.read(path)
		if err != nil {
			continue
		}
		for s := range procnet.Sockets(bytes.NewReader(text)) {
			if s.State == procnet.Listen {
				all = append(all, s)
			}
		}
	}
	return all
}

// link returns how /proc shows a descriptor of a socket.
func link(s procnet.Socket) string { return fmt.Sprintf("socket:[%d]", s.Inode) }

type process struct {
	pid  int
	name string
}

func (p process) String() string {
	if p.pid == 0 { // of another PID namespace
		return p.name + " (pid unknown)"
	}
	return fmt.Sprintf("%s (pid %d)", p.name, p.pid)
}

// processes returns those of this machine. Without /proc, there are none.
func (h *host) processes() []process {
	entries, err := fs.ReadDir(h.root, "proc")
	if err != nil {
		return nil
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if name, err := h.read("/proc/" + e.Name() + "/comm"); err == nil {
			all = append(all, process{pid, strings.TrimSpace(string(name))})
		}
	}
	slices.SortFunc(all, func(a, b process) int { return a.pid - b.pid })
	return all
}
