package kine_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine"
)

// serve serves the datastore in dir. It returns a client and a function that stops both.
func serve(t *testing.T, dir string) (*kine.Shim, *clientv3.Client, func()) {
	t.Helper()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	shim, err := kine.Serve(t.Context(), engine, dir)
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{shim.Endpoint()}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	return shim, client, func() {
		client.Close()
		if err := shim.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := engine.Close(); err != nil {
			t.Errorf("close engine: %v", err)
		}
		lock.Close()
	}
}

// create is the transaction by which the API server creates an object.
func create(ctx context.Context, c *clientv3.Client, key, value string) (*clientv3.TxnResponse, error) {
	return c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Commit()
}

func TestSocketIsForTheOwnerOnly(t *testing.T) {
	for name, dir := range map[string]string{
		"in the directory":       t.TempDir(),
		"where that is too long": filepath.Join(t.TempDir(), strings.Repeat("long/", 30)),
	} {
		t.Run(name, func(t *testing.T) {
			shim, _, stop := serve(t, dir)
			path := strings.TrimPrefix(shim.Endpoint(), "unix://")
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode().Perm(); got != 0o600 {
				t.Errorf("mode %o, want 600", got)
			}
			// The endpoint may be another path to it.
			inDir := filepath.Join(dir, "kine.sock")
			if same, err := os.Stat(inDir); err != nil || !os.SameFile(same, info) {
				t.Errorf("%s: %v, want the socket of %s", inDir, err, path)
			}
			stop()
			for _, path := range []string{path, inDir} {
				if _, err := os.Lstat(path); err == nil {
					t.Errorf("%s is still there after Close", path)
				}
			}
		})
	}
}

func TestCloseEndsAnOpenWatchAndLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	_, client, stop := serve(t, t.TempDir())
	events := client.Watch(t.Context(), "/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	eventually.Receive(t, "the stop, with a watch open", stopped)
	eventually.Goroutines(t, before+2)
}

// The other listeners serve the same contents as the socket. The member list has the address of the
// listener that the client uses.
func TestListeners(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	url := "http://" + tcp.Addr().String()
	shim, err := kine.Serve(t.Context(), engine, t.TempDir(), kine.Listener{Listener: tcp, URL: url})
	if err != nil {
		t.Fatal(err)
	}
	for i, endpoint := range []string{shim.Endpoint(), url} {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		if made, err := create(t.Context(), c, "/a", "1"); err != nil || made.Succeeded != (i == 0) {
			t.Errorf("create at %s: %v, %v, want it to be there after the first", endpoint, made, err)
		}
		members, err := c.MemberList(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if scheme, _, _ := strings.Cut(endpoint, ":"); !strings.HasPrefix(members.Members[0].ClientURLs[0], scheme+":") {
			t.Errorf("members at %s: %v", endpoint, members.Members)
		}
		c.Close()
	}
	if err := shim.Close(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", tcp.Addr().String()); err == nil {
		t.Error("the listener is open after Close")
	}
}

func TestALinkedSocketOfACrashIsRemoved(t *testing.T) {
	dir, left := t.TempDir(), filepath.Join(t.TempDir(), "karve-1")
	socket := filepath.Join(left, "kine.sock")
	err := errors.Join(os.Mkdir(left, 0o700), os.WriteFile(socket, nil, 0o600), os.Symlink(socket, filepath.Join(dir, "kine.sock")))
	if err != nil {
		t.Fatal(err)
	}
	_, _, stop := serve(t, dir)
	defer stop()
	if _, err := os.Stat(left); err == nil {
		t.Errorf("%s is still there", left)
	}
}
