package flags

import (
	"strings"
	"testing"
	"time"

	cliflag "k8s.io/component-base/cli/flag"
)

type values struct {
	ttl     time.Duration
	names   []string
	verbose bool
	owned   string
}

func testSets() (*values, cliflag.NamedFlagSets) {
	v := &values{}
	var sets cliflag.NamedFlagSets
	set := sets.FlagSet("one")
	set.DurationVar(&v.ttl, "event-ttl", time.Hour, "")
	set.StringSliceVar(&v.names, "names", []string{"default"}, "")
	other := sets.FlagSet("two")
	other.BoolVar(&v.verbose, "verbose", false, "")
	other.StringVar(&v.owned, "etcd-servers", "ours", "")
	sets.FlagSet("a port").StringVar(&v.owned, "tls-cert-file", "ours", "")
	return v, sets
}

var owned = map[string]string{"etcd-servers": "use --datastore-endpoint", "[a port]": "there is none"}

func TestApplySets(t *testing.T) {
	v, sets := testSets()
	// A repeated list grows, anything else takes the last; = may be in a value,
	// and dashes before a name do not hurt.
	err := Apply("server", "server-arg", sets, owned, []string{"event-ttl=1m", "--event-ttl=2m", "names=a,b", "names=c=d", "verbose"})
	if err != nil {
		t.Fatal(err)
	}
	if v.ttl != 2*time.Minute {
		t.Errorf("event-ttl: got %v, want 2m", v.ttl)
	}
	if got := strings.Join(v.names, " "); got != "a b c=d" {
		t.Errorf("names: got %s, want a b c=d", got)
	}
	if !v.verbose {
		t.Error("verbose: got false, want true without a value")
	}
	if err := Apply("server", "server-arg", sets, owned, []string{"verbose=false"}); err != nil || v.verbose {
		t.Errorf("verbose=false: got %v and error %v", v.verbose, err)
	}
}

func TestApplyRefuses(t *testing.T) {
	for arg, want := range map[string]string{
		"event-tll=1m":   `--server-arg: server has no flag "event-tll"; did you mean "event-ttl"?`,
		"frobnicate=1":   `--server-arg: server has no flag "frobnicate"`,
		"etcd-servers=x": `--server-arg: etcd-servers is not for users: use --datastore-endpoint`,
		"tls-cert-file=": `--server-arg: tls-cert-file is not for users: there is none`,
		"etcd-servers":   `--server-arg: etcd-servers is not for users: use --datastore-endpoint`,
		"event-ttl=soon": `--server-arg: event-ttl=soon: time: invalid duration "soon"`,
		"event-ttl":      `--server-arg: event-ttl needs a value: event-ttl=…`,
		"":               `--server-arg: server has no flag ""`,
	} {
		v, sets := testSets()
		err := Apply("server", "server-arg", sets, owned, []string{arg})
		if err == nil || err.Error() != want {
			t.Errorf("%q\ngot  %v\nwant %s", arg, err, want)
		}
		if v.owned != "ours" {
			t.Errorf("%q: our own value became %q", arg, v.owned)
		}
	}
}

func TestApplyReportsAllAtOnce(t *testing.T) {
	v, sets := testSets()
	err := Apply("server", "server-arg", sets, owned, []string{"event-tll=1m", "event-ttl=soon", "names=good", "etcd-servers=x"})
	if err == nil {
		t.Fatal("got no error")
	}
	if got := len(strings.Split(err.Error(), "\n")); got != 3 {
		t.Errorf("got %d lines, want 3:\n%v", got, err)
	}
	if len(v.names) != 1 || v.names[0] != "good" {
		t.Errorf("what is right between two mistakes: got %v", v.names)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"event-ttl", "audit-log-path", "audit-policy-file", "feature-gates", "v"}
	for word, want := range map[string]string{
		"event-tll":       "event-ttl",
		"eventttl":        "event-ttl",
		"audit-log":       "audit-log-path",
		"feature-gate":    "feature-gates",
		"audit-polcy-fil": "audit-policy-file",
		"x":               "",
		"cloud-provider":  "", // v is in it
		"nothing-like-it": "",
		"":                "",
	} {
		if got := Nearest(word, names); got != want {
			t.Errorf("Nearest(%q): got %q, want %q", word, got, want)
		}
	}
	if got := Nearest("cot", []string{"dot", "cat"}); got != "cat" {
		t.Errorf("two as near: got %q, want the first by name, cat", got)
	}
	if got := Nearest("anything", nil); got != "" {
		t.Errorf("of no names: got %q", got)
	}
}
