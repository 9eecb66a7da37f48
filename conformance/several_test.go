package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

func TestRelayTakesTurns(t *testing.T) {
	var to []string
	for _, name := range []string{"one", "two"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(c, name)
				c.Close()
			}
		}()
		to = append(to, l.Addr().String())
	}
	r, err := newRelay(to)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, want := range []string{"one", "two", "one"} {
		c, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %s", got, err, want)
		}
		c.Close()
	}
}

// Requests of others, such as the leader's controllers, do not count.
func TestCountRequests(t *testing.T) {
	v := &several{audits: []string{filepath.Join(t.TempDir(), "audit.log"), filepath.Join(t.TempDir(), "audit.log")}}
	for i, log := range []string{
		`{"userAgent":"e2e.test/v1.37.2 (linux/amd64) kubernetes/x -- [sig-apps] a test"}` + "\n" + `{"userAgent":"kubectl/v1.37.2 (linux/amd64)"}` + "\n",
		strings.Repeat(`{"userAgent":"karve/v1.37.2 (linux/amd64) kubernetes/x/leader-election"}`+"\n", 3),
	} {
		if err := os.WriteFile(v.audits[i], []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rotated := strings.TrimSuffix(v.audits[0], ".log") + "-2026-01-02T03-04-05.678.log"
	if err := os.WriteFile(rotated, []byte(`{"userAgent":"e2e.test/v1.37.2"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	counts, err := v.shares()
	if err != nil || len(counts) != 2 || counts[0] != 3 || counts[1] != 0 {
		t.Errorf("got %v, %v, want 3 and 0", counts, err)
	}
}

func TestBalanced(t *testing.T) {
	for _, test := range []struct {
		counts []int
		want   bool
	}{{[]int{25, 75}, true}, {[]int{76, 24}, false}, {[]int{9, 0}, false}, {[]int{0, 0}, false}, {[]int{20, 40, 60}, true}} {
		if err := balanced(test.counts); (err == nil) != test.want {
			t.Errorf("%v: got %v, want %v", test.counts, err, test.want)
		}
	}
}

func TestRedirect(t *testing.T) {
	config := api.NewConfig()
	config.Clusters["karve"] = &api.Cluster{Server: "https://127.0.0.1:1234", CertificateAuthorityData: []byte("authority")}
	config.Contexts["karve"] = &api.Context{Cluster: "karve"}
	config.CurrentContext = "karve"
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	if err := clientcmd.WriteToFile(*config, from); err != nil {
		t.Fatal(err)
	}
	if err := redirect(from, to, "127.0.0.1:5678"); err != nil {
		t.Fatal(err)
	}
	changed, err := clientcmd.LoadFromFile(to)
	if err != nil {
		t.Fatal(err)
	}
	if c := changed.Clusters["karve"]; c.Server != "https://127.0.0.1:5678" || string(c.CertificateAuthorityData) != "authority" {
		t.Errorf("got %+v", c)
	}
}

func TestServersNeedADatabase(t *testing.T) {
	t.Setenv(databaseVariable, "")
	for _, args := range [][]string{{"-servers", "2"}, {"-servers", "0"}, {"-servers", "2", "-nodes", "2"}, {"-servers", "2", "-only", "nodeless"}} {
		if _, err := parse(args, io.Discard); err == nil || !strings.Contains(err.Error(), "-servers") {
			t.Errorf("%q: got %v", args, err)
		}
	}
	t.Setenv(databaseVariable, "postgres://")
	if _, err := parse([]string{"-servers", "2"}, io.Discard); err == nil {
		t.Error("two lists on one database")
	}
	if _, err := parse([]string{"-servers", "2", "-only", "nodeless"}, io.Discard); err != nil {
		t.Error(err)
	}
}
