package manifests

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A mounted ConfigMap, whose directory everybody may write, is read-only for all. What only the server sees read-only, as in a service's sandbox, is not.
func TestScanOfReadOnlyMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		runtime.LockOSThread() // for good: the thread, which is in another namespace, ends
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			t.Logf("not tried, because this system makes no mount namespace: %v", err)
			return
		}
		mount := func(from, to, kind string, flags uintptr) {
			if err := unix.Mount(from, to, kind, flags, ""); err != nil {
				t.Errorf("mount %s: %v", to, err)
			}
		}
		mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE)
		readOnly := func(dir string) { mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY) }
		fill := func(dir string) {
			write(t, dir, "..1/a.yaml", "")
			if err := os.Symlink("..1/a.yaml", filepath.Join(dir, "a.yaml")); err != nil {
				t.Error(err)
			}
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Error(err)
			}
		}

		configMap := t.TempDir()
		mount("tmpfs", configMap, "tmpfs", 0)
		fill(configMap)
		if _, err := scan(configMap); err == nil {
			t.Error("a directory that everybody may write: no error")
		}
		readOnly(configMap)
		if got, err := scan(configMap); err != nil || len(got) != 1 || got[0].err != nil {
			t.Errorf("a ConfigMap: got %+v, %v", got, err)
		}

		sandbox := t.TempDir()
		mount("tmpfs", sandbox, "tmpfs", 0)
		write(t, sandbox, "file/a.yaml", "")
		write(t, sandbox, "foreign/a.yaml", "")
		write(t, sandbox, "foreign-directory/a.yaml", "")
		fill(filepath.Join(sandbox, "directory"))
		for _, err := range []error{os.Chmod(filepath.Join(sandbox, "file/a.yaml"), 0o666), os.Chown(filepath.Join(sandbox, "foreign/a.yaml"), 4711, 0),
			os.Chown(filepath.Join(sandbox, "foreign-directory"), 4711, 0)} {
			if err != nil {
				t.Error(err)
			}
		}
		readOnly(sandbox)
		for name, want := range map[string]string{"directory": "chmod", "file": "chmod", "foreign": "chown", "foreign-directory": "chown"} {
			units, err := scan(filepath.Join(sandbox, name))
			if err == nil && len(units) == 1 {
				err = units[0].err
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s in a sandbox: got %v, want an error with %s", name, err, want)
			}
		}
	}()
	<-finished
}
