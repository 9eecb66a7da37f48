package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The chart and the table in docs are what this program makes of the recorded figures.
func TestDocumentsShowTheRecordedFigures(t *testing.T) {
	const root = "../.."
	files, err := output(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s does not show what docs/figures has: run go run ./scripts/chart", name)
		}
	}
}

// example has a figure for every row: karve's are 2, 4, 6 and so on, and the peer's ten times
// as much. With scale they are larger by that factor.
func example(scale float64) map[string]*record {
	records := map[string]*record{}
	var rows []row
	for _, p := range panels {
		rows = append(rows, p.rows...)
	}
	for _, l := range tableLines {
		rows = append(rows, l.row)
	}
	n := 1.0
	for _, r := range rows {
		if records[r.record] == nil {
			records[r.record] = &record{file: r.record, remarks: map[string]string{
				"machine": "2 cores (A <Processor>), 1 MB; fsync", "date": "2026-11-22", "peers": "etcd v1",
			}, figures: map[figure][]float64{}}
		}
		figures := records[r.record].figures
		if figures[figure{r.figure, karve, r.unit}] != nil {
			continue // it is in the chart too
		}
		figures[figure{r.figure, karve, r.unit}] = []float64{scale * 2 * n}
		figures[figure{r.figure, peer, r.unit}] = []float64{scale * 10 * n, scale * 30 * n}
		n++
	}
	return records
}

// shapes are the bars' widths by class and all texts of a chart. It has to be valid XML.
func shapes(t *testing.T, svg []byte) (bars map[string][]float64, texts []string) {
	t.Helper()
	bars = map[string][]float64{}
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			return bars, texts
		}
		if err != nil {
			t.Fatalf("the chart is not XML: %v\n%s", err, svg)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		attributes := map[string]string{}
		for _, a := range start.Attr {
			attributes[a.Name.Local] = a.Value
		}
		switch start.Name.Local {
		case "rect":
			var w, y float64
			fmt.Sscan(attributes["width"], &w)
			fmt.Sscan(attributes["y"], &y)
			if y+barHeight > sourceTop-12 && attributes["class"] != "card" {
				t.Errorf("a bar at %v is drawn over the text at %v", y, sourceTop)
			}
			if y > panelTop { // neither the background nor the legend
				bars[attributes["class"]] = append(bars[attributes["class"]], w)
			}
		case "text":
			var content string
			if err := decoder.DecodeElement(&content, &start); err != nil {
				t.Fatal(err)
			}
			texts = append(texts, content)
			var x float64
			fmt.Sscan(attributes["x"], &x)
			// A letter of this size is hardly wider than 7 pixels.
			if end := x + 7*float64(len([]rune(content))); end > width {
				t.Errorf("%q ends at about %v, beyond the chart's %v", content, end, width)
			}
		}
	}
}

func TestBarsAreAsLongAsTheFigures(t *testing.T) {
	svg, err := draw(example(1))
	if err != nil {
		t.Fatal(err)
	}
	bars, texts := shapes(t, svg)
	if len(bars[karve]) != 9 || len(bars["peer"]) != 9 {
		t.Fatalf("got %d and %d bars, want 9 of each", len(bars[karve]), len(bars["peer"]))
	}
	for i := range bars["peer"] {
		largest := float64(i/3*3 + 3)
		if want := barWidth * float64(i+1) / largest; math.Abs(bars["peer"][i]-want) > 1 {
			t.Errorf("bar %d of the peer has %v pixels, want %v", i, bars["peer"][i], want)
		}
		if want := bars["peer"][i] / 10; math.Abs(bars[karve][i]-want) > 1 {
			t.Errorf("bar %d of karve has %v pixels, want a tenth of the peer's: %v", i, bars[karve][i], want)
		}
	}
	for _, want := range []string{"2.00 s", "40.00 s", "18/s", "180/s", "Medians, client on the same machine: 2 cores (A <Processor>), 1 MB"} {
		if !strings.Contains(strings.Join(texts, "\n"), want) {
			t.Errorf("the chart does not say %q:\n%s", want, strings.Join(texts, "\n"))
		}
	}
	if !bytes.Contains(svg, []byte("prefers-color-scheme: dark")) {
		t.Error("the chart has no colours for dark mode")
	}
}

