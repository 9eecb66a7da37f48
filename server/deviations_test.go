package server_test

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// A control plane starts, serves and stops when upstream's code runs in place of any one
// deviation, while the others are on.
func TestEveryDeviationCanBeSwitchedOff(t *testing.T) {
	const atOnce = 6 // a start for each would take a minute
	names := deviations.Names()
	for i := range (len(names) + atOnce - 1) / atOnce {
		var off []string // names that are neighbours in the table belong to different parts
		for j := i; j < len(names); j += (len(names) + atOnce - 1) / atOnce {
			off = append(off, names[j])
		}
		t.Run(fmt.Sprint("group ", i+1), func(t *testing.T) {
			t.Logf("without %v", off)
			c := start(t, func(config *server.Config) { config.Upstream = off })
			ns := c.namespace(t)
			create(t, c.CoreV1().ConfigMaps(ns), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}})
			if list, err := c.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) == 0 {
				t.Errorf("list: %v, %v", list, err)
			}
			if _, err := c.Discovery().OpenAPISchema(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestUnknownDeviationIsRefused(t *testing.T) {
	err := server.Config{DataDir: t.TempDir(), Upstream: []string{"none"}}.Validate(t.Context())
	if !errors.Is(err, deviations.ErrUnknown) {
		t.Errorf("got %v, want %v", err, deviations.ErrUnknown)
	}
}
