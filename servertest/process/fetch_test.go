package process

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/gofrs/flock"
)

// mirror is a web server with a release, on a machine that has no karve and an empty cache.
type mirror struct {
	files map[string][]byte
	mu    sync.Mutex
	asked []string
	cut   string // a file that ends too early, once

	redirect string // where every request is sent
	first    string // user, password, path and parameters of the first request
	server   *httptest.Server
}

func newMirror(t *testing.T) *mirror {
	t.Helper()
	m := &mirror{files: map[string][]byte{}}
	m.server = httptest.NewServer(m)
	t.Cleanup(m.server.Close)
	home := t.TempDir()
	for variable, value := range map[string]string{
		BinaryVariable: "", "PATH": t.TempDir(), DownloadVariable: m.server.URL + "/",
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
	if len(m.asked) == 0 {
		user, password, _ := r.BasicAuth()
		m.first = strings.Join([]string{user, password, r.URL.EscapedPath(), r.URL.RawQuery}, " ")
	}
	m.asked = append(m.asked, name)
	if m.redirect != "" {
		http.Redirect(w, r, m.redirect, http.StatusFound)
		return
	}
	if content, ok := m.files[name]; ok {
		if m.cut == name {
			m.cut = ""
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			content = content[:len(content)/2]
		}
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

func TestCachedProgramThatOthersCanChange(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an access list protects the user's cache there, and files have no mode")
	}
	newMirror(t)
	path, err := Program(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{path, filepath.Dir(path)} {
		if err := os.Chmod(place, 0o775); err != nil {
			t.Fatal(err)
		}
		if _, err := Program(t.Context()); err == nil || !strings.Contains(err.Error(), place+" can be changed by other users (mode 775): remove "+filepath.Dir(path)) {
			t.Errorf("got %v, want an error about %s", err, place)
		}
		if err := os.Chmod(place, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if os.Geteuid() == 0 {
		const stranger = 54321
		if err := os.Chown(path, stranger, stranger); err != nil {
			t.Fatal(err)
		}
		if _, err := Program(t.Context()); err == nil || !strings.Contains(err.Error(), path+" belongs to the user 54321") {
			t.Errorf("got %v, want an error about the owner", err)
		}
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
		}, name + " is damaged: its SHA-256 is "},
		"half a download": {func(t *testing.T, m *mirror) {
			m.cut = name
		}, name + ": unexpected EOF"},
		"an endless list": {func(t *testing.T, m *mirror) {
			m.sign(t, string(m.files["SHA256SUMS"])+strings.Repeat("\n", maxList), "karve "+Version)
		}, "is not the signature of Karve's release manager"},
		"no program": {func(t *testing.T, m *mirror) {
			delete(m.files, name)
		}, name + ": 404 Not Found"},
		"no program for this machine": {func(t *testing.T, m *mirror) {
			m.sign(t, strings.Replace(string(m.files["SHA256SUMS"]), name, "karve-plan9-mips.gz", 1), "karve "+Version)
		}, "the release has no " + name + ": build karve"},
	} {
		t.Run(what, func(t *testing.T) {
			m := newMirror(t)
			t.Setenv(DownloadVariable, strings.Replace(m.server.URL, "http://", "http://secret1:secret2@", 1)+"/karve?token=secret3")
			test.change(t, m)
			path, err := Program(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "KARVE_BINARY is not set") || strings.Contains(err.Error(), "secret") {
				t.Errorf("Program returned %q (%v), want an error with %q and without secrets", path, err, test.want)
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

// What a killed download has left, the next one replaces.
func TestFetchAfterAKilledOne(t *testing.T) {
	newMirror(t)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "karve", Version)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, asset()+".partial"), []byte(program+program), 0o400)); err != nil {
		t.Fatal(err)
	}
	path, err := Program(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if text, read := os.ReadFile(path); err != nil || read != nil || string(text) != program || len(left) != 2 {
		t.Errorf("the program is %q (%v), and %v (%v) are in the cache; want it and the lock", text, read, left, err)
	}
}

// A process that waits for the download of another one ends when its test does.
func TestFetchWaitsNoLongerThanItsContext(t *testing.T) {
	newMirror(t)
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	lock := flock.New(filepath.Join(cache, "karve", Version, "lock"))
	if err := errors.Join(os.MkdirAll(filepath.Dir(lock.Path()), 0o755), lock.Lock()); err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := Program(ctx)
		result <- err
	}()
	cancel()
	select {
	case err := <-result:
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), lock.Path()) {
			t.Errorf("Program returned %v, want %v and %s", err, context.Canceled, lock.Path())
		}
	case <-time.After(time.Minute):
		t.Error("Program still waits for the lock")
	}
}

// The address of a mirror may have a password or a token in any part but host and path. TestFetchRefuses
// has one, too.
func TestFetchHidesCredentials(t *testing.T) {
	for what, test := range map[string]struct {
		change func(*testing.T, *mirror)
		want   string
	}{
		"no server": {func(t *testing.T, m *mirror) { m.server.Close() }, "/SHA256SUMS: dial tcp"},
		"no address": {func(t *testing.T, m *mirror) {
			t.Setenv(DownloadVariable, "http://secret1:secret2@mirror.example:port/")
		}, DownloadVariable + " is no address of a release"},
		"no web address": {func(t *testing.T, m *mirror) {
			t.Setenv(DownloadVariable, "secret1:secret2@mirror.example")
		}, DownloadVariable + " is no address of a release"},
		"a redirect": {func(t *testing.T, m *mirror) {
			m.redirect = "http://secret1:secret2@127.0.0.1:0/?signature=secret3"
		}, "/SHA256SUMS: "},
	} {
		t.Run(what, func(t *testing.T) {
			m := newMirror(t)
			t.Setenv(DownloadVariable, strings.Replace(m.server.URL, "http://", "http://secret1:secret2@", 1)+"/karve?token=secret3")
			test.change(t, m)
			_, err := Program(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want an error with %q and without secrets", err, test.want)
			}
		})
	}
	// The mirror gets them. Another host that it redirects to does not.
	m := newMirror(t)
	t.Setenv(DownloadVariable, strings.Replace(m.server.URL, "http://", "http://secret1:secret2@", 1)+"/karve+1?token=secret3")
	var other string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		other = fmt.Sprintf("%s from %s with %q", r.URL, r.Referer(), r.Header["Authorization"])
		http.NotFound(w, r)
	}))
	defer elsewhere.Close()
	m.redirect = elsewhere.URL + "/file"
	if _, err := Program(t.Context()); err == nil || !strings.Contains(err.Error(), "/karve+1/SHA256SUMS: 404 Not Found") {
		t.Errorf("got %v, want the other host's error", err)
	}
	if want := "secret1 secret2 /karve%2B1/SHA256SUMS token=secret3"; m.first != want {
		t.Errorf("the mirror was asked for %q, want %q", m.first, want)
	}
	if want := "/file from " + m.server.URL + "/karve+1/SHA256SUMS with []"; other != want {
		t.Errorf("the other host was asked for %q, want %q", other, want)
	}
}

