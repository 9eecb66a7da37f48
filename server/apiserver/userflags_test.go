package apiserver

import (
	"path/filepath"
	"strings"
	"testing"
)

// The error about a configuration of the egress selector names the option and the file.
func TestCheckEgressSelector(t *testing.T) {
	const head = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n"
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		name, file, want string // an empty want is no error
	}{
		{"good", written(t, head+"egressSelections: [{name: cluster, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: /run/socket}}}}]"), ""},
		{"missing", none, "open " + none},
		{"another selection", written(t, head+"egressSelections: [{name: clusters, connection: {proxyProtocol: Direct}}]"), `"clusters": supported values:`},
		{"GRPC without a socket", written(t, head+"egressSelections: [{name: cluster, connection: {proxyProtocol: GRPC}}]"), "transport must be set for GRPC"},
		{"an unknown field", written(t, head+"selections: []"), `unknown field "selections"`},
		{"no YAML", written(t, "{"), "egress"},
	} {
		err := CheckFiles([]string{"--egress-selector-config-file=" + c.file})
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			continue
		}
		if err == nil {
			t.Errorf("%s: no error", c.name)
			continue
		}
		for _, want := range []string{"--egress-selector-config-file", c.file, c.want} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %q, want %q in it", c.name, err, want)
			}
		}
	}
}
