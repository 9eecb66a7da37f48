package server

// The main packages of upstream's commands (cmd/kube-apiserver/apiserver.go and its two siblings)
// import these packages for what they register.
import (
	_ "time/tzdata" // time zones of CronJobs; many boards have no zone files

	_ "k8s.io/component-base/metrics/prometheus/clientgo" // rest_client_… metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info

	_ "github.com/karve-k8s/karve/internal/version" // the version that all of them report
	_ "github.com/karve-k8s/karve/server/queues"    // keeps their idle queues from waking the process
)
