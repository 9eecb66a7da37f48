# shellcheck shell=bash disable=SC2154 # scripts/nodes has $build and $run
# Upstream's metrics-server, unchanged, by upstream's own manifest. The case metrics_server runs only when it is
# asked for: metrics-server has a Kubernetes of its own to compile.

metrics_server_version=v0.9.0

# build_metrics_server builds it with the dependencies of upstream's release. $build/metrics has the image and the
# manifest then.
build_metrics_server() {
	local root images=$build/metrics source image
	mkdir -p "$images"
	CGO_ENABLED=0 GOBIN=$build/bin go install -trimpath -ldflags "-s -w -X k8s.io/client-go/pkg/version.gitVersion=$metrics_server_version" \
		"sigs.k8s.io/metrics-server/cmd/metrics-server@$metrics_server_version"
	source=$(go mod download -json "sigs.k8s.io/metrics-server@$metrics_server_version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	"$build/bin/kubectl" kustomize "$source/manifests/overlays/release" >"$images/components.yaml" 2>"$images/log" ||
		die "kubectl kustomize: $(cat "$images/log")"
	image=$(sed -n 's/^ *image: //p' "$images/components.yaml")
	new_root
	cp "$build/bin/metrics-server" "$root/metrics-server"
	pack metrics-server -user 65534 -entrypoint /metrics-server "$image"
	rm -rf "$root"
}

# metrics_server: kubectl top and karve status have its figures. It checks the kubelets' serving certificates, so
# kubelets ask the cluster for theirs meanwhile.
metrics_server() {
	local node file=/etc/kubernetes-local/kubelet.conf.d/20-serving.conf
	for node in node-1 node-2; do
		printf '%s\n' 'apiVersion: kubelet.config.k8s.io/v1beta1' 'kind: KubeletConfiguration' 'serverTLSBootstrap: true' |
			enter $node tee $file >/dev/null
		enter $node systemctl restart kubelet
		enter $node ctr -n k8s.io images import --snapshotter "$(snapshotter)" - <"$build/metrics/metrics-server.tar" >/dev/null
	done
	kubectl apply -f - <"$build/metrics/components.yaml" >/dev/null
	until_ok "serving certificates of both kubelets" approve_serving
	until_ok "metrics-server" kubectl -n kube-system rollout status --timeout=10s deployment/metrics-server
	until_ok "kubectl top nodes" nodes_have_figures
	until_ok "kubectl top pods" pods_have_figures
	until_ok "metrics-server's figures in karve status" status_has_figures

	# As before.
	kubectl delete -f - <"$build/metrics/components.yaml" >/dev/null
	for node in node-1 node-2; do
		enter $node rm $file
		enter $node systemctl restart kubelet
	done
}

# approve_serving approves what the kubelets ask for, as an administrator does, until both nodes have asked.
approve_serving() {
	local asked
	asked=$(kubectl get csr -o 'jsonpath={range .items[?(@.spec.signerName=="kubernetes.io/kubelet-serving")]}{.metadata.name} {.spec.username}{"\n"}{end}') || return
	awk '{ print $1 }' <<<"$asked" | xargs -r kubectl certificate approve
	[ "$(awk '{ print $2 }' <<<"$asked" | sort -u | paste -sd ' ')" = "system:node:node-1 system:node:node-2" ]
}

nodes_have_figures() {
	local said
	said=$(kubectl top nodes --no-headers) || return
	[ "$(awk '$2 ~ /^[1-9][0-9]*m$/ && $4 ~ /^[1-9][0-9]*Mi$/ { print $1 }' <<<"$said" | sort | paste -sd ' ')" = "node-1 node-2" ] || { echo "$said" && return 1; }
}

# pods_have_figures: every Pod that runs has them. Only a Pod that does nothing may use less than 1 Mi.
pods_have_figures() {
	local said missing
	said=$(kubectl top pods -A --no-headers) || return
	missing=$(comm -13 \
		<(awk '$3 ~ /^[0-9]+m$/ && ($1 != "kube-system" || $4 ~ /^[1-9]/) { print $1 "/" $2 }' <<<"$said" | sort) \
		<(kubectl get pods -A --field-selector status.phase=Running -o 'jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name}{"\n"}{end}' | sort))
	[ -z "$missing" ] || { printf 'without figures: %s\n%s\n' "$missing" "$said" && return 1; }
}

status_has_figures() {
	local said
	said=$(enter server karve status -o json --data-dir /var/lib/karve)
	[ "$(grep -c '"source": "metrics.k8s.io"' <<<"$said")" = 2 ] || { echo "$said" && return 1; }
}
