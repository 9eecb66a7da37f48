package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/karve-k8s/karve/servertest/process/child"
)

// port leads to karve's secure listener, on 127.0.0.1.
const port = 36443

// options are what the machine is made of.
type options struct {
	kernel, initrd string
	program        string // image of a file system with karve, read-only
	memory         int    // MiB
	accel          string // qemu's: tcg, or kvm
	dir            string // for the images and logs
	server         string // options of karve server, behind the machine's own
	mount          string // options of ext4
}

func (o options) image() string { return filepath.Join(o.dir, "data.img") }
func (o options) log() string   { return filepath.Join(o.dir, "data.log") }
func (o options) disk() string  { return filepath.Join(o.dir, "running.img") }

// machine is a qemu with karve in it, whose disk has a cache that a power cut
// loses: nothing but the flushes that the guest asks for makes data durable, and
// the log of the disk (blocklog.go) knows which it asked for.
type machine struct {
	options
	qemu    *exec.Cmd
	ended   chan struct{}
	console *console
	began   time.Time
}

// boot starts a machine on a copy of the image.
func boot(o options) (*machine, error) {
	if out, err := exec.Command("cp", "--sparse=always", o.image(), o.disk()).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cp: %w: %s", err, out)
	}
	if err := os.WriteFile(o.log(), nil, 0o600); err != nil {
		return nil, err
	}
	m := &machine{options: o, ended: make(chan struct{}), console: &console{}, began: time.Now()}
	m.qemu = exec.Command("qemu-system-x86_64",
		"-machine", "pc,accel="+o.accel, "-m", strconv.Itoa(o.memory), "-smp", "2",
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", o.kernel, "-initrd", o.initrd,
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 mount="+o.mount+" karve="+strings.ReplaceAll(o.server, " ", ","),
		"-blockdev", "driver=raw,node-name=program,read-only=on,file.driver=file,file.filename="+o.program,
		"-device", "virtio-blk-pci,drive=program",
		"-blockdev", "driver=file,node-name=disk,filename="+o.disk(),
		"-blockdev", "driver=file,node-name=log,cache.no-flush=on,filename="+o.log(),
		"-blockdev", "driver=blklogwrites,node-name=logged,log-sector-size=512,log-super-update-interval=1,file=disk,log=log",
		"-device", "virtio-blk-pci,drive=logged,write-cache=on,discard=off,write-zeroes=off",
		"-netdev", fmt.Sprintf("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:6443", port),
		"-device", "virtio-net-pci,netdev=net,romfile=")
	m.qemu.Stdout, m.qemu.Stderr = m.console, m.console
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.qemu.Start(); err != nil {
		return nil, fmt.Errorf("start qemu (Debian: qemu-system-x86): %w", err)
	}
	go func() {
		_ = m.qemu.Wait() // how it ended is known from what it said
		close(m.ended)
	}()
	return m, nil
}

// pull ends the machine as a pulled plug does, and leaves on its image what a
// disk would have kept.
func (m *machine) pull() (string, error) {
	if err := m.qemu.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return "", err
	}
	<-m.ended
	writes, unflushed, lost, err := cutPower(m.image(), m.log(), chance)
	return fmt.Sprintf("%d disk writes, %d of them not flushed, %d of those lost", writes, unflushed, lost), err
}

// up is an error when the machine or karve in it has ended, or said that
// something is broken.
func (m *machine) up() error {
	text := m.console.String()
	for _, bad := range []string{"EXT4-fs error", "Kernel panic", "Out of memory", "karve ended", "verify failed", "I/O error"} {
		if strings.Contains(text, bad) {
			return fmt.Errorf("the machine says %q:\n%s", bad, m.console.tail())
		}
	}
	select {
	case <-m.ended:
		return fmt.Errorf("the machine ended:\n%s", m.console.tail())
	default:
		return nil
	}
}

// console is what the machine prints.
type console struct{ child.Text }

func (c *console) String() string { return strings.ReplaceAll(c.Text.String(), "\r", "") }

func (c *console) tail() string {
	text := c.String()
	return text[max(0, len(text)-4000):]
}
