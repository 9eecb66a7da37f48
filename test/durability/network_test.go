//go:build linux

package durability

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// A network is a network namespace with one link to that of the test, and a host name.
type network struct {
	t        *testing.T
	database string // the address that it is cut off from
	address  string
	wrap     []string // runs a command inside
}

// networkVariable has the address of the databases, in a network namespace of the test's own.
const networkVariable = "KARVE_TEST_NETWORK"

var networks atomic.Int32

// newNetwork makes a namespace, which ends with the test. It returns nil where the test may not:
// then servers listen on loopback, and nobody can cut them off.
func newNetwork(t *testing.T) *network {
	t.Helper()
	database := os.Getenv(networkVariable)
	if database == "" {
		return nil
	}
	id := networks.Add(1)
	holder := exec.Command("sleep", "infinity")
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS, Pdeathsig: syscall.SIGKILL}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	link := fmt.Sprintf("several%d", id)
	n := &network{t, database, fmt.Sprintf("10.77.%d.1", id), []string{"nsenter", "--target", fmt.Sprint(holder.Process.Pid), "--net", "--uts", "--"}}
	t.Cleanup(func() {
		exec.Command("ip", "link", "delete", link).Run() // it goes with the namespace, if that was faster
		holder.Process.Kill()
		holder.Wait()
	})
	n.inside("", "hostname", fmt.Sprintf("several%d", id)) // servers with one name share the lease of their identity
	gateway := fmt.Sprintf("10.77.%d.254", id)
	n.command("", "ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(holder.Process.Pid))
	n.command("", "ip", "address", "add", gateway+"/24", "dev", link)
	n.command("", "ip", "link", "set", link, "up")
	n.inside("", "ip", "link", "set", "lo", "up")
	n.inside("", "ip", "address", "add", n.address+"/24", "dev", "eth0")
	n.inside("", "ip", "link", "set", "eth0", "up")
	n.inside("", "ip", "route", "add", "default", "via", gateway)
	return n
}

func (n *network) command(stdin string, args ...string) {
	n.t.Helper()
	if err := execute(stdin, args); err != nil {
		n.t.Fatal(err)
	}
}

func execute(stdin string, args []string) error {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

func (n *network) inside(stdin string, args ...string) {
	n.t.Helper()
	n.command(stdin, append(append([]string{}, n.wrap...), args...)...)
}

// cut drops everything to and from the database, without an answer.
func (n *network) cut() error {
	return execute(fmt.Sprintf(`table ip cut {
	chain in { type filter hook input priority 0; ip saddr %[1]s drop; }
	chain out { type filter hook output priority 0; ip daddr %[1]s drop; }
}
`, n.database), slices.Concat(n.wrap, []string{"nft", "-f", "-"}))
}

func (n *network) reconnect() {
	n.t.Helper()
	n.inside("", "nft", "delete", "table", "ip", "cut")
}
