package endtoend

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/karve-k8s/karve/internal/eventually"
)

// stopLimit is how long a stop may take with nothing but watches in its way:
// five seconds of grace for them, and a busy machine.
const stopLimit = 30 * time.Second

// TestStopDuringStart stops a server before each part, with one data directory for
// all.
func TestStopDuringStart(t *testing.T) {
	parallel(t)
	dir := filepath.Join(t.TempDir(), "data")
	type moment struct {
		name string
		come func(p *process) error // nil when it is there
	}
	said := func(words string) func(*process) error {
		return func(p *process) error {
			if !strings.Contains(p.stderr.String(), words) {
				return fmt.Errorf("%q is not in the log", words)
			}
			return nil
		}
	}
	moments := []moment{
		// Earlier there is nothing to stop, and no handler for the signal.
		{"the data directory is there", func(p *process) error { _, err := os.Stat(p.dir); return err }},
		{"before the datastore", said("starting the datastore")},
		{"before the API server", said("starting the API server")},
		{"before the controllers", said("starting the controllers")},
		{"before the scheduler", said("starting the scheduler")},
		{"ready", func(p *process) error {
			if p.stdout.String() == "" {
				return errors.New("no ready line")
			}
			return nil
		}},
	}
	if testing.Short() {
		moments = moments[2:4]
	}
	for _, m := range moments {
		t.Run(m.name, func(t *testing.T) {
			p := launch(t, dir, "--log-level=debug")
			p.poll(m.name, func() error { return m.come(p) })
			p.signal(syscall.SIGTERM)
			p.wantCleanEnd(stopLimit)
			for line := range strings.Lines(p.stderr.String()) {
				if strings.HasPrefix(line, "karve: ") || strings.Contains(line, "level=fatal") {
					t.Errorf("a stop that was asked for is no failure, got %s", line)
				}
			}
			_, err := os.Stat(filepath.Join(dir, "admin.kubeconfig"))
			if ready := p.stdout.String() != ""; !ready && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the kubeconfig of a server that never was ready: got %v, want none", err)
			}
		})
	}
	p := start(t, dir)
	readyz(t, p)
	p.kubectl("create", "configmap", "afterwards")
}

// Ctrl-C says where the cluster stays, and how to delete it if it is in a directory that has nothing else. Services get SIGTERM.
func TestInterruptSaysWhatStays(t *testing.T) {
	parallel(t)
	dir, mine := filepath.Join(t.TempDir(), "data"), t.TempDir()
	if err := os.WriteFile(filepath.Join(mine, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		dir, endpoint, want string
		signal              os.Signal
	}{
		{dir, "", "karve has stopped; the cluster stays in " + dir + "\nTo delete it: rm -r " + dir + "\n", os.Interrupt},
		{dir, "", "", syscall.SIGTERM},
		{mine, "memory://", "karve has stopped; its objects were in memory, and its certificates stay in " + mine + "\n", os.Interrupt},
		{mine, "sqlite://" + dir, "karve has stopped; the cluster stays in " + dir + ", and its certificates in " + mine + "\n", os.Interrupt},
		{mine, "postgres://jane:secret@127.0.0.1:1/db", "the cluster stays in postgres://", os.Interrupt},
	} {
		p := launch(t, tc.dir, append(bare, "--log-level=debug", "--datastore-endpoint="+tc.endpoint)...)
		p.poll("the start of the datastore", func() error {
			if !strings.Contains(p.stderr.String(), "starting the datastore") {
				return errors.New("it has not begun")
			}
			return nil
		})
		p.signal(tc.signal)
		p.wantCleanEnd(stopLimit)
		_, got, _ := strings.Cut("\n"+p.stdout.String(), "\nkarve has stopped; ")
		if want := strings.TrimPrefix(tc.want, "karve has stopped; "); got != want && (want == "" || !strings.HasPrefix(want, "the cluster stays in postgres://") || !strings.HasPrefix(got, want)) || strings.Contains(got, "secret") {
			t.Errorf("%s, %q: got %q, want %q", tc.dir, tc.endpoint, got, tc.want)
		}
	}
}

// TestSecondSignal does not wait for a stop that takes long. What comes within a second of the first signal is the same act.
func TestSecondSignal(t *testing.T) {
	long(t)
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--shutdown-delay-duration=10m")...)
	first := time.Now()
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGINT)
	eventually.Nil(t, "/readyz to fail", func() error {
		got, err := get(http.DefaultClient, p.insecure+"/readyz")
		if err != nil || got.code != 500 {
			return fmt.Errorf("got %+v, %v", got, err)
		}
		return nil
	})
	// It goes on serving until the delay is over, at both listeners.
	for name, config := range map[string]kubernetes.Interface{"secure": client(t, p.config()), "insecure": client(t, p.plain())} {
		if _, err := config.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("%s: during the delay: %v", name, err)
		}
	}
	eventually.True(t, "the server takes a signal for a second one", func() bool {
		if p.running() {
			p.cmd.Process.Signal(syscall.SIGTERM) // it may end just now
		}
		return !p.running()
	})
	if got, want := p.cmd.ProcessState.ExitCode(), 128+int(syscall.SIGTERM); got != want {
		t.Errorf("exit code after the second signal: got %d, want %d", got, want)
	}
	if took := time.Since(first); took < time.Second {
		t.Errorf("a signal %v after the first one counted as a second one", took)
	}
	if got := p.stderr.String(); !strings.Contains(got, "second signal") || stack(got) != "" {
		t.Errorf("standard error: got %q, want a word about the second signal and no stack", got)
	}
}

// TestStopOfABlockedStart stops a server that cannot become ready: a webhook that does not answer refuses what a hook
// of upstream's API server makes, and the hook tries for half a minute, whatever happens.
func TestStopOfABlockedStart(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	p := start(t, dir)
	p.kubectl("delete", "clusterrole", "system:node-problem-detector")
	p.kubectl("create", "-f", write(t, "webhook.yaml", `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: gone}
webhooks:
- name: gone.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 1
  clientConfig: {url: "https://127.0.0.1:9/"}
  rules: [{operations: [CREATE], apiGroups: ["*"], apiVersions: ["*"], resources: ["*/*"]}]
`))
	p.stop()
	p = launch(t, dir)
	p.poll("the log names the webhook", func() error {
		if !strings.Contains(p.stderr.String(), "gone.example.com") {
			return errors.New("not yet")
		}
		return nil
	})
	p.signal(syscall.SIGTERM)
	p.wantCleanEnd(stopLimit)
	if text := p.stdout.String(); text != "" {
		t.Errorf("the server said that it is ready: %s", text)
	}
}
