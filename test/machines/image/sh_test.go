package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A shell with a variable that only bash keeps has its input and its other variables, too.
func TestShell(t *testing.T) {
	script, err := os.ReadFile("sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", string(script), "sh", "-c", `cat; echo "$name"; env`)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "name=mine", "a.b=c"}
	cmd.Stdin = strings.NewReader("the input\n")
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err != nil || !strings.HasPrefix(text, "the input\nmine\n") || !strings.Contains(text, "\na.b=c\n") {
		t.Errorf("%v: %q", err, text)
	}
}
