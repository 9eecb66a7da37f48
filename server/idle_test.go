package server_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server/deviations"
)

// A cluster in which nothing happens writes nothing, because SD cards wear out. Upstream
// writes three leases every ten seconds.
func TestIdleClusterWritesNothing(t *testing.T) {
	compares(t, deviations.SingleServer)
	const still = 12 * time.Second
	c := start(t, nil)
	revision := ""
	since := time.Now()
	eventually.Nil(t, fmt.Sprintf("no write for %v", still), func() error {
		// A consistent list returns the revision of the datastore.
		list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		if list.ResourceVersion != revision {
			revision, since = list.ResourceVersion, time.Now()
		}
		if quiet := time.Since(since); quiet < still {
			return fmt.Errorf("the last write was %v ago, at revision %s", quiet.Round(time.Millisecond), revision)
		}
		return nil
	})
}
