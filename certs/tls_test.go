package certs

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestList(t *testing.T) {
	b := newTestbed(t)
	b.Etcd = true
	if _, err := List(b.Dir, today); err == nil || !strings.Contains(err.Error(), b.Dir) {
		t.Errorf("no directory: %v", err)
	}
	ca := newUserCA(t, "theirs", rsaKey(t), nil, today.AddDate(0, 0, 10))
	b.put(t, "client-ca.crt", encodeCerts(certsOf(ca)))
	b.put(t, "client-ca.key", keyPEM(t, ca.key, "PRIVATE KEY"))
	s, _ := b.ensure(t)
	b.remove(t, "scheduler.crt", "admin.key")
	before := b.files(t)
	infos, err := List(b.Dir, today.Add(12*time.Hour))
	if err != nil || len(infos) != len(Names()) {
		t.Fatal(infos, err)
	}
	if diff := changed(before, b.files(t)); len(diff) != 0 {
		t.Errorf("List changed %v", diff)
	}
	by := map[Name]Info{}
	for _, i := range infos {
		by[i.Name] = i
	}
	srv := by[Serving]
	if srv.Kind != KindLeaf || srv.Subject != "CN=kube-apiserver" || srv.DaysLeft != 364 || srv.KeyType != "ECDSA P-256" || srv.UserSupplied || srv.Problem != "" ||
		!srv.NotAfter.Equal(today.Add(leafLife)) || !srv.Due.Equal(s.NextDue()) || srv.CertFile != s.CertFile(Serving) || srv.KeyFile != s.KeyFile(Serving) ||
		!strings.HasPrefix(srv.Issuer, "CN=karve-server-ca@") || !slices.Contains(srv.SANs, "192.168.1.5") || !slices.Contains(srv.SANs, "board") {
		t.Errorf("serving: %+v", srv)
	}
	if c := by[ClientCA]; c.Kind != KindCA || !c.UserSupplied || c.KeyType != "RSA 2048" || c.DaysLeft != 9 || c.Subject != "CN=theirs" {
		t.Errorf("client-ca: %+v", c)
	}
	if a := by[ServiceAccount]; a.Kind != KindKey || a.CertFile != "" || a.KeyFile == "" || a.KeyType != "ECDSA P-256" || a.Problem != "" {
		t.Errorf("service-account: %+v", a)
	}
	if a := by[Admin]; !strings.HasSuffix(a.Problem, "admin.key is missing") || a.KeyFile != "" || a.Subject == "" {
		t.Errorf("admin: %+v", a)
	}
	if a := by[Scheduler]; !strings.HasSuffix(a.Problem, "scheduler.crt is missing") || a.CertFile != "" {
		t.Errorf("scheduler: %+v", a)
	}
}
