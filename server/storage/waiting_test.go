package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
)

// The server tries every second, and says so with growing pauses. Another reason is a line of its own.
func TestWaitingBacksOff(t *testing.T) {
	for name, test := range map[string]struct {
		reason func(attempt int) string
		want   []string
	}{
		"one reason": {
			func(int) string { return "refused" },
			[]string{"refused", "refused (attempt 6, after 5s)", "refused (attempt 16, after 15s)", "refused (attempt 36, after 35s)"},
		},
		"two reasons": {
			func(attempt int) string { return fmt.Sprint("reason ", attempt/50) },
			[]string{
				"reason 0", "reason 0 (attempt 6, after 5s)", "reason 0 (attempt 16, after 15s)", "reason 0 (attempt 36, after 35s)",
				"reason 1 (attempt 50, after 49s)", "reason 1 (attempt 55, after 54s)",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, lines := logrustest.NewNullLogger()
				attempts := 0
				w := waiting{"datastore-endpoint", "postgres://u@h/db", log, func(string) {}}
				err := w.until(t.Context(), func(context.Context) error {
					attempts++
					return errors.New(test.reason(attempts))
				})
				if err == nil || attempts < 55 {
					t.Errorf("%v after %d attempts, want an error after a minute of attempts", err, attempts)
				}
				var got []string
				for _, line := range lines.AllEntries() {
					if line.Level != logrus.WarnLevel {
						t.Errorf("%s at %v", line.Message, line.Level)
					}
					got = append(got, strings.TrimPrefix(line.Message, "waiting for the datastore at postgres://u@h/db: "))
				}
				if strings.Join(got, "\n") != strings.Join(test.want, "\n") {
					t.Errorf("the log has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
				}
			})
		})
	}
}
