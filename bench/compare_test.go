package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTargetMark(t *testing.T) {
	two, zero := 2.0, 0.0
	for _, test := range []struct {
		target target
		own    float64
		peer   *float64
		text   string
		mark   string
	}{
		{atMost(0.6), 0.59, nil, "≤ 0.6", "met"},
		{atMost(0.6), 0.6, nil, "≤ 0.6", "met"},
		{atMost(0.6), 0.61, &two, "≤ 0.6", "MISSED"},
		{ratioAtLeast(1.3), 2.6, &two, "≥ 1.3 ×", "met"},
		{ratioAtLeast(1.3), 2.5, &two, "≥ 1.3 ×", "MISSED"},
		{ratioAtLeast(1.3), 2.5, nil, "≥ 1.3 ×", ""},
		{ratioAtLeast(1.3), 2.5, &zero, "≥ 1.3 ×", ""},
		{target{}, 1, &two, "", ""},
	} {
		if got := test.target.String(); got != test.text {
			t.Errorf("%+v is printed %q, want %q", test.target, got, test.text)
		}
		if got := test.target.mark(test.own, test.peer); got != test.mark {
			t.Errorf("%v of %v, peer %v: %q, want %q", test.own, test.target, test.peer, got, test.mark)
		}
	}
}

// twoPeers is a comparison with figures of three rounds.
func twoPeers() *comparison {
	cmp := &comparison{
		name:    "api",
		against: againstEtcd,
		peers:   []*peer{{title: "etcd + kube-apiserver", name: "etcd-kube-apiserver"}, {title: "karve", name: "karve", controllers: true}},
		lines: []line{
			{row: "create", unit: "/s", target: ratioAtLeast(1.3)}, {row: "create", unit: "p99 ms"},
			{row: "memory", unit: "MB", target: atMost(90)},
			{row: "pods", unit: "p50 ms", target: atMost(60), controllers: true},
			{row: "not measured", unit: "s"},
		},
	}
	for n, perSecond := range []float64{1000, 500, 2000} {
		theirs, ours := &sample{Peer: "etcd + kube-apiserver", Round: n + 1}, &sample{Peer: "karve", Round: n + 1}
		theirs.add("create", "/s", perSecond)
		theirs.add("create", "p99 ms", 8)
		theirs.add("memory", "MB", 30+float64(n), 150-float64(n))
		ours.add("create", "/s", 1.5*perSecond)
		ours.add("create", "p99 ms", 4)
		ours.add("memory", "MB", 91)
		ours.add("pods", "p50 ms", 50)
		cmp.Samples = append(cmp.Samples, theirs, ours)
	}
	return cmp
}

