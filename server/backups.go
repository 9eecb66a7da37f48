package server

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// reportLimit is how long the Event of a failed backup may take.
const reportLimit = 10 * time.Second

// eventMessageMost is the API's limit for the message of an Event.
const eventMessageMost = 1024

// reportBackup returns a function that writes an Event that a scheduled backup has failed. The Event refers to kube-system, whose UID
// identifies the cluster; Events about cluster-scoped objects live in default.
func reportBackup(client func() *rest.Config, log *logrus.Logger) func(context.Context, error) {
	return func(ctx context.Context, failure error) {
		ctx, cancel := context.WithTimeout(ctx, reportLimit)
		defer cancel()
		clients, err := kubernetes.NewForConfig(client())
		if err == nil {
			message, now := failure.Error(), metav1.Now()
			_, err = clients.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
				ObjectMeta:     metav1.ObjectMeta{GenerateName: "karve-backup-"},
				InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: metav1.NamespaceSystem},
				Type:           corev1.EventTypeWarning, Reason: "BackupFailed", Message: message[:min(len(message), eventMessageMost)],
				Source: corev1.EventSource{Component: "karve"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
			}, metav1.CreateOptions{})
		}
		if err != nil {
			log.Warnf("no Event about the failed backup: %v", err)
		}
	}
}
