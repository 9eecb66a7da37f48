package main

import (
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	const embed = "go.etcd.io/etcd/server/v3/embed"
	for _, c := range []struct {
		name string
		p    pkg
		want string // a part of the complaint; empty is none
	}{
		{"etcd's server", pkg{ImportPath: embed, Dir: "/go/pkg/mod/go.etcd.io/etcd/server/v3@v3.7.3/embed"}, "Karve is no etcd server"},
		{"its stand-in", pkg{ImportPath: embed, Dir: "/src/karve/kine/external/etcdserver/embed"}, ""},
		{"a part of etcd's server", pkg{ImportPath: "go.etcd.io/raft/v3"}, "Karve is no etcd server"},
		{"a room that the table lacks", pkg{ImportPath: module + "/other"}, "is not in the table"},
		{"an arrow that climbs", pkg{ImportPath: module + "/certs", Imports: []string{module + "/server"}}, "the arrow climbs"},
		{"an arrow between rooms of one layer", pkg{ImportPath: module + "/certs", Imports: []string{module + "/datastore"}}, "the arrow climbs"},
		{"an arrow that descends", pkg{ImportPath: module + "/server/storage", Imports: []string{module + "/kine/external"}}, ""},
		{"the program and a room for tests", pkg{ImportPath: module + "/command", Imports: []string{module + "/servertest"}}, "for tests"},
		{"a dependency away from home", pkg{ImportPath: module + "/certs", Imports: []string{"github.com/k3s-io/kine/pkg/server"}}, "has one place"},
	} {
		got := strings.Join(check([]pkg{c.p}), "\n")
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
