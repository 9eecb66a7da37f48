# shellcheck shell=bash disable=SC2034,SC2154
software="Argo Workflows"
tried="its manifests; its own example of a diamond of four steps, with simulated Pods"
modules=(github.com/argoproj/argo-workflows/v3@v3.7.3)
packages=(workflow-controller=./cmd/workflow-controller)

# Its health is at port 6060, which cannot be changed.
try() {
	kubectl create namespace argo
	kubectl apply --server-side -n argo -k "$source/manifests/cluster-install"
	kubectl -n argo patch configmap workflow-controller-configmap --type merge -p '{"data": {"metricsConfig": "{enabled: false}"}}'
	kubectl annotate namespace default simulate.karve/run-for=1s
	KUBECONFIG=$(kubeconfig argo argo) LEADER_ELECTION_IDENTITY=others begin argo "$bin/workflow-controller" --namespace argo --executor-image quay.io/argoproj/argoexec:"$version"
	kubectl create -f "$source/examples/dag-diamond.yaml"
	kubectl wait --for jsonpath='{.status.phase}'=Succeeded --timeout 2m workflow --all
	shows 'Succeeded Succeeded Succeeded Succeeded Succeeded' kubectl get workflow -o jsonpath='{.items[0].status.nodes.*.phase}'
}