func TestChartOfOtherFiguresIsAnother(t *testing.T) {
	small, err := draw(example(1))
	if err != nil {
		t.Fatal(err)
	}
	large, err := draw(example(100))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(small, large) {
		t.Error("the chart does not depend on the figures")
	}
	shapes(t, large) // which checks that everything fits
}

func TestChartSaysThatTheMachineWasBusy(t *testing.T) {
	records := example(1)
	records["start"].remarks["disturbed"] = "other processes used up to 40 % of the machine"
	svg, err := draw(records)
	if err != nil || !bytes.Contains(svg, []byte("used up to 40 % of the machine")) {
		t.Errorf("%v: the chart does not say that the machine was busy", err)
	}
}

func TestChartNeedsEveryFigure(t *testing.T) {
	records := example(1)
	delete(records["api"].figures, figure{"update-32-clients", peer, "op/sec"})
	if _, err := draw(records); err == nil || !strings.Contains(err.Error(), "api has no update-32-clients of etcd-kube-apiserver in op/sec") {
		t.Errorf("got %v, want an error that names the figure", err)
	}
}

func TestTable(t *testing.T) {
	text := []byte("# Figures\n" + tableFrom + "OLD\n" + tableTo + "the rest\n")
	whole := document{file: "whole.md", sources: true}
	written, err := whole.write(text, example(1))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Figures\n<!-- The table", "| warm start | 40.0 s | 4.00 s | 0.10 |\n", "| create, 32 clients | 140/s | 14.0/s | 0.10 |\n",
		"| Deployment → 20 Pods | – | ", tableTo + "the rest\n", "recorded by scripts/figures",
	} {
		if !bytes.Contains(written, []byte(want)) {
			t.Errorf("the document has no %q:\n%s", want, written)
		}
	}
	if bytes.Contains(written, []byte("OLD")) {
		t.Error("the old table is still there")
	}
	again, err := whole.write(written, example(1))
	if err != nil || !bytes.Equal(again, written) {
		t.Errorf("%v: written again, the document is another", err)
	}
	if _, err := whole.write([]byte("# Figures\n"), example(1)); err == nil || !strings.Contains(err.Error(), "whole.md has no place for the table") {
		t.Errorf("a document without a place: %v", err)
	}
	missing := example(1)
	delete(missing["footprint"].figures, figure{"idle-CPU", karve, "cores"})
	if _, err := whole.write(text, missing); err == nil || !strings.Contains(err.Error(), "footprint has no idle-CPU") {
		t.Errorf("a figure is missing: %v", err)
	}

	two := document{file: "two.md", figures: []string{"warm start", "create, 32 clients"}}
	written, err = two.write(text, example(1))
	if want := "# Figures\n" + tableFrom + "\n| | etcd + kube-apiserver | Karve | ratio |\n|---|---|---|---|\n" +
		"| warm start | 40.0 s | 4.00 s | 0.10 |\n| create, 32 clients | 140/s | 14.0/s | 0.10 |\n\n" + tableTo + "the rest\n"; err != nil || string(written) != want {
		t.Errorf("of two figures: got %s, %v, want %s", written, err, want)
	}
}

// A document's figures are lines of the table: a label that no line has would be left out.
func TestDocumentsNameLinesOfTheTable(t *testing.T) {
	for _, d := range documents {
		for _, label := range d.figures {
			if !slices.ContainsFunc(tableLines, func(l line) bool { return l.label == label }) {
				t.Errorf("%s wants %q, which no line of the table has", d.file, label)
			}
		}
	}
}