func TestComparisonTable(t *testing.T) {
	var out strings.Builder
	if err := twoPeers().print(&out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"etcd + kube-apiserver karve ratio target",
		"create /s 1,000 1,500 1.50 ≥ 1.3 × met",
		"p99 ms 8.00 4.00 0.50",
		"memory MB 31.0 + 149 91.0 0.51 ≤ 90 MISSED",
		"pods p50 ms never 50.0 – ≤ 60 met",
	}
	if len(got) < 3+len(want) || strings.Join(got[3:3+len(want)], "\n") != strings.Join(want, "\n") {
		t.Errorf("table is\n%s\nwant\n%s", strings.Join(got[min(3, len(got)):], "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(out.String(), "not measured") {
		t.Error("the table has a row that nobody measured")
	}
}

func TestComparisonTableSaysDisturbed(t *testing.T) {
	cmp := twoPeers()
	cmp.Samples[3].OtherLoad = 0.5
	var out strings.Builder
	if err := cmp.print(&out); err != nil || !strings.Contains(out.String(), "DISTURBED: the machine was up to 50 %") {
		t.Errorf("table is %v\n%s\nwant a remark on the other load", err, &out)
	}
}

func TestComparisonWithAnotherKarve(t *testing.T) {
	cmp := twoPeers()
	cmp.against = "/some/karve"
	if cells := cmp.cells(cmp.lines[0]); cells[4] != "1.50" || cells[5] != "" || cells[6] != "" {
		t.Errorf("line is %q, want a ratio and no target of it", cells)
	}
	if cells := cmp.cells(cmp.lines[2]); cells[6] != "MISSED" {
		t.Errorf("line is %q, want karve's own target", cells)
	}
}

func TestSameObjects(t *testing.T) {
	cmp := twoPeers()
	cmp.Samples[0].objects = map[string][]string{"/roles": {"a", "b", "c"}}
	cmp.Samples[1].objects = map[string][]string{"/roles": {"c", "a", "b", "own"}}
	if err := cmp.sameObjects(); err != nil {
		t.Errorf("karve has all and one more: %v", err)
	}
	cmp.Samples[1].objects["/roles"] = []string{"b"}
	if err := cmp.sameObjects(); err == nil || !strings.Contains(err.Error(), "/roles: karve lacks a, c") {
		t.Errorf("karve has one of three: %v", err)
	}
}

func TestComparisonOptions(t *testing.T) {
	rows := []string{"cold", "warm"}
	for args, want := range map[string]string{
		"-only warm -rounds 2":           "",
		"-only hot":                      `-only: there is no row "hot", only cold, warm`,
		"-rounds 0":                      "-rounds is 0, want 1 to 100",
		"-o xml":                         `-o is "xml"`,
		"-karve /nowhere/karve":          "-karve: stat /nowhere/karve",
		"-against " + os.DevNull:         "-against: /dev/null is not a program",
		"extra":                          `takes no argument "extra"`,
		"-against none -karve " + exe(t): "",
	} {
		cmp, only := newComparison("start", 5, rows, io.Discard, io.Discard)
		err := cmp.parse(strings.Fields(args), only, rows)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

func exe(t *testing.T) string {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return own
}

func TestMetric(t *testing.T) {
	page := []byte("# HELP go_goroutines x\ngo_goroutines_total 4\ngo_goroutines 1.5e+03\n")
	if v, err := metric(page, "go_goroutines"); v != 1500 || err != nil {
		t.Errorf("metric = %v, %v, want 1500", v, err)
	}
	if _, err := metric(page, "go_threads"); !errors.Is(err, errNoMetric) {
		t.Errorf("missing metric: %v, want %v", err, errNoMetric)
	}
}

func TestProcFields(t *testing.T) {
	anonymous, err := anonymousMemory(ownPID)
	if err != nil || anonymous < 1<<20 {
		t.Errorf("anonymous memory of this test is %d, %v", anonymous, err)
	}
	if resident, err := residentMemory(ownPID); err != nil || resident < anonymous {
		t.Errorf("resident memory is %d, %v, less than the anonymous %d", resident, err, anonymous)
	}
	if _, err := writtenBytes(ownPID); err != nil {
		t.Error(err)
	}
	if _, err := procField("/proc/self/status", "RssNone"); err == nil {
		t.Error("a field that is not there was read")
	}
}

// parentVariable makes this test a benchmark that starts a daemon and waits.
const parentVariable = "BENCH_TEST_PARENT"

// TestDaemonDiesWithItsParent: nothing is left when the benchmark is killed.
func TestDaemonDiesWithItsParent(t *testing.T) {
	if dir := os.Getenv(parentVariable); dir != "" {
		d, err := startDaemon(dir, "sleep", nil, "/bin/sleep", "1000")
		if err != nil {
			t.Fatal(err)
		}
		os.WriteFile(filepath.Join(dir, "pid"), []byte(strconv.Itoa(d.pid())), 0o600)
		os.Stdout.WriteString("started\n")
		time.Sleep(time.Minute)
		return
	}
	dir := t.TempDir()
	parent := exec.Command(exe(t), "-test.run", "^TestDaemonDiesWithItsParent$")
	parent.Env = append(os.Environ(), parentVariable+"="+dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	bufio.NewReader(out).ReadString('\n')
	parent.Process.Kill()
	parent.Wait()
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		// It may stay a zombie, as nobody in a container may wait for it.
		stat, err := os.ReadFile(filepath.Join("/proc", string(text), "stat"))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	syscall.Kill(pid, syscall.SIGKILL)
	t.Error("the daemon has outlived its parent by two seconds")
}

func TestDaemonStopsAndFails(t *testing.T) {
	dir := t.TempDir()
	d, err := startDaemon(dir, "sleep", nil, "/bin/sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	defer d.kill()
	if err := d.failed(); err != nil {
		t.Errorf("running daemon: %v", err)
	}
	if err := d.stop(t.Context()); err != nil {
		t.Errorf("stop: %v", err)
	}
	broken, err := startDaemon(dir, "broken", nil, "/bin/sh", "-c", "echo no such flag; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	<-broken.gone
	if err := broken.failed(); err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "no such flag") {
		t.Errorf("daemon that has failed: %v, want its status and last lines", err)
	}
}

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

func TestComparisonTableOfOne(t *testing.T) {
	cmp := twoPeers()
	cmp.peers = cmp.peers[1:]
	var out strings.Builder
	if err := cmp.print(&out); err != nil || strings.Contains(out.String(), "ratio") {
		t.Errorf("table without a peer is %v\n%s\nwant no ratio", err, &out)
	}
	if !strings.Contains(out.String(), "MISSED") || !strings.Contains(out.String(), "met") {
		t.Errorf("table without a peer is\n%s\nwant the targets for karve's own figures", &out)
	}
}
