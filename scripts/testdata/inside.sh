# shellcheck shell=bash
# For what runs in the virtual machine of scripts/systemd-test. What it says on the console is read there.
export KUBECONFIG=/var/lib/karve/admin.kubeconfig HOME=/root
cd /root || exit

say() { printf 'systemd-test: %s\n' "$*"; }
step() {
	say "$1 (at $SECONDS s)"
	case=$1
}
die() {
	local unit
	say "FAIL $case: $*"
	for unit in karve "${units[@]}"; do
		systemctl status --no-pager --full "$unit" 2>/dev/null
		journalctl --no-pager -n 40 -o cat -u "$unit"
	done
	sync
	systemctl poweroff 2>/dev/null
	exit 1
}
units=() # whose logs explain a failure, beside karve's
is() { [ "$2" = "$3" ] || die "$1: got \"$2\", want \"$3\""; }
property() { systemctl show -P "$1" karve; }
limit=1200
# until_true WHAT COMMAND waits for what happens by itself, and sets how long it took.
until_true() {
	local began=$SECONDS what=$1
	shift
	until said=$("$@" 2>&1); do
		if [ $((SECONDS - began)) -gt $limit ]; then die "$what: not after $limit s: $said"; fi
		sleep 1
	done
	# shellcheck disable=SC2034 # for the scripts
	took=$((SECONDS - began))
}
# reboot_now remembers that it did, for the script's next start.
reboot_now() {
	step "reboot"
	touch /root/rebooted
	sync
	systemctl reboot 2>/dev/null
}
passed() {
	say passed
	sync
	systemctl poweroff 2>/dev/null
}
