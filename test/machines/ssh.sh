# shellcheck shell=bash disable=SC2154 # scripts/nodes has $build and $run
# Nodes that let nothing in but SSH, and a server without a route to Pods: what the API server sends to
# kubelets and Pods goes through sshd of openssh-server.

# check_ssh fails early where something for ssh_only is missing.
check_ssh() {
	local tool
	for tool in sshd ssh-keygen openssl useradd; do
		PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null || die "not on this machine: $tool; Debian's packages are openssh-server, openssh-client, openssl and passwd"
	done
}

# ssh_only takes the other ways to the nodes away, and gives them back at the end. What the other cases
# test is tested again, and then what SSH adds.
ssh_only() {
	local node
	CGO_ENABLED=0 go build -trimpath -o "$build/bin/extension" ./scripts/testdata/extension
	enter server mkdir -p /etc/karve
	enter server ssh-keygen -q -t ed25519 -N '' -C karve@server -f /etc/karve/ssh-key
	for node in node-1 node-2; do
		let_ssh_in $node
		enter $node install -d -m 700 -o tunnel /home/tunnel/.ssh
		echo "restrict,port-forwarding $(enter server cat /etc/karve/ssh-key.pub)" | enter $node tee /home/tunnel/.ssh/authorized_keys >/dev/null
	done
	enter server ip route del "$(pod_cidr node-1)"
	enter server ip route del "$(pod_cidr node-2)"
	server_options --ssh-user tunnel --ssh-keyfile /etc/karve/ssh-key
	for node in node-1 node-2; do
		until_ok "the tunnel to $node" tunnel_is $node healthy
		! enter server curl -sk --max-time 1 "https://$(address_of $node):10250/healthz" || die "the server reaches the kubelet of $node directly: the test would prove nothing"
	done

	# The Pods of other cases are in the way.
	kubectl delete pod shell-node-1 shell-node-2 --now --ignore-not-found >/dev/null
	enter server rm -rf /tmp/copy
	for case in exec_into_pod port_forward copy; do
		$case
		say "ok: ssh_only: $case"
	done
	case=ssh_only
	extensions_in_a_pod
	tunnel_ends
	node_reboots
	bastion
	changed_key
	node_of_install_sh

	# As before.
	kubectl delete pod shell-node-1 shell-node-2 --now >/dev/null
	for node in node-1 node-2; do
		enter $node nft delete table inet ssh_only
		enter $node systemctl stop ssh
		enter server ip route replace "$(pod_cidr $node)" via "$(address_of $node)"
	done
	server_options
}

# let_ssh_in NAME gives a machine sshd as Debian configures it, the user tunnel, and a firewall.
let_ssh_in() {
	enter "$1" sh -c 'id tunnel >/dev/null 2>&1 || useradd --create-home --shell /usr/sbin/nologin tunnel
		mkdir -p /run/sshd; rm -f /etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key'
	printf '%s\n' 'UsePAM yes' 'KbdInteractiveAuthentication no' 'PasswordAuthentication no' | enter "$1" tee /etc/ssh/sshd_config >/dev/null
	printf '%s\n' '[Service]' 'ExecStart=/usr/sbin/sshd -D -e' 'Restart=always' | enter "$1" tee /etc/systemd/system/ssh.service >/dev/null
	enter "$1" systemctl enable --now ssh
	enter "$1" nft -f - <<-'END'
		table inet ssh_only {
			chain input {
				type filter hook input priority -10; policy drop;
				iifname { lo, cni0, karve0 } accept
				ct state established,related accept
				tcp dport 22 accept
			}
			chain forward {
				type filter hook forward priority -10; policy accept;
				iifname eth0 ct state new drop
			}
		}
	END
}

