package page

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

const evil = `"><script>alert(1)</script><img src=x onerror=alert(1)>`

// full is a view in which everything is there, and every text is what somebody may choose through the API.
func full(name string) *View {
	now := time.Now()
	return &View{
		Now: now, State: Ready, Since: now.Add(-time.Hour), Began: now.Add(-time.Hour), Took: 2 * time.Second, Problem: name,
		Version: name, Kubernetes: name, Host: name, URL: name, DataDir: name,
		Parts: []Part{{Name: name, Took: time.Second, Problem: name}, {Name: "starting"}},
		Hour:  []Minute{{Requests: 5, Memory: 1 << 20}, {}, {Requests: 7, Commits: 1, Mean: time.Millisecond, Longest: time.Second}},
		Nodes: []Node{{Name: name, Kubelet: name, Problem: name}}, NodesUnknown: "",
		Events:       []Event{{At: now, Object: name, Reason: name, Message: name, Count: 2}},
		Certificates: []certs.Info{{Name: certs.Name(name), NotAfter: now.Add(48 * time.Hour), DaysLeft: 2}},
		Datastore:    &sqlitefile.Info{Bytes: 5 << 20, WALBytes: 1 << 10, Revision: 17},
		Backup:       &backup.Record{Time: now, File: name}, BackupFailure: &backup.Failure{Problem: name}, Schedule: name,
		Manifests: control.Manifests{Dir: name, Problem: name, Strays: []string{name}, Files: []control.Manifest{{File: name, State: name, Problems: []string{name}}}},
	}
}

func visit(v *View, method string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	Handler(func(context.Context) *View { return v }).ServeHTTP(w, httptest.NewRequest(method, Path, nil))
	return w
}

// What others may write into the cluster is text on the page, wherever it is shown.
func TestNamesAreEscaped(t *testing.T) {
	page := visit(full(evil), http.MethodGet).Body.String()
	if n := strings.Count(page, "&lt;script&gt;"); n < 20 {
		t.Errorf("escaped: got %d times, want each of the texts", n)
	}
	for _, tag := range []string{"<script", "<img", "onerror=alert(1)>"} {
		if strings.Contains(page, tag) {
			t.Errorf("not escaped: %s", tag)
		}
	}
}

// The policy allows the page's own style and nothing else, and the page needs nothing else.
func TestPolicy(t *testing.T) {
	w := visit(full("name"), http.MethodGet)
	inline := regexp.MustCompile(`(?s)<style>(.*?)</style>`).FindStringSubmatch(w.Body.String())
	if inline == nil {
		t.Fatal("no style")
	}
	sum := sha256.Sum256([]byte(inline[1]))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if got := w.Header().Get("Content-Security-Policy"); got != want {
		t.Errorf("policy: got %s, want %s", got, want)
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"} {
		if got := w.Header().Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if needs := regexp.MustCompile(`(?i)<script|<link|<img|\bsrc=|\bstyle=|\bon[a-z]+=|url\(|@import`).FindString(w.Body.String()); needs != "" {
		t.Errorf("the page needs what its policy forbids: %s", needs)
	}
}

func TestMethods(t *testing.T) {
	length := visit(full("name"), http.MethodGet).Header().Get("Content-Length")
	for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "PUT": 405, "DELETE": 405, "OPTIONS": 405} {
		w := visit(full("name"), method)
		if w.Code != want {
			t.Errorf("%s: got %d, want %d", method, w.Code, want)
		}
		if method == "HEAD" && (w.Body.Len() > 0 || w.Header().Get("Content-Length") != length) {
			t.Errorf("HEAD: got %d bytes and length %s, want none and %s", w.Body.Len(), w.Header().Get("Content-Length"), length)
		}
	}
}

func TestWarnings(t *testing.T) {
	if got := (&View{Nodes: []Node{{Ready: true}}, Certificates: []certs.Info{{NotAfter: time.Now(), DaysLeft: 30}}}).Warnings(); len(got) > 0 {
		t.Errorf("without a reason: %q", got)
	}
	v := full("x")
	v.Full, v.Waiting = true, 2
	want := []string{"disk is full", "x cannot begin: x", "certificate x expires in 2 days", "backup failed: x", "Manifests: x", "Manifests: 1 object is in no file any more: x (karve manifests prune", "Manifest x: x", "node x", "2 Pods have no node"}
	got := v.Warnings()
	if len(got) != len(want) {
		t.Fatalf("got %q", got)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("got %q, want something with %q", got[i], want[i])
		}
	}
}

// On a phone nothing is wider than the screen, whatever the names are. Chromium lays out the page in a frame of the
// phone's width, and a script of the test's own page measures it.
func TestPhone(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed (Debian's package chromium)")
	}
	long := strings.Repeat("longname", 30)
	for name, v := range map[string]*View{"full": full(long), "empty": {Now: time.Now(), State: Starting, Began: time.Now()}} {
		page := strings.Replace(visit(v, http.MethodGet).Body.String(), "</body>", `<p id="wide"></p><script>
const width = document.documentElement.clientWidth
const wide = [...document.querySelectorAll("body *:not(.hidden)")].filter(e => e.getBoundingClientRect().right > width + 1)
document.title = "measured " + width + " " + document.documentElement.scrollWidth + " " + wide.map(e => e.tagName + "." + e.className).join(" ")
</script></body>`, 1)
		dir := t.TempDir()
		if err := errors.Join(os.WriteFile(filepath.Join(dir, "page.html"), []byte(page), 0o600),
			os.WriteFile(filepath.Join(dir, "phone.html"), []byte(`<iframe width="360" height="800" style="border:0" src="page.html" onload="document.title = this.contentDocument.title"></iframe>`), 0o600)); err != nil {
			t.Fatal(err)
		}
		dom, err := exec.CommandContext(t.Context(), chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--allow-file-access-from-files",
			"--user-data-dir="+filepath.Join(dir, "profile"), "--dump-dom", "file://"+filepath.Join(dir, "phone.html")).Output()
		if err != nil {
			t.Fatal(err)
		}
		got := regexp.MustCompile(`<title>(.*?)</title>`).FindStringSubmatch(string(dom))
		if want := "measured 360 360"; got == nil || strings.TrimSpace(got[1]) != want {
			t.Errorf("%s: got %q, want %q and no element that is wider", name, got, want)
		}
	}
}
