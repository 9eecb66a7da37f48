# shellcheck shell=bash disable=SC2034
software=metrics-server
untried="simulated nodes have no kubelet, and Karve answers for metrics.k8s.io itself. \`scripts/nodes test metrics_server\` tries it on real nodes"
