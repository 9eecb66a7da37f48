package server_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/server/deviations"
)

// wantHealthyComponents lists the components, and gets each.
func (c *cluster) wantHealthyComponents(t *testing.T) {
	t.Helper()
	list, err := c.CoreV1().ComponentStatuses().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range list.Items {
		names = append(names, one.Name)
		got, err := c.CoreV1().ComponentStatuses().Get(t.Context(), one.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, status := range []*corev1.ComponentStatus{&one, got} {
			if len(status.Conditions) != 1 || status.Conditions[0] != (corev1.ComponentCondition{Type: corev1.ComponentHealthy, Status: corev1.ConditionTrue, Message: "ok"}) {
				t.Errorf("%s: %+v, want it to be healthy", status.Name, status.Conditions)
			}
		}
	}
	if slices.Sort(names); !slices.Equal(names, []string{"controller-manager", "etcd-0", "scheduler"}) {
		t.Errorf("components %v", names)
	}
}

// kubectl get componentstatuses: what runs in this process is asked there, in each form in which clients ask.
func TestComponentStatuses(t *testing.T) {
	compares(t, deviations.ComponentStatus)
	c := shared(t)
	c.wantHealthyComponents(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+"/api/v1/componentstatuses", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := httpClient(t, c.admin).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var table metav1.Table
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil || table.Kind != "Table" || len(table.Rows) != 3 {
		t.Errorf("as a table: %s, %v, %+v", resp.Status, err, table)
	}
	if _, err := c.CoreV1().ComponentStatuses().Get(t.Context(), "kubelet", metav1.GetOptions{}); wantNotFound(err) != nil {
		t.Errorf("a component that there is not: %v", err)
	}
}
