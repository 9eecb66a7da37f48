package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDatabaseOfADirectory(t *testing.T) {
	for _, endpoint := range []string{"postgres://u:s3cret@h:1/?sslmode=disable", "mysql://u:s3cret@tcp(h:1)/"} {
		d, err := parseDatabase(endpoint)
		if err != nil {
			t.Fatal(err)
		}
		one, other := t.TempDir(), t.TempDir()
		made, next := d.of(d.nameOf(one)), d.of(d.nameOf(other))
		if again := d.of(d.nameOf(one)); again != made || made == next || !strings.Contains(made, "/bench") {
			t.Errorf("%s, %s and %s, want a database for each directory", made, next, again)
		}
		options, err := d.options(one)
		if err != nil || strings.Contains(strings.Join(options, " "), "s3cret") {
			t.Errorf("options %q, %v, want no password", options, err)
		}
		text, err := os.ReadFile(filepath.Join(one, "bench.yaml"))
		if err != nil || !strings.Contains(string(text), "s3cret") {
			t.Errorf("%s, %v, want the endpoint", text, err)
		}
	}
	for _, endpoint := range []string{"mysql://u:s3cret@h", "s3cret"} {
		if _, err := parseDatabase(endpoint); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want an error without the password", endpoint, err)
		}
	}
}

func TestDatastoresOfTheEnvironment(t *testing.T) {
	environment := map[string]string{
		"KARVE_TEST_POSTGRES": "postgres://u:s3cret@h:1/", "KARVE_TEST_POSTGRES_CONTROL": "/x/postgres.control",
		"KARVE_TEST_ETCD3": "http://h:1,http://h:2,http://h:3", "KARVE_TEST_ETCD3_CONTROL": "/x/0 /x/1 /x/2",
		"KARVE_TEST_MYSQL": "s3cret",
	}
	find := func(names ...string) (*comparison, error) {
		cmp := &comparison{}
		return cmp, cmp.findDatastores(names, func(name string) string { return environment[name] })
	}
	cmp, err := find("sqlite", "postgresql", "three-etcds")
	if err != nil || len(cmp.datastores) != 3 {
		t.Fatalf("got %d datastores, %v, want three", len(cmp.datastores), err)
	}
	builtIn, etcd := cmp.datastores[0], cmp.datastores[2]
	if options, err := builtIn.options(t.TempDir()); len(options) > 0 || err != nil || builtIn.controlled() {
		t.Errorf("the built-in datastore has options %q, %v", options, err)
	}
	if len(etcd.controls) != 3 || !etcd.controlled() {
		t.Errorf("three etcds have the controls %q", etcd.controls)
	}
	dir := t.TempDir()
	options, err := etcd.options(dir)
	if err != nil || !strings.Contains(strings.Join(options, " "), "--kube-apiserver-arg etcd-prefix=/"+etcd.nameOf(dir)) {
		t.Errorf("options %q, %v, want a prefix of its own", options, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "bench.yaml")); err != nil || !strings.Contains(string(text), `"http://h:1,http://h:2,http://h:3"`) {
		t.Errorf("%s, %v, want all members", text, err)
	}
	for name, want := range map[string]string{"mariadb": "KARVE_TEST_MYSQL: want", "one-etcd": "KARVE_TEST_ETCD is not set", "other": "no datastore"} {
		if _, err := find(name); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// A comparison of datastores has no ratios, and its record names their versions.
func TestComparisonOfDatastores(t *testing.T) {
	cmp := twoPeers()
	cmp.datastores = []*userDatabase{{}, {}}
	cmp.peers[0].database = &userDatabase{version: "15.14", controls: []string{"/x"}}
	var out strings.Builder
	if err := cmp.Print(&out); err != nil || strings.Contains(out.String(), "ratio") {
		t.Errorf("%v\n%s\nwant figures only", err, &out)
	}
	var record strings.Builder
	if err := cmp.Record().Write(&record); err != nil || !strings.Contains(record.String(), "# etcd-kube-apiserver: 15.14\n") || strings.Contains(record.String(), "# peers:") {
		t.Errorf("%v\n%s\nwant the version", err, &record)
	}
}
