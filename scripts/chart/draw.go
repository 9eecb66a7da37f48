package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"
)

// The two sides of the comparison, as records name them.
const (
	karve = "karve"
	peer  = "etcd-kube-apiserver"
)

// A panel is a group of bars with one scale.
type panel struct {
	title, better string
	rows          []row
	format        func(value float64) string
}

// A row is a pair of bars.
type row struct {
	label  string
	record string // the file of docs/figures
	figure string // its row
	unit   string
}

// panels are what the chart shows, from left to right.
var panels = []panel{
	{"Start and stop", "seconds, less is better", []row{
		{"cold start", "start", "cold-empty-data-directory", "sec/op"},
		{"warm start", "start", "warm-existing-data-directory", "sec/op"},
		{"stop", "start", "stop-SIGTERM-gone", "sec/op"},
	}, func(v float64) string { return strconv.FormatFloat(v, 'f', 2, 64) + " s" }},
	{"Memory", "megabytes, less is better", []row{
		{"idle, anonymous", "footprint", "anonymous-memory-RssAnon", "B"},
		{"idle, resident", "footprint", "RSS-in-all", "B"},
		{"peak, 10,000 writes", "api", "memory-peak", "B"},
	}, func(v float64) string { return grouped(v/1e6) + " MB" }},
	{"Writes", "per second, 32 clients, more is better", []row{
		{"create", "api", "create-32-clients", "op/sec"},
		{"update", "api", "update-32-clients", "op/sec"},
		{"delete", "api", "delete-32-clients", "op/sec"},
	}, func(v float64) string { return grouped(v) + "/s" }},
}

// Sizes in pixels.
const (
	width, height = 900, 344
	margin        = 24
	panelGap      = 24
	panelWidth    = (width - 2*margin - 2*panelGap) / 3
	panelTop      = 66
	barHeight     = 15
	barWidth      = panelWidth - 72 // of the largest figure: the text is beside it
	rowHeight     = 62
	sourceTop     = height - 32
)

// style has the colours of both modes. The chart brings its own background, so that it can
// be read wherever it is shown.
const style = `
  .card { fill: #ffffff; stroke: #d1d9e0 }
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
  .title { font-weight: 600; font-size: 16px }
  .muted { fill: #59636e; font-size: 12px }
  .karve { fill: #0969da }
  .peer { fill: #afb8c1 }
  .strong { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #3d444d }
    text { fill: #f0f6fc }
    .muted { fill: #9198a1 }
    .karve { fill: #4493f8 }
    .peer { fill: #656c76 }
  }
`

// draw draws the chart from records by name.
func draw(records map[string]*record) ([]byte, error) {
	var body, summary bytes.Buffer
	for i, p := range panels {
		x := margin + i*(panelWidth+panelGap)
		if err := p.draw(&body, &summary, x, records); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %[1]d %[2]d\" role=\"img\">\n", width, height)
	fmt.Fprintf(&out, "<title>Karve beside etcd + kube-apiserver</title>\n<desc>%s</desc>\n", escape(strings.TrimSpace(summary.String())))
	fmt.Fprintf(&out, "<style>%s</style>\n", style)
	fmt.Fprintf(&out, "<rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", width-1, height-1)
	rect(&out, "karve", margin, 20, barHeight, barHeight)
	text(&out, "strong", margin+22, 32, "Karve, with controllers and scheduler")
	rect(&out, "peer", margin+340, 20, barHeight, barHeight)
	text(&out, "", margin+362, 32, "etcd + kube-apiserver, which have neither")
	out.Write(body.Bytes())
	for i, line := range source(records) {
		text(&out, "muted", margin, sourceTop+i*17, line)
	}
	out.WriteString("</svg>\n")
	return out.Bytes(), nil
}

// draw draws a panel at x, and says what it shows in summary.
func (p panel) draw(out, summary *bytes.Buffer, x int, records map[string]*record) error {
	text(out, "title", x, panelTop+8, p.title)
	text(out, "muted", x, panelTop+26, p.better)
	type pair struct{ own, other float64 }
	var pairs []pair
	largest := 0.0
	for _, r := range p.rows {
		rec := records[r.record]
		if rec == nil {
			return fmt.Errorf("there is no record %s", r.record)
		}
		own, err := rec.median(figure{r.figure, karve, r.unit})
		if err != nil {
			return err
		}
		other, err := rec.median(figure{r.figure, peer, r.unit})
		if err != nil {
			return err
		}
		pairs = append(pairs, pair{own, other})
		largest = max(largest, own, other)
	}
	if largest == 0 {
		return fmt.Errorf("every figure of %s is 0", p.title)
	}
	for i, r := range p.rows {
		y := panelTop + 48 + i*rowHeight
		text(out, "", x, y, r.label)
		for j, bar := range []struct {
			class, textClass string
			value            float64
		}{{"karve", "strong", pairs[i].own}, {"peer", "", pairs[i].other}} {
			top := y + 7 + j*(barHeight+3)
			length := max(1, int(bar.value/largest*barWidth+0.5))
			rect(out, bar.class, x, top, length, barHeight)
			text(out, bar.textClass, x+length+6, top+12, p.format(bar.value))
		}
		fmt.Fprintf(summary, "%s: Karve %s, etcd + kube-apiserver %s. ", r.label, p.format(pairs[i].own), p.format(pairs[i].other))
	}
	return nil
}

// source says where and when the figures come from, in two lines.
func source(records map[string]*record) []string {
	rec := records["api"]
	machine, _, _ := strings.Cut(rec.remarks["machine"], ";")
	lines := []string{"Medians, client on the same machine: " + machine, rec.remarks["date"] + ", " + rec.remarks["peers"] + "; recorded by scripts/figures"}
	for _, name := range []string{"api", "start", "footprint"} {
		if disturbed := records[name].remarks["disturbed"]; disturbed != "" {
			lines[1] += "; " + disturbed
			break
		}
	}
	return lines
}

func rect(out *bytes.Buffer, class string, x, y, width, height int) {
	fmt.Fprintf(out, "<rect class=%q x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"2\"/>\n", class, x, y, width, height)
}

func text(out *bytes.Buffer, class string, x, y int, content string) {
	if class != "" {
		class = fmt.Sprintf(" class=%q", class)
	}
	fmt.Fprintf(out, "<text%s x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, escape(content))
}

func escape(s string) string {
	var out bytes.Buffer
	xml.EscapeText(&out, []byte(s)) // a Buffer returns no error
	return out.String()
}

// grouped is a whole number with a comma after thousands.
func grouped(v float64) string {
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
