package endtoend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A path may be longer than the kernel takes for a socket, and mean something else in a URL, a list or a shell.
func TestPaths(t *testing.T) {
	for name, names := range map[string][]string{
		"long": {strings.Repeat("x", 70), strings.Repeat("y", 70)},
		"odd":  {"a b'\"$HOME%41?c#;{d}=,&e\nf"},
	} {
		t.Run(name, func(t *testing.T) {
			parallel(t)
			above := tempDir(t)
			temp := filepath.Join(above, filepath.Join(names...))
			if err := os.MkdirAll(temp, 0o700); err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(filepath.Join(above, names[0]))
			run := command(t, "karve", append(append([]string{"run"}, bare...), "--", "sh", "-c", kubectlLink+"get namespace default -o name")...)
			run.Env = append(run.Env, "TMPDIR="+temp)
			if got := succeed(t, run); got != "namespace/default\n" {
				t.Errorf("karve run: got %q", got)
			}
			data := filepath.Join(temp, "data")
			// The API server uses the socket of the etcd API, too.
			p := launchWith(t, data, []string{"TMPDIR=" + temp}, append([]string{"--upstream=storageclient"}, bare...)...)
			p.poll("the server", func() error {
				_, err := os.Stat(filepath.Join(data, "admin.kubeconfig"))
				return err
			})
			for _, args := range [][]string{
				{"status", "--data-dir", data},
				{"snapshot", "--data-dir", data, filepath.Join(temp, "snapshot")},
				{"kubectl", "--data-dir", data, "get", "namespace", "-o", "name"},
			} {
				karve(t, args...)
			}
			p.stop()
			for _, name := range []string{"karve.sock", "kine.sock"} {
				if _, err := os.Lstat(filepath.Join(data, name)); err == nil {
					t.Errorf("%s is left behind", name)
				}
			}
			if left, err := os.ReadDir(temp); err != nil || len(left) != 2 {
				t.Errorf("the temporary directory has %v (%v), want the data and the snapshot", left, err)
			}
		})
	}
}
