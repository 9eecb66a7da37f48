package process

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"aead.dev/minisign"
)

// mirror is a web server with a release, on a machine that has no karve and an empty cache.
type mirror struct {
	files map[string][]byte
	mu    sync.Mutex
	asked []string
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{files: map[string][]byte{}}
	server := httptest.NewServer(m)
	t.Cleanup(server.Close)
	home := t.TempDir()
	for variable, value := range map[string]string{
		BinaryVariable: "", "PATH": t.TempDir(), DownloadVariable: server.URL + "/",
		"HOME": home, "XDG_CACHE_HOME": "", "LocalAppData": home, // os.UserCacheDir
	} {
		t.Setenv(variable, value)
	}
	m.release(t, program, "karve "+Version)
	return m
}

func (m *mirror) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := path.Base(r.URL.Path)
	m.asked = append(m.asked, name)
	if content, ok := m.files[name]; ok {
		w.Write(content)
		return
	}
	http.NotFound(w, r)
}

const program = "#!/bin/sh\necho a karve\n"

// release puts a release with the program and a signed comment on the mirror. Its key counts as
// the release manager's.
func (m *mirror) release(t *testing.T, program, comment string) {
	t.Helper()
	name := asset() + ".gz"
	m.files[name] = packed(program)
	m.sign(t, fmt.Sprintf("%064x  install.sh\n%x  %s\n", 1, sha256.Sum256(m.files[name]), name), comment)
}

// sign makes sums the release's checksums.
func (m *mirror) sign(t *testing.T, sums, comment string) {
	t.Helper()
	public, secret, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	before := releaseKey
	releaseKey = public.String()
	t.Cleanup(func() { releaseKey = before })
	m.files["SHA256SUMS"] = []byte(sums)
	m.files["SHA256SUMS.minisig"] = minisign.SignWithComments(secret, []byte(sums), comment, "")
}

func packed(program string) []byte {
	var b bytes.Buffer
	writer := gzip.NewWriter(&b)
	writer.Write([]byte(program))
	writer.Close()
	return b.Bytes()
}

func TestFetch(t *testing.T) {
	m := newMirror(t)
	var wg sync.WaitGroup
	paths := make([]string, 8)
	for i := range paths {
		wg.Go(func() {
			var err error
			if paths[i], err = Program(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, p := range paths {
		if p != paths[0] {
			t.Errorf("Program returned %s and %s", paths[0], p)
		}
	}
	if content, err := os.ReadFile(paths[0]); err != nil || string(content) != program {
		t.Errorf("the program is %q (%v)", content, err)
	}
	if p, err := exec.LookPath(paths[0]); err != nil {
		t.Errorf("%s cannot be run: %v", p, err)
	}
	if want := []string{"SHA256SUMS", "SHA256SUMS.minisig", asset() + ".gz"}; fmt.Sprint(m.asked) != fmt.Sprint(want) {
		t.Errorf("the mirror was asked for %v, want %v once", m.asked, want)
	}
	files, err := os.ReadDir(filepath.Dir(paths[0]))
	if err != nil || len(files) != 2 {
		t.Errorf("the cache has %v (%v), want the program and its lock", files, err)
	}
}

func TestFetchRefuses(t *testing.T) {
	name := asset() + ".gz"
	for what, test := range map[string]struct {
		change func(*testing.T, *mirror)
		want   string
	}{
		"another key": {func(t *testing.T, m *mirror) {
			signature := m.files["SHA256SUMS.minisig"]
			m.release(t, program, "karve "+Version)
			m.files["SHA256SUMS.minisig"] = signature
		}, "is not the signature of Karve's release manager"},
		"changed sums": {func(t *testing.T, m *mirror) {
			m.files["SHA256SUMS"] = append(m.files["SHA256SUMS"], '\n')
		}, "is not the signature of Karve's release manager"},
		"no signature": {func(t *testing.T, m *mirror) {
			delete(m.files, "SHA256SUMS.minisig")
		}, "/SHA256SUMS.minisig: 404 Not Found"},
		"no signature in the file": {func(t *testing.T, m *mirror) {
			m.files["SHA256SUMS.minisig"] = []byte("<html>")
		}, "/SHA256SUMS.minisig: "},
		"another release": {func(t *testing.T, m *mirror) {
			m.release(t, program, "karve v1.36.4+karve.9")
		}, "has karve v1.36.4+karve.9, want karve " + Version + ": set KARVE_DOWNLOAD_URL"},
		"another program": {func(t *testing.T, m *mirror) {
			m.files[name] = packed("#!/bin/sh\necho another\n")
		}, name + " is damaged: its SHA-256 is "},
		"half a program": {func(t *testing.T, m *mirror) {
			m.files[name] = m.files[name][:len(m.files[name])/2]
		}, name + ": unexpected EOF"},
		"no program": {func(t *testing.T, m *mirror) {
			delete(m.files, name)
		}, name + ": 404 Not Found"},
		"no program for this machine": {func(t *testing.T, m *mirror) {
			m.sign(t, strings.Replace(string(m.files["SHA256SUMS"]), name, "karve-plan9-mips.gz", 1), "karve "+Version)
		}, "the release has no " + name + ": build karve"},
	} {
		t.Run(what, func(t *testing.T) {
			m := newMirror(t)
			test.change(t, m)
			path, err := Program(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "KARVE_BINARY is not set") {
				t.Errorf("Program returned %q (%v), want an error with %q", path, err, test.want)
			}
			cache, err := os.UserCacheDir()
			if err != nil {
				t.Fatal(err)
			}
			left, err := filepath.Glob(filepath.Join(cache, "karve", Version, "*"))
			if err != nil || len(left) != 1 || filepath.Base(left[0]) != "lock" {
				t.Errorf("the cache has %v (%v), want only the lock", left, err)
			}
			// What a mirror served once does not stay.
			m.release(t, program, "karve "+Version)
			if _, err := Program(t.Context()); err != nil {
				t.Errorf("with the right release: %v", err)
			}
		})
	}
}

// The variable and the PATH come before a download.
func TestInstalledProgram(t *testing.T) {
	m := newMirror(t)
	installed := filepath.Join(os.Getenv("PATH"), "karve"+filepath.Ext(asset()))
	if err := os.WriteFile(installed, []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if path, err := Program(t.Context()); err != nil || path != installed {
		t.Errorf("Program returned %q (%v), want %s", path, err, installed)
	}
	named := filepath.Join(t.TempDir(), "another"+filepath.Ext(asset()))
	t.Setenv(BinaryVariable, named)
	if path, err := Program(t.Context()); err == nil || !strings.Contains(err.Error(), BinaryVariable+": ") {
		t.Errorf("without the file of %s, Program returned %q (%v)", BinaryVariable, path, err)
	}
	if err := os.WriteFile(named, []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if path, err := Program(t.Context()); err != nil || path != named {
		t.Errorf("Program returned %q (%v), want %s", path, err, named)
	}
	if len(m.asked) != 0 {
		t.Errorf("the mirror was asked for %v", m.asked)
	}
}
