package apiserver

import (
	"errors"
	"fmt"
	"os"
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

// The error about an audit log that cannot be written names the option, and what to do. The check creates no file.
func TestCheckAuditLog(t *testing.T) {
	dir := t.TempDir()
	file := written(t, "")
	absent := filepath.Join(dir, "audit", "audit.log")
	for path, want := range map[string]string{
		"-": "", file: "", absent: "",
		dir:                              "--audit-log-path " + dir + ": is a directory: name a file, such as " + filepath.Join(dir, "audit.log"),
		filepath.Join(file, "audit.log"): "not a directory: name a file that the server can write",
	} {
		err := CheckFiles([]string{"audit-log-path=" + path})
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
	if _, err := os.Stat(filepath.Dir(absent)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the check has made the directory of a log: %v", err)
	}
}
