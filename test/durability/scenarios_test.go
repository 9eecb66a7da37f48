//go:build linux

package durability

import (
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// faults are what happens to two servers, or to their database, while clients use both. The databases
// that have the fault are named, unless all have it.
var faults = []struct {
	name string
	of   string // databases
	do   func(s *several)
}{
	// Each server is killed with -9, the leader first, and started again.
	{"kill", "postgres mysql etcd", func(s *several) {
		for range s.servers {
			s.kill()
		}
	}},
	// Each server is stopped in order and started again.
	{"stop", "postgres mysql etcd", func(s *several) {
		for range s.servers {
			leads := s.leader()
			s.handover(s.other(leads), leads.ends)
			s.work(s.other(leads))
			leads.up()
			s.ready(true, leads)
			s.work(s.servers[:]...)
		}
	}},
	// The leader cannot reach the database. It says so, answers no consistent read with what is old,
	// and recovers by itself.
	{"cut", "postgres mysql etcd", func(s *several) {
		leads := s.leader()
		other := s.other(leads)
		if leads.network == nil {
			s.t.Skipf("%s is not set: scripts/several-servers sets it, as root, where servers have networks of their own", networkVariable)
		}
		s.handover(other, func() error {
			if err := leads.network.cut(); err != nil {
				return err
			}
			err := s.says(false, leads)
			s.notStale(leads, other)
			return err
		})
		s.work(other)
		s.notStale(leads, other)
		leads.network.reconnect()
		s.ready(true, leads, other)
		s.work(s.servers[:]...)
	}},
	// The leader is stopped with SIGSTOP for longer than its lease, in the middle of its controllers' requests, and
	// goes on when another one leads.
	{"pause", "postgres mysql etcd", func(s *several) {
		for range s.servers {
			leads := s.leader()
			other := s.other(leads)
			s.handover(other, func() error { return syscall.Kill(leads.PID(), syscall.SIGSTOP) })
			s.work(other)
			syscall.Kill(leads.PID(), syscall.SIGCONT)
			s.ready(true, s.servers[:]...)
			s.work(s.servers[:]...)
		}
	}},
	// The database is stopped in order, is away until both servers have noticed, and comes back.
	{"restart", "postgres mysql etcd", func(s *several) { s.restart("TERM") }},
	// The database is killed with -9, and started at once.
	{"crash", "postgres mysql etcd", func(s *several) { s.crash() }},
	// etcd loses a member that follows, or the one that leads, and gets it back.
	{"follower", "etcd", func(s *several) { s.lose(false) }},
	{"leader", "etcd", func(s *several) { s.lose(true) }},
	// The short form of some.
	{"quick", "postgres", func(s *several) { s.kill(); s.crash() }},
}

func (s *several) kill() {
	s.t.Helper()
	leads := s.leader()
	s.handover(s.other(leads), leads.Kill)
	s.work(s.other(leads))
	leads.up()
	s.ready(true, leads)
	s.work(s.servers[:]...)
}

func (s *several) crash() {
	s.t.Helper()
	all := s.database.everyMember()
	s.database.control(s.t, all, "kill", "KILL")
	s.database.control(s.t, all, "start")
	s.ready(true, s.servers[:]...)
	s.work(s.servers[:]...)
}

func (s *several) restart(signal string) {
	s.t.Helper()
	if strings.HasPrefix(s.database.endpoint, "postgres") {
		signal = "INT" // "fast": connections end, transactions are rolled back
	}
	all := s.database.everyMember()
	s.database.control(s.t, all, "kill", signal)
	s.ready(false, s.servers[:]...)
	s.database.control(s.t, all, "start")
	s.ready(true, s.servers[:]...)
	s.work(s.servers[:]...)
}

func (s *several) lose(leads bool) {
	s.t.Helper()
	member := []int{s.database.member(s.t, leads)}
	s.database.control(s.t, member, "kill", "KILL")
	s.ready(true, s.servers[:]...)
	s.work(s.servers[:]...)
	s.database.control(s.t, member, "start")
	s.ready(true, s.servers[:]...)
	s.work(s.servers[:]...)
}

// notStale checks that a server which is cut off does not answer consistent reads: it cannot know what
// the other one has acknowledged since then.
func (s *several) notStale(cut, other *peer) {
	s.t.Helper()
	name := "news-" + s.fresh()
	for range 2 {
		ctx := s.t.Context()
		var object Object
		if err := other.api.Load().Do(ctx, http.MethodPost, "/api/v1/namespaces/kube-public/configmaps", Object{APIVersion: "v1", Kind: "ConfigMap", Metadata: Metadata{Name: name + s.fresh()}}, &object); err != nil {
			s.t.Error(err) // the other one is well
			return
		}
		of := "/api/v1/namespaces/kube-public/configmaps"
		for _, path := range []string{of + "/" + object.Metadata.Name, of, of + "?resourceVersionMatch=NotOlderThan&resourceVersion=" + object.Metadata.ResourceVersion} {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			err := cut.api.Load().Do(ctx, http.MethodGet, path, nil, nil)
			cancel()
			if err == nil || Refused(err) == http.StatusNotFound {
				s.t.Errorf("server %s is cut off, and answers %s after a write at server %s: %v", cut.name, path, other.name, err)
			}
		}
	}
}

// What clients of two servers on one database see is linearizable, and the same at both, while one of
// them or the database fails. scripts/several-servers runs all of it.
func TestSeveralServers(t *testing.T) {
	for _, kind := range []string{"postgres", "mysql", "etcd"} {
		t.Run(kind, func(t *testing.T) {
			for _, fault := range faults {
				if !strings.Contains(fault.of, kind) {
					continue
				}
				t.Run(fault.name, func(t *testing.T) {
					s := newSeveral(t, kind)
					s.load()
					defer s.clients.Wait() // also after a failure: what they report belongs to this test
					defer s.stop()
					fault.do(s)
					s.end()
				})
			}
		})
	}
}
