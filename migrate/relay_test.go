package migrate

import (
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// relay forwards connections to an etcd, until lose makes it withhold one answer.
type relay struct {
	lose atomic.Pointer[func() bool] // tells whether the request has had its effect
}

// relayed is an etcd behind a relay.
func relayed(t *testing.T, to End) (End, *relay) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r := &relay{}
	network, address, _ := strings.Cut(to.Etcd[0], "://")
	if network != "unix" {
		network = "tcp"
	}
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial(network, address)
			if err != nil {
				near.Close()
				continue
			}
			go func() {
				io.Copy(far, near)
				far.Close()
			}()
			go r.answers(near, far)
		}
	}()
	return etcdEnd("http://" + l.Addr().String()), r
}

// answers ends the connection once an answer has been lost.
func (r *relay) answers(near, far net.Conn) {
	defer near.Close()
	defer far.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := far.Read(buffer)
		if err != nil {
			return
		}
		if lose := r.lose.Load(); lose != nil {
			if (*lose)() {
				r.lose.Store(nil)
				return
			}
			continue
		}
		if _, err := near.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// An etcd may have committed a transaction whose answer is lost. So the key that keeps servers away stays.
func TestMigrationThatLosesAnAnswer(t *testing.T) {
	source, want := cluster(t)
	etcd := karvesEtcd(t)
	c := client(t, etcd)
	to, r := relayed(t, etcd)
	count := func() int64 {
		got, err := c.Get(t.Context(), Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Error(err)
			return 0
		}
		return got.Count
	}
	written := func() bool { return count() > 1 }
	_, err := Run(t.Context(), source, to, func(p Progress) {
		if p.Doing == copying && p.Done == 1 {
			r.lose.Store(&written)
		}
	})
	wantError(t, nil, err, "0 or more of the keys, and /registry/karve/migrating", "del --prefix /registry/")
	if n := count(); n < 2 {
		t.Fatalf("%d keys, want that the transaction has been committed", n)
	}
	refusesToServe(t, etcd)
	if _, err := c.Delete(t.Context(), Prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	run(t, source, to)
	sameContents(t, contents(t, etcd), want)
}

// Nothing is written to an etcd that servers may start with.
func TestMigrationWhoseMarkerIsDeleted(t *testing.T) {
	source, _ := cluster(t)
	to := karvesEtcd(t)
	c := client(t, to)
	_, err := Run(t.Context(), source, to, func(p Progress) {
		if p.Doing == copying && p.Done == 1 {
			if _, err := c.Delete(t.Context(), Prefix, clientv3.WithPrefix()); err != nil {
				t.Error(err)
			}
		}
	})
	wantError(t, nil, err, "somebody has deleted /registry/karve/migrating meanwhile", "start none")
	if got, err := c.Get(t.Context(), Prefix, clientv3.WithPrefix()); err != nil || got.Count > 0 {
		t.Errorf("%v, %v, want that nothing has been written", got, err)
	}
}

// The remedy for an etcd that is not empty must not delete the cluster.
func TestMigrationToTheSourceByAnotherName(t *testing.T) {
	first, want := cluster(t)
	source := karvesEtcd(t)
	run(t, first, source)
	again, _ := relayed(t, source)
	_, err := Run(t.Context(), source, again, nil)
	wantError(t, nil, err, "it may be the source itself", source.Where)
	if err != nil && strings.Contains(err.Error(), "del --prefix") {
		t.Errorf("%v, want no command that deletes the source", err)
	}
	sameContents(t, contents(t, source), want)
}