func TestReadRecord(t *testing.T) {
	const head = "# date: 2026-11-22\ngoos: linux\nUnit op/sec better=higher\n\n"
	rec, err := readRecord(strings.NewReader(head+
		"BenchmarkAPI/create/peer=karve 1 1000 op/sec 0.5 p50-sec\nBenchmarkAPI/create/peer=karve 1 3000 op/sec 0.7 p50-sec\nBenchmarkAPI/create/peer=karve 1 1200 op/sec 0.6 p50-sec\n"), "api.txt")
	if err != nil || rec.remarks["date"] != "2026-11-22" {
		t.Fatalf("got %+v, %v, want the date", rec, err)
	}
	if v, err := rec.median(figure{"create", "karve", "op/sec"}); err != nil || v != 1200 {
		t.Errorf("the median is %v, %v, want 1200", v, err)
	}
	for text, want := range map[string]string{
		"":               "api.txt has no figures",
		head:             "api.txt has no figures",
		"# nothing\n":    "api.txt:1: the remark \"nothing\" has no key",
		"FAIL\n":         "api.txt:1: \"FAIL\" is neither",
		head + "Bench\n": "api.txt:5: \"Bench\" is neither",
		"BenchmarkAPI/create/peer=karve 1 1000\n":           "want a name, a count, and pairs",
		"BenchmarkAPI/create 1 1000 op/sec\n":               "is not BENCHMARK/ROW/peer=PEER",
		"BenchmarkAPI/create/peer=karve 1 many op/sec\n":    `"many" is not a figure`,
		"BenchmarkAPI/create/peer=karve 1 -1 op/sec\n":      `"-1" is not a figure`,
		"BenchmarkAPI/create/peer=karve 1 1 op/sec extra\n": "want a name, a count, and pairs",
	} {
		if _, err := readRecord(strings.NewReader(text), "api.txt"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}

func TestTableOfDatastores(t *testing.T) {
	rec := &record{file: "d.txt", figures: map[figure][]float64{}, remarks: map[string]string{
		"machine": "2 cores, 1 MB; fsync", "date": "2026-11-23", "command": "scripts/bench datastores", "mariadb": "10.11", "disturbed": "other processes used up to 40 % of the machine",
	}}
	n := 1.0
	for _, l := range datastoreLines {
		for _, d := range datastores {
			for _, unit := range l.units {
				if f := (figure{l.row, d.peer, unit}); d.peer != "sqlite" || !strings.HasPrefix(unit, "datastore-") {
					rec.figures[f] = []float64{n}
					n++
				}
			}
		}
	}
	text := []byte("before\n" + tableFrom + "OLD\n" + tableTo + "after\n")
	written, err := writeDatastores(text, rec)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"before\n<!-- The table", "same machine: 2 cores, 1 MB.\n", "MariaDB 10.11,", "used up to 40 % of the machine; recorded by `scripts/bench datastores`.\n",
		"\n| | SQLite | PostgreSQL | MariaDB | one etcd | three etcds |\n|---|---|---|---|---|---|\n| creates | 1.00/s | 2.00/s | 3.00/s | 4.00/s | 5.00/s |\n| a create, p50 and p99 | 6,000 ms, 7,000 ms |",
		"| … of the datastore's own processes | – | ", tableTo + "after\n",
	} {
		if !bytes.Contains(written, []byte(want)) {
			t.Errorf("the document has no %q:\n%s", want, written)
		}
	}
	if again, err := writeDatastores(written, rec); err != nil || !bytes.Equal(again, written) {
		t.Errorf("%v: written again, the document is another", err)
	}
	delete(rec.figures, figure{"get-32-clients", "three-etcds", "op/sec"})
	if _, err := writeDatastores(text, rec); err == nil || !strings.Contains(err.Error(), "d.txt has no get-32-clients of three-etcds in op/sec") {
		t.Errorf("got %v, want an error that names the figure", err)
	}
	if _, err := writeDatastores([]byte("nothing"), rec); err == nil || !strings.Contains(err.Error(), "no place for the table") {
		t.Errorf("got %v, want an error", err)
	}
}
