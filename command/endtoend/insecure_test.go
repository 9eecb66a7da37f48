package endtoend

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func do(c *http.Client, r *http.Request) (answer, error) {
	response, err := c.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Proto, string(body)}, err
}

// h2c is a client that speaks HTTP/2 without TLS, and nothing else.
func h2c() *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Timeout: patience, Transport: tr}
}

// TestInsecure goes by all guards of the insecure listener.
func TestInsecure(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), bare...)
	h1 := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	_, port, err := net.SplitHostPort(hostPort(t, p.insecure))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		headers []string
		want    int
		words   string
	}{
		{nil, 200, `"kind":"NamespaceList"`},
		{[]string{"Host", "localhost:" + port}, 200, `"kind":"NamespaceList"`},
		{[]string{"Host", "127.0.0.1"}, 200, `"kind":"NamespaceList"`},
		{[]string{"Host", "[::1]:" + port}, 200, `"kind":"NamespaceList"`},
		{[]string{"Host", "evil.example:" + port}, 403, "evil.example"},
		{[]string{"Host", "localhost.evil.example"}, 403, "localhost.evil.example"},
		{[]string{"Host", "192.0.2.1:" + port}, 403, "192.0.2.1"},
		{[]string{"Origin", p.insecure}, 200, `"kind":"NamespaceList"`},
		// A tunnel's end has another port, in both.
		{[]string{"Origin", "http://localhost:9090", "Host", "localhost:9090"}, 200, `"kind":"NamespaceList"`},
		{[]string{"Origin", "http://localhost:3000"}, 403, "http://localhost:3000"},
		{[]string{"Origin", "http://127.0.0.1:3000"}, 403, "http://127.0.0.1:3000"},
		{[]string{"Origin", "https://evil.example"}, 403, "https://evil.example"},
		{[]string{"Origin", "null"}, 403, "null"},
		{[]string{"Sec-Fetch-Site", "cross-site"}, 403, "cross-site"},
		{[]string{"Sec-Fetch-Site", "same-site"}, 403, "same-site"},
		{[]string{"Sec-Fetch-Site", "none"}, 200, `"kind":"NamespaceList"`},
		// Credentials are not looked at: everybody is the administrator.
		{[]string{"Authorization", "Bearer nonsense"}, 200, `"kind":"NamespaceList"`},
	} {
		for name, c := range map[string]*http.Client{"HTTP/1.1": h1, "HTTP/2": h2c()} {
			got, err := get(c, p.insecure+"/api/v1/namespaces", append([]string{"Accept", "application/json"}, tc.headers...)...)
			if err != nil {
				t.Errorf("%s, %q: %v", name, tc.headers, err)
				continue
			}
			if got.code != tc.want || !strings.Contains(got.body, tc.words) {
				t.Errorf("%s, %q: got %d %.300q, want %d and %q", name, tc.headers, got.code, got.body, tc.want, tc.words)
			}
			if !strings.HasPrefix(got.proto, strings.TrimSuffix(name, ".1")) {
				t.Errorf("%s: got an answer by %s", name, got.proto)
			}
		}
	}
	t.Run("another user", func(t *testing.T) {
		got := asNobody(t, p, "get", "namespaces")
		if got.code == 0 || !strings.Contains(got.stderr, "uid 65534") || !strings.Contains(got.stderr, "--insecure-any-user") {
			t.Errorf("got code %d, %q %q; want it refused with a sentence that says why", got.code, got.stdout, got.stderr)
		}
		if stack(got.stderr) != "" {
			t.Errorf("a stack: %s", got.stderr)
		}
	})
}

// TestInsecureBodies sends what a page of another site could, which creates nothing,
// and what kubectl and curl send.
func TestInsecureBodies(t *testing.T) {
	long(t)
	parallel(t)
	p := start(t, t.TempDir(), bare...)
	maps := client(t, p.config()).CoreV1().ConfigMaps("default")
	create := p.insecure + "/api/v1/namespaces/default/configmaps"
	const object = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"}}`
	for i, headers := range []http.Header{
		{}, // a Blob without a type
		{"Content-Type": {"text/plain"}},
		{"Content-Type": {"application/x-www-form-urlencoded"}},
		{"Content-Type": {"multipart/form-data; boundary=x"}},
		{"Content-Type": {"application/json"}, "Origin": {"http://localhost:3000"}},
		{"Content-Type": {"application/json"}, "Sec-Fetch-Site": {"same-site"}},
		{"Content-Type": {"application/json"}, "Referer": {"http://evil.localhost/"}},
	} {
		r, err := http.NewRequest(http.MethodPost, create, strings.NewReader(fmt.Sprintf(object, fmt.Sprintf("page-%d", i))))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = headers
		if got, err := do(http.DefaultClient, r); err != nil || got.code != 403 {
			t.Errorf("%v: got %v, %v, want 403", headers, got, err)
		}
	}
	file := write(t, "raw.json", fmt.Sprintf(object, "kubectl-raw"))
	raw := strings.TrimPrefix(create, p.insecure)
	for _, args := range [][]string{
		{"create", "configmap", "kubectl-typed"},
		{"create", "--raw", raw, "-f", file}, // without a Content-Type
		{"patch", "configmap", "kubectl-typed", "-p", `{"data":{"a":"b"}}`},
		{"apply", "--server-side", "-f", file},
		{"delete", "configmap", "kubectl-typed"},
	} {
		succeed(t, command(t, "kubectl", append([]string{"--server", p.insecure}, args...)...))
	}
	r, err := http.NewRequest(http.MethodPost, create, strings.NewReader(fmt.Sprintf(object, "curl")))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if got, err := do(http.DefaultClient, r); err != nil || got.code != 201 {
		t.Errorf("JSON: got %v, %v, want 201", got, err)
	}
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range list.Items {
		names = append(names, m.Name)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"curl", "kubectl-raw"}) {
		t.Errorf("created: got %q, want curl and kubectl-raw only", names)
	}
}

