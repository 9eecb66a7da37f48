package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/karve-k8s/karve/certs"
)

// soon is how many days before its end a certificate deserves attention: the server renews its own much earlier.
const soon = 30

// Warnings are what deserves attention, the most urgent first.
func (v *View) Warnings() (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if v.Full {
		add("The disk is full: the datastore refuses writes until there is space.")
	}
	for _, p := range v.Parts {
		if p.Problem != "" {
			add("The %s cannot begin: %s", p.Name, p.Problem)
		}
	}
	for _, c := range v.Certificates {
		switch {
		case c.NotAfter.IsZero() || c.DaysLeft >= soon:
		case c.DaysLeft < 0:
			add("The certificate %s has expired.", c.Name)
		default:
			add("The certificate %s expires in %d days.", c.Name, c.DaysLeft)
		}
	}
	if f := v.BackupFailure; f != nil {
		add("The last scheduled backup failed: %s", f.Problem)
	}
	if v.Manifests.Problem != "" {
		add("Manifests: %s", v.Manifests.Problem)
	}
	if text := v.Manifests.InNoFile(); text != "" {
		add("Manifests: %s", text)
	}
	for _, f := range v.Manifests.Files {
		if len(f.Problems) > 0 {
			add("Manifest %s: %s", f.File, strings.Join(f.Problems, "; "))
		}
	}
	if down := v.down(); len(down) > 0 {
		add("Not ready: %s", some(down, "node"))
	}
	if v.Waiting > 0 {
		add("%s no node yet.", plural(v.Waiting, "Pod has", "Pods have"))
	}
	return all
}

func (v *View) down() (names []string) {
	for _, n := range v.Nodes {
		if !n.Ready {
			names = append(names, n.Name)
		}
	}
	return names
}

// some names a few of many.
func some(names []string, what string) string {
	const most = 3
	if len(names) == 1 {
		return what + " " + names[0]
	}
	text := what + "s " + strings.Join(names[:min(most, len(names))], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Title is the state, as the title and the heading say it.
func (v *View) Title() string {
	switch v.State {
	case Ready:
		return "Ready"
	case Starting:
		return "Starting"
	case Stopping:
		return "Stopping"
	}
	return "Not ready"
}

// Counts tells how many nodes there are, and how many Pods are on those that are shown.
func (v *View) Counts() string {
	pods := 0
	for _, n := range v.Nodes {
		pods += n.Pods
	}
	text := plural(len(v.Nodes), "node", "nodes")
	if v.MoreNodes > 0 {
		text = fmt.Sprintf("%d of %d nodes", len(v.Nodes), len(v.Nodes)+v.MoreNodes)
	}
	return text + " with " + plural(pods, "Pod", "Pods")
}

// Expiring are the certificates, the one that expires first at the top.
func (v *View) Expiring() []certs.Info {
	all := slices.DeleteFunc(slices.Clone(v.Certificates), func(c certs.Info) bool { return c.NotAfter.IsZero() })
	slices.SortStableFunc(all, func(a, b certs.Info) int { return a.NotAfter.Compare(b.NotAfter) })
	return all
}

// chart is a line of bars, one a minute, in a box of Width by 100.
type chart struct {
	Now, Peak, Text string
	Width           int
	Bars            []bar
}

type bar struct{ X, Y, Height float64 }

// newChart draws values, of which 0 is none. Its text is for those who do not see it.
func newChart(what string, values []int64, now int64, show func(int64) string, of time.Time) chart {
	c := chart{Width: minutes + 1, Now: show(now)}
	peak := slices.Max(append([]int64{0}, values...))
	if peak == 0 {
		c.Text = what + ": none in the last hour"
		return c
	}
	at := of.Add(-time.Duration(len(values)-1-slices.Index(values, peak)) * time.Minute)
	c.Peak = show(peak)
	c.Text = fmt.Sprintf("%s in the last hour: at present %s, most %s at %s", what, c.Now, c.Peak, at.Format("15:04"))
	for i, value := range values {
		if value > 0 {
			height := max(2, 100*float64(value)/float64(peak))
			c.Bars = append(c.Bars, bar{float64(c.Width-len(values)+i) + 0.1, 100 - height, height})
		}
	}
	return c
}

func (v *View) values(of func(Minute) int64) []int64 {
	all := make([]int64, len(v.Hour))
	for i, m := range v.Hour {
		all[i] = of(m)
	}
	return all
}

// Requests is the chart of requests in each minute. The number is that of the last whole minute.
func (v *View) Requests() chart {
	all := v.values(func(m Minute) int64 { return m.Requests })
	var last int64
	if n := len(all); n > 0 {
		last = all[max(0, n-2)]
	}
	return newChart("Requests per minute", all, last, count, v.Now)
}

// Commits is the chart of the longest commit in each minute. The number is the mean of the hour.
func (v *View) Commits() chart {
	var n int64
	var sum time.Duration
	for _, m := range v.Hour {
		n, sum = n+m.Commits, sum+time.Duration(m.Commits)*m.Mean
	}
	longest := v.values(func(m Minute) int64 { return int64(m.Longest) })
	c := newChart("Longest commit of each minute", longest, int64(sum)/max(n, 1), func(ns int64) string { return span(time.Duration(ns)) }, v.Now)
	c.Text = strings.Replace(c.Text, "at present", "mean", 1)
	return c
}

// MemoryUsed is the chart of the memory.
func (v *View) MemoryUsed() chart {
	return newChart("Memory", v.values(func(m Minute) int64 { return m.Memory }), v.Memory, size, v.Now)
}

// step is a row of the chart of the start: a bar from X, in a box of 1000 by 10.
type step struct {
	Part
	X, Width float64
}

// Start is the chart of the start, in the order in which the parts began.
func (v *View) Start() (all []step) {
	var end time.Duration
	for _, p := range v.Parts {
		end = max(end, p.Begin+p.Took)
	}
	end = max(end, v.Took, 1)
	for _, p := range v.Parts {
		took := cmp.Or(p.Took, end-p.Begin)
		all = append(all, step{p, 1000 * float64(p.Begin) / float64(end), max(3, 1000*float64(took)/float64(end))})
	}
	return all
}

func count(n int64) string {
	if n >= 10_000 {
		return fmt.Sprintf("%.1fk", float64(n)/1000)
	}
	return fmt.Sprint(n)
}

// size is a number of bytes for people.
func size(n int64) string {
	if n == 0 {
		return "–"
	}
	return humanize.IBytes(uint64(n))
}

// span is a duration with three digits.
func span(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	unit := time.Microsecond
	for d >= 1000*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}

// ago is how long ago a time was.
func ago(now, then time.Time) string { return duration.HumanDuration(now.Sub(then)) + " ago" }

func stamp(t time.Time) string { return t.Local().Format("2 January 2006, 15:04") }
