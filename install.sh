#!/bin/sh
# Downloads Karve, checks its signature, and lets it install itself. Read it, and run it as usage says.
#
# - SHA256SUMS is signed, so its origin does not matter. If the machine has neither minisign nor OpenSSL 3 to
#   check that, https must protect the download, and no redirect may lead from https to http, for which
#   curl has an option. With wget, or a mirror by http, the signature must be checked.
# - The signature includes the version, as an older release has a valid signature too: it must be the
#   release that was asked for, and otherwise none that is older than the installed one.
# - No address is among the arguments of curl or GNU wget, as a mirror's may have a password.
# - Everything is in functions, and the last line calls them: half a script does nothing.
set -u
umask 022

# A shell that reads this script from a pipe has no file whose head it could print.
usage() {
	cat <<'END'
Downloads Karve, checks its signature, and lets it install itself. Read it, and run it:

  curl -fsSLO https://github.com/karve-k8s/karve/releases/latest/download/install.sh && sh install.sh
  sh install.sh --secure-port 443 --tls-san board.example   options of `karve server`
  KARVE_SECURE_PORT=443 sh install.sh                       the same as variables
  KARVE_BINARY=./karve sh install.sh                        without a network
  sh install.sh --with-node                                 the server, and this machine as its node;
                                                            what follows are options of a node
  KARVE_TOKEN=T sh install.sh node --server URL --ca-hash H this machine as a node of another server
  sh install.sh node                                        its kubelet in the server's version
  sh install.sh binary [DIRECTORY]                          only the programs: no service, no configuration
  sh install.sh unit [user]                                 only print the systemd unit

The same command upgrades. `karve install --help` and `karve node install --help` say what happens once the
program is here. Do not pipe this script into a shell: if its download fails, `curl … | sh` succeeds.

Variables of this script:
  KARVE_VERSION         a release, such as v1.37.2+karve.1 (default: the newest one)
  KARVE_DOWNLOAD_URL    a mirror: where SHA256SUMS, SHA256SUMS.minisig and the programs of a release are
  KARVE_BINARY          a file to install instead; it may end in .xz or .gz, and is checked
                        if a SHA256SUMS beside it names it
  KARVE_REQUIRE_SIGNATURE  yes: install nothing whose signature was not checked; no: accept what is not
                        signed, or cannot be checked. A wrong signature is always refused
END
}

# The public keys of releases, with spaces between; the first is that of
# release/release.pub. docs/release.md says how they change.
release_keys='RWTbTOAIDc8fAxjosbhJPUeHbmQob1kk8hVrMeWL7Tdr4vJb9fS1YVTI'
releases=https://github.com/karve-k8s/karve/releases
stall=60 # seconds without a byte that end a download

say() { printf 'karve: %s\n' "$*"; }
warn() { printf 'karve: %s\n' "$*" >&2; }
fail() {
	warn "$*"
	warn "nothing was changed"
	exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# platform sets the name by which releases call this machine.
platform() {
	case $(uname -s) in
	Linux) os=linux ;;
	Darwin) os=darwin ;;
	*) fail "there is no release for $(uname -s): build Karve with scripts/build" ;;
	esac
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	armv7* | armv8*) arch=armv7 ;;
	armv6*) arch=armv6 ;;
	riscv64) arch=riscv64 ;;
	*) fail "there is no release for $(uname -m): build Karve with scripts/build" ;;
	esac
}

# downloader prints the program to download with.
downloader() {
	if have curl; then echo curl; elif wget --help 2>&1 | grep -q -e '--input-file'; then echo wget; elif have wget; then echo busybox; fi
}

# get URL FILE
get() {
	# Files for curl and wget do not take these characters as they are.
	address=$(printf '%s\n' "$1" | sed 's/\\/%5C/g; s/"/%22/g')
	case $(downloader) in
	curl)
		case $1 in https:*) protocols='=https' ;; *) protocols='=http,https' ;; esac
		printf 'url = "%s"\n' "$address" | curl -fsSL --proto "$protocols" --retry 3 --connect-timeout 20 \
			--speed-limit 1 --speed-time "$stall" -o "$2" --config -
		;;
	wget) printf '%s\n' "$address" | wget -q --tries=3 --timeout="$stall" -O "$2" -i - ;;
	busybox) # which has no such limit in every build: this one is for all of the download
		if have timeout; then set -- "$1" "$2" timeout $((stall * 20)); fi
		file=$2
		shift 2
		"$@" wget -q -O "$file" "$address"
		;;
	esac
}

