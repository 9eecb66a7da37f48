package main

import "testing"

func TestStagingVersion(t *testing.T) {
	for version, want := range map[string]string{"v1.37.1": "v0.37.1", "v1.38.0-alpha.2": "v0.38.0-alpha.2", "1.37.1": "", "v1.37": "", "v2.0.0": "", "v1.37.1+karve.1": ""} {
		if got, err := stagingVersion(version); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: got %q, %v, want %q", version, got, err, want)
		}
	}
}

func TestNewer(t *testing.T) {
	for _, c := range [][2]string{ // each second one is newer
		{"", "v0.0.1"},
		{"v1.9.0", "v1.10.0"},
		{"v1.37.0-rc.1", "v1.37.0"},
		{"v1.37.0-alpha.10", "v1.37.0-beta.0"},
		{"v1.37.0-alpha.9", "v1.37.0-alpha.10"},
		{"v0.0.0-20250101000000-0123456789ab", "v0.0.0-20260101000000-0123456789ab"},
	} {
		if newer(c[0], c[1]) != c[1] || newer(c[1], c[0]) != c[1] {
			t.Errorf("%q is not newer than %q", c[1], c[0])
		}
	}
}
