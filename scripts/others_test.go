package scripts

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The table of docs/compatibility.md is what scripts/others has recorded, of all that it tries now.
func TestCompatibilityShowsTheRecord(t *testing.T) {
	recorded, err := os.ReadFile("../docs/figures/compatibility.txt")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	listed, err := exec.Command("./others", "--list").Output()
	if err != nil {
		t.Fatal(err)
	}

	remarks := map[string]string{}
	for line := range strings.Lines(string(recorded)) {
		if key, value, ok := strings.Cut(strings.TrimPrefix(line, "# "), ": "); ok && strings.HasPrefix(line, "# ") {
			remarks[key] = strings.TrimSpace(value)
		}
	}
	table := []string{"Recorded on " + remarks["date"] + " by `" + remarks["command"] + "`, with " + remarks["karve"] + ".", "",
		"| software | version | what was tried | result |", "|---|---|---|---|",
	}
	var list []string
	for line := range strings.Lines(string(recorded)) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "\t")
		if len(cells) != 5 {
			t.Fatalf("%q has %d cells, want 5", line, len(cells))
		}
		name, software, tried, result := cells[0], cells[1], cells[3], cells[4]
		table = append(table, "| "+strings.Join(cells[1:], " | ")+" |")
		if tried == "–" {
			tried = result // the reason why not
		}
		list = append(list, name+" "+software+": "+tried)
	}
	want := "<!-- The table is written by scripts/others --record -->\n\n" + strings.Join(table, "\n") + "\n\n<!-- end of the table -->\n"
	if !strings.Contains(string(document), want) {
		t.Errorf("docs/compatibility.md does not show the record, docs/figures/compatibility.txt; want\n%s", want)
	}
	var now []string
	for line := range strings.Lines(string(listed)) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		now = append(now, name+" "+strings.TrimSpace(rest))
	}
	if got, want := strings.Join(list, "\n"), strings.Join(now, "\n"); got != want {
		t.Errorf("the record is of other software than scripts/others tries: run scripts/others --record. The record has\n%s\nthe script\n%s", got, want)
	}
}