download() {
	get "$1" "$2" 2>"$work/said" ||
		fail "$(shown "$1") could not be downloaded: $(tail -n 1 "$work/said")$(little_space "$2"). Is there a network? KARVE_DOWNLOAD_URL names a mirror, KARVE_BINARY a file to install instead"
}
# shown URL prints it without the user and the password of a mirror.
shown() { printf '%s\n' "$1" | sed 's,//[^/]*@,//,'; }
# little_space FILE says how much space is left for it, if that may be the reason.
little_space() { df -Pk "$(dirname "$1")" | awk 'END { mb = int($4 / 1024); if (mb < 500) print " (" mb " MB free on " $6 ")" }'; }

# verifier prints the program that can check signatures.
verifier() {
	if have minisign; then echo minisign; elif openssl pkeyutl -help 2>&1 | grep -q -e -rawin; then echo openssl; fi
}

# signature_matches FILE SIGNATURE KEY does what minisign -V -P KEY does, with OpenSSL if need
# be, and writes the comment that is signed too to $work/comment. Signature and key both begin with
# the letters "Ed" and the number of the key, ten bytes; of the signature's 74, an Ed25519
# signature of the file follows. The second signature is of the first one and the comment.
signature_matches() {
	if [ "$(verifier)" = minisign ]; then
		minisign -V -Q -P "$3" -m "$1" -x "$2" >"$work/comment" 2>/dev/null
		return
	fi
	sed -n 2p "$2" | openssl base64 -d -A >"$work/signature" 2>/dev/null
	printf '%s\n' "$3" | openssl base64 -d -A >"$work/key" 2>/dev/null
	[ "$(wc -c <"$work/signature")" -eq 74 ] && [ "$(wc -c <"$work/key")" -eq 42 ] || return 1
	head -c 10 "$work/key" >"$work/number"
	head -c 10 "$work/signature" | cmp -s - "$work/number" || return 1
	# The key as OpenSSL reads it: RFC 8410, section 4, has these twelve bytes before it.
	{ printf '\060\052\060\005\006\003\053\145\160\003\041\000' && tail -c 32 "$work/key"; } >"$work/key.der"
	tail -c 64 "$work/signature" >"$work/signature.raw"
	by_openssl "$1" "$work/signature.raw" || return 1
	sed -n '3s/^trusted comment: //p' "$2" >"$work/comment"
	[ -s "$work/comment" ] || return 1
	{ cat "$work/signature.raw" && tr -d '\n' <"$work/comment"; } >"$work/signature.and.comment"
	sed -n 4p "$2" | openssl base64 -d -A >"$work/signature.second" 2>/dev/null
	by_openssl "$work/signature.and.comment" "$work/signature.second"
}
# by_openssl FILE SIGNATURE checks one Ed25519 signature with the key in $work/key.der.
by_openssl() { openssl pkeyutl -verify -pubin -keyform DER -inkey "$work/key.der" -rawin -in "$1" -sigfile "$2" >/dev/null 2>&1; }

# check_signature SUMS ORIGIN PROTECTED checks SUMS against SUMS.minisig, and sets signed_version if it could.
# PROTECTED is yes if nobody could change SUMS on its way.
check_signature() {
	if [ -z "$(verifier)" ]; then
		[ "$signature" != yes ] || fail "the signature of $2 cannot be checked, but KARVE_REQUIRE_SIGNATURE is set: install minisign or OpenSSL 3"
		[ "$3" = yes ] || [ "$signature" = no ] ||
			fail "the signature of $2 cannot be checked, and only https by curl would protect the download without it: install minisign or OpenSSL 3, copy the file to this machine and set KARVE_BINARY, or accept it nevertheless with KARVE_REQUIRE_SIGNATURE=no"
		warn "the signature of $2 was NOT checked: neither minisign nor OpenSSL 3 is installed"
		return
	fi
	for key in $release_keys; do
		if signature_matches "$1" "$1.minisig" "$key"; then
			signed_version=$(sed -n 's/^karve \(v[0-9][0-9A-Za-z.+-]*\)$/\1/p' "$work/comment")
			[ -n "$signed_version" ] || fail "the signature of $2 is of \"$(cat "$work/comment")\", which is no release of Karve"
			say "the signature of $2 is good (checked by $(verifier)): $signed_version"
			return
		fi
	done
	fail "the signature of $2 is wrong: either the release manager did not make it, or only a newer install.sh has the key. Nothing of it was used"
}

version_of() { "$1" version 2>/dev/null | sed -n '1s/^\(karve  *\)\{0,1\}\(v[0-9][0-9A-Za-z.+-]*\).*/\2/p'; }