// linked builds programs without code that are linked with a k8s.io/kubernetes of these versions, and returns
// a directory with one of each name. An empty version leaves it out.
func linked(t *testing.T, versions map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, version := range versions {
		source := filepath.Join(dir, "source of "+name)
		files := map[string]string{
			"go.mod": "module example.com/karve\n", "main.go": "package main\n\nfunc main() {}\n",
			"kubernetes/go.mod": "module k8s.io/kubernetes\n", "kubernetes/kubernetes.go": "package kubernetes\n",
		}
		if version != "" {
			files["go.mod"] += "require k8s.io/kubernetes " + version + "\nreplace k8s.io/kubernetes => ./kubernetes\n"
			files["main.go"] = "package main\n\nimport _ \"k8s.io/kubernetes\"\n\nfunc main() {}\n"
		}
		if err := os.MkdirAll(filepath.Join(source, "kubernetes"), 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range files {
			if err := os.WriteFile(filepath.Join(source, file), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		// As a release is built, whose version is still there.
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, name)+filepath.Ext(asset()), ".")
		build.Dir, build.Env = source, append(os.Environ(), "GOWORK=off")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	return dir
}

// The variable comes before a download, and so does a program in the PATH with the same Kubernetes.
func TestInstalledProgram(t *testing.T) {
	wanted, _, _ := strings.Cut(Version, "+")
	built := linked(t, map[string]string{"same": wanted, "older": "v1.36.4", "unrelated": ""})
	m := newMirror(t)
	installed := filepath.Join(os.Getenv("PATH"), "karve"+filepath.Ext(asset()))
	install := func(name string) {
		t.Helper()
		content := []byte(program)
		if name != "script" {
			var err error
			if content, err = os.ReadFile(filepath.Join(built, name+filepath.Ext(asset()))); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(installed, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}

	install("same")
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
	if path, err := Program(t.Context()); err != nil || path != named { // of whatever version
		t.Errorf("Program returned %q (%v), want %s", path, err, named)
	}
	if len(m.asked) != 0 {
		t.Errorf("the mirror was asked for %v", m.asked)
	}

	t.Setenv(BinaryVariable, "")
	release := m.files
	for name, want := range map[string]string{
		"older":     installed + " in the PATH has Kubernetes v1.36.4",
		"unrelated": installed + " in the PATH does not say its version of Kubernetes (it is linked without k8s.io/kubernetes)",
		"script":    installed + " in the PATH does not say its version of Kubernetes (",
	} {
		t.Run(name, func(t *testing.T) {
			install(name)
			home := t.TempDir()
			t.Setenv("HOME", home)
			t.Setenv("LocalAppData", home)
			m.files = nil
			path, err := Program(t.Context())
			for _, part := range []string{"no karve with Kubernetes " + wanted, want, Version + " could not be downloaded", "set " + BinaryVariable + " to run " + installed} {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("without a release, Program returned %q (%v), want an error with %q", path, err, part)
				}
			}
			m.files = release
			if path, err := Program(t.Context()); err != nil || filepath.Base(path) != asset() {
				t.Errorf("Program returned %q (%v), want the release", path, err)
			}
		})
	}
}
