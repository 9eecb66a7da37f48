package endtoend

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
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

// TestInsecure goes by each guard of the insecure listener; package insecure has all that they refuse.
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
		{[]string{"Host", "evil.example:" + port}, 403, "evil.example"},
		{[]string{"Origin", p.insecure}, 200, `"kind":"NamespaceList"`},
		// A tunnel's end has another port, in both.
		{[]string{"Origin", "http://localhost:9090", "Host", "localhost:9090"}, 200, `"kind":"NamespaceList"`},
		{[]string{"Origin", "http://127.0.0.1:3000"}, 403, "http://127.0.0.1:3000"},
		{[]string{"Sec-Fetch-Site", "cross-site"}, 403, "cross-site"},
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
	// kubectl sends this without a Content-Type, which a page of another site could, too.
	succeed(t, command(t, "kubectl", "--server", p.insecure, "create", "--raw", "/api/v1/namespaces/default/configmaps", "-f",
		write(t, "raw.json", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"raw"}}`)))
	if got, err := http.Post(p.insecure+"/api/v1/namespaces/default/configmaps", "text/plain", strings.NewReader("{}")); err != nil || got.StatusCode != 403 {
		t.Errorf("text: got %v, %v, want 403", got, err)
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

// asNobody runs kubectl as another user, with the insecure port.
func asNobody(t *testing.T, p *process, args ...string) outcome {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the owner of a connection is known on Linux only")
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
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
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
