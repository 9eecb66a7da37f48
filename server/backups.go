package server

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/karve-k8s/karve/server/snapshots"
)

// reportLimit is how long the Event of a failed backup may take.
const reportLimit = 10 * time.Second

// eventMessageMost is the API's limit for the message of an Event.
const eventMessageMost = 1024

// scheduledBackups returns the part that makes backups; nil without a schedule, or without a datastore to back up.
func (s *controlPlane) scheduledBackups() *snapshots.Scheduled {
	switch {
	case s.plan.backups == nil:
		return nil
	case !s.location.BuiltIn() || s.location.InMemory():
		s.Log.Warnf("--backup-schedule has no effect: the datastore is not the built-in one on the disk")
		return nil
	}
	return &snapshots.Scheduled{
		Options:  snapshots.Options{DataDir: s.DataDir, Held: s.claim.held, Files: s.usersFiles(), ManifestsDir: s.ManifestsDir, Log: s.Log, Connect: s.snapshotsConnection},
		Schedule: s.plan.backups, Dir: s.BackupDir, Keep: s.BackupRetention, Report: s.reportBackup,
	}
}

// reportBackup writes an Event that a scheduled backup has failed. The Event refers to kube-system, whose UID
// identifies the cluster; Events about cluster-scoped objects live in default.
func (s *controlPlane) reportBackup(ctx context.Context, failure error) {
	ctx, cancel := context.WithTimeout(ctx, reportLimit)
	defer cancel()
	clients, err := kubernetes.NewForConfig(s.adminClient())
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
		s.Log.Warnf("no Event about the failed backup: %v", err)
	}
}
