package setup

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for want, args := range map[string][]string{
		"-karve is missing":    nil,
		"unexpected argument":  {"30"},
		"-for is 0s":           {"-karve", os.Args[0], "-for", "0s"},
		"-compact is -1s":      {"-karve", os.Args[0], "-compact", "-1s"},
		"no such file":         {"-karve", "/nowhere/karve"},
		"flag: help requested": {"-nonsense"},
	} {
		o := Options{Length: time.Hour, Compact: time.Minute}
		if err := o.Parse(o.Flags("soak", io.Discard), args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
	o := Options{Length: time.Hour, Compact: time.Minute}
	if err := o.Parse(o.Flags("soak", io.Discard), []string{"-karve", os.Args[0], "-for", "2h"}); err != nil || o.Length != 2*time.Hour || o.Compact != time.Minute {
		t.Errorf("%+v, %v; want two hours, and compaction every minute as by default", o, err)
	}
	if !filepath.IsAbs(o.Binary) {
		t.Errorf("the binary is %s, want an absolute path", o.Binary)
	}
}

func TestOpen(t *testing.T) {
	temporary := Options{}
	log, remove, err := temporary.Open()
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Dir(log.Name()) != temporary.Dir || filepath.Dir(temporary.DataDir()) != temporary.Dir {
		t.Errorf("the log is %s and the cluster %s, want both in %s", log.Name(), temporary.DataDir(), temporary.Dir)
	}
	remove()
	if _, err := os.Stat(temporary.Dir); !os.IsNotExist(err) {
		t.Errorf("the temporary directory: %v, want that it is removed", err)
	}

	named := Options{Dir: filepath.Join(t.TempDir(), "new")}
	log, remove, err = named.Open()
	if err != nil {
		t.Fatal(err)
	}
	remove()
	if info, err := os.Stat(log.Name()); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log is %v, %v, want that it stays, for its owner only", info, err)
	}
}