# server_options OPTION... restarts the server with more options; without any, as it was before.
server_options() {
	local dir=/etc/systemd/system/karve.service.d old
	old=$(enter server pgrep -f '^/usr/local/bin/karve server')
	if [ $# = 0 ]; then
		enter server rm -r $dir
	else
		enter server mkdir -p $dir
		printf '%s\n' '[Service]' 'ExecStart=' "ExecStart=$(enter server sed -n 's/^ExecStart=//p' /etc/systemd/system/karve.service) $*" | enter server tee $dir/ssh.conf >/dev/null
	fi
	enter server systemctl restart karve
	until_ok "another process of the server" another_server "$old"
	until_ok "the server with \"$*\"" kubectl get --raw /readyz
}

# tunnel_is NODE STATE
tunnel_is() { enter server karve status --data-dir /var/lib/karve | grep -F "$1: $2"; }

# extensions_in_a_pod: the proxies to a Pod and a Service, a webhook and an aggregated API.
extensions_in_a_pod() {
	local bundle path
	enter node-2 mkdir -p /etc/extension
	enter node-2 openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=extension -addext subjectAltName=DNS:extension.default.svc \
		-keyout /etc/extension/key -out /etc/extension/crt 2>/dev/null
	bundle=$(enter node-2 base64 -w 0 /etc/extension/crt)
	kubectl create -f - >/dev/null <<END
apiVersion: v1
kind: Pod
metadata: {name: extension, labels: {app: extension}}
spec:
  nodeName: node-2
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: $busybox
    command: [/opt/nodes/extension, node-2, /etc/extension/crt, /etc/extension/key]
    readinessProbe: {tcpSocket: {port: 8443}}
    volumeMounts: [{name: programs, mountPath: /opt/nodes}, {name: keys, mountPath: /etc/extension}]
  volumes: [{name: programs, hostPath: {path: /opt/nodes}}, {name: keys, hostPath: {path: /etc/extension}}]
---
apiVersion: v1
kind: Service
metadata: {name: extension}
spec: {selector: {app: extension}, ports: [{name: https, port: 443, targetPort: 8443}, {name: http, port: 80, targetPort: 8080}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: extension}
webhooks:
- name: extension.karve.test
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps], scope: Namespaced}]
  clientConfig: {caBundle: $bundle, service: {namespace: default, name: extension, path: /review}}
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  sideEffects: None
  admissionReviewVersions: [v1]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.reach.karve.test}
spec:
  {group: reach.karve.test, version: v1, groupPriorityMinimum: 1000, versionPriority: 10, caBundle: $bundle, service: {namespace: default, name: extension, port: 443}}
END
	until_ok "Pod extension" kubectl wait --for=condition=Ready --timeout=10s pod/extension
	! enter server curl -s --max-time 1 "http://$(kubectl get pod extension -o 'jsonpath={.status.podIP}'):8080/" || die "the server reaches Pods directly: the test would prove nothing"
	for path in pods/extension:8080 services/extension:http; do
		until_ok "the proxy to $path" proxied "$path"
	done
	until_ok "the webhook in a Pod" denied
	kubectl create configmap allowed >/dev/null
	until_ok "the aggregated API" kubectl wait --for=condition=Available --timeout=10s apiservice/v1.reach.karve.test
	until_ok "its resources" aggregated
	kubectl delete apiservice/v1.reach.karve.test validatingwebhookconfiguration/extension service/extension pod/extension configmap/allowed >/dev/null
	say "ok: ssh_only: proxies, a webhook and an aggregated API"
}

proxied() { kubectl get --raw "/api/v1/namespaces/default/$1/proxy/" | grep -x 'a Pod on node-2'; }
aggregated() { kubectl get --raw /apis/reach.karve.test/v1 | grep '"nodes-of-node-2"'; }
denied() {
	local said
	if said=$(kubectl create configmap denied 2>&1); then # the configuration has not been read yet
		kubectl delete configmap denied >/dev/null
		return 1
	fi
	grep -F "a Pod on node-2 says no" <<<"$said" || { echo "$said" && return 1; }
}

