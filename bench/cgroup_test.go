package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMemoryParent(t *testing.T) {
	mount := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(mount, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const own = "4:memory:/old\n0::/user/session\n"
	if _, err := memoryParent(mount, own); !errors.Is(err, errNoCgroup) {
		t.Errorf("without a hierarchy: %v, want %v", err, errNoCgroup)
	}
	write("cgroup.controllers", "cpu memory")
	write("cgroup.subtree_control", "cpu")
	write("user/session/cgroup.subtree_control", "")
	if _, err := memoryParent(mount, own); !errors.Is(err, errNoCgroup) {
		t.Errorf("without the controller: %v, want %v", err, errNoCgroup)
	}
	write("user/cgroup.subtree_control", "cpu memory")
	if dir, err := memoryParent(mount, own); err != nil || dir != filepath.Join(mount, "user") {
		t.Errorf("memoryParent = %s, %v, want the one above", dir, err)
	}
}

func TestMemoryParentV1(t *testing.T) {
	mount := t.TempDir()
	const own = "5:devices:/\n4:cpu,memory:/box/inner\n0::/\n"
	if _, err := memoryParentV1(mount, own); !errors.Is(err, errNoCgroup) {
		t.Errorf("without a hierarchy: %v, want %v", err, errNoCgroup)
	}
	want := filepath.Join(mount, "memory/box/inner")
	if err := os.MkdirAll(want, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(want, filesV1.limit), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if dir, err := memoryParentV1(mount, own); err != nil || dir != want {
		t.Errorf("memoryParentV1 = %s, %v, want %s", dir, err, want)
	}
	if _, err := memoryParentV1(mount, "0::/box\n"); !errors.Is(err, errNoCgroup) {
		t.Errorf("of version 2: %v, want %v", err, errNoCgroup)
	}
}

// What is started in a cgroup is in it: with a limit that this machine has a way to set.
func TestLimitMemory(t *testing.T) {
	c, err := limitMemory(64 << 20)
	if errors.Is(err, errNoCgroup) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	d, err := startDaemon(t.TempDir(), "in", c, "/bin/cat", "/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	<-d.gone
	said, err := os.ReadFile(d.log)
	if err != nil || !strings.Contains(string(said), "/"+filepath.Base(c.dir)+"\n") {
		t.Errorf("it is in %q, %v, want %s", said, err, c.dir)
	}
	if peak, err := c.peak(); err != nil || peak == 0 {
		t.Errorf("peak is %d, %v, want what it took", peak, err)
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"200M": 200 << 20, "1G": 1 << 30, "64K": 64 << 10, "1000": 1000} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("parseSize(%q) = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "M", "200MB", "-1M", "0", "99999999999G", "1KK", "2.5G"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("parseSize(%q) = %d, want an error", text, got)
		}
	}
}
