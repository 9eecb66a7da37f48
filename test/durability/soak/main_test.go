package main

import (
	"errors"
	"flag"
	"io"
	"strings"
	"testing"
)

func TestCommands(t *testing.T) {
	for _, test := range []struct{ args, want, printed string }{
		{"", flag.ErrHelp.Error(), "usage: soak load|watches"},
		{"-h", flag.ErrHelp.Error(), "usage: soak load|watches"},
		{"load -h", flag.ErrHelp.Error(), "writes a second"},
		{"watches -h", flag.ErrHelp.Error(), "renews"},
		{"load", "-karve is missing", ""},
		{"watches", "-karve is missing", ""},
		{"sleep", `there is no soak "sleep"`, ""},
	} {
		var printed strings.Builder
		err := run(t.Context(), strings.Fields(test.args), io.Discard, &printed)
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(printed.String(), test.printed) {
			t.Errorf("soak %s: %v, printed %q; want %q and %q", test.args, err, &printed, test.want, test.printed)
		}
		if strings.Contains(test.args, "-h") && !errors.Is(err, flag.ErrHelp) {
			t.Errorf("soak %s: %v is not flag.ErrHelp", test.args, err)
		}
	}
}