# check_version VERSION ORIGIN refuses a release that is there in the place of another: its signature is as good.
check_version() {
	if [ -n "$asked" ]; then
		[ "$asked" = "$1" ] || fail "$2 has Karve $1, not $asked: the address of another release is given, or this server offers the wrong one"
	elif [ -x "$bin_dir/karve" ]; then
		installed=$(version_of "$bin_dir/karve")
		! older "$1" "$installed" ||
			fail "$2 has Karve $1, which is older than $installed, which is installed. To return to it, set KARVE_VERSION=$1 (docs/install.md)"
	fi
}

# older A B tells whether version A comes before B. It is false if one of them is empty.
older() {
	[ -n "$1" ] && [ -n "$2" ] && printf '%s\n%s\n' "$1" "$2" | awk -F '[^0-9]+' '
		{ for (i = 2; i <= 5; i++) part[NR, i] = $i + 0 }
		END {
			for (i = 2; i <= 5; i++) if (part[1, i] != part[2, i]) exit (part[1, i] > part[2, i])
			exit 1
		}'
}

# check_sum FILE NAME SUMS compares a file with the checksum of its name in the list.
check_sum() {
	want=$(awk -v name="$2" '$2 == name || $2 == "*" name { print $1; exit }' "$3")
	[ -n "$want" ] || fail "SHA256SUMS does not name $2: there may be no release for this machine"
	got=$(sha256sum <"$1" 2>/dev/null || shasum -a 256 <"$1" 2>/dev/null || openssl dgst -sha256 -r <"$1" 2>/dev/null) ||
		fail "none of sha256sum, shasum and openssl is installed to check $2: install one"
	[ "${got%%[ *]*}" = "$want" ] || fail "$2 is damaged: its SHA-256 is ${got%%[ *]*} instead of $want. Try again"
}

# unpacks_xz: the programs for amd64 are packed with a filter that busybox does not have.
unpacks_xz() { have xz && { [ "$arch" != amd64 ] || xz --version 2>/dev/null | grep -q liblzma; }; }

# from_network sets $packed to a program of a release, which has been checked.
from_network() {
	platform
	if unpacks_xz; then suffix=xz; elif have gzip; then suffix=gz; else fail "neither xz nor gzip is installed: install one"; fi
	if [ -n "${KARVE_VERSION:-}" ]; then base=$releases/download/$KARVE_VERSION; else base=$releases/latest/download; fi
	# Releases are named like v1.37.2+karve.1, and some servers read a plus sign as a space.
	base=$(printf '%s' "${KARVE_DOWNLOAD_URL:-$base}" | sed 's/+/%2B/g; s,/$,,')
	if [ -z "$asked" ]; then
		asked=$(printf '%s' "${base##*/}" | sed 's/%2[Bb]/+/')
		case $asked in v[0-9]*+karve.*) ;; *) asked='' ;; esac
	fi
	origin=$(shown "$base") protected=no
	case $(downloader):$base in
	:*) fail "neither curl nor wget is installed: install one, or copy the file to this machine and set KARVE_BINARY" ;;
	curl:https:*) protected=yes ;;
	busybox:*) [ "$origin" = "$base" ] ||
		fail "KARVE_DOWNLOAD_URL has a user or a password, which this wget would show to every user of this machine in its arguments: install curl or GNU wget, or copy the file to this machine and set KARVE_BINARY" ;;
	esac
	name=karve-$os-$arch.$suffix packed=$work/$name
	say "downloading $origin/$name"
	[ "$os" != darwin ] || say "no test has run Karve on macOS: docs/machines.md says what is known"
	download "$base/SHA256SUMS" "$work/SHA256SUMS"
	if get "$base/SHA256SUMS.minisig" "$work/SHA256SUMS.minisig" 2>/dev/null && [ -s "$work/SHA256SUMS.minisig" ]; then
		check_signature "$work/SHA256SUMS" "$origin/SHA256SUMS" $protected
	else
		[ "$signature" = no ] || fail "$origin/SHA256SUMS.minisig could not be downloaded, but releases are signed. To install your own unsigned build, set KARVE_REQUIRE_SIGNATURE=no"
		warn "$origin/SHA256SUMS is not signed, and is accepted, because KARVE_REQUIRE_SIGNATURE=no is set"
	fi
	[ -z "$signed_version" ] || check_version "$signed_version" "$origin"
	download "$base/$name" "$packed"
	check_sum "$packed" "$name" "$work/SHA256SUMS"
}

