# shellcheck shell=bash disable=SC2154 # scripts/nodes has $build and $run
# Machines: namespaces of every kind, joined by a bridge in a network namespace of its own.
# All of a machine's processes end with its first one, and with them its network and mounts.
# What is left to remove are its directory and its control groups.
#
# $run has a directory for each machine, with the id of its first process (pid), its address and
# the output of its first process (log).

network=192.168.77 # only these machines see it
group=karve-nodes-$(sha256sum <<<"$run" | head -c 8)

# hierarchies prints where control groups are mounted.
hierarchies() { awk '$3 == "cgroup" || $3 == "cgroup2" && $2 == "/sys/fs/cgroup" { print $2 }' /proc/mounts; }

# make_groups NAME makes the control groups of a machine. With version 2 a group has either processes or
# children with controllers, so a machine's processes begin in its child init; NAME-parent is for the
# process outside of the machine that waits for it.
make_groups() {
	local hierarchy file dir
	for hierarchy in $(hierarchies); do
		mkdir -p "$hierarchy/$group/$1" "$hierarchy/$group/$1-parent"
		if [ -e "$hierarchy/cpuset.mems" ]; then # version 1: a new group has none
			for file in cpuset.cpus cpuset.mems; do
				cat "$hierarchy/$file" >"$hierarchy/$group/$file"
				for dir in "$1" "$1-parent"; do
					cat "$hierarchy/$file" >"$hierarchy/$group/$dir/$file"
				done
			done
		elif [ -e "$hierarchy/cgroup.controllers" ]; then # version 2
			divide "$hierarchy" "$hierarchy" || make_leaf "$hierarchy"
			divide "$hierarchy" "$hierarchy/$group" || die "the control groups in $hierarchy/$group cannot be divided"
			mkdir -p "$hierarchy/$group/$1/init"
		fi
	done
}

# divide HIERARCHY GROUP gives the group's children all controllers.
divide() { { sed 's/[^ ][^ ]*/+&/g' "$1/cgroup.controllers" >"$2/cgroup.subtree_control"; } 2>/dev/null; }

# make_leaf HIERARCHY moves the processes of a container that has control groups of its own from the group
# that the container sees as the root into a child, as programs that run containers in containers do.
make_leaf() {
	local pid
	if mkdir -p "$1/init" 2>/dev/null; then
		for _ in 1 2 3 4 5; do # a process may have a child meanwhile
			while read -r pid; do
				{ echo "$pid" >"$1/init/cgroup.procs"; } 2>/dev/null || true # it may have ended
			done <"$1/cgroup.procs"
			! divide "$1" "$1" || return 0
		done
	fi
	die "the control groups in $1 cannot be divided: run it outside of a container, or in one with --privileged --cgroupns=private"
}

# enter_groups NAME moves this process into the control groups of a machine, or into those of its parent.
enter_groups() {
	local hierarchy
	for hierarchy in $(hierarchies); do
		if [ -e "$hierarchy/$group/$1/init" ]; then
			echo "$BASHPID" >"$hierarchy/$group/$1/init/cgroup.procs"
		else
			echo "$BASHPID" >"$hierarchy/$group/$1/cgroup.procs"
		fi
	done
}

# remove_groups GROUP removes it with its children. A group stays busy for a moment after its last process.
remove_groups() {
	local hierarchy
	for hierarchy in $(hierarchies); do
		for _ in $(seq 100); do
			[ -d "$hierarchy/$1" ] || break
			! find "$hierarchy/$1" -depth -type d -exec rmdir {} + 2>/dev/null || break
			sleep 0.1
		done
		[ ! -d "$hierarchy/$1" ] || say "$hierarchy/$1 is left: rmdir fails"
	done
}

# start_bridge makes the network that joins the machines.
start_bridge() {
	mkdir -p "$run/bridge"
	chmod 700 "$run"
	make_groups bridge
	(
		enter_groups bridge
		exec setsid unshare --net --fork --kill-child sleep infinity
	) >"$run/bridge/log" 2>&1 </dev/null &
	disown $!
	first_process $! >"$run/bridge/pid"
	on_bridge ip link add br0 type bridge
	on_bridge ip addr add "$network.1/24" dev br0
	on_bridge ip link set br0 up
}

on_bridge() { nsenter -t "$(cat "$run/bridge/pid")" -n -- "$@"; }

