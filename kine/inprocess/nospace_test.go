package inprocess

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/karve-k8s/karve/datastore"
)

// The API server hands on what a client gets for a full disk, without wrapping it: so it
// must be a status itself, and its message has to be the engine's.
func TestNoSpaceIsAStatus(t *testing.T) {
	err := failure(t.Context(), fmt.Errorf("%w in /somewhere (1.0 MiB free)", datastore.ErrNoSpace))
	status, ok := err.(apierrors.APIStatus)
	if !ok {
		t.Fatalf("%T is no status", err)
	}
	got := status.Status()
	if got.Code != http.StatusInsufficientStorage || got.Reason != reasonNoSpace || !strings.Contains(got.Message, "/somewhere (1.0 MiB free)") {
		t.Errorf("got %+v", got)
	}
	if err := failure(t.Context(), datastore.ErrClosed); err == nil || errors.As(err, &status) {
		t.Errorf("another failure: %T, want an error that is no status", err)
	}
}