// asNobody runs kubectl as another user, with the insecure port.
func asNobody(t *testing.T, p *process, args ...string) outcome {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the owner of a connection is known on Linux only")
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	cmd := command(t, "kubectl", append([]string{"--server", p.insecure}, args...)...)
	nobody(t, cmd)
	return finish(t, cmd)
}

// nobody makes cmd run as a user who owns nothing.
func nobody(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	// The binary lies where only its builder may go, so it is handed over open.
	self, err := os.Open(cmd.Path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { self.Close() })
	cmd.Path, cmd.ExtraFiles = "/proc/self/fd/3", []*os.File{self}
	temp := publicDir(t)
	if err := os.Chown(temp, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	cmd.Dir, cmd.Env = "/", append(cmd.Env, "HOME=/nonexistent", "TMPDIR="+temp)
	become(cmd, 65534)
}

// publicDir is a temporary directory that others may enter, which t.TempDir is not.
func publicDir(t *testing.T) string {
	t.Helper()
	dir := tempDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestInsecureAnyUser(t *testing.T) {
	long(t)
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--insecure-any-user")...)
	if got := asNobody(t, p, "get", "namespaces", "-o", "name"); got.code != 0 || !strings.Contains(got.stdout, "namespace/kube-system") {
		t.Errorf("got code %d, %q %q; want the namespaces", got.code, got.stdout, got.stderr)
	}
	if got, err := get(http.DefaultClient, p.insecure+"/readyz", "Host", "evil.example"); err != nil || got.code != 403 {
		t.Errorf("another host: got %v, %v; want it refused all the same", got, err)
	}
}

func TestInsecureOff(t *testing.T) {
	long(t)
	parallel(t)
	p := start(t, t.TempDir(), append(bare, "--insecure-port=0")...)
	if p.insecure != "" {
		t.Errorf("the ready line has an insecure address, %s", p.insecure)
	}
	if runtime.GOOS == "linux" {
		if got := listening(t, p); len(got) != 1 {
			t.Errorf("the process listens on %q, want the secure port only", got)
		}
	}
}

// listening is what the process listens on, of TCP.
func listening(t *testing.T, p *process) (addresses []string) {
	t.Helper()
	own := map[string]bool{}
	dir := fmt.Sprintf("/proc/%d/fd", p.cmd.Process.Pid)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if link, err := os.Readlink(filepath.Join(dir, f.Name())); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(link, "socket:["), "]")] = true
		}
	}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue // no IPv6
		}
		for line := range strings.Lines(string(text)) {
			const localAddress, state, inode = 1, 3, 9
			if f := strings.Fields(line); len(f) > inode && f[state] == "0A" && own[f[inode]] {
				addresses = append(addresses, f[localAddress])
			}
		}
	}
	return addresses
}

// TestInsecureRemote is what somebody gets who insists.
func TestInsecureRemote(t *testing.T) {
	long(t)
	parallel(t)
	address := ""
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && n.IP.To4() != nil {
			address = n.IP.String()
		}
	}
	if address == "" {
		t.Skip("this machine has no address but loopback's")
	}
	wantProblems(t, serverWith(t, nil, "--insecure-bind-address", address), "--insecure-bind-address…"+address+"…--insecure-allow-remote")
	p := start(t, t.TempDir(), append(bare, "--insecure-bind-address", address, "--insecure-allow-remote")...)
	if !strings.HasPrefix(p.insecure, "http://"+address+":") {
		t.Fatalf("insecure address: got %s, want it at %s", p.insecure, address)
	}
	if got, err := get(http.DefaultClient, p.insecure+"/readyz"); err != nil || got.code != 200 {
		t.Errorf("got %v, %v; want ok", got, err)
	}
}