# tunnel_ends: what is open through a tunnel that breaks ends with an error, and works again afterwards.
tunnel_ends() {
	local name pids=() log status
	start_pod stream node-1 "$busybox" sh -c "$counter"
	log=$(kubectl logs stream | wc -l)
	kubectl logs -f stream >"$run/logs" 2>"$run/logs.err" &
	pids+=($!)
	kubectl exec stream -- sh -c "$counter" >"$run/exec" 2>"$run/exec.err" &
	pids+=($!)
	kubectl attach stream >"$run/attach" 2>"$run/attach.err" &
	pids+=($!)
	for name in logs exec attach; do until_ok "$name: a stream" streams $name; done
	enter node-1 pkill -KILL -f '^sshd(-session)?: tunnel'
	for name in logs exec attach; do
		status=0
		wait "${pids[0]}" || status=$?
		pids=("${pids[@]:1}")
		# Upstream's kubelet client ends a log that is followed as if it were complete.
		case $name in
		logs) [ -n "$(tail -n +"$((log + 1))" "$run/logs")" ] || die "logs -f printed nothing" ;;
		*) if [ $status = 0 ] || ! grep -q '^error: ' "$run/$name.err"; then die "kubectl $name ended with $status and said \"$(cat "$run/$name.err")\" when the tunnel ended"; fi ;;
		esac
	done
	until_ok "the tunnel to node-1" tunnel_is node-1 healthy
	# The container did not notice, and nothing of its log is lost.
	kubectl exec stream -- touch /tmp/stop
	until_ok "the whole log" ends_well stream
	kubectl delete pod stream --now >/dev/null
	say "ok: ssh_only: a tunnel that ends"
}

streams() { grep '^line [1-9]' "$run/$1" || { cat "$run/$1.err" && return 1; }; }

# ends_well POD: its log has every line of the counter, and the last.
ends_well() {
	kubectl logs -f "$1" >"$run/whole"
	awk '$0 == "the end" { ended = 1; next } $0 != "line " NR - 1 { print "line " NR " is \"" $0 "\""; exit 1 } END { exit !ended }' "$run/whole"
}

# node_reboots: while a node is off, the error says so, and its Pods are reached when it is back.
node_reboots() {
	local before
	kubectl run rebooted --image "$busybox" --overrides '{"spec": {"nodeName": "node-1", "terminationGracePeriodSeconds": 0}}' --command -- sh -c "$counter" >/dev/null
	until_ok "Pod rebooted" kubectl wait --for=condition=Ready --timeout=10s pod/rebooted
	before=$(container_state rebooted)
	shut_down node-1
	until_ok "the tunnel to node-1 has ended" tunnel_is node-1 failed
	if kubectl logs rebooted >"$run/refused" 2>&1; then die "a node that is off has logs"; fi
	grep -qF "SSH tunnel to node-1" "$run/refused" || die "logs of a node that is off: $(cat "$run/refused")"
	start_again node-1
	until_ok "the tunnel to node-1" tunnel_is node-1 healthy
	until_ok "the Pod's next container" runs_again rebooted "$before"
	until_ok "exec after the reboot" says rebooted kubectl exec rebooted -- hostname
	until_ok "its log after the reboot" says "line 0" kubectl logs rebooted
	until_ok "the nodes" kubectl wait --for=condition=Ready --timeout=10s node --all
	kubectl delete pod rebooted --now >/dev/null
	say "ok: ssh_only: a reboot"
}

says() { "${@:2}" | grep -x "$1"; }
runs_again() { [ "$(container_state "$1")" != "$2" ] && kubectl wait --for=condition=Ready --timeout=10s "pod/$1"; }

# bastion: the server reaches node-1 only through node-2.
bastion() {
	enter node-1 nft -f - <<-END
		table inet bastion {
			chain input { type filter hook input priority -20; ip saddr $(address_of server) ct state new drop; }
		}
	END
	server_options --ssh-user tunnel --ssh-keyfile /etc/karve/ssh-key --ssh-jump "tunnel@$(address_of node-2)"
	until_ok "the tunnel to node-1" tunnel_is node-1 healthy
	start_pod behind node-1 "$busybox" sh -c "$counter"
	until_ok "its log" says "line 0" kubectl logs behind
	same "exec" "$(kubectl exec behind -- hostname)" behind
	kubectl delete pod behind --now >/dev/null
	enter node-1 nft delete table inet bastion
	server_options --ssh-user tunnel --ssh-keyfile /etc/karve/ssh-key
	say "ok: ssh_only: a bastion"
}