# from_file sets $packed to KARVE_BINARY. It needs no signature, unless one is required.
from_file() {
	packed=$KARVE_BINARY
	[ -r "$packed" ] || fail "KARVE_BINARY: $packed cannot be read"
	sums=$(dirname "$packed")/SHA256SUMS name=$(basename "$packed")
	if ! [ -s "$sums.minisig" ] || ! grep -q "[ *]$name\$" "$sums"; then
		[ "$signature" != yes ] || fail "KARVE_BINARY: $packed is not signed, but KARVE_REQUIRE_SIGNATURE is set: put SHA256SUMS and SHA256SUMS.minisig beside it"
	else
		check_signature "$sums" "$sums" yes
	fi
	if grep -q "[ *]$name\$" "$sums" 2>/dev/null; then
		check_sum "$packed" "$name" "$sums"
	else
		say "no SHA256SUMS beside $packed names it: it is installed unchecked"
	fi
}

# obtain creates $program, on the file system where it will be: if it does not fit or run there, it fails here.
obtain() {
	mkdir -p "$bin_dir" || fail "$bin_dir could not be created"
	stage=$bin_dir/.karve-install.$$ # the next installation removes it if this process has been killed
	rm -rf "$stage"
	mkdir -m 700 "$stage" || fail "$bin_dir cannot be written"
	trap 'rm -rf "$stage"' EXIT
	trap 'fail interrupted' INT TERM HUP
	work=$stage/work program=$stage/karve
	mkdir "$work" || fail "$work could not be created"
	if [ -n "${KARVE_BINARY:-}" ]; then from_file; else from_network; fi
	case $packed in
	*.xz) xz -dc <"$packed" >"$program" ;;
	*.gz) gzip -dc <"$packed" >"$program" ;;
	*) cat <"$packed" >"$program" ;;
	esac || fail "$packed could not be unpacked to $bin_dir$(little_space "$program")"
	chmod 0755 "$stage" "$program"
	"$program" version >"$work/version" 2>&1 || fail "the new program does not run here: $(head -n 1 "$work/version")"
	version=$(version_of "$program")
	[ -z "${KARVE_VERSION:-}" ] || [ "$KARVE_VERSION" = "$version" ] || fail "KARVE_VERSION is $KARVE_VERSION, and $(shown "$packed") is $version"
	rm -rf "$work"
}

# only_programs is for CI: nothing is outside the directory.
only_programs() {
	# A service's program is only replaced with a backup and a way back.
	[ ! -e "$bin_dir/karve-uninstall.sh" ] || fail "Karve is installed in $bin_dir as a service: run install.sh without \"binary\" to upgrade it, or name another directory"
	if [ -e "$bin_dir/karve" ] || [ -L "$bin_dir/karve" ]; then
		case $(version_of "$bin_dir/karve") in
		*+karve*) ;;
		*) fail "$bin_dir/karve is another program than Karve's: move it away, or name another directory" ;;
		esac
	fi
	[ -n "$1" ] || [ ! -e /usr/bin/karve ] || fail "the package karve is installed here: upgrade it with a newer package, or name a directory"
	obtain
	mv -f "$program" "$bin_dir/karve" || fail "$bin_dir/karve could not be written"
	[ -e "$bin_dir/kubectl" ] || have kubectl || ln -s karve "$bin_dir/kubectl" || warn "$bin_dir/kubectl could not be created"
	say "$version is $bin_dir/karve"
}

# hand_over COMMAND… runs the new program, and ends as it does.
hand_over() {
	"$program" install --help >/dev/null 2>&1 || fail "Karve $version is older than this install.sh: use the install.sh of that release"
	trap : INT TERM HUP # a terminal sends them to the program, too, which ends in its own way
	"$program" "$@"
	exit
}

main() {
	for argument; do
		case $argument in -h | --help) usage && return ;; esac
	done
	signed_version='' asked=${KARVE_VERSION:-} bin_dir=/usr/local/bin
	case $asked in '' | v[0-9]*+karve.[0-9]*) ;; *) fail "KARVE_VERSION $asked: want a release, such as v1.37.2+karve.1" ;; esac
	case ${KARVE_REQUIRE_SIGNATURE:-} in
	'') signature=if-possible ;;
	1 | yes | true) signature=yes ;;
	0 | no | false) signature=no ;;
	*) fail "KARVE_REQUIRE_SIGNATURE $KARVE_REQUIRE_SIGNATURE: want yes or no" ;;
	esac
	if [ "${1:-}" = binary ] && [ -n "${2:-}" ]; then
		bin_dir=$2
	elif [ "$(id -u)" != 0 ]; then
		bin_dir=${HOME:?}/.local/bin
	fi
	case ${1:-} in
	binary) only_programs "${2:-}" ;;
	node) shift && obtain && hand_over node install "$@" ;;
	unit) shift && obtain >&2 && hand_over install --print-unit "$@" ;;
	*) obtain && hand_over install "$@" ;;
	esac
}

main "$@"
