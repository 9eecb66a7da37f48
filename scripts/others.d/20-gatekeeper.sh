# shellcheck shell=bash disable=SC2034,SC2154
software=Gatekeeper
tried="its manifest; its own policy for labels of Namespaces, which its webhook enforces behind a simulated Pod"
modules=(github.com/open-policy-agent/gatekeeper/v3@v3.23.1)
packages=(gatekeeper=.)

# Gatekeeper makes its own certificate, and expects the files of the Secret in a directory, where a kubelet would put them.
try() {
	kubectl apply --server-side -f "$source/deploy/gatekeeper.yaml"
	kubectl annotate namespace gatekeeper-system "simulate.karve/listen=8443=127.0.0.1:$p1"
	kubectl -n gatekeeper-system rollout status --timeout 2m deployment gatekeeper-controller-manager
	local pod
	pod=$(kubectl -n gatekeeper-system get pod -l control-plane=controller-manager -o jsonpath='{.items[0].metadata.name}')
	mkdir "$home/certs"
	begin certs bash -c "$(declare -f secret); while :; do secret gatekeeper-system gatekeeper-webhook-server-cert '$home/certs'; sleep 0.5; done"
	KUBECONFIG=$(kubeconfig gatekeeper-system gatekeeper-admin) POD_NAMESPACE=gatekeeper-system POD_NAME=$pod NAMESPACE=gatekeeper-system CONTAINER_NAME=manager \
		begin gatekeeper "$bin/gatekeeper" --port="$p1" --health-addr="127.0.0.1:$p3" --prometheus-port="$p4" --cert-dir="$home/certs" \
		--logtostderr --exempt-namespace=gatekeeper-system --operation=webhook --operation=mutation-webhook --operation=status --operation=generate

	local basic=$source/demo/basic
	eventually kubectl apply -f "$basic/templates/k8srequiredlabels_template.yaml"
	eventually kubectl apply -f "$basic/constraints/all_ns_must_have_gatekeeper.yaml"
	eventually refused 'you must provide labels: {"gatekeeper"}' kubectl create -f "$basic/bad/bad_ns.yaml" --dry-run=server
	kubectl create -f "$basic/good/good_ns.yaml"
}
