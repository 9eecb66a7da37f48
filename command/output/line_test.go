package output

import (
	"os"
	"strings"
	"testing"
)

func TestLine(t *testing.T) {
	t.Parallel()
	var screen strings.Builder
	l := &Line{w: &screen, width: func() int { return 10 }}
	l.Clear() // nothing is shown
	l.Show("first")
	l.Show("more than fits")
	if _, err := l.Write([]byte("a log line\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write([]byte("another\n")); err != nil {
		t.Fatal(err)
	}
	l.Show("last")
	l.Clear()
	want := clear + "first" + clear + "more than" + clear + "a log line\nanother\n" + clear + "last" + clear
	if got := screen.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLineOfAFile(t *testing.T) {
	t.Parallel()
	f, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if NewLine(f) != nil || NewLine(&strings.Builder{}) != nil {
		t.Error("a file and a buffer: got a line, want none")
	}
}
