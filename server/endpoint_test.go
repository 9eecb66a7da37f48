package server

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
)

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

func TestStateOfAnEarlierReleaseIsNotForgotten(t *testing.T) {
	dir := t.TempDir()
	if err := checkOldTable(dir, datastore.Options{}); err != nil {
		t.Errorf("an empty directory: %v", err)
	}
	touch := func(name string) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	touch(datastore.FileName)
	if err := checkOldTable(dir, datastore.Options{}); !errors.Is(err, errOldTable) {
		t.Errorf("the old table alone: %v, want errOldTable", err)
	}
	if err := checkOldTable(dir, datastore.Options{Durability: datastore.Memory}); err != nil {
		t.Errorf("in memory: %v", err)
	}
	touch(datastore.EngineFile)
	if err := checkOldTable(dir, datastore.Options{}); err != nil {
		t.Errorf("kept beside the engine's file: %v", err)
	}
}
