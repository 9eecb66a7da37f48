# shellcheck shell=bash disable=SC2154 # scripts/nodes has $build and $run
# A node that install.sh makes, beside those of kubeadm. The programs come from files: there is no
# internet here.

# install_node NAME LINE ARGS... runs the line of karve token create --print-install-command on a machine.
install_node() {
	local name=$1 line=${2#*&& }
	shift 2
	# shellcheck disable=SC2086 # variables, and arguments
	enter "$name" env KARVE_BINARY=/opt/nodes/karve ${line%% sh *} sh -s - ${line#*install.sh } "$@" --kubelet /opt/nodes/kubelet <install.sh >"$run/$name/install" 2>&1 ||
		die "install.sh node: $(cat "$run/$name/install")"
}

# installed_node makes one, replaces its kubelet under a running Pod, and removes it beside a container
# that is nobody's Pod.
installed_node() {
	local name=node-3 line before
	add_node $name
	# What the node finds: another program's container in containerd.
	enter $name ctr -n other images import --snapshotter "$(snapshotter)" - <"$build/images/busybox.tar" >/dev/null
	enter $name ctr -n other run --snapshotter "$(snapshotter)" -d "$busybox" bystander sleep 100000
	line=$(enter server karve token create --print-install-command)
	install_node $name "$line"
	until_ok "node $name" kubectl wait --for=condition=Ready --timeout=10s "node/$name"
	enter $name test ! -e /etc/karve-node/bootstrap.kubeconfig || die "the token is left on $name"

	start_pod installed $name "$busybox" sh -c "trap exit TERM; $counter" # without the trap, removing it takes 30 s
	until_ok "a line of the log" later_line installed ""
	same "exec" "$(kubectl exec installed -- hostname)" installed
	before=$(container_state installed)
	enter $name karve node upgrade --kubelet /opt/nodes/kubelet >"$run/$name/upgrade" 2>&1 || die "karve node upgrade: $(cat "$run/$name/upgrade")"
	same "the container after an upgrade" "$(container_state installed)" "$before"
	until_ok "exec after an upgrade" enter server kubectl exec installed -- hostname

	enter $name karve-node-uninstall.sh >"$run/$name/uninstall" 2>&1 || die "karve-node-uninstall.sh: $(cat "$run/$name/uninstall")"
	same "containers of Pods" "$(enter $name ctr -n k8s.io containers ls -q)" ""
	same "another program's container" "$(enter $name ctr -n other tasks ls -q)" bystander
	same "left over" "$(enter $name sh -c 'ls -d /etc/karve-node /usr/local/lib/karve-node /etc/systemd/system/karve-node*.service /etc/cni/net.d/* /sys/class/net/karve0 /var/lib/kubelet/* /usr/local/bin/karve /run/netns/* 2>/dev/null; grep -o " /var/lib/kubelet/[^ ]*" /proc/self/mountinfo; pgrep -a kubelet')" ""
	kubectl delete node $name >/dev/null
	remove_machine $name
}
