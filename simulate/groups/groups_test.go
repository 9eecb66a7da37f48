package groups

import (
	"strings"
	"testing"
)

func TestWrongGroups(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 `"" is not a number of nodes`,
		"two":                              `"two" is not a number of nodes`,
		"-1":                               `"-1" is not a number of nodes`,
		"1,zone":                           `"zone" is not NAME=VALUE`,
		"1,zone=a b":                       `"zone=a b": a valid label must`,
		"1,cpu=many":                       `"many" is not a quantity of cpu; a label is label:cpu=many`,
		"1,taint:gpu=yes:Soon":             "is not a taint such as",
		"1,gpu=8":                          "or has a domain such as nvidia.com/gpu; a label is label:gpu=8",
		"1,nvidia.com/gpu=1.5":             "only whole numbers of nvidia.com/gpu exist",
		"1,zone=a,zone=b":                  "the label topology.kubernetes.io/zone is there twice",
		"1,cpu=1,cpu=2":                    "the resource cpu is there twice",
		"1,label:kubernetes.io/hostname=x": "each node sets the label kubernetes.io/hostname itself",
		"1,taint:a=b:NoSchedule,taint:a=c:NoSchedule": "there is one of that key and effect already",
		"20000": "there can be 16384 nodes, not 20000",
	} {
		if _, _, err := ParseAll([]string{text}, 16384); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}
