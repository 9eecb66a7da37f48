package main

import (
	"io"
	"os"
	"strings"
	"testing"
)

// twoPeers is a comparison with figures of three rounds.
func twoPeers() *comparison {
	cmp := &comparison{
		name:    "api",
		against: againstEtcd,
		peers:   []*peer{{title: "etcd + kube-apiserver", name: "etcd-kube-apiserver"}, {title: "karve", name: "karve", controllers: true}},
		lines: []line{
			{row: "create", unit: "/s"}, {row: "create", unit: "p99 ms"},
			{row: "memory", unit: "MB"},
			{row: "pods", unit: "p50 ms", controllers: true},
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
		"etcd + kube-apiserver karve ratio",
		"create /s 1,000 1,500 1.50",
		"p99 ms 8.00 4.00 0.50",
		"memory MB 180 91.0 0.51",
		"pods p50 ms never 50.0 –",
	}
	if len(got) < 3+len(want) || strings.Join(got[3:3+len(want)], "\n") != strings.Join(want, "\n") {
		t.Errorf("table is\n%s\nwant\n%s", strings.Join(got[min(3, len(got)):], "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(out.String(), "not measured") {
		t.Error("the table has a row without figures")
	}
}

func TestComparisonOptions(t *testing.T) {
	rows := []string{"cold", "warm"}
	for args, want := range map[string]string{
		"-only warm -rounds 2":   "",
		"-only hot":              `-only: there is no row "hot", only cold, warm`,
		"-rounds 0":              "-rounds is 0, want 1 to 100",
		"-karve /nowhere/karve":  "-karve: stat /nowhere/karve",
		"-against " + os.DevNull: "-against: /dev/null is not a program",
		"extra":                  `takes no argument "extra"`,
		"-against none":          "",
	} {
		cmp, only := newComparison("start", 5, rows, io.Discard, io.Discard)
		err := cmp.parse(strings.Fields(args), only, rows)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
