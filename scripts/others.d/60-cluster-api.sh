# shellcheck shell=bash disable=SC2034,SC2154
software="Cluster API"
tried="its core provider without cert-manager: webhooks that convert and refuse Clusters, and a Cluster that it provisions and connects to"
modules=(sigs.k8s.io/cluster-api@v1.14.2)
packages=(cluster-api=./core)

# The manifests want cert-manager for a certificate and its authority in webhooks and CRDs. Here they are of openssl.
try() {
	local certs=$home/certs
	mkdir "$certs"
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -keyout "$certs/tls.key" -out "$certs/tls.crt" \
		-subj /CN=webhook -addext subjectAltName=DNS:capi-webhook-service.capi-system.svc
	kubectl kustomize "$source/core/config/default" >"$home/kustomized"
	kubectl create --dry-run=client -o json -f <(python3 - "$home/kustomized" <<'END'
import re, sys
documents = open(sys.argv[1]).read().split("\n---\n")
text = "\n---\n".join(d for d in documents if "apiVersion: cert-manager.io" not in d)
print(re.sub(r"\$\{\w+:=([^}]*)\}", r"\1", text))
END
	) >"$home/manifests"
	python3 - "$home/manifests" "$certs/tls.crt" <<'END' >"$home/complete.json"
import base64, json, sys
text, decoder, items = open(sys.argv[1]).read().strip(), json.JSONDecoder(), []
while text:
    item, end = decoder.raw_decode(text)
    items += item["items"] if item["kind"] == "List" else [item]
    text = text[end:].lstrip()
authority = base64.b64encode(open(sys.argv[2], "rb").read()).decode()
for item in items:
    hooks = [item["spec"].get("conversion", {}).get("webhook")] if item["kind"] == "CustomResourceDefinition" else item.get("webhooks", [])
    for hook in filter(None, hooks):
        hook["clientConfig"]["caBundle"] = authority
json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout)
END
	kubectl create -f "$home/complete.json"
	kubectl -n capi-system create secret tls capi-webhook-service-cert --cert="$certs/tls.crt" --key="$certs/tls.key"
	kubectl annotate namespace capi-system "simulate.karve/listen=9443=127.0.0.1:$p1"
	kubectl -n capi-system rollout status --timeout 2m deployment capi-controller-manager
	KUBECONFIG=$(kubeconfig capi-system capi-manager) POD_NAMESPACE=capi-system POD_NAME=manager POD_UID=none begin cluster-api "$bin/cluster-api" \
		--leader-elect=false --diagnostics-address="127.0.0.1:$p4" --health-addr="127.0.0.1:$p3" --webhook-port="$p1" --webhook-cert-dir="$certs"

	# The infrastructure has its contract: an object that says that it is provisioned, and where the cluster is.
	local server host port
	server=$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}')
	server=${server#https://} host=${server%:*} port=${server##*:}
	kubectl create -f - <<END
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: testclusters.infrastructure.cluster.x-k8s.io, labels: {cluster.x-k8s.io/v1beta2: v1}}
spec:
  group: infrastructure.cluster.x-k8s.io
  names: {kind: TestCluster, plural: testclusters, singular: testcluster, listKind: TestClusterList}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: testclusters, labels: {cluster.x-k8s.io/aggregate-to-manager: "true"}}
rules: [{apiGroups: [infrastructure.cluster.x-k8s.io], resources: ["*"], verbs: ["*"]}]
END
	kubectl wait --for condition=Established --timeout 1m crd testclusters.infrastructure.cluster.x-k8s.io
	kubectl create secret generic karve-kubeconfig --type cluster.x-k8s.io/secret --from-file=value=<(kubectl config view --raw --flatten)
	kubectl label secret karve-kubeconfig cluster.x-k8s.io/cluster-name=karve
	kubectl create -f - <<END
{apiVersion: infrastructure.cluster.x-k8s.io/v1, kind: TestCluster, metadata: {name: karve}, spec: {controlPlaneEndpoint: {host: $host, port: $port}}}
END
	kubectl patch testcluster karve --subresource status --type merge -p '{"status": {"initialization": {"provisioned": true}}}'
	cat >"$home/cluster.yaml" <<END
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: karve}
spec:
  controlPlaneEndpoint: {host: $host, port: $port}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: TestCluster, name: karve}
END
	eventually kubectl apply -f "$home/cluster.yaml"
	refused 'invalid CIDR address: nonsense' kubectl create --dry-run=server -f - <<END
apiVersion: cluster.x-k8s.io/v1beta2
kind: Cluster
metadata: {name: refused}
spec: {clusterNetwork: {pods: {cidrBlocks: [nonsense]}}, infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: TestCluster, name: karve}}
END
	kubectl wait --for jsonpath='{.status.phase}'=Provisioned --timeout 2m cluster karve
	kubectl wait --for condition=RemoteConnectionProbe --timeout 2m cluster karve
	shows cluster.x-k8s.io/v1beta1 kubectl get clusters.v1beta1.cluster.x-k8s.io karve -o jsonpath='{.apiVersion}'
}
