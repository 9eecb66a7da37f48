package packages

import "testing"

// Packages compare versions by their characters; a dash would begin the revision of the package.
func TestVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v1.37.2+karve.1":                   "1.37.2+karve.1",
		"v1.37.2+karve.1.dev-0a1b2c3":       "1.37.2+karve.1~dev.0a1b2c3",
		"v1.37.2+karve.1.dev-0a1b2c3-dirty": "1.37.2+karve.1~dev.0a1b2c3.dirty",
		"v1.37.2+karve.1.alpine":            "1.37.2+karve.1.alpine",
	} {
		if got := Version(version); got != want {
			t.Errorf("%s: got %s, want %s", version, got, want)
		}
	}
}