# changed_key: a node with another host key is refused, until the old one is forgotten.
changed_key() {
	enter node-1 sh -c 'rm /etc/ssh/ssh_host_ed25519_key*; ssh-keygen -q -t ed25519 -N "" -f /etc/ssh/ssh_host_ed25519_key'
	enter node-1 systemctl restart ssh
	enter node-1 pkill -KILL -f '^sshd(-session)?: tunnel' || true # it has ended with sshd, or not
	until_ok "the refusal" key_is_refused node-1
	enter server karve ssh forget --data-dir /var/lib/karve "$(address_of node-1)" >/dev/null
	until_ok "the tunnel to node-1" tunnel_is node-1 healthy
	say "ok: ssh_only: a changed host key"
}

key_is_refused() { enter server karve status --data-dir /var/lib/karve | grep -F "the host key of $(address_of "$1"):22 has changed"; }

# shut_down NAME ends what runs on a machine. Its first process stays, because its file system ends with it.
shut_down() {
	enter "$1" sh -c 'kill -KILL -1' || true
	until_ok "$1 is off" is_off "$1"
}
is_off() { ! enter "$1" pgrep -a 'sshd|kubelet|containerd'; }

# start_again NAME starts it as after a reboot: /run and the control groups are new, and so is the kernel's id.
start_again() {
	local service
	# shellcheck disable=SC2016 # it is for the machine's shell
	enter "$1" bash -c '
		awk "\$5 ~ \"^/(run/(containerd|netns)|var/lib/kubelet/pods)/\" { print \$5 }" /proc/self/mountinfo | tac | while read -r mount; do umount -l "$mount"; done
		rm -rf /run/containerd /run/netns /run/units/*.pid
		find /sys/fs/cgroup -depth -path "*/kubepods*" -type d -exec rmdir {} +
		ip link delete cni0
		cat /proc/sys/kernel/random/uuid >/run/boot_id
		mount --bind /run/boot_id /proc/sys/kernel/random/boot_id'
	for service in ssh containerd kubelet; do enter "$1" systemctl start $service; done
}

# node_of_install_sh: a machine where SSH alone is open becomes a node, and gets the server's key by itself.
node_of_install_sh() {
	local name=node-3
	add_node $name
	let_ssh_in $name
	playbook $name -e "karve_node_options='--kubelet /opt/nodes/kubelet --ssh-user tunnel'" || die "the playbook: $(cat "$run/playbook/said")"
	same "the keys, their mode and their owner" "$(enter $name sh -c 'cat /home/tunnel/.ssh/authorized_keys; stat -c "%a %U" /home/tunnel/.ssh /home/tunnel/.ssh/authorized_keys')" \
		"restrict,port-forwarding $(enter server cat /etc/karve/ssh-key.pub)
700 tunnel
600 tunnel"
	until_ok "the tunnel to $name" tunnel_is $name healthy
	start_pod by-ssh $name "$busybox" sh -c "trap exit TERM; $counter" # as in installed_node
	same "exec" "$(kubectl exec by-ssh -- hostname)" by-ssh
	until_ok "its log" says "line 0" kubectl logs by-ssh
	enter $name karve-node-uninstall.sh >"$run/$name/uninstall" 2>&1 || die "karve-node-uninstall.sh: $(cat "$run/$name/uninstall")"
	enter $name test ! -e /home/tunnel/.ssh || die "the server's key is left on $name"
	kubectl delete node $name >/dev/null
	kubectl delete pod by-ssh --force >/dev/null 2>&1 # another node of that name would start it
	remove_machine $name
	say "ok: ssh_only: install.sh node --ssh-user"
}
