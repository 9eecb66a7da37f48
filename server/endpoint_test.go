package server

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
		where, err := Config{DatastoreEndpoint: tc.endpoint, Durability: tc.durability}.datastore()
		switch {
		case tc.problem == "" && (err != nil || where.options.Durability != tc.want):
			t.Errorf("%q, --durability %q: got %v, %v, want %v", tc.endpoint, tc.durability, where.options.Durability, err, tc.want)
		case tc.problem != "" && (err == nil || !strings.Contains(err.Error(), "--durability") || !strings.Contains(err.Error(), tc.problem)):
			t.Errorf("%q, --durability %q: got %v, want %q", tc.endpoint, tc.durability, err, tc.problem)
		}
	}
}

func TestDatastoreEndpoint(t *testing.T) {
	for text, want := range map[string]endpoint{
		"":                              {},
		"sqlite://":                     {},
		"sqlite:///var/lib/x":           {dir: "/var/lib/x"},
		"sqlite://?durability=relaxed":  {options: datastore.Options{Durability: datastore.Relaxed}},
		"sqlite:///x?cache=16Mi":        {dir: "/x", options: datastore.Options{CacheBytes: 16 << 20}},
		"sqlite://?cache=1000":          {options: datastore.Options{CacheBytes: 1000}},
		"memory://":                     {options: datastore.Options{Durability: datastore.Memory}},
		"http://a:2379,https://b:2379":  {etcd: []string{"http://a:2379", "https://b:2379"}},
		"sqlite://?durability=memory":   {options: datastore.Options{Durability: datastore.Memory}},
		"sqlite:///x?durability=full&":  {dir: "/x"},
		"https://user:secret@etcd:2379": {etcd: []string{"https://user:secret@etcd:2379"}},
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
		"http://a:2379,ftp://me:secret@b:2379": "ftp://me:xxxxx@b:2379",
		"http://me:secret@a b/":                "not a URL",
	} {
		_, err := parseEndpoint(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--datastore-endpoint") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: got %v, want --datastore-endpoint and %q, and no password", text, err, want)
		}
	}
}

// Who else has the storage decides how long a namespace waits, which leases are
// written and which types have a watch cache.
func TestOwnsStorage(t *testing.T) {
	for _, tc := range []struct {
		config Config
		want   bool
	}{
		{Config{}, true},
		{Config{DatastoreEndpoint: "sqlite:///x"}, true},
		{Config{DatastoreEndpoint: "memory://"}, true},
		{Config{DatastoreEndpoint: "http://etcd:2379"}, false},
		{Config{DatastoreEndpoint: "postgres://me@db/x"}, false},
		{Config{EtcdListen: "https://:2379"}, false},
		{Config{EtcdListen: "http://127.0.0.1:0"}, false},
		{Config{DatastoreEndpoint: "memory://", EtcdListen: "https://:2379"}, false},
	} {
		if got := tc.config.ownsStorage(); got != tc.want {
			t.Errorf("--datastore-endpoint %q, --etcd-listen %q: %v, want %v", tc.config.DatastoreEndpoint, tc.config.EtcdListen, got, tc.want)
		}
	}
}
