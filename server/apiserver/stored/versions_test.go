package stored

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

func protobuf(t *testing.T, version, kind string) []byte {
	t.Helper()
	object := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}, Raw: []byte("\x0a\x00")}
	text, err := object.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), text...)
}

func TestUnreadableVersions(t *testing.T) {
	json := func(version, kind string) []byte {
		return []byte(`{"metadata":{},"apiVersion":"` + version + `","kind":"` + kind + `"}`)
	}
	for name, test := range map[string]struct {
		key   string
		value []byte
		want  string
	}{
		"core":                         {"pods/default/a", protobuf(t, "v1", "Pod"), ""},
		"core in JSON":                 {"pods/default/a", json("v1", "Pod"), ""},
		"a beta version":               {"cronjobs/default/a", protobuf(t, "batch/v1beta1", "CronJob"), ""},
		"a version that was removed":   {"podgroups/default/a", protobuf(t, "scheduling.k8s.io/v1alpha1", "PodGroup"), "1 podgroups.scheduling.k8s.io as v1alpha1"},
		"the same in JSON":             {"podgroups/default/a", json("scheduling.k8s.io/v1alpha1", "PodGroup"), "1 podgroups.scheduling.k8s.io as v1alpha1"},
		"a group that was removed":     {"podpresets/default/a", protobuf(t, "settings.k8s.io/v1alpha1", "PodPreset"), "1 podpresets.settings.k8s.io as v1alpha1"},
		"a newer version":              {"configmaps/default/a", protobuf(t, "v2", "ConfigMap"), "1 configmaps as v2"},
		"a definition":                 {"apiextensions.k8s.io/customresourcedefinitions/a", protobuf(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition"), ""},
		"a newer definition":           {"apiextensions.k8s.io/customresourcedefinitions/a", json("apiextensions.k8s.io/v3", "CustomResourceDefinition"), "1 customresourcedefinitions.apiextensions.k8s.io as v3"},
		"an APIService":                {"apiregistration.k8s.io/apiservices/a", json("apiregistration.k8s.io/v1", "APIService"), ""},
		"a custom resource":            {"example.com/ships/default/a", json("example.com/v1", "Ship"), ""},
		"another API server's":         {"wardle.example.com/flunders/default/a", protobuf(t, "wardle.example.com/v1", "Flunder"), ""},
		"an encrypted object":          {"secrets/default/a", []byte("k8s:enc:secretbox:v1:now:abc"), ""},
		"the version of Kubernetes":    {lastWritten, []byte("v1.36.4"), ""},
		"an object that is cut off":    {"pods/default/a", protobuf(t, "v9", "Pod")[:9], ""},
		"an empty value":               {"pods/default/a", nil, ""},
		"JSON that is not of a kind":   {"ranges/serviceips", []byte(`{"a":1}`), ""},
		"an address of an API server":  {"masterleases/192.0.2.1", protobuf(t, "v1", "Endpoints"), ""},
		"an allocation of the Service": {"ranges/serviceips", protobuf(t, "v1", "RangeAllocation"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var stored versions
			stored.add(test.key, test.value)
			if got := sentence(stored.unreadable()); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
