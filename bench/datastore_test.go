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
		made, next := d.endpoint(one), d.endpoint(other)
		if again := d.endpoint(one); again != made || made == next || !strings.Contains(made, "/bench") {
			t.Errorf("%s, %s and %s, want a database for each directory", made, next, again)
		}
		option, err := d.option(one)
		if err != nil || strings.Contains(option, "s3cret") {
			t.Errorf("option %s, %v, want no password", option, err)
		}
		text, err := os.ReadFile(filepath.Join(one, "bench.yaml"))
		if err != nil || !strings.Contains(string(text), "s3cret") {
			t.Errorf("%s, %v, want the endpoint", text, err)
		}
	}
	for _, endpoint := range []string{"postgres://u:s3cret@h/mine", "mysql://u:s3cret@tcp(h:1)/mine", "mysql://u:s3cret@h", "nats://s3cret", "s3cret"} {
		if _, err := parseDatabase(endpoint); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want an error without the password", endpoint, err)
		}
	}
}
