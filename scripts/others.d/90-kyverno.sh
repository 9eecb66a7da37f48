# shellcheck shell=bash disable=SC2034,SC2154
software=Kyverno
tried="its manifests; its own policies for labels of both APIs, with which its admission controller behind a simulated Pod refuses Pods, changes Pods and Deployments, and makes a ValidatingAdmissionPolicy that refuses Deployments"
modules=(github.com/kyverno/kyverno@v1.19.1)
packages=(kyverno=./cmd/kyverno)

# Its build is the largest of all: 2970 packages, as `go list -deps` counts them; k9s has 2345. So it is tried last.
#
# It has the arguments and the environment of its Deployment, apart from addresses and from the helpers that would ask
# clouds for the credentials of their registries.
try() {
	kubectl create -f "$source/config/install-latest-testing.yaml"
	kubectl annotate namespace kyverno "simulate.karve/listen=9443=127.0.0.1:$p1"
	local deployment=kyverno-admission-controller container='.spec.template.spec.containers[0]' pod account arguments environment
	kubectl -n kyverno rollout status --timeout 2m deployment "$deployment"
	pod=$(kubectl -n kyverno get pod -l app.kubernetes.io/component=admission-controller -o jsonpath='{.items[0].metadata.name}')
	account=$(kubeconfig kyverno kyverno-admission-controller)
	mapfile -t arguments < <(kubectl -n kyverno get deployment "$deployment" -o jsonpath="{range $container.args[*]}{@}{\"\\n\"}{end}")
	mapfile -t environment < <(kubectl -n kyverno get deployment "$deployment" -o jsonpath="{range $container.env[?(@.value)]}{.name}={.value}{\"\\n\"}{end}")
	begin kyverno env "${environment[@]}" KYVERNO_NAMESPACE=kyverno KYVERNO_POD_NAME="$pod" TUF_ROOT="$home/sigstore" \
		"$bin/kyverno" "${arguments[@]}" --kubeconfig="$account" --webhookServerHost=127.0.0.1 --webhookServerPort="$p1" \
		--controllerRuntimeMetricsAddress=0 --disableMetrics=true --registryCredentialHelpers=

	sed 's/validationFailureAction: Audit/validationFailureAction: Enforce/' "$source/test/best_practices/require_labels.yaml" >"$home/policy.yaml"
	eventually kubectl apply -f "$home/policy.yaml"
	eventually refused 'is required. rule check-for-labels failed at path /metadata/labels/' kubectl run bad --image=nginx --dry-run=server
	kubectl apply -f "$source/test/more/add_default_labels.yaml"
	eventually shows my-bar-default kubectl run good --image=nginx --labels app.kubernetes.io/name=good --dry-run=server -o jsonpath='{.metadata.labels}'
	shows 'pod/good created' kubectl run good --image=nginx --labels app.kubernetes.io/name=good
	shows my-bar-default kubectl get pod good -o jsonpath='{.metadata.labels.custom-foo-label}'

	kubectl delete clusterpolicy --all # that for labels is for Deployments too
	kubectl create namespace dev
	eventually kubectl apply -f "$source/test/cli/test-mutating-policy/mutating-label/policy.yaml"
	eventually shows '"managed":"true"' kubectl create deployment -n dev web --image=nginx --dry-run=server -o jsonpath='{.metadata.labels}'
	sed 's/- Audit/- Deny/' "$source/test/conformance/chainsaw/generate-validating-admission-policy/validatingpolicy/check-deployment-labels/policy.yaml" >"$home/policy.yaml"
	eventually kubectl apply -f "$home/policy.yaml"
	eventually refused "ValidatingAdmissionPolicy 'vpol-check-deployment-labels' with binding 'vpol-check-deployment-labels-binding' denied request" \
		kubectl create deployment web --image=nginx --dry-run=server
}
