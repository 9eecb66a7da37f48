//go:build linux

package durability

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/karve-k8s/karve/servertest/process/child"
)

const (
	// plugVariable names the directory of the machine's parts, which scripts/plug-test makes.
	plugVariable = "KARVE_PLUG"

	plugClients = 8
	plugPort    = 36443 // leads to karve's secure listener, on 127.0.0.1
	plugLoad    = 30 * time.Second
	plugStart   = 20 * time.Minute // an emulated machine is slow
)

// A pluggedMachine is a qemu with karve in it, whose disk has a cache that a power cut loses: nothing but the flushes that the
// guest asks for makes data durable, and the log of the disk (blocklog_test.go) knows which it asked for.
type pluggedMachine struct {
	dir     string
	qemu    *exec.Cmd
	ended   chan struct{}
	console child.Text
}

// file is a file of the machine, such as its disk data.img, which it has while it is off.
func (m *pluggedMachine) file(name string) string { return filepath.Join(m.dir, name) }

// boot starts the machine on a copy of its disk.
func (m *pluggedMachine) boot() error {
	if out, err := exec.Command("cp", "--sparse=always", m.file("data.img"), m.file("running.img")).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	if err := os.WriteFile(m.file("data.log"), nil, 0o600); err != nil {
		return err
	}
	m.ended, m.console = make(chan struct{}), child.Text{}
	m.qemu = exec.Command("qemu-system-x86_64",
		"-machine", "pc,accel="+os.Getenv("KARVE_PLUG_ACCEL"), "-m", os.Getenv("KARVE_PLUG_MEMORY"), "-smp", "2",
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-kernel", m.file("vmlinuz"), "-initrd", m.file("initrd"),
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 mount="+os.Getenv("KARVE_PLUG_MOUNT")+" karve="+strings.ReplaceAll(os.Getenv("KARVE_PLUG_OPTIONS"), " ", ","),
		"-blockdev", "driver=raw,node-name=program,read-only=on,file.driver=file,file.filename="+m.file("program.img"),
		"-device", "virtio-blk-pci,drive=program",
		"-blockdev", "driver=file,node-name=disk,filename="+m.file("running.img"),
		"-blockdev", "driver=file,node-name=log,cache.no-flush=on,filename="+m.file("data.log"),
		"-blockdev", "driver=blklogwrites,node-name=logged,log-sector-size=512,log-super-update-interval=1,file=disk,log=log",
		"-device", "virtio-blk-pci,drive=logged,write-cache=on,discard=off,write-zeroes=off",
		"-netdev", fmt.Sprintf("user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:%d-10.0.2.15:6443", plugPort),
		"-device", "virtio-net-pci,netdev=net,romfile=")
	m.qemu.Stdout, m.qemu.Stderr = &m.console, &m.console
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.qemu.Start(); err != nil {
		return err
	}
	go func() {
		m.qemu.Wait() // how it ended is known from what it said
		close(m.ended)
	}()
	return nil
}

func (m *pluggedMachine) kill() {
	m.qemu.Process.Kill() // it may have ended
	<-m.ended
}

// up is an error when the machine or karve in it has ended, or said that something is broken.
func (m *pluggedMachine) up() error {
	for _, bad := range []string{"EXT4-fs error", "Kernel panic", "Out of memory", "karve ended", "verify failed", "I/O error"} {
		if strings.Contains(m.console.String(), bad) {
			return fmt.Errorf("the machine says %q", bad)
		}
	}
	select {
	case <-m.ended:
		return errors.New("the machine ended")
	default:
		return nil
	}
}

// No acknowledged write is lost when the power of a machine fails while clients write, and the datastore is whole. scripts/plug-test
// runs it; KARVE_HISTORIES is the number of pulls.
func TestPulledPlug(t *testing.T) {
	m := &pluggedMachine{dir: os.Getenv(plugVariable)}
	if m.dir == "" {
		t.Skipf("%s is not set: scripts/plug-test sets it", plugVariable)
	}
	token, err := os.ReadFile(m.file("token"))
	if err != nil {
		t.Fatal(err)
	}
	// The certificate is of an authority inside the machine; the way there is this machine's loopback interface.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: plugClients}
	api := &API{URL: fmt.Sprintf("https://127.0.0.1:%d", plugPort), Token: strings.TrimSpace(string(token)), HTTP: &http.Client{Transport: transport}}
	j, in := NewJournal(), collections["configmaps"]
	pulls := rounds(t, 10)
	t.Cleanup(func() {
		if text := m.console.String(); t.Failed() {
			t.Logf("the console's end:\n%s", text[max(0, len(text)-4000):])
		}
	})
	for n := range pulls + 1 { // the last start is for a look
		if err := m.boot(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.kill)
		began := time.Now()
		for err = m.ready(t.Context(), api); err != nil; err = m.ready(t.Context(), api) {
			if broken := m.up(); broken != nil || time.Since(began) > plugStart {
				t.Fatalf("start %d: not ready after %v: %v, %v", n, time.Since(began), err, broken)
			}
			time.Sleep(500 * time.Millisecond)
		}
		if n > 0 && !strings.Contains(m.console.String(), "verify ok") {
			t.Fatal("karve datastore verify did not run in the machine")
		}
		if err := compareOwn(t.Context(), api, j, in, "own-"); err != nil {
			t.Fatalf("start %d: %v", n, err)
		}
		t.Logf("start %d: ready after %v, all as acknowledged", n, time.Since(began).Round(time.Second/10))
		if n == pulls {
			break
		}
		before := j.Acks()
		lost, err := m.pull(t.Context(), api, j, in)
		if acks := j.Acks() - before; err != nil || acks == 0 {
			t.Fatalf("pull %d: %d acknowledged writes, %v", n, acks, err)
		}
		t.Logf("pull %d: %d acknowledged writes; %s", n, j.Acks()-before, lost)
	}
}

func (m *pluggedMachine) ready(ctx context.Context, api *API) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return api.Do(ctx, http.MethodGet, "/readyz", nil, nil)
}

// pull writes for a while, pulls the plug, and leaves on the machine's disk what a disk would have kept.
func (m *pluggedMachine) pull(ctx context.Context, api *API, j *Journal, in collection) (string, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var clients sync.WaitGroup
	for c := range plugClients {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				answered, err := writeOwn(ctx, api, j, in, fmt.Sprintf("own-%d-%d", c, n%25))
				if err != nil {
					stop(err) // no cut explains it
				} else if !answered {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	select {
	case <-time.After(plugLoad/4 + rand.N(plugLoad*3/4)):
	case <-ctx.Done():
	}
	err := m.up()
	m.kill()
	stop(nil)
	clients.Wait()
	if failed := context.Cause(ctx); !errors.Is(failed, context.Canceled) {
		err = errors.Join(err, failed)
	}
	if err != nil {
		return "", err
	}
	api.HTTP.CloseIdleConnections()
	return cutPower(m.file("data.img"), m.file("data.log"))
}
