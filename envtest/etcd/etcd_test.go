package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/etcdapi"
)

const patience = 60 * time.Second

// run starts the program with arguments. The returned function stops it and returns how it
// ended.
func run(t *testing.T, args ...string) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- Command{Args: args, Stdout: io.Discard, Stderr: io.Discard, Nearest: nearest}.Run(ctx)
	}()
	ended := false
	stop = func() error {
		cancel()
		if ended {
			return nil
		}
		ended = true
		select {
		case err := <-done:
			return err
		case <-time.After(patience):
			return errors.New("did not end")
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return stop
}

func nearest(word string, names []string) string {
	if word == "data-bir" && slices.Contains(names, "data-dir") {
		return "data-dir"
	}
	return ""
}

// freeAddress returns an address that is free at the moment.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func dial(t *testing.T, url string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// get requests a path until it is answered, as envtest does.
func get(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	eventually.Nil(t, "an answer from "+url, func() error {
		resp, err := client.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		status, body = resp.StatusCode, string(text)
		return err
	})
	return status, body
}

// With envtest's flags, it answers /health on gRPC's URL, stores a client's keys, and has
// them again after a restart.
func TestAsEnvtestRunsIt(t *testing.T) {
	dir, url := t.TempDir(), "http://"+freeAddress(t)
	args := []string{"--advertise-client-urls=" + url, "--data-dir=" + dir, "--listen-client-urls=" + url,
		"--listen-peer-urls=http://" + freeAddress(t), "--unsafe-no-fsync=true"}
	for round := range 2 {
		stop := run(t, args...)
		for path, want := range map[string]string{
			"/health":  `{"health":"true","reason":""}`,
			"/version": `{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}` + "\n",
		} {
			if status, body := get(t, http.DefaultClient, url+path); status != http.StatusOK || body != want {
				t.Errorf("%s: %d %q, want %q", path, status, body, want)
			}
		}
		if status, _ := get(t, http.DefaultClient, url+"/nowhere"); status != http.StatusNotFound {
			t.Errorf("/nowhere: %d", status)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		client := dial(t, url)
		resp, err := client.Get(ctx, "key")
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Kvs) != round {
			t.Errorf("round %d: %v", round, resp.Kvs)
		}
		if !etcdapi.Ours(resp.Header) {
			t.Errorf("not to be told from a real etcd: %v", resp.Header)
		}
		var puts []clientv3.Op // more than etcd takes
		for i := range 200 {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("many/%d", i), "value"))
		}
		if _, err := client.Txn(ctx).Then(append(puts, clientv3.OpPut("key", "value"))...).Commit(); err != nil {
			t.Error(err)
		}
		members, err := client.MemberList(ctx)
		if err != nil || len(members.Members) != 1 || members.Members[0].ClientURLs[0] != url {
			t.Errorf("members: %v, %v", members, err)
		}
		client.Close()
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if l, err := net.Listen("tcp", strings.TrimPrefix(url, "http://")); err != nil {
			t.Errorf("the port is not free after a stop: %v", err)
		} else {
			l.Close()
		}
	}
}

// A connection that sends nothing delays no other, and ends with the program.
func TestSilentConnection(t *testing.T) {
	address := freeAddress(t)
	stop := run(t, "--listen-client-urls", "http://"+address, "--data-dir", t.TempDir())
	get(t, http.DefaultClient, "http://"+address+"/health")
	silent, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	get(t, http.DefaultClient, "http://"+address+"/health")
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestMistakes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	real, file := t.TempDir(), filepath.Join(t.TempDir(), "file")
	if err := os.Mkdir(filepath.Join(real, "member"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	free := "--listen-client-urls=http://127.0.0.1:0"
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"a typo":                  {[]string{"--data-bir=x"}, []string{"no flag --data-bir", "did you mean --data-dir"}},
		"no such flag":            {[]string{"--nonsensical-option"}, []string{"no flag --nonsensical-option", "see etcd --help"}},
		"a word":                  {[]string{"gateway"}, []string{"flags only", "gateway"}},
		"no value":                {[]string{"--max-txn-ops=many"}, []string{"many", "max-txn-ops"}},
		"a port that is taken":    {[]string{"--data-dir", t.TempDir(), "--listen-client-urls", "http://" + taken.Addr().String()}, []string{"--listen-client-urls", taken.Addr().String(), "in use"}},
		"a URL without a scheme":  {[]string{"--listen-client-urls=127.0.0.1:1"}, []string{"--listen-client-urls 127.0.0.1:1", "want http://"}},
		"a name":                  {[]string{"--listen-client-urls=http://example.org:1"}, []string{"want http://"}},
		"no URL":                  {[]string{"--listen-client-urls="}, []string{"--listen-client-urls: wants one"}},
		"https":                   {[]string{"--listen-client-urls=https://127.0.0.1:0"}, []string{"--listen-client-urls https://127.0.0.1:0", "want http://"}},
		"a directory of etcd's":   {[]string{free, "--data-dir", real}, []string{real, "a real etcd"}},
		"a file as the directory": {[]string{free, "--data-dir", file}, []string{"--data-dir", file}},
		"more than one member":    {[]string{"--initial-cluster", "a=http://1.2.3.4:1,b=http://1.2.3.5:1"}, []string{"--initial-cluster", "one member"}},
		"to join":                 {[]string{"--initial-cluster-state=existing"}, []string{"--initial-cluster-state existing", "one member"}},
		"a log level":             {[]string{"--log-level=loud"}, []string{"--log-level loud"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := Command{Args: test.args, Stdout: io.Discard, Stderr: io.Discard, Nearest: nearest}.Run(t.Context())
			if err == nil {
				t.Fatal("was accepted")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

// The interval of progress has etcd's name and rules.
func TestProgressInterval(t *testing.T) {
	for _, test := range []struct {
		args    []string
		want    time.Duration
		warning string
		problem string
	}{
		{nil, kine.ProgressInterval, "", ""},
		{[]string{"--watch-progress-notify-interval=2s"}, 2 * time.Second, "", ""},
		{[]string{"--watch-progress-notify-interval=0"}, kine.ProgressInterval, "", ""},
		{[]string{"--watch-progress-notify-interval=1ms"}, 100 * time.Millisecond, "the least is 100ms", ""},
		{[]string{"--watch-progress-notify-interval=5"}, 0, "", "watch-progress-notify-interval"},
		{[]string{"--watch-progress-notify-interval=-5s"}, 0, "", "--watch-progress-notify-interval -5s: want a time"},
	} {
		o, warnings, err := parse(test.args, nearest)
		switch {
		case test.problem != "":
			if err == nil || !strings.Contains(err.Error(), test.problem) {
				t.Errorf("%q: %v, want %q", test.args, err, test.problem)
			}
		case err != nil || o.progress != test.want:
			t.Errorf("%q: %v, %v, want %v", test.args, o.progress, err, test.want)
		case test.warning == "" && len(warnings) > 0 || !strings.Contains(strings.Join(warnings, "\n"), test.warning):
			t.Errorf("%q: warns %q, want %q", test.args, warnings, test.warning)
		}
	}
}
