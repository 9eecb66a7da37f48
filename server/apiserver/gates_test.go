package apiserver

import "testing"

// What the process compares is what upstream's code gets.
func TestEnabledIsUpstreams(t *testing.T) {
	for name, args := range map[string][]string{
		"defaults":            nil,
		"one":                 {"--feature-gates=WatchList=false"},
		"all alpha":           {"--feature-gates=AllAlpha=true,AllBeta=true"},
		"no beta":             {"--feature-gates=AllBeta=false,AllAlpha=false"},
		"an earlier emulated": {"--emulated-version=1.36", "--feature-gates=AllAlpha=true,AllBeta=true"},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := GatesOf(Config{Args: args})
			if err != nil {
				t.Fatal(err)
			}
			got, changed := enabled(g.gates), 0
			for gate, spec := range g.gates.GetAll() {
				want := g.gates.Enabled(gate)
				if value, known := got[gate]; !known || value != want {
					t.Errorf("%s: got %v, want %v", gate, value, want)
				}
				if want != spec.Default {
					changed++
				}
			}
			if (changed > 0) != (args != nil) {
				t.Errorf("%d gates have another value than their default", changed)
			}
		})
	}
}