# first_process UNSHARE prints the id of the child of that process.
first_process() {
	until_ok "unshare's process" has_child "$1"
	tr -d ' ' <"/proc/$1/task/$1/children"
}
has_child() {
	[ "$(cat "/proc/$1/comm")" = unshare ] && [ -n "$(cat "/proc/$1/task/$1/children")" ]
}

# start_machine NAME NUMBER BIN starts one with the programs in BIN; the last byte of its address is 10 + NUMBER.
start_machine() {
	local name=$1 address=$network.$((10 + $2)) pid dir=$run/$1 hierarchy groups=()
	[ ! -e "$dir" ] || die "there is already a machine $name"
	mkdir -p "$dir"
	make_groups "$name"
	for hierarchy in $(hierarchies); do groups+=("$hierarchy/$group/$name"); done
	(
		enter_groups "$name-parent"
		exec setsid unshare --net --mount --pid --uts --ipc --fork --kill-child test/machines/machine/init "$name" "$dir" "$3" "$network.1" "${groups[@]}"
	) >"$dir/log" 2>&1 </dev/null &
	disown $!
	pid=$(first_process $!)
	echo "$pid" >"$dir/pid"
	echo "$address" >"$dir/address"
	on_bridge ip link add "to-$2" type veth peer name eth0 netns "$pid"
	on_bridge ip link set "to-$2" master br0 up
	nsenter -t "$pid" -n -- ip addr add "$address/24" dev eth0
	nsenter -t "$pid" -n -- ip link set eth0 up
	nsenter -t "$pid" -n -- ip route add default via "$network.1"
	until_ok "machine $name" machine_is_up "$name"
}

machine_is_up() {
	running "$1" || { cat "$run/$1/log"; return 1; }
	enter "$1" test -e /run/machine-is-up 2>/dev/null
}

running() { [ -e "$run/$1/pid" ] && kill -0 "$(cat "$run/$1/pid")" 2>/dev/null; }

address_of() { cat "$run/$1/address"; }

# enter NAME CMD... runs a command on a machine.
enter() {
	local name=$1
	shift
	running "$name" || die "there is no machine $name"
	(
		enter_groups "$name"
		exec nsenter -t "$(cat "$run/$name/pid")" -m -n -p -u -i -C -- \
			env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM="${TERM:-dumb}" KUBECONFIG=/var/lib/karve/admin.kubeconfig "$@"
	)
}

# remove_machine NAME ends all its processes, at once. All of them are in its control groups.
remove_machine() {
	local name=$1 pids limit=$((SECONDS + 60))
	while pids=$(processes_of "$name") && [ -n "$pids" ]; do
		# A process in a system call that does not end cannot be killed.
		[ $SECONDS -lt $limit ] || die "$name: processes $(paste -sd ' ' <<<"$pids") do not end; ps -o pid,stat,wchan,args has the reason, and scripts/nodes down tries again"
		# shellcheck disable=SC2086 # each is a word
		kill -KILL $pids 2>/dev/null || true
		sleep 0.05
	done
	remove_groups "$group/$name"
	remove_groups "$group/$name-parent"
	rm -rf "${run:?}/$name"
}

# processes_of NAME prints those of a machine, and the one outside of it that waits for it.
processes_of() {
	local hierarchy dir
	for hierarchy in $(hierarchies); do
		for dir in "$1" "$1-parent"; do
			[ ! -d "$hierarchy/$group/$dir" ] || find "$hierarchy/$group/$dir" -name cgroup.procs -exec cat {} + 2>/dev/null || true
		done
	done | sort -u
}

# down takes away what it can, even when a machine does not end.
down() {
	local dir left=
	for dir in "$run"/*/; do
		[ ! -e "$dir" ] || (remove_machine "$(basename "$dir")") || left=1
	done
	[ -z "$left" ] || exit 1
	remove_groups "$group"
	rm -rf "${run:?}"
}

# until_ok WHAT CMD... waits until the command succeeds, and fails with what it last printed.
# The limit is generous: a machine may be busy with other work.
until_ok() {
	local what=$1 limit=$((SECONDS + ${LIMIT:-300})) said
	shift
	until said=$("$@" 2>&1); do
		[ $SECONDS -lt $limit ] || die "$what: not after ${LIMIT:-300} s: $said"
		sleep 0.2
	done
}
