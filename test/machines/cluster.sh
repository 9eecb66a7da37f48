# shellcheck shell=bash disable=SC2154 # scripts/nodes has $build and $run
# The cluster: the server, and nodes that join it.

build_all() {
	build_programs
	build_images
	[ -z "${KARVE_NODES_SUITE:-}" ] || build_suite_images
}

# Inotify instances of a node and of the server: one more than were counted, see DESIGN.md.
inotify_of_node=10
inotify_of_server=3

# check_machine N fails early where something for N nodes is missing.
check_machine() {
	local tool missing=() limit used want tools=(containerd ctr runc iptables nft conntrack ip busybox curl unshare nsenter pgrep sysctl bash)
	[ -e /proc/sys/net/bridge ] || tools+=(modprobe)
	[ -z "${KARVE_NODES_SUITE:-}" ] || tools+=(dig nc getent)
	for tool in "${tools[@]}"; do
		PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || missing+=("$tool")
	done
	[ -e /usr/lib/cni/bridge ] || missing+=(/usr/lib/cni/bridge)
	[ ${#missing[@]} = 0 ] || die "not on this machine: ${missing[*]}; the comment in scripts/nodes has Debian's packages"
	# The limit is for all programs of root together. Containerd without instances starts, but without the part
	# that kubelets talk to.
	limit=$(cat /proc/sys/fs/inotify/max_user_instances)
	used=$({ find /proc/[0-9]*/fd -lname anon_inode:inotify 2>/dev/null || true; } | wc -l) # processes end meanwhile
	want=$((used + inotify_of_server + $1 * inotify_of_node))
	[ "$want" -le "$limit" ] || die "this machine's programs have $used inotify instances, and $1 nodes need $((want - used)) more: too many for fs.inotify.max_user_instances=$limit; raise it by sysctl -w fs.inotify.max_user_instances=$((want + 100))"
}

up() {
	local i
	start_bridge
	[ -z "${KARVE_NODES_SUITE:-}" ] || start_registry
	start_server
	for i in $(seq "$1"); do
		add_node "node-$i"
		join_node "node-$i"
	done
	say "$1 nodes are ready"
}

# start_registry starts a registry on the bridge, for those of upstream's tests that pull an image though
# the node has it.
registry_port=5000
start_registry() {
	(
		enter_groups bridge
		exec setsid nsenter -t "$(cat "$run/bridge/pid")" -n -- "$build/bin/image" -serve "$network.1:$registry_port" "$build"/suite/{agnhost,kitten}.tar
	) >"$run/bridge/registry" 2>&1 </dev/null &
	disown $!
	until_ok "the registry" registry_is_ready
}
registry_is_ready() { grep -x ready "$run/bridge/registry" || { cat "$run/bridge/registry"; return 1; }; }

kubectl() { enter server kubectl "$@"; }

# kubeconfig prints one with the certificates and keys in it, and the server's address.
kubeconfig() { enter server karve kubeconfig --data-dir /var/lib/karve --server "$(address_of server)"; }

# start_server starts Karve as a service on a machine of its own.
start_server() {
	local addon
	start_machine server 0 "$build/bin"
	enter server tee /etc/systemd/system/karve.service >/dev/null <<END
[Service]
ExecStart=/usr/local/bin/karve server --data-dir /var/lib/karve ${KARVE_NODES_OPTIONS:-}
Restart=always
END
	enter server systemctl start karve
	until_ok "the server" kubectl get --raw /readyz
	for addon in kube-proxy coredns; do
		enter server karve addons apply $addon --data-dir /var/lib/karve >>"$run/server/addons" 2>&1 || die "karve addons apply $addon: $(cat "$run/server/addons")"
	done
	keep_on_full_disk
	say "the server is ready: $(kubectl version -o json | sed -n 's/.*"gitVersion": "\(.*\)".*/\1/p' | tail -n 1)"
}

# keep_on_full_disk sets for all kubelets that they go on with a disk that others have filled. They would
# evict Pods, and remove images that cannot be downloaded again.
keep_on_full_disk() {
	local config
	config=$(kubectl -n kube-system get configmap kubelet-config -o 'jsonpath={.data.kubelet}')
	kubectl -n kube-system create configmap kubelet-config --dry-run=client -o yaml --from-literal="kubelet=$config
evictionHard:
  memory.available: 50Mi
  nodefs.available: 1%
  imagefs.available: 1%
imageGCHighThresholdPercent: 100
" | kubectl -n kube-system patch configmap kubelet-config --type merge --patch-file /dev/stdin >/dev/null
}

# snapshotter prints the one that works here: overlayfs needs a file system that can be
# an upper layer, which that of a container is not.
snapshotter() {
	local dir=$run/snapshotter found=native
	mkdir -p "$dir"/{lower,upper,work,merged}
	if unshare --mount mount -t overlay -o "lowerdir=$dir/lower,upperdir=$dir/upper,workdir=$dir/work" overlay "$dir/merged" 2>/dev/null; then
		found=overlayfs
	fi
	rm -rf "$dir"
	echo $found
}

# add_node NAME starts a machine with containerd and images, as an administrator prepares it.
add_node() {
	local name=$1 number=${1##*-} image images pause
	case $number in '' | *[!0-9]*) die "$name: want a name that ends with a number, such as node-3" ;; esac
	[ -e "$programs/kubelet" ] || die "$programs has no kubelet: scripts/nodes build makes it"
	start_machine "$name" "$number" "$programs"
	pause=$("$build/bin/kubeadm" config images list --kubernetes-version "$("$build/bin/kubeadm" version -o short)" | grep /pause:)
	enter "$name" tee /etc/containerd/config.toml >/dev/null <<END
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$pause"
  # A sandbox may not let anybody lower it.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "$(snapshotter)"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
END
	if [ -e "$run/bridge/registry" ]; then
		enter "$name" mkdir -p /etc/containerd/certs.d/registry.k8s.io
		enter "$name" tee /etc/containerd/certs.d/registry.k8s.io/hosts.toml >/dev/null <<END
[host."http://$network.1:$registry_port"]
  capabilities = ["pull", "resolve"]
END
	fi
	# Kubernetes' own unit, from its packages.
	enter "$name" tee /etc/systemd/system/kubelet.service >/dev/null <test/machines/machine/kubelet.service
	configure_kubelet "$name"
	enter "$name" systemctl enable --now containerd
	enter "$name" systemctl enable kubelet
	until_ok "containerd on $name" enter "$name" ctr version
	# Where many programs watch files, it goes on without the part that kubelets talk to.
	if ! enter "$name" ctr plugins ls | grep -qE ' cri .* ok *$'; then
		die "containerd on $name: $(enter "$name" grep 'failed to load plugin io.containerd.grpc.v1.cri' /var/log/containerd.log | sed 's/.*error=//'); if too many files are open, fs.inotify.max_user_instances ($(cat /proc/sys/fs/inotify/max_user_instances)) is used up by other programs"
	fi
	images=("$build"/images/*.tar)
	[ -z "${KARVE_NODES_SUITE:-}" ] || images+=("$build"/suite/*.tar)
	for image in "${images[@]}"; do
		enter "$name" ctr -n k8s.io images import --snapshotter "$(snapshotter)" - <"$image" >/dev/null
	done
}

# configure_kubelet NAME writes what is particular to such a machine, beside what kubeadm
# writes: a sandbox has control groups of version 1, and nobody's systemd.
configure_kubelet() {
	enter "$1" mkdir -p /etc/kubernetes-local/kubelet.conf.d
	enter "$1" tee /etc/kubernetes-local/kubelet.conf.d/10-machine.conf >/dev/null <<'END'
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
END
	echo 'KUBELET_EXTRA_ARGS=--config-dir=/etc/kubernetes-local/kubelet.conf.d' | enter "$1" tee /etc/default/kubelet >/dev/null
}

# What kubeadm finds wrong with such a machine, and why it does not matter:
# SystemVerification: control groups of version 1, and a kernel whose configuration it cannot read.
ignored_checks=SystemVerification

# join_node NAME joins a machine with the line that Karve prints, and gives its Pods a network.
join_node() {
	local name=$1 line
	line=$(join_command)
	# shellcheck disable=SC2086 # the line is a command with arguments
	enter "$name" $line --ignore-preflight-errors="$ignored_checks" >"$run/$name/join" 2>&1 || die "$name did not join: $(cat "$run/$name/join")"
	until_ok "$name's part of the Pod network" has_pod_cidr "$name"
	connect "$name"
	until_ok "node $name" kubectl wait --for=condition=Ready --timeout=10s "node/$name"
	say "$name is ready, with Kubernetes $(kubelet_version "$name")"
}

kubelet_version() { kubectl get node "$1" -o 'jsonpath={.status.nodeInfo.kubeletVersion}'; }
has_pod_cidr() { [ -n "$(pod_cidr "$1")" ]; }
pod_cidr() { kubectl get node "$1" -o 'jsonpath={.spec.podCIDR}'; }

# connect NAME does what a network plugin's DaemonSet does: it gives Pods addresses of the node's
# podCIDR, and tells the other machines where to find them.
connect() {
	local name=$1 cidr dir other
	cidr=$(pod_cidr "$name")
	echo "$cidr" >"$run/$name/pod-cidr"
	enter "$name" mkdir -p /etc/cni/net.d
	enter "$name" tee /etc/cni/net.d/10-bridge.conflist >/dev/null <<END
{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
      "ipam": {"type": "host-local", "ranges": [[{"subnet": "$cidr"}]], "routes": [{"dst": "0.0.0.0/0"}]}
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
END
	for dir in "$run"/*/address; do
		other=$(basename "$(dirname "$dir")")
		[ "$other" != "$name" ] || continue
		enter "$other" ip route replace "$cidr" via "$(address_of "$name")"
		[ ! -e "$run/$other/pod-cidr" ] || enter "$name" ip route replace "$(cat "$run/$other/pod-cidr")" via "$(address_of "$other")"
	done
}

# join_command prints the line to paste on a node.
join_command() { enter server karve token create --print-join-command --data-dir /var/lib/karve; }
