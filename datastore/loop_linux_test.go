package datastore

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// loopMount makes a file system in an image, mounts it for the test, and returns its root. If
// something is missing for that, it skips the test with the reason.
func loopMount(t *testing.T, system string) string {
	t.Helper()
	options := map[string][]string{"ext4": {"-F", "-m", "0"}, "xfs": {"-f"}, "btrfs": {"-f"}}[system]
	dir := t.TempDir()
	image := filepath.Join(dir, "image")
	run := func(why string, command ...string) {
		t.Helper()
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Skipf("%s: %v: %s", why, err, out)
		}
	}
	run("an image cannot be made", "truncate", "-s", "320M", image)
	run("there is no program that makes "+system, append([]string{"mkfs." + system, "-q", image}, options...)...)
	run("this kernel has no "+system+", or only root may mount it", "mount", "-t", system, "-o", "loop", image, dir)
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("unmount: %v: %s", err, out)
		}
	})
	return dir
}
