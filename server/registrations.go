package server

// What the main packages of upstream's commands (cmd/kube-apiserver/apiserver.go
// and its two siblings) register by importing it.
import (
	_ "time/tzdata" // time zones of CronJobs; many boards have no zone files

	_ "k8s.io/component-base/metrics/prometheus/clientgo" // rest_client_… metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info

	_ "github.com/karve-k8s/karve/internal/version" // the version all of them report
	_ "github.com/karve-k8s/karve/server/queues"    // their queues rest
)
