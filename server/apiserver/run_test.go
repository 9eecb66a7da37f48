package apiserver

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// A stop waits only for hooks that would end the process: not for storage that cannot be read, and not for what
// a webhook refuses.
func TestStopWaitsForHooks(t *testing.T) {
	const dangerous, harmless = "crd-informer-synced", "rbac/bootstrap-roles"
	for _, test := range []struct {
		unfinished []string
		after      time.Duration // then they are finished; 0: never
		want       time.Duration
	}{
		{nil, 0, 0},
		{[]string{storageReadiness, harmless}, 0, 0},
		{[]string{storageReadiness, dangerous}, 2 * time.Second, 2 * time.Second},
		{[]string{dangerous}, 0, startGrace},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			s := &Server{interruptible: []string{harmless}, unfiltered: func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				fmt.Fprintln(w, "[+]ping ok\n[-]informer-sync failed: reason withheld")
				if test.after == 0 || time.Since(began) < test.after {
					for _, hook := range test.unfinished {
						fmt.Fprintf(w, "[-]poststarthook/%s failed: reason withheld\n", hook)
					}
				}
			}}
			if s.awaitHooks(); time.Since(began) != test.want {
				t.Errorf("%v: waited %v, want %v", test.unfinished, time.Since(began), test.want)
			}
		})
	}
}
