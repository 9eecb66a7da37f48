package mirrors

import (
	"path/filepath"
	"strings"
	"testing"
)

// The chain for requests without a trace context has every filter of upstream's chain, in the
// same order and with the same arguments, except for the one that is left out.
func TestUntracedChainIsUpstreams(t *testing.T) {
	const leftOut = "handler = genericapifilters.WithTracing(handler, c.TracerProvider)"
	upstreams := statements(t, directories(t)[genericServer], "DefaultBuildHandlerChain")
	without := strings.Replace(upstreams, leftOut+"\n", "", 1)
	if without == upstreams {
		t.Fatalf("upstream's chain has no %q any more: then Karve needs no other chain", leftOut)
	}
	want := strings.NewReplacer(
		"func DefaultBuildHandlerChain(apiHandler http.Handler, c *Config)",
		"func untracedChain(apiHandler http.Handler, c *genericapiserver.Config, lifecycleSignals serverSignals)",
		"c.lifecycleSignals", "lifecycleSignals").Replace(without)
	got := statements(t, filepath.Join("..", "..", "apiserver", "replacements"), "untracedChain")
	if got != want {
		t.Errorf("the chain for requests without a trace context: got\n%s\nwant upstream's without its filter:\n%s", got, want)
	}
}

// statements returns the declaration of a function, a statement a line, without indentation.
func statements(t *testing.T, dir, function string) string {
	t.Helper()
	_, source, err := Find(dir, function)
	if err != nil {
		t.Fatal(err)
	}
	if source == "" {
		t.Fatalf("%s has no function %s", dir, function)
	}
	var lines strings.Builder
	for line := range strings.Lines(source) {
		if line = strings.TrimSpace(line); line != "" {
			lines.WriteString(line + "\n")
		}
	}
	return lines.String()
}
