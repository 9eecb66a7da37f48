# shellcheck shell=bash
# What scripts/install-test needs: namespaces of their own, with an empty
# /usr/local, /var/lib and /run, with copies of /etc and /usr/bin that are thrown away, and
# without a network but their own; releases that are signed with a key made for the test; and
# the words that a test case is written in.

# new_sandbox makes $work, with an install.sh that knows the test's key in repo/.
new_sandbox() {
	[ "$(id -u)" = 0 ] || { echo "$(basename "$0"): has to be run by root" >&2; exit 1; }
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	chmod 755 "$work"
	mkdir "$work/repo"
	local keys name
	keys=$(sed -n "s/^release_keys='\\(.*\\)'$/\\1/p" install.sh)
	[ "${keys%% *}" = "$(tail -n 1 release/release.pub)" ] || { echo "$(basename "$0"): the first key of install.sh is not that of release/release.pub" >&2; exit 1; }
	for name in ours others; do minisign -G -W -p "$work/$name.pub" -s "$work/$name.key" >/dev/null; done
	cp test/machines/machine/systemctl "$work/repo"
	# The second one of two keys, as after a new one was made.
	sed "s,^release_keys=.*,release_keys='${keys%% *} $(tail -n 1 "$work/ours.pub")'," install.sh >"$work/repo/install.sh"
}

# in_sandbox runs the script again, in namespaces, with the arguments "inside" and $work.
in_sandbox() { unshare --mount --net --pid --fork --kill-child --mount-proc "$0" inside "$work"; }

# enter_sandbox WORK hides this machine's directories, and starts a web server for releases.
enter_sandbox() {
	work=$1
	web=$work/web
	mkdir "$web"
	mount -t tmpfs tmpfs /run
	for dir in /etc /usr/bin; do
		mkdir -p "/run/layers$dir/upper" "/run/layers$dir/work"
		mount -t overlay overlay -o "lowerdir=$dir,upperdir=/run/layers$dir/upper,workdir=/run/layers$dir/work" "$dir"
	done
	mount -t tmpfs tmpfs /usr/local
	mount -t tmpfs tmpfs /var/lib
	mkdir -p /run/systemd/system /usr/local/sbin /usr/local/bin /etc/systemd/system
	cp "$work/repo/systemctl" /usr/local/sbin/systemctl
	export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root SHELL=/bin/sh
	rm -f /usr/bin/kubectl
	unset "${!KARVE_@}"
	ip link set lo up
	busybox httpd -f -p 127.0.0.1:8000 -h "$web" &
	export KARVE_DOWNLOAD_URL=http://127.0.0.1:8000
	until curl -s -o /dev/null http://127.0.0.1:8000/; do sleep 0.1; done
}

case=
start_case() {
	case=$1
	printf '%s: %s\n' "$SECONDS s" "$1"
}

die() {
	printf 'FAIL %s: %s\n' "$case" "$*" >&2
	tail -n 30 "$work/out" >&2 || true
	exit 1
}

same() { [ "$2" = "$3" ] || die "$1: got \"$2\", want \"$3\""; }
says() { grep -qF -- "$1" "$work/out" || die "the output does not have \"$1\""; }

arch() { case $(uname -m) in x86_64) echo amd64 ;; aarch64) echo arm64 ;; *) die "an unknown machine" ;; esac; }

# publish FILE [VERSION] puts a release of that program on the web, in the version that it prints.
publish() {
	local version=${2:-}
	[ -n "$version" ] || version=$("$1" version | grep -om 1 'v[0-9][^ ,]*') || die "$1 prints no version"
	rm -f "$web"/*
	xz -0 -c "$1" >"$web/karve-linux-$(arch).xz"
	gzip -1 -c "$1" >"$web/karve-linux-$(arch).gz"
	(cd "$web" && sha256sum karve-* >SHA256SUMS)
	sign "$web" "karve $version"
}

# sign DIR COMMENT signs the checksums as a release's are.
sign() { INSTALL=$work/repo/install.sh release/sign "$work/ours.key" "$1/SHA256SUMS" "$2" >"$work/signed" 2>&1 || die "release/sign: $(cat "$work/signed")"; }

# install ARGS: the way people do it, through a pipe.
install() { sh -s - "$@" <"$work/repo/install.sh" >"$work/out" 2>&1; }
installs() { install "$@" || die "install.sh failed"; }
refuses() { ! install "$@" || die "install.sh did not fail"; }

# nothing_left: no file of an unfinished installation lies about.
nothing_left() {
	same "left over" "$(find /usr/local/bin /etc/karve /etc/systemd/system -name '.karve-*' -o -name '*.previous' -o -name '*.new' 2>/dev/null)" ""
}
