package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestBatches(t *testing.T) {
	tests := []string{"a [Serial]", "b", "c [Slow]", "d [Disruptive] [Serial]", "e", "f [Serial]"}
	want := [][]string{{"b", "c [Slow]"}, {"e"}, {"a [Serial]", "d [Disruptive] [Serial]"}, {"f [Serial]"}}
	if got := batches(tests, 2); !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A run that was interrupted continues: what has passed is kept, with the time that it took.
func TestLedgerContinues(t *testing.T) {
	dir := t.TempDir()
	tests := []string{"[sig-auth] one", "[sig-auth] two", "[sig-auth] three"}
	o := options{nodes: 2}
	open := func(version string, o options) *ledger {
		t.Helper()
		l, err := openLedger(dir, version, o)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	first := open("v1.2.3", o)
	if err := first.keep([]result{{Name: tests[0], State: "passed"}, {Name: tests[1], State: "failed"}}, time.Minute); err != nil {
		t.Fatal(err)
	}
	second := open("v1.2.3", o)
	if got := second.left(tests); !reflect.DeepEqual(got, tests[1:]) {
		t.Errorf("left to run: %q, want %q", got, tests[1:])
	}
	if err := second.keep([]result{{Name: tests[1], State: "passed"}}, time.Minute); err != nil {
		t.Fatal(err)
	}
	third := open("v1.2.3", o)
	if got := third.left(tests); !reflect.DeepEqual(got, tests[2:]) || third.Seconds != 120 {
		t.Errorf("left to run: %q after %v s, want %q after 120 s", got, third.Seconds, tests[2:])
	}
	for name, other := range map[string]*ledger{
		"another version": open("v1.2.4", o), "another number of nodes": open("v1.2.3", options{nodes: 3}), "-fresh": open("v1.2.3", options{nodes: 2, fresh: true}),
	} {
		if len(other.left(tests)) != len(tests) || other.Seconds != 0 {
			t.Errorf("%s: the results of another run count", name)
		}
	}
}

func TestReadFailing(t *testing.T) {
	for _, test := range []struct{ name, content, want string }{
		{"as it should be", "# no IPv6\na\n", ""},
		{"no test fails", "", ""},
		{"a test is gone", "# no IPv6\nc\n", "upstream has no Conformance test c"},
		{"twice", "# no IPv6\na\n# no Internet\na\n", "a is there twice"},
		{"without a reason", "a\n", "a is below no line"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "failing.txt"), []byte(test.content), 0o600); err != nil {
				t.Fatal(err)
			}
			reasons, err := readFailing(dir, []string{"a", "b"})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if test.name == "as it should be" && reasons["a"] != "no IPv6" {
				t.Errorf("the reasons are %v", reasons)
			}
		})
	}
}

// A test that is known to fail may fail, and has to be taken out of the list when it passes.
func TestVerdictOfKnownFailures(t *testing.T) {
	for state, fails := range map[string]bool{"passed": true, "failed": false, "timedout": false} {
		r := report{Failing: map[string]string{"[sig-auth] one": "no IPv6"}}
		r.add(&list{Name: "real nodes"}, []result{{Name: "[sig-auth] one", State: state}, {Name: "[sig-auth] two", State: "passed"}}, 0)
		if err := r.verdict(); (err != nil) != fails {
			t.Errorf("a test that is known to fail, and %s: got %v", state, err)
		}
	}
}

// Tests that ask for the newest version of Pod Security need the first two numbers.
func TestVersionFlags(t *testing.T) {
	const variable = " -X k8s.io/component-base/version."
	want := variable + "gitVersion=v1.37.2" + variable + "gitMajor=1" + variable + "gitMinor=37"
	if got := versionFlags("v1.37.2"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
