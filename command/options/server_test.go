package options

import (
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/server"
)

// TestInsecureOfUnknownOwners has the options of a system that does not tell who
// connects.
func TestInsecureOfUnknownOwners(t *testing.T) {
	t.Parallel()
	var written strings.Builder
	WriteHelp(&written, Purpose{Name: "karve server", Options: []cli.Flag{insecurePortFlag(nil, false).Flag, anyUserFlag(nil, false).Flag}}, true)
	for _, want := range []string{"(default: 0)", "every other value needs --insecure-any-user", "every container on this machine"} {
		if text := strings.Join(strings.Fields(written.String()), " "); !strings.Contains(text, want) {
			t.Errorf("help: got %q, want %q in it", text, want)
		}
	}
	if got := insecurePortFlag(nil, false).Flag.(*cli.IntFlag).Value; got != 0 {
		t.Errorf("--insecure-port: got %d by default, want 0", got)
	}
	if got := insecurePortFlag(nil, true).Flag.(*cli.IntFlag).Value; got != server.DefaultInsecurePort {
		t.Errorf("--insecure-port where owners are known: got %d by default, want %d", got, server.DefaultInsecurePort)
	}
	for _, tc := range []struct{ known, anyUser, portGiven, refused bool }{
		{known: true, anyUser: true},
		{},
		{portGiven: true}, // the server refuses it
		{anyUser: true, portGiven: true},
		{anyUser: true, refused: true},
	} {
		err := checkAnyUser(tc.known, tc.anyUser, tc.portGiven)
		if (err != nil) != tc.refused || err != nil && !strings.Contains(err.Error(), "--insecure-port") {
			t.Errorf("%+v: got %v", tc, err)
		}
	}
}
