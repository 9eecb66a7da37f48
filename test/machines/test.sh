# shellcheck shell=bash disable=SC2154 # scripts/nodes has $build and $run
# What scripts/nodes test tests, with two nodes. A case waits for conditions and never for time to
# pass; until_ok has the limit. The cases run in this order, because later ones take nodes away.

cases=(versions pod_to_completion logs_follow exec_into_pod attach port_forward copy debug_pod debug_node services
	services_nftables restart_server kill_server ssh_only installed_node node_removal join_again)
[ -z "${KARVE_NODES_KUBERNETES:-}" ] || cases+=(upgrade_node)

run_tests() {
	local name
	for name; do
		[[ " ${cases[*]} " = *" $name "* ]] || die "test $name: the cases are ${cases[*]}"
	done
	busybox=$("$build/bin/image" -names e2e:busybox)
	agnhost=$("$build/bin/image" -names e2e:agnhost)
	case=up
	up 2
	for name in "${@:-${cases[@]}}"; do
		case=$name
		skipped=
		"$name"
		say "${skipped:-ok}: $name"
	done
	case=
}

# finish_test STATUS keeps what explains a failure. Each part may fail: the machine or the server may be
# what is missing.
finish_test() {
	local dir name kept=$build/failed
	[ "$1" != 0 ] || return 0
	rm -rf "$kept"
	mkdir -p "$kept"
	for dir in "$run"/*/; do
		name=$(basename "$dir")
		[ -e "$dir/log" ] || continue
		mkdir "$kept/$name"
		cp "$dir/log" "$kept/$name/"
		# The bridge is a network only, and its files are this machine's.
		if [ "$name" = bridge ] || ! running "$name"; then continue; fi
		enter "$name" sh -c 'cd /var/log && tar c karve.log kubelet.log containerd.log pods 2>/dev/null' 2>/dev/null | tar x -C "$kept/$name" 2>/dev/null
	done
	(kubectl --request-timeout 30s get nodes,pods,services,endpointslices,csr -A -o wide) >"$kept/objects" 2>&1
	(kubectl --request-timeout 30s get events -A) >>"$kept/objects" 2>&1
	cat "$kept/objects" >&2
	printf 'nodes: FAIL %s%s; %s has the logs\n' "${case:-before the first case}" "$(cat "$run/died" 2>/dev/null)" "$kept" >&2
}

same() { [ "$2" = "$3" ] || die "$1: got \"$2\", want \"$3\""; }

# start_pod NAME NODE IMAGE CMD... starts a Pod on a node, and waits until it runs.
start_pod() {
	local name=$1 node=$2 image=$3
	shift 3
	kubectl run "$name" --image "$image" --restart Never --overrides "{\"spec\": {\"nodeName\": \"$node\"}}" --command -- "$@" >/dev/null
	until_ok "Pod $name" kubectl wait --for=condition=Ready --timeout=10s "pod/$name"
}

# counter prints a line each second until /tmp/stop exists.
# shellcheck disable=SC2016 # it is for the Pod's shell
counter='i=0; until [ -e /tmp/stop ]; do echo "line $i"; i=$((i + 1)); sleep 1; done; echo the end'

# versions: the nodes' programs are those that were asked for.
versions() {
	local node want=${KARVE_NODES_KUBERNETES:-$(server_version)}
	for node in node-1 node-2; do
		same "kubeadm on $node" "$(enter $node kubeadm version -o short)" "$want"
		same "the kubelet of $node" "$(kubelet_version $node)" "$want"
	done
}

pod_to_completion() {
	kubectl run hello --image "$busybox" --restart Never -- echo "hello from a real node" >/dev/null
	until_ok "the Pod's end" kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=10s pod/hello
	same "its log" "$(kubectl logs hello)" "hello from a real node"
	kubectl delete pod hello >/dev/null
}

logs_follow() {
	local follower
	start_pod counter node-1 "$busybox" sh -c "$counter"
	kubectl logs -f counter >"$run/followed" 2>&1 &
	follower=$!
	until_ok "three lines of the log" grep -q '^line 2$' "$run/followed"
	kubectl exec counter -- touch /tmp/stop
	wait $follower || die "logs -f failed: $(cat "$run/followed")"
	same "the log's last line" "$(tail -n 1 "$run/followed")" "the end"
	kubectl delete pod counter --now >/dev/null
}

exec_into_pod() {
	local node status=0 sum
	head -c 5000000 /dev/urandom >"$run/random"
	sum=$(sha256sum <"$run/random")
	for node in node-1 node-2; do
		start_pod "shell-$node" $node "$busybox" sleep 100000
		same "the Pod's host name" "$(kubectl exec "shell-$node" -- hostname)" "shell-$node"
		same "5 MB through standard input" "$(kubectl exec -i "shell-$node" -- sha256sum <"$run/random")" "$sum"
		status=0
		kubectl exec "shell-$node" -- sh -c 'exit 7' 2>/dev/null || status=$?
		same "the exit status" $status 7
	done
}

attach() {
	kubectl run cat --image "$busybox" --restart Never -i --quiet --command -- cat <<<"through attach" >"$run/attached" 2>&1 || die "kubectl run -i: $(cat "$run/attached")"
	until_ok "the Pod's end" kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=10s pod/cat
	same "what the container read and wrote" "$(kubectl logs cat)" "through attach"
	kubectl delete pod cat >/dev/null

	# To a container that runs already.
	start_pod attached node-2 "$busybox" sh -c "$counter"
	kubectl attach attached >"$run/attached" 2>&1 &
	until_ok "a line through attach" grep -q '^line [1-9]' "$run/attached"
	kubectl exec attached -- touch /tmp/stop
	wait $! || die "attach: $(cat "$run/attached")"
	kubectl delete pod attached --now >/dev/null
}

port_forward() {
	local port forwarder
	start_pod web node-2 "$agnhost" /agnhost netexec --http-port 8080
	kubectl port-forward pod/web :8080 >"$run/forwarded" 2>&1 &
	forwarder=$!
	until_ok "port-forward" grep -q 'Forwarding from 127' "$run/forwarded"
	port=$(sed -n 's/^Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' "$run/forwarded")
	until_ok "an answer through the forwarded port" answers server "http://127.0.0.1:$port/hostname" web
	enter server pkill -f 'kubectl port-forward'
	wait $forwarder || true
	kubectl delete pod web --now >/dev/null
}

# answers MACHINE URL WANT
answers() {
	local got
	got=$(enter "$1" curl -sS --max-time 10 "$2") || return 1
	[ "$got" = "$3" ] || { echo "$2 answers \"$got\", want \"$3\""; return 1; }
}

copy() {
	enter server sh -c 'mkdir /tmp/copy && head -c 1000000 /dev/urandom >/tmp/copy/there'
	kubectl cp /tmp/copy/there shell-node-2:/tmp/there
	kubectl cp shell-node-2:/tmp/there /tmp/copy/back >/dev/null
	enter server cmp /tmp/copy/there /tmp/copy/back || die "kubectl cp changed the file"
}

debug_pod() {
	start_pod patient node-1 "$busybox" sleep 12345
	kubectl debug patient --image "$agnhost" --container debugger --target patient --profile general -- sh -c 'ps ax' >/dev/null 2>&1
	until_ok "the debugger's end" kubectl wait --for='jsonpath={.status.ephemeralContainerStatuses[0].state.terminated.reason}'=Completed --timeout=10s pod/patient
	kubectl logs patient -c debugger | grep 'sleep 12345' >/dev/null || die "the debugger does not see the process: $(kubectl logs patient -c debugger)"
	kubectl delete pod patient --now >/dev/null
}

debug_node() {
	local pod
	pod=$(kubectl debug node/node-2 --image "$busybox" --profile sysadmin -- chroot /host cat /etc/hostname 2>&1 | grep -o 'node-debugger-[^ .]*' | head -n 1)
	until_ok "the node's debugger" kubectl wait --for=jsonpath='{.status.phase}'=Succeeded --timeout=10s "pod/$pod"
	same "the node's host name" "$(kubectl logs "$pod")" node-2
	kubectl delete pod "$pod" >/dev/null
}

# services: kube-proxy and CoreDNS serve Pods and nodes.
services() {
	until_ok "CoreDNS" kubectl -n kube-system rollout status --timeout=10s deployment/coredns
	until_ok "kube-proxy" kubectl -n kube-system rollout status --timeout=10s daemonset/kube-proxy
	start_web
	web_answers
}

# services_nftables: so they do with kube-proxy's other mode, and with the first one again.
services_nftables() {
	local node said
	if ! said=$(check_nftables 2>&1); then
		skipped="skipped, because kube-proxy needs more of nftables than this machine has ($said)"
		return
	fi
	start_web
	set_proxy_mode nftables
	for node in node-1 node-2; do
		until_ok "kube-proxy's table on $node" enter $node nft list chain ip kube-proxy services
		until_ok "no rules of iptables on $node" fails enter $node iptables -t nat -n -L KUBE-SERVICES
	done
	web_answers
	set_proxy_mode iptables
	for node in node-1 node-2; do
		until_ok "kube-proxy's rules on $node" enter $node iptables -t nat -n -L KUBE-SERVICES
		until_ok "no table of nftables on $node" fails enter $node nft list table ip kube-proxy
	done
	until_ok "the Service with iptables again" reaches_all kubectl exec client-node-1 -- curl -sS --max-time 10 http://web/hostname
}

fails() { ! "$@"; }

# check_nftables tries the expressions that kube-proxy's rules are made of, without keeping a rule.
check_nftables() {
	[ "$(printf '5.13\n%s\n' "$(uname -r)" | sort -V | head -n 1)" = 5.13 ] || { echo "Linux $(uname -r), want 5.13"; return 1; }
	enter node-1 nft --check -f - <<'END'
table ip probe {
	set addresses { type ipv4_addr . inet_proto . inet_service; }
	map verdicts { type inet_proto . inet_service : verdict; }
	chain endpoint { meta l4proto tcp dnat to 10.0.0.1:80; }
	chain to_services {
		type nat hook prerouting priority dstnat
		ip daddr . meta l4proto . th dport @addresses numgen random mod 2 vmap { 0: goto endpoint, 1: goto endpoint }
		fib daddr type local meta l4proto . th dport vmap @verdicts
	}
	chain from_pods { type nat hook postrouting priority srcnat; ct status dnat masquerade fully-random; }
	chain others { type filter hook forward priority filter; ct state new reject; }
}
END
}

# set_proxy_mode MODE waits until every kube-proxy has it.
set_proxy_mode() {
	enter server karve addons apply kube-proxy --proxy-mode "$1" --data-dir /var/lib/karve >"$run/server/addons" 2>&1 || die "karve addons apply kube-proxy: $(cat "$run/server/addons")"
	until_ok "kube-proxy with $1" kubectl -n kube-system rollout status --timeout=10s daemonset/kube-proxy
}

# start_web starts a Deployment behind a Service, and a client on each node, unless they are there.
start_web() {
	local node
	! kubectl get service web >/dev/null 2>&1 || return 0
	kubectl create -f - >/dev/null <<END
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints: [{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}]
      containers: [{name: web, image: $agnhost, args: [netexec, --http-port, "8080"], readinessProbe: {httpGet: {path: /, port: 8080}}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
END
	until_ok "the Deployment" kubectl rollout status --timeout=10s deployment/web
	same "the nodes of the Deployment" "$(kubectl get pods -l app=web -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}' | sort | paste -sd ' ')" "node-1 node-2"
	for node in node-1 node-2; do start_pod "client-$node" $node "$agnhost" /agnhost pause; done
}

# web_answers: its Service and DNS serve Pods on each node, other machines and the API server.
web_answers() {
	local node port
	port=$(kubectl get service web -o 'jsonpath={.spec.ports[0].nodePort}')
	for node in node-1 node-2; do
		until_ok "the Service by its name, from a Pod on $node" reaches_all kubectl exec "client-$node" -- curl -sS --max-time 10 http://web.default.svc.cluster.local/hostname
		until_ok "the Service by a short name, from a Pod on $node" reaches_all kubectl exec "client-$node" -- curl -sS --max-time 10 http://web/hostname
		until_ok "the Service by $node's port, from another machine" reaches_all enter server curl -sS --max-time 10 "http://$(address_of $node):$port/hostname"
		# The API server by the address that Pods have for it.
		until_ok "the API server from a Pod on $node" kubectl exec "client-$node" -- curl -sS --max-time 10 -k https://kubernetes.default.svc.cluster.local/version
	done
	until_ok "the Service through the API server" reaches_all kubectl get --raw /api/v1/namespaces/default/services/web:80/proxy/hostname
}

# reaches_all CMD... succeeds when the command has printed the name of every Pod of the Deployment.
reaches_all() {
	local got found='' want i
	want=$(kubectl get pods -l app=web -o 'jsonpath={range .items[*]}{.metadata.name}{"\n"}{end}' | sort)
	for i in $(seq 50); do
		got=$("$@") || { echo "try $i: $got"; return 1; }
		found=$(printf '%s\n%s\n' "$found" "$got" | grep . | sort -u)
		[ "$found" != "$want" ] || return 0
	done
	printf 'reached only: %s; want: %s\n' "$found" "$want"
	return 1
}

# The server ends and comes back, and containers do not notice.
restart_server() { survive "systemctl restart" enter server systemctl restart karve; }
kill_server() { survive "kill -9" enter server systemctl kill karve; }

# survive WHAT CMD...
survive() {
	local what=$1 before port old
	shift
	start_pod survivor node-1 "$busybox" sh -c "$counter"
	before=$(container_state survivor)
	old=$(enter server pgrep -f '^/usr/local/bin/karve server')
	"$@"
	until_ok "another process of the server" another_server "$old"
	until_ok "the server after $what" kubectl get --raw /readyz
	until_ok "a later line of the log after $what" later_line survivor "$(kubectl logs --tail 1 survivor)"
	same "exec after $what" "$(kubectl exec survivor -- hostname)" survivor
	until_ok "the nodes after $what" kubectl wait --for=condition=Ready --timeout=10s node --all
	same "the container after $what" "$(container_state survivor)" "$before"
	if kubectl get service web >/dev/null 2>&1; then
		port=$(kubectl get service web -o 'jsonpath={.spec.ports[0].nodePort}')
		until_ok "the Service after $what" reaches_all enter server curl -sS --max-time 10 "http://$(address_of node-2):$port/hostname"
	fi
	# What was running goes on, and so does what is new.
	start_pod newcomer node-2 "$busybox" sleep 100000
	kubectl delete pod survivor newcomer --now >/dev/null
}

another_server() {
	local pid
	pid=$(enter server pgrep -f '^/usr/local/bin/karve server') && [ "$pid" != "$1" ]
}

container_state() { kubectl get pod "$1" -o 'jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].state.running.startedAt}'; }

# later_line POD LINE
later_line() { [ "$(kubectl logs --tail 1 "$1")" != "$2" ]; }

node_removal() {
	kubectl drain node-2 --ignore-daemonsets --delete-emptydir-data --force --grace-period 1 >"$run/drain" 2>&1 || die "drain: $(cat "$run/drain")"
	same "Pods left on node-2" "$(kubectl get pods -A --field-selector spec.nodeName=node-2 -o 'jsonpath={.items[*].metadata.labels.k8s-app}')" kube-proxy
	kubectl delete node node-2 >/dev/null
	enter node-2 kubeadm reset --force >"$run/node-2/reset" 2>&1 || die "kubeadm reset: $(cat "$run/node-2/reset")"
	same "containers after kubeadm reset" "$(enter node-2 ctr -n k8s.io tasks ls -q)" ""
	enter node-2 test ! -e /etc/kubernetes/kubelet.conf || die "kubeadm reset left kubelet.conf"
	# kubeadm leaves the network of Pods to the administrator, and the node may get another podCIDR next time.
	enter node-2 sh -c 'rm /etc/cni/net.d/* && ip link delete cni0'
	if kubectl get deployment web >/dev/null 2>&1; then
		until_ok "the Deployment on the other node" kubectl rollout status --timeout=10s deployment/web
	fi
	same "the nodes" "$(kubectl get nodes -o name)" node/node-1
}

join_again() {
	join_node node-2
	start_pod again node-2 "$busybox" sleep 100000
	same "exec on a node that joined again" "$(kubectl exec again -- hostname)" again
	until_ok "kube-proxy" kubectl -n kube-system rollout status --timeout=10s daemonset/kube-proxy
}

# upgrade_node: kubeadm of the server's version upgrades a node of another one, under a running Pod.
upgrade_node() {
	local before
	start_pod upgraded node-1 "$busybox" sh -c "$counter"
	before=$(container_state upgraded)
	replace_program node-1 /usr/local/bin/kubeadm
	enter node-1 kubeadm upgrade node --ignore-preflight-errors="$ignored_checks" >"$run/node-1/upgrade" 2>&1 || die "kubeadm upgrade node: $(cat "$run/node-1/upgrade")"
	replace_program node-1 /usr/bin/kubelet
	enter node-1 systemctl restart kubelet
	until_ok "the server's version on node-1" has_kubelet node-1 "$(server_version)"
	until_ok "node-1" kubectl wait --for=condition=Ready --timeout=10s node/node-1
	until_ok "a later line of the log" later_line upgraded "$(kubectl logs --tail 1 upgraded)"
	same "exec" "$(kubectl exec upgraded -- hostname)" upgraded
	same "the container" "$(container_state upgraded)" "$before"
}

has_kubelet() { [ "$(kubelet_version "$1")" = "$2" ]; }

# replace_program NAME FILE gives a machine the server's version of a program. FILE may be a link to
# what all machines share.
replace_program() {
	# shellcheck disable=SC2016 # it is for the machine's shell
	enter "$1" sh -c 'cat >"$0.new" && chmod 755 "$0.new" && mv "$0.new" "$0"' "$2" <"$build/bin/$(basename "$2")"
}
