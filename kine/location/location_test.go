package location

import (
	"reflect"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
)

func TestDurability(t *testing.T) {
	for _, tc := range []struct {
		endpoint, durability string
		want                 datastore.Durability
		problem              string
	}{
		{"", "", datastore.Full, ""},
		{"", "full", datastore.Full, ""},
		{"", "relaxed", datastore.Relaxed, ""},
		{"sqlite:///x?cache=16Mi", "relaxed", datastore.Relaxed, ""},
		{"sqlite://?durability=relaxed", "relaxed", datastore.Relaxed, ""},
		{"sqlite://?durability=relaxed", "", datastore.Relaxed, ""},
		{"sqlite://?durability=relaxed", "full", 0, "--datastore-endpoint says durability=relaxed"},
		{"", "memory", 0, "want full or relaxed"},
		{"", "some", 0, "want full or relaxed"},
		{"memory://", "full", 0, "built-in datastore on a disk"},
		{"http://etcd:2379", "relaxed", 0, "built-in datastore on a disk"},
		{"postgres://me:secret@db/x", "relaxed", 0, "built-in datastore on a disk"},
	} {
		where, err := Parse(tc.endpoint, tc.durability)
		switch {
		case tc.problem == "" && (err != nil || where.Durability != tc.want):
			t.Errorf("%q, --durability %q: got %v, %v, want %v", tc.endpoint, tc.durability, where.Durability, err, tc.want)
		case tc.problem != "" && (err == nil || !strings.Contains(err.Error(), "--durability") || !strings.Contains(err.Error(), tc.problem)):
			t.Errorf("%q, --durability %q: got %v, want %q", tc.endpoint, tc.durability, err, tc.problem)
		}
	}
}

func TestDatastoreEndpoint(t *testing.T) {
	for text, want := range map[string]Location{
		"":                              {},
		"sqlite://":                     {},
		"sqlite:///var/lib/x":           {Dir: "/var/lib/x"},
		"sqlite://?durability=relaxed":  {Durability: datastore.Relaxed},
		"sqlite:///x?cache=16Mi":        {Dir: "/x", CacheBytes: 16 << 20},
		"sqlite://?cache=1000":          {CacheBytes: 1000},
		"memory://":                     {Durability: datastore.Memory},
		"http://a:2379,https://b:2379":  {Etcd: []string{"http://a:2379", "https://b:2379"}},
		"sqlite://?durability=memory":   {Durability: datastore.Memory},
		"sqlite:///x?durability=full&":  {Dir: "/x"},
		"https://user:secret@etcd:2379": {Etcd: []string{"https://user:secret@etcd:2379"}},
	} {
		if got, err := parseEndpoint(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"sqlite://relative":                    "absolute",
		"sqlite:///x?durability=none":          "full, relaxed or memory",
		"sqlite:///x?cache=much":               "cache=much",
		"sqlite:///x?cache=-1":                 "cache=-1",
		"sqlite:///x?mode=ro":                  "mode",
		"memory://x":                           "takes nothing more",
		"/var/lib/x":                           "sqlite://",
		"http://a:2379,ftp://me:secret@b:2379": "not a URL",
		"http://me:secret@a b/":                "not a URL",
		"postgre://me@a/b?password=secret":     "not a URL",
		"me:secret@tcp(a:3306)/b":              "not a URL",
		"host=a password=secret":               "postgres://",
		"http://a:2379,host=a password=secret": "not a URL",
		"sqlite://me:secret@a/b":               "absolute",
		"memory://me:secret@a":                 "takes nothing more",
		"http://me:3/secret@a:2379":            "percent-encoded",
		"https://me:3?secret@a:2379":           "percent-encoded",
		"http://a:2379,http://me:3#secret@a":   "percent-encoded",
		"postgre://me:3/secret@a/b":            "percent-encoded",
		"postgres://me:3/secret@a/b":           "percent-encoded",
		"mysql://me:3/secret@tcp(a:3306)":      "not a DSN",
		"nats://me:3/secret@a:4222":            "name kine",
		"nats://me:secret@a?bucket=b":          "--datastore-endpoint http://",
		"//me:secret@a/b":                      "not a URL",
	} {
		_, err := parseEndpoint(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--datastore-endpoint") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: got %v, want --datastore-endpoint and %q, and no password", text, err, want)
		}
	}
}
