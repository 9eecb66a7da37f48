# shellcheck shell=bash
# For what `scripts/systemd-test nodes` and `kubeadm` run in the virtual machine, after inside.sh.
# shellcheck disable=SC2034 # inside.sh prints their logs
units=(karve-node containerd kubelet)
limit=1200
node=board
busybox=$(/opt/karve/image -names e2e:busybox)
agnhost=$(/opt/karve/image -names e2e:agnhost)

# must WHAT COMMAND... fails with what the command said.
must() {
	local what=$1
	shift
	said=$("$@" 2>&1) || die "$what: $said"
}
# install ARGS... runs install.sh with the programs in $from.
from=/opt/karve
install() { must "install.sh $*" env KARVE_BINARY=$from/karve KARVE_INSTALL_TIMEOUT=$limit sh /opt/karve/install.sh "$@"; }
is_ready() { kubectl wait --for=condition=Ready --timeout=5s "node/$node"; }
# load_images puts the images where the kubelet looks for them. A pause of the name that containerd has is pulled elsewhere.
load_images() {
	local file pause
	for file in /opt/karve/*.tar; do must "ctr images import $file" ctr -n k8s.io images import "$file"; done
	pause=$(containerd config dump | sed -n 's/^ *sandbox_image = "\(.*\)"/\1/p')
	must "ctr images tag" ctr -n k8s.io images tag --force "$(ctr -n k8s.io images ls -q | grep /pause: | head -n 1)" "$pause"
}
start_pod() {
	must "kubectl run $1" kubectl run "$1" --image "$busybox" --command -- sh -c "trap 'exit 0' TERM; echo hello from $1; while :; do sleep 1; done"
	until_true "Pod $1" kubectl wait --for=condition=Ready --timeout=5s "pod/$1"
}
# files prints what is on the machine, apart from what changes by itself and what apt and dpkg keep.
files() {
	find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /root -o -path /opt/karve \
		-o -path '/var/log/journal/*' -o -path '/var/lib/apt/*' -o -path '/var/cache/*' -o -path '/var/lib/dpkg/*' -o -path '/var/lib/systemd/*' \
		-o -path '/var/log/apt/*' -o -path '/var/tmp/*' \) -prune -o -print | sort
}
packages() { dpkg-query --show --showformat '${Package} ${db:Status-Status}\n' | sort; }
# running_state prints what of Kubernetes and Karve runs, is mounted or is in the network and the control groups.
running_state() {
	find /proc -maxdepth 2 -name exe \( -lname '*karve*' -o -lname '*kube*' \) ! -lname '/opt/karve/*' -printf '%p -> %l\n' 2>/dev/null
	grep -oE ' (/var/lib/kubelet|/run/netns|/var/run/netns)[^ ]*' /proc/self/mountinfo
	find /sys/class/net -name 'karve*' -o -name 'veth*'
	find /sys/fs/cgroup -type d \( -name 'kubepods*' -o -name 'cri-containerd*' -o -name 'karve*' \)
	systemctl list-units --all --plain --no-legend 'kubepods*' 'karve*' 'cri-containerd*' 'var-lib-kubelet*'
}
