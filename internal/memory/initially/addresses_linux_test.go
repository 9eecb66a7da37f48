package initially

import (
	"math"
	"strings"
	"testing"
)

func TestFewAddresses(t *testing.T) {
	for _, tc := range []struct {
		args  string
		limit uint64
		want  string
	}{
		{"karve server --no-controllers", 1500000 << 10, "ulimit -v 1500000: a server needs 1572864 at least"},
		{"karve run -- true", leastAddresses - 1, "a server needs"},
		{"karve server", leastAddresses, ""},
		{"karve server", math.MaxUint64, ""},
		{"karve kubectl run", 1, ""},
		{"karve", 1, ""},
	} {
		if got := fewAddresses(strings.Fields(tc.args), tc.limit); (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s, %d: got %q, want %q", tc.args, tc.limit, got, tc.want)
		}
	}
}
