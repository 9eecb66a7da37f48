package ownership

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// In a user namespace, 65534 may be anybody; in the machine's own, it is nobody.
func TestShared(t *testing.T) {
	const inside = "KARVE_OWNERSHIP_TEST_INSIDE"
	want := os.Getenv(inside) != ""
	if numbers, err := os.ReadFile("/proc/self/uid_map"); err != nil || !want && strings.Fields(string(numbers))[2] != "4294967295" {
		t.Skipf("this test is in a user namespace itself, or cannot tell: %s %v", numbers, err)
	}
	for id, want := range map[uint32]bool{0: false, 1000: false, 65534: want, 65535: false} {
		if got := Shared(id); got != want {
			t.Errorf("%d: got %v, want %v", id, got, want)
		}
	}
	if want {
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "^TestShared$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{ContainerID: 65534, HostID: os.Geteuid(), Size: 1}}}
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Skipf("no user namespace can be made: %v", err)
	}
	if err != nil || !strings.Contains(string(out), "PASS: TestShared") {
		t.Errorf("in a user namespace: %v, %s", err, out)
	}
}
