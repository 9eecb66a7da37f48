# shellcheck shell=bash disable=SC2154 # scripts/nodes has $build and $run
# A node that install.sh makes, beside those of kubeadm. The programs come from files: there is no
# internet here.

# playbook NAME ARGS... runs the playbook of docs/fleet.md for a machine. A script stands in for ssh.
playbook() {
	local dir=$run/playbook
	mkdir -p "$dir"
	awk '/^```/ { inside = $0 == "```yaml"; next } inside' docs/fleet.md >"$dir/karve.yml"
	cp install.sh "$dir/"
	printf '[karve_servers]\nserver\n[karve_nodes]\n%s\n' "$1" >"$dir/inventory"
	# shellcheck disable=SC2016 # they are the script's
	printf '#!/bin/bash\nexec scripts/nodes exec "${@: -2:1}" env KARVE_BINARY=/opt/nodes/karve sh -c "${*: -1}"\n' >"$dir/ssh"
	chmod 755 "$dir/ssh"
	enter "$1" find /usr/local/bin/karve -type l -delete # the machine's own link, which an installation does not replace
	ANSIBLE_LOCAL_TEMP=$dir/local ANSIBLE_SSH_EXECUTABLE=$dir/ssh ANSIBLE_SSH_TRANSFER_METHOD=piped KARVE_NODES_DIR=$run \
		ansible-playbook -i "$dir/inventory" -u root --limit "$1" -e "karve_version=$("$build/bin/karve" version | awk '/^karve / { print $2 }')" \
		-e "karve_node_options='--kubelet /opt/nodes/kubelet'" "$dir/karve.yml" "${@:2}" >"$dir/said" 2>&1
}

# installed_node makes one, replaces its kubelet and the cluster's authorities under a running Pod, and removes it beside a
# container that is nobody's Pod.
installed_node() {
	local name=node-3 before
	add_node $name
	# What the node finds: another program's container in containerd.
	enter $name ctr -n other images import --snapshotter "$(snapshotter)" - <"$build/images/busybox.tar" >/dev/null
	enter $name ctr -n other run --snapshotter "$(snapshotter)" -d "$busybox" bystander sleep 100000
	playbook $name || die "the playbook: $(cat "$run/playbook/said")"
	until_ok "node $name" kubectl wait --for=condition=Ready --timeout=10s "node/$name"
	enter $name test ! -e /etc/karve-node/bootstrap.kubeconfig || die "the token is left on $name"

	start_pod installed $name "$busybox" sh -c "trap exit TERM; $counter" # without the trap, removing it takes 30 s
	until_ok "a line of the log" later_line installed ""
	same "exec" "$(kubectl exec installed -- hostname)" installed
	before=$(container_state installed)
	playbook $name || die "the playbook: $(cat "$run/playbook/said")"
	grep -q "changed=0 " "$run/playbook/said" || die "the playbook has changed a node: $(cat "$run/playbook/said")"
	! playbook $name -e karve_version=v1.0.0+karve.1 || die "the playbook upgrades a node to a version that is not there"
	grep -q "KARVE_VERSION is v1.0.0+karve.1" "$run/playbook/said" || die "the playbook: $(cat "$run/playbook/said")"
	enter $name karve node upgrade --kubelet /opt/nodes/kubelet >"$run/$name/upgrade" 2>&1 || die "karve node upgrade: $(cat "$run/$name/upgrade")"
	same "the container after an upgrade" "$(container_state installed)" "$before"
	until_ok "exec after an upgrade" enter server kubectl exec installed -- hostname
	new_authorities $name "$before $(kubectl get node $name -o 'jsonpath={.metadata.uid}')"

	enter $name karve-node-uninstall.sh >"$run/$name/uninstall" 2>&1 || die "karve-node-uninstall.sh: $(cat "$run/$name/uninstall")"
	same "containers of Pods" "$(enter $name ctr -n k8s.io containers ls -q)" ""
	same "another program's container" "$(enter $name ctr -n other tasks ls -q)" bystander
	same "left over" "$(enter $name sh -c 'ls -d /etc/karve-node /usr/local/lib/karve-node /etc/systemd/system/karve-node*.service /etc/cni/net.d/* /sys/class/net/karve0 /var/lib/kubelet/* /usr/local/bin/karve /run/netns/* 2>/dev/null; grep -o " /var/lib/kubelet/[^ ]*" /proc/self/mountinfo; pgrep -a kubelet')" ""
	kubectl delete node $name >/dev/null
	remove_machine $name
}

# new_authorities NAME BEFORE: the cluster replaces its authorities, and the node takes them. Then the cluster does not accept the
# node's certificate, and the line that makes a node gets it another one. The container and the Node are those from BEFORE.
new_authorities() {
	local name=$1 line old
	old=$(enter server pgrep -f '^/usr/local/bin/karve server')
	enter server karve certs rotate-ca --data-dir /var/lib/karve >"$run/rotated" 2>&1 || die "karve certs rotate-ca: $(cat "$run/rotated")"
	enter server systemctl restart karve
	until_ok "another process of the server" another_server "$old"
	until_ok "the server with new authorities" kubectl get --raw /readyz
	enter "$name" systemctl restart karve-node-network # as it does in an hour
	until_ok "the certificate of the new authority" signed_by "$name" "$(enter server openssl x509 -noout -subject_hash -in /var/lib/karve/certs/client-ca.crt)"
	goes_on "$name" "$2"

	# shellcheck disable=SC2016 # they are the shell's of the machine
	enter "$name" sh -c 'openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/O=system:nodes/CN=system:node:$0" -keyout /run/key -out /run/crt 2>/dev/null &&
		cat /run/crt /run/key >"$(readlink -f /var/lib/kubelet/pki/kubelet-client-current.pem)" && systemctl restart karve-node' "$name"
	! enter "$name" karve node status >"$run/$name/status" 2>&1 || die "karve node status says nothing of the certificate: $(cat "$run/$name/status")"
	grep -q "does not accept the certificate" "$run/$name/status" || die "karve node status: $(cat "$run/$name/status")"
	line=$(enter server karve token create --ttl 15m --print-install-command --data-dir /var/lib/karve)
	# shellcheck disable=SC2046 # they are arguments
	enter "$name" env KARVE_BINARY=/opt/nodes/karve "$(grep -o 'KARVE_TOKEN=[^ ]*' <<<"$line")" sh /usr/local/sbin/karve-install.sh $(grep -o 'node --server .*' <<<"$line") --kubelet /opt/nodes/kubelet \
		>"$run/$name/again" 2>&1 || die "the line, run again: $(cat "$run/$name/again")"
	goes_on "$name" "$2"
}

# signed_by NAME HASH tells whether the kubelet's certificate is of an authority.
signed_by() { [ "$(enter "$1" openssl x509 -noout -issuer_hash -in /var/lib/kubelet/pki/kubelet-client-current.pem)" = "$2" ]; }

# goes_on NAME BEFORE: the Pod runs as before, the kubelet reports, and the server reaches it.
goes_on() {
	until_ok "node $1" kubectl wait --for=condition=Ready --timeout=10s "node/$1"
	until_ok "a later line of the log" later_line installed "$(kubectl logs --tail 1 installed)"
	same "the container and the Node" "$(container_state installed) $(kubectl get node "$1" -o 'jsonpath={.metadata.uid}')" "$2"
	start_pod "new-on-$1" "$1" "$busybox" sleep 100000 # the kubelet hears of it
	kubectl delete pod "new-on-$1" --now >/dev/null
}
