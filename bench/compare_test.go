package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/bench/report"
)

// twoPeers is a comparison with figures of three rounds.
func twoPeers() *comparison {
	cmp := &comparison{
		name:    "api",
		against: againstEtcd,
		peers:   []*peer{{title: "etcd + kube-apiserver", name: "etcd-kube-apiserver"}, {title: "karve", name: "karve", controllers: true}},
		lines: []line{
			{row: "create", unit: "/s", target: report.RatioAtLeast(1.3)}, {row: "create", unit: "p99 ms"},
			{row: "memory", unit: "MB", target: report.AtMost(90)},
			{row: "pods", unit: "p50 ms", target: report.AtMost(60), controllers: true},
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
	if err := twoPeers().Print(&out); err != nil {
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
		t.Error("the table has a row without figures")
	}
}

func TestComparisonTableSaysDisturbed(t *testing.T) {
	cmp := twoPeers()
	cmp.Samples[3].OtherLoad = 0.5
	var out strings.Builder
	if err := cmp.Print(&out); err != nil || !strings.Contains(out.String(), "DISTURBED: other processes used up to 50 % of the machine") {
		t.Errorf("table is %v\n%s\nwant a remark on the other load", err, &out)
	}
}

func TestComparisonTableOfOne(t *testing.T) {
	cmp := twoPeers()
	cmp.peers = cmp.peers[1:]
	var out strings.Builder
	if err := cmp.Print(&out); err != nil || strings.Contains(out.String(), "ratio") {
		t.Errorf("table without a peer is %v\n%s\nwant no ratio", err, &out)
	}
	if !strings.Contains(out.String(), "MISSED") || !strings.Contains(out.String(), "met") {
		t.Errorf("table without a peer is\n%s\nwant the targets for karve's own figures", &out)
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
