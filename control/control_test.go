package control

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// serve answers on the socket of a new data directory. Its path is short, since the
// path of a socket is at most some 100 bytes long.
func serve(t *testing.T, answer http.HandlerFunc) (dataDir string) {
	t.Helper()
	dataDir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dataDir) })
	listener, err := net.Listen("unix", filepath.Join(dataDir, Socket))
	if err != nil {
		t.Skipf("no unix sockets here: %v", err)
	}
	server := &http.Server{Handler: answer}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return dataDir
}

func client(t *testing.T, dataDir string) *Client {
	c := New(dataDir)
	t.Cleanup(c.Close)
	return c
}

func TestSnapshotAndResetAsk(t *testing.T) {
	var asked []string
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, fmt.Sprintf("%s %s %s", r.Method, r.URL, body))
		if r.URL.Path == ResetPath {
			io.WriteString(w, `{"revision":7,"missing":1,"changed":2,"surplus":3}`)
			return
		}
		io.WriteString(w, "the snapshot")
	}))
	var file strings.Builder
	if err := c.Snapshot(t.Context(), &file, Settle); err != nil || file.String() != "the snapshot" {
		t.Errorf("snapshot: %q, %v", &file, err)
	}
	if r, err := c.Reset(t.Context(), strings.NewReader("a file"), DryRun, Settle); err != nil || r.Revision != 7 || r.Len() != 6 {
		t.Errorf("reset: %+v, %v", r, err)
	}
	want := "GET /snapshot?settle=true \nPOST /reset?dry-run=true&settle=true a file"
	if got := strings.Join(asked, "\n"); got != want {
		t.Errorf("asked\n%s\nwant\n%s", got, want)
	}
}

func TestPageAsks(t *testing.T) {
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != PagePath {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, `"http://127.0.0.1:8080/karve/"`)
	}))
	if at, err := c.Page(t.Context()); err != nil || at != "http://127.0.0.1:8080/karve/" {
		t.Errorf("got %q, %v", at, err)
	}
}

func TestManifestsAsk(t *testing.T) {
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != ManifestsPath {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, `{"directory":"/m","files":[{"file":"a.yaml","state":"failed","problems":["line 2"]}]}`)
	}))
	if all, err := c.Manifests(t.Context()); err != nil || all.Dir != "/m" || len(all.Files) != 1 || all.Files[0].State != Failed || all.Files[0].Problems[0] != "line 2" {
		t.Errorf("got %+v, %v", all, err)
	}
	if _, err := c.Tunnels(t.Context()); !errors.Is(err, ErrUnknown) {
		t.Errorf("of a server without tunnels: got %v, want ErrUnknown", err)
	}
}

func TestErrors(t *testing.T) {
	missing := t.TempDir()
	if err := client(t, missing).Snapshot(t.Context(), io.Discard); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), missing) {
		t.Errorf("without a server: %v, want ErrMissing and the directory", err)
	}
	for _, c := range []struct {
		status int
		body   string
		want   string
	}{
		{http.StatusNotFound, "404 page not found", ErrUnknown.Error()},
		{http.StatusConflict, "another reset is under way\n", "another reset is under way"},
	} {
		dir := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(c.status)
			io.WriteString(w, c.body)
		})
		if _, err := client(t, dir).Reset(t.Context(), nil); err == nil || err.Error() != c.want {
			t.Errorf("status %d: %v, want %s", c.status, err, c.want)
		}
	}
}

// A command must not read one database and report on another.
func TestTheAnswerIsOfTheDatabaseThatWasAskedAbout(t *testing.T) {
	dir := t.TempDir()
	own, other := filepath.Join(dir, "ö wn"), filepath.Join(dir, "other")
	for _, file := range []string{own, other} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	header := url.PathEscape(own)
	c := client(t, serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if header != "" {
			w.Header().Set(DatastoreHeader, header)
		}
	}))
	if err := c.Uses(t.Context(), own); err != nil {
		t.Errorf("its own: %v", err)
	}
	if err := c.Uses(t.Context(), other); !errors.Is(err, ErrOther) || !strings.Contains(err.Error(), own) {
		t.Errorf("another: %v, want ErrOther and the server's", err)
	}
	link := filepath.Join(dir, "link")
	if os.Symlink(own, link) == nil {
		if err := c.Uses(t.Context(), link); err != nil {
			t.Errorf("by a link: %v", err)
		}
	}
	header = ""
	if err := c.Uses(t.Context(), own); !errors.Is(err, ErrUnknown) {
		t.Errorf("without the header: %v, want ErrUnknown", err)
	}
}

func TestManifestsApplyAndPruneAsk(t *testing.T) {
	var asked []string
	c := client(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, fmt.Sprintf("%s %s %s", r.Method, r.URL, body))
		if r.URL.Path == ManifestsPrunePath {
			io.WriteString(w, `[{"object":"Namespace shop","uid":"1","with":2}]`)
			return
		}
		io.WriteString(w, `{"directory":"/d","inNoFile":["a","b","c","d"]}`)
	}))
	all, err := c.ApplyManifests(t.Context())
	if want := "4 objects are in no file any more: a, b, c and 1 more (karve manifests prune shows and deletes them)"; err != nil || all.InNoFile() != want {
		t.Errorf("apply: got %v, %v", all, err)
	}
	strays, err := c.PruneManifests(t.Context(), nil, All)
	if err != nil || len(strays) != 1 || strays[0].With != 2 {
		t.Errorf("prune: got %v, %v", strays, err)
	}
	if _, err := c.PruneManifests(t.Context(), strays); err != nil {
		t.Error(err)
	}
	want := "POST /manifests/apply? \nPOST /manifests/prune?all=true \nPOST /manifests/prune? [{\"object\":\"Namespace shop\",\"uid\":\"1\",\"with\":2}]"
	if got := strings.Join(asked, "\n"); got != want {
		t.Errorf("asked\n%s\nwant\n%s", got, want)
	}
}
