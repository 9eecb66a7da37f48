package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// The objects that bench large writes past the API are ones that an API server reads.
func TestObjectsOfLarge(t *testing.T) {
	const objects = 2*together + 5
	seen := map[string]bool{}
	err := eachBatch(objects, func(keys []string, values [][]byte) error {
		for i, key := range keys {
			var cm corev1.ConfigMap
			if err := runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), values[i], &cm); err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(key, "/configmaps/"+cm.Namespace+"/"+cm.Name) || seen[key] || seen[string(cm.UID)] {
				t.Errorf("%s has %s/%s with uid %s", key, cm.Namespace, cm.Name, cm.UID)
			}
			seen[key], seen[string(cm.UID)] = true, true
			if len(cm.Data["text"]) != valueBytes || len(cm.ManagedFields) != 1 {
				t.Errorf("%s has %d bytes of text and %d managed fields", key, len(cm.Data["text"]), len(cm.ManagedFields))
			}
		}
		return nil
	})
	if err != nil || len(seen) != 2*objects {
		t.Errorf("%d objects, want %d (%v)", len(seen)/2, objects, err)
	}
	if last := lastOfLarge(objects); !strings.HasSuffix(last, nameOfLarge(objects-1)) {
		t.Errorf("the last object is at %s", last)
	}
}
