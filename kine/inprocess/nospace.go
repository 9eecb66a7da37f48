package inprocess

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reasonNoSpace is the reason in the API server's answer while the disk is full.
const reasonNoSpace metav1.StatusReason = "InsufficientStorage"

// noSpace makes the engine's refusal of a write an error that the API server hands to the user
// unchanged. Of etcd's error it would make a 500 that says "etcdserver: mvcc: database space
// exceeded", without a remedy.
func noSpace(err error) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage, Reason: reasonNoSpace, Message: err.Error(),
	}}
}
