#!/bin/sh
# Installs Karve as a service, upgrades it, or changes its options:
#
#   curl -sfL https://github.com/karve-k8s/karve/releases/latest/download/install.sh | sh -
#   … | sh -s - --secure-port 443 --tls-san board.example     options of `karve server`
#   KARVE_SECURE_PORT=443 sh install.sh                       the same as variables
#   KARVE_BINARY=./karve sh install.sh                        without a network
#   sh install.sh unit [user]                                 only print the systemd unit
#   sh install.sh binary [DIRECTORY]                          only the programs: no service, no configuration
#   … | sh -s - --with-node                                   the server, and this machine as its node;
#                                                             what follows are options of a node
#   … | sh -s - node --server URL --token T --ca-hash H       this machine as a node of another server
#   … | sh -s - node                                          its kubelet in the server's version
#
# Options are written to the configuration file. They stay there when the script runs again;
# --name= (with no value) removes one. Write a switch as --name or --name=false.
#
# Variables of this script itself:
#   KARVE_DOWNLOAD_URL     where SHA256SUMS and the binaries are (default: the newest release), such as
#                          https://github.com/karve-k8s/karve/releases/download/v1.37.2+karve.1
#   KARVE_BINARY           a file to install instead; it may end in .xz or .gz, and is checked
#                          if a SHA256SUMS beside it names it
#   KARVE_INSTALL_TIMEOUT  seconds that the service may take to become ready (default: 300)
#   KARVE_INSTALL_CHECK    no: do not run `karve check` first
#   KARVE_REQUIRE_SIGNATURE  yes: install nothing whose signature was not checked;
#                          no: accept a build that is not signed. A wrong signature is
#                          always refused. See docs/install.md.
#
# For root it uses /usr/local/bin, /etc/karve/config.yaml, /var/lib/karve, a user "karve"
# and a service of systemd or OpenRC. For other users it uses ~/.local/bin, ~/.config/karve,
# ~/.local/share/karve and a unit of the user's systemd. If there is no such init system,
# it prints how to run Karve.
#
# Design decisions:
# - Before it touches anything that runs, the new binary has to be there, have the right
#   checksum, start, and know all given options, and `karve check` must find nothing on
#   this machine that would make it fail. The ports and the data of the running version
#   do not count against it.
# - A checksum from the same place as the file detects damage, not an attack. SHA256SUMS is
#   signed, so its origin does not matter. If the machine has neither minisign nor
#   OpenSSL 3 to check the signature, only https protects the download; the script says so.
# - The signature includes the version, as an older release has a valid signature too: if the
#   address names a release, it has to be that one, and otherwise none that is older than the
#   installed one.
# - No redirect leads from https to http. curl has an option for that, and for GNU wget the
#   script follows redirects itself. It uses other programs (busybox) only if it can check
#   the signature.
# - No address is among the arguments of curl or GNU wget, as a mirror's may have a password.
#   busybox's wget takes it nowhere else, so it is not used with such a mirror.
# - It changes the owner of a directory, or removes one with --purge, only if Karve created
#   its contents: the server writes the file karve-data there when it first starts.
# - No uninstallation removes the user karve, as with packages: a number that is free is
#   given again, and whatever belongs to it anywhere would be the next user's.
# - It makes the backup while the service is stopped, with the old binary, which knows the
#   old data. So the backup has everything that was acknowledged. A state.db, which the
#   new version converts, is copied as files.
# - If the new version is not ready in time, the old binary, configuration and unit return,
#   and the data if `karve datastore stats` reports something else than before: a version
#   that refused the data has not changed it. Certificates stay, because every version
#   accepts those of another, and renews those that it cannot use.
# - It counts time in rounds of one second. A clock would not do: on a board without a
#   battery, NTP may set it at any moment.
# - `karve node` does what makes a node: it is a program with tests of its own, and checks
#   signatures and certificates, for which a bare Debian has no tools. This script installs it,
#   and no token is in an argument of a program that it starts.
# - Everything is in functions, and the last line calls them: half a script does nothing.
set -u
umask 022

# The public keys of releases, with spaces between; the first is that of
# scripts/release.pub. docs/release.md says how they change.
release_keys='RWTbTOAIDc8fAxjosbhJPUeHbmQob1kk8hVrMeWL7Tdr4vJb9fS1YVTI'

say() { printf 'karve: %s\n' "$*"; }
warn() { printf 'karve: %s\n' "$*" >&2; }

# fail [MESSAGE] prints what is wrong, restores what was changed, and exits.
fail() {
	trap - INT TERM HUP
	[ $# = 0 ] || warn "$*" # otherwise another program has said it
	if [ "$switched" = yes ]; then
		roll_back
	elif [ "$stopped" = yes ]; then
		stopped=no
		if start_service && wait_ready; then
			warn "the installed version still runs"
		else
			warn "the installed version was started again, but is not ready. Its log ends with:"
			log_lines
		fi
	elif [ "$joining" = yes ] && [ -e "$node_record" ]; then
		warn "a part of the node is left on this machine: remove it with $node_uninstall, and run the script again"
	elif [ -n "$had" ]; then
		warn "nothing was changed: $had"
	else
		warn "nothing was installed"
	fi
	exit 1
}

clean_up() {
	[ "$joining" = no ] || [ -e "$node_record" ] || unplace_node
	[ "$token_made" = no ] || delete_token
	[ -z "$work" ] || rm -rf "$work"
	[ -z "$stage" ] || rm -rf "$stage"
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

# layout sets where everything is, depending on the user.
layout() {
	if [ "$(id -u)" = 0 ]; then
		scope=system
		bin_dir=/usr/local/bin
		config=/etc/karve/config.yaml
		data_dir=/var/lib/karve
		unit=/etc/systemd/system/karve.service
	else
		scope=user
		[ -n "${HOME:-}" ] || fail "HOME is not set"
		bin_dir=$HOME/.local/bin
		config=${XDG_CONFIG_HOME:-$HOME/.config}/karve/config.yaml
		data_dir=${XDG_DATA_HOME:-$HOME/.local/share}/karve
		unit=${XDG_CONFIG_HOME:-$HOME/.config}/systemd/user/karve.service
	fi
	bin=$bin_dir/karve
	uninstall=$bin_dir/karve-uninstall.sh
	node_uninstall=$bin_dir/karve-node-uninstall.sh
	if [ -d /run/systemd/system ] && have systemctl && { [ "$scope" = system ] || ctl show-environment >/dev/null 2>&1; }; then
		init=systemd
	elif [ "$scope" = system ] && have openrc-run && have rc-service; then
		init=openrc
		unit=/etc/init.d/karve
	else
		init=none
		unit=
	fi
	[ ! -x "$bin" ] || had="the installed version is as it was"
}

ctl() {
	if [ "$scope" = user ]; then systemctl --user "$@"; else systemctl "$@"; fi
}

# not_packaged fails if a package has installed Karve: that has a service of its own, with the same data.
not_packaged() {
	[ "$scope" = system ] || return 0
	case $(dpkg-query -W -f '${db:Status-Status}' karve 2>/dev/null) in
	'' | not-installed | config-files)
		rpm -q karve >/dev/null 2>&1 || return 0
		remover="dnf remove karve"
		;;
	*) remover="apt remove karve" ;;
	esac
	fail "the package karve is installed here. Upgrade it with a newer package, or remove it ($remover) and run this script again: it goes on with the data and the configuration"
}

# downloader prints the program to download with; "unsafe" is one that follows redirects
# from https to http.
downloader() {
	if have curl; then
		echo curl
	elif have wget && wget --version 2>/dev/null | grep -q '^GNU Wget 1'; then
		echo wget
	elif have wget; then
		echo unsafe
	fi
}

# download URL FILE
download() {
	case $(downloader) in
	'') fail "neither curl nor wget is installed: install one, or copy the file to this machine and set KARVE_BINARY" ;;
	unsafe)
		[ "$(shown "$1")" = "$1" ] || reads_addresses ||
			fail "KARVE_DOWNLOAD_URL has a user or a password, which this wget would show to every user of this machine in its arguments: install curl or GNU wget, or copy the file to this machine and set KARVE_BINARY"
		case $1 in https:*)
			[ -n "$(verifier)" ] || fail "this wget follows redirects from https to http, and neither minisign nor OpenSSL 3 is installed to check the signature: install one of them, curl or GNU wget, or copy the file to this machine and set KARVE_BINARY"
			;;
		esac
		;;
	esac
	try_download "$1" "$2" || fail "$(shown "$1") could not be downloaded to $2 ($(free_space "$2"))$(why_not)"
}

# shown URL prints it without the user and the password of a mirror.
shown() { printf '%s\n' "$1" | sed 's,//[^/]*@,//,'; }

# try_download is download, but returns an error instead of exiting.
try_download() {
	: >"$work/redirect"
	case $(downloader):$1 in
	curl:https:*) by_curl "$1" -fsSL --proto '=https' --retry 3 --connect-timeout 20 -o "$2" ;;
	curl:*) by_curl "$1" -fsSL --retry 3 --connect-timeout 20 -o "$2" ;;
	wget:https:*) wget_https "$1" "$2" ;;
	*) by_wget "$1" -q -O "$2" ;;
	esac
}

# by_curl URL OPTIONS… and by_wget URL OPTIONS… keep the URL, which may have a password, out of a program's
# arguments, which every user of this machine can see.
by_curl() {
	address=$(encoded "$1")
	shift
	curl "$@" --config - <<END
url = "$address"
END
}

by_wget() {
	address=$(encoded "$1")
	shift
	if reads_addresses; then
		wget "$@" -i - <<END
$address
END
	else
		wget "$@" "$address" # download has refused a password
	fi
}

# encoded URL prints it without the characters that files for curl and wget do not take as they are.
encoded() { printf '%s\n' "$1" | sed 's/\\/%5C/g; s/"/%22/g'; }

# reads_addresses tells whether wget reads addresses from a file. That of busybox does not.
reads_addresses() { wget --help 2>&1 | grep -q -e '--input-file'; }

# wget_https URL FILE follows redirects itself, because wget would also follow one to http.
wget_https() {
	from=$1 hops=0
	while [ $hops -lt 10 ]; do
		! by_wget "$from" -q -S --max-redirect=0 --tries=3 --timeout=20 -O "$2" 2>"$work/wget" || return 0
		next=$(sed -n 's/^[[:space:]]*[Ll]ocation:[[:space:]]*//p' "$work/wget" | tail -n 1 | tr -d '\r')
		case $next in
		https://*) from=$next ;;
		//*) from=https:$next ;;
		/*) from=$(printf '%s' "$from" | sed 's,^\(https://[^/]*\).*,\1,')$next ;;
		*://*) echo "$(shown "$from") redirects to $(shown "$next"), which is not https" >"$work/redirect" && return 1 ;;
		*) return 1 ;;
		esac
		hops=$((hops + 1))
	done
	return 1
}

why_not() { [ ! -s "$work/redirect" ] || printf ': %s' "$(cat "$work/redirect")"; }

# verifier prints the program that can check signatures.
verifier() {
	if have minisign; then
		echo minisign
	elif have openssl && openssl pkeyutl -help 2>&1 | grep -q -e -rawin; then
		echo openssl
	fi
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

# check_signature SUMS ORIGIN checks SUMS against SUMS.minisig, which is empty or missing if
# there is no signature. It sets signed_version, if it could check the signature.
check_signature() {
	if [ ! -s "$1.minisig" ]; then
		[ "$signature" = no ] || return 1
		case $(downloader):$2 in unsafe:https:*) return 1 ;; esac
		warn "$2 is not signed. To install it nevertheless, set KARVE_REQUIRE_SIGNATURE=no"
		return
	fi
	if [ -z "$(verifier)" ]; then
		[ "$signature" != yes ] || fail "the signature of $2 cannot be checked, but KARVE_REQUIRE_SIGNATURE is set: install minisign or OpenSSL 3"
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

# check_version ADDRESS refuses a release that is there in the place of another: its signature is as good.
check_version() {
	[ -n "$signed_version" ] || return 0
	asked=$(printf '%s' "${1##*/}" | sed 's/%2[Bb]/+/')
	case $asked in
	v[0-9]*+karve.*)
		[ "$asked" = "$signed_version" ] || fail "$(shown "$1") has Karve $signed_version: the address of another release is given, or this server offers the wrong one"
		return
		;;
	esac
	[ -x "$bin" ] || return 0
	installed=$("$bin" version 2>/dev/null | sed -n '1s/^\(karve  *\)\{0,1\}\(v[0-9][0-9A-Za-z.+-]*\).*/\2/p')
	! older "$signed_version" "$installed" ||
		fail "$(shown "$1") has Karve $signed_version, which is older than $installed, which is installed. To return to it, name the address of that release, which ends in /$signed_version (docs/install.md)"
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

free_space() {
	df -Pk "$(dirname "$1")" | awk 'END { print int($4 / 1024) " MB free on " $6 }'
}

sha256() {
	if have sha256sum; then
		sha256sum <"$1"
	elif have shasum; then
		shasum -a 256 <"$1"
	else
		openssl dgst -sha256 -r <"$1"
	fi | awk '{ print $1 }'
}

# listed SUMS NAME prints the checksum of a name in the list.
listed() { awk -v name="$2" '$2 == name || $2 == "*" name { print $1; exit }' "$1"; }

# unpacks_xz: the binaries for amd64 are packed with a filter that busybox does not have.
unpacks_xz() {
	have xz && { [ $arch != amd64 ] || xz --version 2>/dev/null | grep -q liblzma; }
}

check_sum() { # FILE NAME SUMS
	want=$(listed "$3" "$2")
	[ -n "$want" ] || fail "SHA256SUMS does not name $2: there may be no release for this machine"
	have sha256sum || have shasum || have openssl || fail "none of sha256sum, shasum and openssl is installed to check $2: install one"
	got=$(sha256 "$1")
	[ "$got" = "$want" ] || fail "$2 is damaged: its SHA-256 is $got instead of $want. Try again"
}

# fetch creates $new, the binary to install, on the file system where it will be: if it does
# not fit, it fails here.
fetch() {
	mkdir -p "$bin_dir" || fail "$bin_dir could not be created"
	stage=$(mktemp -d "$bin_dir/.karve-install.XXXXXX") || fail "$bin_dir cannot be written"
	new=$stage/karve
	if [ -n "${KARVE_BINARY:-}" ]; then
		packed=$KARVE_BINARY
		[ -r "$packed" ] || fail "KARVE_BINARY: $packed cannot be read"
		sums=$(dirname "$packed")/SHA256SUMS
		if [ -r "$sums" ] && [ -n "$(listed "$sums" "$(basename "$packed")")" ]; then
			cp "$sums" "$stage/SHA256SUMS" || fail "$sums could not be copied to $stage"
			[ ! -r "$sums.minisig" ] || cp "$sums.minisig" "$stage/SHA256SUMS.minisig" || fail "$sums.minisig could not be copied to $stage"
			if [ -s "$stage/SHA256SUMS.minisig" ]; then
				check_signature "$stage/SHA256SUMS" "$sums"
			else
				unsigned_file
			fi
			check_sum "$packed" "$(basename "$packed")" "$stage/SHA256SUMS"
		else
			unsigned_file
			say "no SHA256SUMS beside $packed names it: it is installed unchecked"
		fi
	else
		platform
		if unpacks_xz; then suffix=xz; elif have gzip; then suffix=gz; else fail "neither xz nor gzip is installed: install one"; fi
		# Releases are named like v1.37.2+karve.1, and some servers read a plus sign as a space.
		base=$(printf '%s' "${KARVE_DOWNLOAD_URL:-https://github.com/karve-k8s/karve/releases/latest/download}" | sed 's/+/%2B/g')
		name=karve-$os-$arch.$suffix
		packed=$stage/$name
		origin=$(shown "${base%/}")
		say "downloading $origin/$name"
		[ "$os" != darwin ] || say "no test has run Karve on macOS: docs/machines.md says what is known"
		download "${base%/}/SHA256SUMS" "$stage/SHA256SUMS"
		try_download "${base%/}/SHA256SUMS.minisig" "$stage/SHA256SUMS.minisig" 2>/dev/null || rm -f "$stage/SHA256SUMS.minisig"
		check_signature "$stage/SHA256SUMS" "$origin/SHA256SUMS" ||
			fail "$origin/SHA256SUMS.minisig could not be downloaded$(why_not), but releases are signed. To install your own unsigned build with curl or GNU wget, set KARVE_REQUIRE_SIGNATURE=no"
		check_version "${base%/}"
		download "${base%/}/$name" "$packed"
		check_sum "$packed" "$name" "$stage/SHA256SUMS"
	fi
	case $packed in
	*.xz) xz -dc <"$packed" >"$new" ;;
	*.gz) gzip -dc <"$packed" >"$new" ;;
	*) cat <"$packed" >"$new" ;;
	esac || fail "$packed could not be unpacked to $bin_dir ($(free_space "$new"))"
	case $packed in "$stage"/*) rm -f "$packed" ;; esac
	chmod 0755 "$stage" "$new"
	"$new" version >"$work/version" 2>&1 || fail "the new binary does not run here: $(head -n 1 "$work/version")"
	"$new" server --help --all >"$work/help" 2>&1 || "$new" server --help >"$work/help" 2>&1 || fail "the new binary does not print its options: $(head -n 1 "$work/help")"
	version=$(sed -n '1s/^karve  */Karve /p; 1q' "$work/version")
	[ -n "$version" ] || version=$(head -n 1 "$work/version")
}

# unsigned_file: KARVE_BINARY needs no signature, unless one is required.
unsigned_file() {
	[ "$signature" != yes ] || fail "KARVE_BINARY: $packed is not signed, but KARVE_REQUIRE_SIGNATURE is set: put SHA256SUMS and SHA256SUMS.minisig beside it"
}

# takes_value NAME tells whether an option has a value; it fails if there is no such option.
takes_value() { # NAME WHERE-FROM
	line=$(grep -E "^  --$1( |\$)" "$work/help" | head -n 1)
	case $1 in
	config) fail "$2: leave it out, the configuration file is $config" ;;
	*[!a-z0-9-]* | '') line= ;;
	esac
	[ -n "$line" ] || fail "$2: there is no option --$1 (see karve server --help --all)"
	[ "$line" != "  --$1" ]
}

# note DIR NAME VALUE keeps one value of an option.
note() {
	case $3 in *'
'*) fail "--$2: the value has a line break: write it into $config by hand" ;; esac
	mkdir -p "$work/$1"
	printf '%s\n' "$3" >>"$work/$1/$2"
}

# read_options checks the variables and arguments. Arguments take precedence.
read_options() {
	for variable in $(env | sed -n 's/^KARVE_\([A-Z0-9_]*\)=.*/\1/p'); do
		case $variable in DOWNLOAD_URL | BINARY | INSTALL_* | REQUIRE_SIGNATURE | VERSION) continue ;; esac
		eval "value=\${KARVE_$variable:-}"
		unset "KARVE_$variable" # karve would prefer it to the configuration
		[ -n "$value" ] || continue
		name=$(printf '%s' "$variable" | tr 'A-Z_' 'a-z-')
		takes_value "$name" "KARVE_$variable" || :
		note options "$name" "$value"
	done
	[ "${1:-}" != server ] || shift
	while [ $# -gt 0 ] && [ "$1" != --with-node ]; do
		case $1 in
		--?*) ;;
		*) fail "this script takes options of karve server (--name value), got \"$1\"" ;;
		esac
		name=${1#--}
		name=${name%%=*}
		case $1 in
		*=*)
			takes_value "$name" "$1" || :
			note given "$name" "${1#*=}"
			;;
		*)
			if ! takes_value "$name" "$1"; then
				note given "$name" true
			elif [ $# -gt 1 ]; then
				note given "$name" "$2"
				shift
			else
				fail "--$name needs a value"
			fi
			;;
		esac
		shift
	done
	mkdir -p "$work/options"
	[ ! -d "$work/given" ] || cp "$work"/given/* "$work/options/"
}

# without NAME prints a configuration without an option, be it a value or a list.
without() {
	awk -v key="$1" '
		/^[^ \t-]/ { name = $0; sub(/[ \t]*:.*/, "", name); gsub(/["\047]/, "", name); skip = name == key }
		!skip { print }'
}

# option NAME prints its value in the new configuration, or in that of a file.
option() {
	awk -v key="$1" '
		{ name = $0; sub(/[ \t]*:.*/, "", name); gsub(/["\047]/, "", name) }
		/^[^ \t#-]/ && name == key {
			sub(/^[^:]*:[ \t]*/, "")
			if (!/^["\047]/) sub(/[ \t]+#.*/, "")
			gsub(/^["\047]|["\047][ \t]*$/, "")
			print
			exit
		}' "${2:-$work/config}"
}

# quoted prints the lines of standard input as YAML strings after a prefix.
quoted() { sed "s/'/''/g; s/^/$1'/; s/\$/'/"; }

# make_config writes the new configuration: what is there, and what was given. No value is
# passed as an argument, which other users could see.
make_config() {
	(umask 077 && : >"$work/config")
	if [ -e "$config" ]; then
		cat "$config" >"$work/config" || fail "$config cannot be read"
		[ -z "$(tail -c 1 "$config")" ] || echo >>"$work/config"
	else
		echo "# Options of karve server. install.sh changes those that it is given." >"$work/config"
	fi
	for file in "$work"/options/*; do
		[ -e "$file" ] || continue
		name=$(basename "$file")
		without "$name" <"$work/config" >"$work/config.next" && cat "$work/config.next" >"$work/config"
		if [ "$(wc -l <"$file")" -gt 1 ]; then
			{ echo "$name:" && quoted "- " <"$file"; } >>"$work/config"
		elif [ -s "$file" ] && [ "$(wc -c <"$file")" -gt 1 ]; then
			quoted "$name: " <"$file" >>"$work/config"
		fi
	done
	old_data=$data_dir
	if [ -r "$config" ] && [ -n "$(option data-dir "$config")" ]; then old_data=$(option data-dir "$config"); fi
	given=$(option data-dir)
	if [ -n "$given" ]; then data_dir=${given%/}; else printf "data-dir: '%s'\n" "$data_dir" >>"$work/config"; fi
	store_dir=$data_dir
	endpoint=$(option datastore-endpoint)
	built_in=yes
	if dir=$(datastore_dir "$endpoint" "$data_dir"); then
		[ -z "$dir" ] || store_dir=$dir
		[ -n "$dir" ] || built_in=memory
	else
		built_in=no
	fi
	plain_path data-dir "$data_dir"
	plain_path datastore-endpoint "$store_dir"
}

# datastore_dir ENDPOINT DATA_DIR prints the directory of the built-in datastore, or nothing if it is in
# memory. It fails if the datastore is another one.
datastore_dir() {
	case $1 in
	'') printf '%s\n' "$2" ;;
	memory://* | sqlite://*\?*durability=memory*) ;;
	sqlite://*)
		set -- "${1#sqlite://}" "$2"
		set -- "${1%%\?*}" "$2"
		printf '%s\n' "${1:-$2}"
		;;
	*) return 1 ;;
	esac
}

# plain_path refuses paths that need quoting in units and scripts, and directories that are
# not Karve's: the script changes their owner, and --purge removes them.
plain_path() {
	case $2 in
	/*/*) ;;
	*) fail "--$1 $2: want an absolute path below a directory" ;;
	esac
	case $2 in *[!A-Za-z0-9/._@+-]* | */../* | */..) fail "--$1 $2: want a path of letters, digits and ._@+-" ;; esac
	[ ! -e "$2" ] || [ -d "$2" ] || fail "--$1 $2: is not a directory"
	ours "$2" "$new" || vacant "$2" ||
		fail "--$1 $2: it has other files than Karve's, and not the file karve-data that the server writes: name an empty directory, or one that does not exist"
}

# ours_function prints functions that the uninstaller needs as well.
ours_function() {
	cat <<'END'
# ours DIRECTORY PROGRAM tells whether Karve created what is in a directory. It did if the
# server's file karve-data is there. Earlier releases did not write that file: for them, every
# name has to be one that Karve gives, beside the header of its database, kine's table and a
# lock (k3s has no lock), or a lock and certificates that Karve issued.
ours() {
	[ -d "$1" ] && [ ! -L "$1/karve-data" ] || return 1
	if [ -s "$1/karve-data" ] && [ -f "$1/karve-data" ]; then # it is empty if the disk was full
		head -n 1 "$1/karve-data" | grep -q '^Karve keeps the data of a cluster here'
		return
	fi
	own_names "$1" || return 1
	if [ -f "$1/mvcc.db" ] && [ ! -L "$1/mvcc.db" ] && [ "$(dd if="$1/mvcc.db" bs=1 skip=68 count=4 2>/dev/null | tr -d '\000')" = Karv ]; then return; fi
	[ -f "$1/lock" ] || return 1
	if [ -f "$1/state.db" ] && [ ! -L "$1/state.db" ] && [ "$(head -c 15 "$1/state.db")" = 'SQLite format 3' ] && grep -q kine "$1/state.db"; then return; fi
	[ ! -L "$1/certs" ] && "$2" certs list --data-dir "$1" 2>/dev/null | grep -q '  karve *$'
}

# real DIRECTORY prints its path without symbolic links: the directory may be on another disk.
real() { (cd "$1" 2>/dev/null && pwd -P) || printf '%s\n' "$1"; }

# own_names DIRECTORY tells whether everything in it has a name that Karve gives.
own_names() {
	[ -r "$1" ] || return 1
	for path in "$1"/* "$1"/.[!.]* "$1"/..?*; do
		[ -e "$path" ] || [ -L "$path" ] || continue
		case ${path##*/} in
		# Every name that Karve gives; server/marker.go has the same list.
		karve-data | lock | lock.host | certs | flexvolume | admin.kubeconfig | admin.kubeconfig.copy | \
			karve.sock | kine.sock | .control | fork-of | fork-unfinished | snapshot | snapshot.before-reset-* | \
			mvcc.db | mvcc.db-* | mvcc.db.* | state.db | state.db-* | state.db.* | \
			.*.partial | .karve-*.tmp | .snapshot-* | .room-* | .writable-* | .owner-* | lost+found) ;;
		*) return 1 ;;
		esac
	done
}
END
}

# vacant DIR tells whether a directory is empty, except for certificates under Karve's names,
# which an administrator may put there before the first start.
vacant() {
	[ -z "$(find "$(real "$1")" -mindepth 1 -maxdepth 1 ! -name lost+found ! -name lock ! -name certs 2>/dev/null | head -n 1)" ] || return 1
	[ ! -L "$1/certs" ] || return 1
	for file in "$1"/certs/* "$1"/certs/.[!.]*; do
		name=${file##*/}
		if [ -e "$file" ] || [ -L "$file" ]; then
			case $name in *.crt | *.key) name=${name%.*} ;; *) return 1 ;; esac
			case $name in
			server-ca | client-ca | client-ca-signer | front-proxy-ca | etcd-ca | service-account) ;;
			serving | admin | controller-manager | scheduler | kubelet-client | front-proxy-client | etcd-server | etcd-client) ;;
			*) return 1 ;;
			esac
		fi
	done
}

data_in() { [ -e "$1/mvcc.db" ] || [ -e "$1/state.db" ]; }

# low_port tells whether the options name a port below 1024.
low_port() {
	for name in secure-port insecure-port; do
		port=$(option $name)
		case $port in '' | *[!0-9]*) continue ;; esac
		[ "$port" -eq 0 ] || [ "$port" -ge 1024 ] || return 0
	done
	option etcd-listen | grep -Eq ':([1-9][0-9]{0,2}|10[01][0-9]|102[0-3])$'
}

# writable prints the directories the service writes to.
writable() {
	printf '%s' "$data_dir"
	[ "$store_dir" = "$data_dir" ] || printf ' %s' "$store_dir"
	copy=$(option write-kubeconfig)
	case $copy in *[!A-Za-z0-9/._@+-]*) ;; /*/*) printf ' -%s' "$(dirname "$copy")" ;; esac
}

# systemd_unit prints the unit, for the system's systemd or a user's.
systemd_unit() {
	cat <<END
[Unit]
Description=Karve, the Kubernetes control plane in one process
Documentation=https://github.com/karve-k8s/karve
END
	if [ "$scope" = system ]; then
		printf 'Wants=network-online.target\nAfter=network-online.target\n'
	fi
	cat <<END
# Restart it however often it fails: nobody may be there to start it by hand.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart=$bin server --config $config
TimeoutStartSec=330
TimeoutStopSec=90
# After the watchdog's SIGABRT it writes its stacks: megabytes, which can take minutes on a board.
TimeoutAbortSec=15
WatchdogSec=60
Restart=always
RestartSec=2
LimitNOFILE=1048576
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
MemoryDenyWriteExecute=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
END
	if [ "$scope" = user ]; then
		printf '\n[Install]\nWantedBy=default.target\n'
		return
	fi
	[ "$service_user" = root ] || printf 'User=%s\nGroup=%s\n' "$service_user" "$service_user"
	if low_port; then
		printf 'AmbientCapabilities=CAP_NET_BIND_SERVICE\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\n'
	else
		printf 'CapabilityBoundingSet=\n'
	fi
	cat <<END
# For other paths to write to, such as an audit log: systemctl edit karve, ReadWritePaths=.
ProtectSystem=strict
ReadWritePaths=$(writable)
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible

[Install]
WantedBy=multi-user.target
END
}

openrc_script() {
	cat <<END
#!/sbin/openrc-run
# Written by install.sh.
description="Karve, the Kubernetes control plane in one process"
supervisor=supervise-daemon
command=$bin
command_args="server --config $config"
command_user=$service_user
respawn_delay=2
respawn_max=0
umask=0077
rc_ulimit="-n 1048576"
output_log=/var/log/karve.log
error_log=/var/log/karve.log
END
	! low_port || [ "$service_user" = root ] || echo "capabilities=\"$bind_low\""
	cat <<END

depend() {
	use localmount
	want net
	after firewall
}

start_pre() {
	checkpath -f -m 0600 -o \$command_user /var/log/karve.log
}
END
}

# uninstall_script prints a script that undoes the installation.
uninstall_script() {
	cat <<END
#!/bin/sh
# Removes Karve. Written by install.sh. It keeps data and configuration unless the question is
# answered with yes, or --purge is given.
set -u
scope=$scope
init=$init
bin_dir='$bin_dir'
config='$config'
data_dir='$data_dir'
store_dir='$store_dir'
unit='$unit'

END
	ours_function
	cat <<'END'

case ${1:-} in
--purge) purge=yes ;;
'') purge=no ;;
*) echo "usage: karve-uninstall.sh [--purge]" >&2 && exit 1 ;;
esac
if [ "$scope" = system ] && [ "$(id -u)" != 0 ]; then
	echo "karve-uninstall.sh: run it as root" >&2
	exit 1
fi
if [ "$purge" = no ] && [ -t 0 ]; then
	printf 'Remove the data in %s and the configuration as well? [y/N] ' "$data_dir"
	read -r answer && case $answer in y | Y | yes) purge=yes ;; esac
fi

ctl() {
	if [ "$scope" = user ]; then systemctl --user "$@"; else systemctl "$@"; fi
}

if [ "$scope" = system ] && grep -qx with_server=yes "$bin_dir/karve-node-uninstall.sh" 2>/dev/null; then
	"$bin_dir/karve-node-uninstall.sh" || exit 1
fi
case $init in
systemd)
	ctl disable --quiet karve
	ctl stop karve || exit 1
	rm -rf "$unit" "$unit.d"
	ctl daemon-reload
	;;
openrc)
	rc-service karve --ifstarted stop || exit 1
	rc-update -q del karve default
	rm -f "$unit"
	;;
none) echo "A running karve is not stopped: stop it yourself" ;;
esac
left=
if [ "$purge" = yes ]; then
	for dir in "$data_dir" "$store_dir" "$data_dir.before-upgrade"; do
		if ours "$dir" "$bin_dir/karve"; then
			rm -rf "$(real "$dir")"
			[ ! -L "$dir" ] || rm -f "$dir"
		elif [ -e "$dir" ]; then
			rmdir "$dir" 2>/dev/null || left="$left $dir"
		fi
	done
	rm -rf "$(dirname "$config")"
fi
if [ ! -e "$bin_dir/karve-node-uninstall.sh" ]; then # a node of another server needs it
	[ "$(readlink "$bin_dir/kubectl")" != karve ] || rm -f "$bin_dir/kubectl"
	rm -f "$bin_dir/karve"
fi
if [ "$purge" = yes ]; then
	[ $init != openrc ] || rm -f /var/log/karve.log
	if [ "$scope" = system ] && id karve >/dev/null 2>&1; then
		echo "The user karve is kept: files may be its own, and would be those of the next user with its number"
	fi
	if [ -z "$left" ]; then
		echo "Karve and its data are removed"
	else
		echo "Karve is removed. These directories are kept, as no file karve-data says that they are Karve's:$left" >&2
	fi
else
	echo "Karve is removed; $data_dir and $config are kept"
fi
rm -f "$bin_dir/karve-uninstall.sh"
END
}

# look_around asks the new version whether it would start on this machine in the place of the
# one that runs. It prints the findings, and fails if a service would not start.
look_around() {
	[ "${KARVE_INSTALL_CHECK:-yes}" != no ] && "$new" check --help >/dev/null 2>&1 || return 0
	set --
	[ ! -d "$old_data" ] || set -- --replaces "$old_data"
	if "$new" check --config "$work/config" "$@" >"$work/check" 2>"$work/check.problems"; then well=yes; else well=no; fi
	# At least three spaces separate the columns.
	awk -F '   +' '$2 == "warn" || $2 == "fail" { print "karve: check: " $2 ": " $1 ": " $3 ($4 == "-" ? "" : " (" $4 ")") }' "$work/check" >&2
	[ $well = no ] && [ $init != none ] || return 0
	fail "karve check: $(tail -n 1 "$work/check.problems" | sed 's/^karve: //'); to install nevertheless, set KARVE_INSTALL_CHECK=no"
}

# own_user creates the service's user; if it cannot, the service runs as root.
own_user() {
	service_user=root
	[ "$scope" = system ] && [ $init != none ] || return 0
	if ! id karve >/dev/null 2>&1; then
		if have useradd; then
			useradd --system --user-group --no-create-home --home-dir "$data_dir" --shell /bin/false --comment "$comment" karve
		elif have adduser; then
			addgroup -S karve && adduser -S -D -H -h "$data_dir" -s /bin/false -g "$comment" -G karve karve
		fi >"$work/user" 2>&1
	fi
	if ! id karve >/dev/null 2>&1; then
		warn "the user karve could not be created, so the service runs as root"
	elif [ $init = openrc ] && low_port && ! RC_SVCNAME=karve supervise-daemon karve --capabilities "$bind_low" --version >/dev/null 2>&1; then
		warn "this OpenRC cannot grant capabilities, so the service runs as root to use a port below 1024"
	else
		service_user=karve
	fi
}

# owned makes the service the owner of what it writes. It follows a link to the directory,
# but no link in it: that may be another user's, and this is root.
owned() {
	for dir in "$data_dir" "$store_dir"; do
		[ -d "$dir" ] || (umask 077 && mkdir -p "$dir") || fail "$dir could not be created"
		[ "$scope" = user ] || [ "$init" = none ] || chown -hR "$service_user:$service_user" "$(real "$dir")" || fail "the owner of $dir could not be changed to $service_user"
	done
}

running() {
	case $init in
	systemd) case $(ctl is-active karve) in active | activating | reloading) ;; *) return 1 ;; esac ;;
	openrc) rc-service karve status >/dev/null 2>&1 ;;
	none) false ;;
	esac
}

stop_service() {
	case $init in
	systemd) [ ! -e "$unit" ] || ctl stop karve ;;
	openrc) [ ! -e "$unit" ] || rc-service karve --ifstarted stop ;;
	esac
}

# start_service starts the service and does not wait for it.
start_service() {
	rm -f "$data_dir/admin.kubeconfig" # the server writes it when it is ready
	case $init in
	systemd) ctl daemon-reload && ctl start --no-block karve ;;
	openrc) rc-service karve start ;;
	esac
}

ready() {
	case $init in
	systemd) ctl is-active --quiet karve ;; # Type=notify: active is ready
	openrc) running && [ -e "$data_dir/admin.kubeconfig" ] ;;
	esac
}

# hopeless tells whether the service has failed repeatedly.
hopeless() {
	[ "$init" = systemd ] || return 1
	restarts=$(ctl show -p NRestarts karve | sed 's/.*=//')
	[ "${restarts:-0}" -ge 3 ] || ctl is-failed --quiet karve
}

wait_ready() {
	waited=0
	until ready; do
		if [ $waited -ge "$timeout" ] || hopeless; then
			[ ! -t 1 ] || echo
			return 1
		fi
		if [ -t 1 ]; then
			printf '\rkarve: waiting until the service is ready: %d s' $waited
		elif [ $((waited % 10)) = 0 ]; then
			say "waiting until the service is ready: $waited s"
		fi
		sleep 1
		waited=$((waited + 1))
	done
	[ ! -t 1 ] || printf '\r\033[K'
}

log_lines() {
	case $init in
	systemd)
		if [ "$scope" = user ]; then set -- --user; else set --; fi
		journalctl "$@" -u karve -n 10 --no-pager -o cat
		;;
	openrc) tail -n 10 /var/log/karve.log ;;
	esac 2>/dev/null | sed 's/^/  | /' >&2
}

# back_up keeps what an upgrade might damage. It is called while the service is stopped.
back_up() {
	backup=
	cmp -s "$new" "$bin" && return # the same version converts nothing
	if [ $built_in = no ]; then
		warn "the datastore is an external one: back it up yourself. If the upgrade fails, only the binary is restored"
		return
	fi
	[ $built_in != memory ] || return 0 # the server's end is the end of the data, whatever its version
	data_in "$store_dir" || return 0
	if [ -e "$data_dir.before-upgrade" ] && ! ours "$data_dir.before-upgrade" "$bin"; then
		rmdir "$data_dir.before-upgrade" 2>/dev/null || fail "no upgrade without a backup: $data_dir.before-upgrade has other files than Karve's"
	fi
	(umask 077 && mkdir -p "$data_dir.before-upgrade" && echo 'Karve keeps the data of a cluster here: the backup of an upgrade.' >"$data_dir.before-upgrade/karve-data") ||
		fail "$data_dir.before-upgrade could not be created"
	if [ ! -e "$store_dir/mvcc.db" ]; then
		for suffix in -wal -shm ''; do # the file itself last: if it is there, the copy is complete
			rm -f "$data_dir.before-upgrade/state.db$suffix"
			[ ! -e "$store_dir/state.db$suffix" ] || cp -p "$store_dir/state.db$suffix" "$data_dir.before-upgrade/" ||
				fail "no upgrade without a backup: $store_dir/state.db$suffix could not be copied ($(free_space "$data_dir.before-upgrade"))"
		done
		sync
		backup=$data_dir.before-upgrade/state.db
		say "copied $store_dir/state.db to $backup"
		return
	fi
	"$bin" datastore stats --config "$work/config" >"$work/stats" 2>&1
	# A return to the old version is a change of version, too, and must not cost the backup that it may need.
	# That one, and the one before it, stay until the new one is complete.
	kept=$data_dir.before-upgrade/mvcc.db.kept previous=$data_dir.before-upgrade/mvcc.db.previous
	[ ! -d "$previous" ] || fail "no upgrade without a backup: $previous is a directory: move it away" # mv would move into it
	rm -f "$kept" || fail "no upgrade without a backup: $kept could not be removed"
	# Not every file system has hard links.
	[ ! -e "$data_dir.before-upgrade/mvcc.db" ] || ln "$data_dir.before-upgrade/mvcc.db" "$kept" 2>/dev/null || cp -p "$data_dir.before-upgrade/mvcc.db" "$kept" ||
		fail "no upgrade without a backup: $kept could not be created ($(free_space "$data_dir.before-upgrade"))"
	if ! "$bin" datastore backup --config "$work/config" --overwrite "$data_dir.before-upgrade/mvcc.db" >"$work/backup" 2>&1; then
		rm -f "$kept"
		fail "no upgrade without a backup, which failed: $(tail -n 1 "$work/backup")"
	fi
	[ ! -e "$kept" ] || mv -f "$kept" "$previous" || fail "no upgrade without a backup: $kept could not be renamed to $previous"
	backup=$data_dir.before-upgrade/mvcc.db
	say "$(tail -n 1 "$work/backup")"
}

# put_data_back undoes what the new version did to the data.
put_data_back() {
	case $backup in
	'') return ;;
	*/state.db)
		[ -e "$store_dir/mvcc.db" ] || return 0 # not converted
		aside=$store_dir/given-up.$(date +%Y%m%dT%H%M%S)
		if ! { mkdir "$aside" && mv "$store_dir"/mvcc.db* "$store_dir"/state.db* "$aside/" && cp -p "$backup"* "$store_dir/"; }; then
			warn "the data could not be restored to $store_dir. The backup is $backup"
			return
		fi
		warn "the data as the new version left it is in $aside"
		;;
	*)
		! "$bin" datastore stats --config "$work/config" 2>&1 | cmp -s - "$work/stats" || return 0
		if ! "$bin" datastore restore --config "$work/config" "$backup" >"$work/restore" 2>&1; then
			warn "the data could not be restored: $(tail -n 1 "$work/restore"). The backup is $backup"
			return
		fi
		;;
	esac
	warn "the data of before the upgrade is restored"
}

# replace NEW PATH MODE keeps a copy of a file and puts a new one in its place. At no time is
# the file missing or incomplete.
replace() {
	mkdir -p "$(dirname "$2")" || return 1
	if [ -e "$2" ]; then
		ln "$2" "$2.previous" 2>/dev/null || cp -p "$2" "$2.previous" || return 1
	fi
	if [ "$1" != "$new" ]; then
		(umask 077 && cat "$1" >"$2.new") || { rm -f "$2.new"; return 1; }
		set -- "$2.new" "$2" "$3"
	fi
	chmod "$3" "$1" && { [ "$2" != "$config" ] || [ "$scope" = user ] || chown "root:$service_user" "$1"; } && mv -f "$1" "$2" || return 1
	[ -e "$2.previous" ] || mkdir -p "$work/made$2"
}

# each_file calls a command with every file that replace replaces.
each_file() {
	for path in "$bin" "$config" "$uninstall" ${unit:+"$unit"}; do "$1" "$path"; done
}

forget() { rm -f "$1.previous"; }

# put_back restores a file, if it was replaced.
put_back() {
	if [ -e "$1.previous" ]; then mv -f "$1.previous" "$1"; elif [ -d "$work/made$1" ]; then rm -f "$1"; fi
}

switch_over() {
	each_file forget # from an installation that was killed
	switched=yes
	replace "$new" "$bin" 0755 || fail "$bin could not be written"
	mode=0640
	[ "$scope" = system ] || mode=0600
	replace "$work/config" "$config" $mode || fail "$config could not be written"
	replace "$work/uninstall" "$uninstall" 0755 || fail "$uninstall could not be written"
	if [ $init != none ]; then
		mode=0644
		[ $init = systemd ] || mode=0755
		replace "$work/unit" "$unit" $mode || fail "$unit could not be written"
	fi
	! have restorecon || restorecon "$bin" 2>/dev/null || :
	sync
}

# roll_back undoes switch_over.
roll_back() {
	switched=no
	if [ "$fresh" = yes ]; then
		stop_service
		each_file forget
		warn "there is no earlier version to return to: the new one is stopped, but stays installed. Run install.sh again with other options, or karve-uninstall.sh"
		return
	fi
	stop_service
	each_file put_back
	put_data_back
	owned
	if [ "$was_running" = no ]; then
		warn "the earlier version is restored, and stopped as it was"
	elif start_service && wait_ready; then
		warn "the earlier version is restored, and ready"
	else
		warn "the earlier version is restored, but is not ready either. Its log ends with:"
		log_lines
	fi
}

enable_service() {
	case $init in
	systemd)
		ctl enable --quiet karve || warn "systemctl enable karve failed: the service does not start with the machine"
		[ "$scope" = system ] || loginctl enable-linger 2>/dev/null ||
			warn "the service ends when you log out, unless root runs: loginctl enable-linger $(id -un)"
		;;
	openrc) rc-update -q add karve default || warn "rc-update add karve default failed: the service does not start with the machine" ;;
	esac
}

what_next() {
	say "$version is installed"
	if [ $init = none ]; then
		say "this machine has neither systemd nor OpenRC. To run it: $bin server --config $config"
		[ "$fresh" = yes ] || say "a server that runs is still the old version: stop and start it"
	else
		say "it is ready, with the options in $config"
	fi
	case :$PATH: in *:"$bin_dir":*) ;; *) say "$bin_dir is not in your PATH" ;; esac
	if [ "$scope" = system ] && [ "$data_dir" = /var/lib/karve ]; then
		say "next, as root: karve kubectl get namespaces"
	else
		say "next: KUBECONFIG=$data_dir/admin.kubeconfig karve kubectl get namespaces"
	fi
	say "to remove it: $uninstall"
}

install_karve() {
	layout
	not_packaged
	timeout=${KARVE_INSTALL_TIMEOUT:-300}
	case $timeout in '' | *[!0-9]*) fail "KARVE_INSTALL_TIMEOUT $timeout: want a number of seconds" ;; esac
	work=$(umask 077 && mktemp -d "${TMPDIR:-/tmp}/karve-install.XXXXXX") || fail "a temporary directory could not be created in ${TMPDIR:-/tmp}"
	trap clean_up EXIT
	trap 'fail "interrupted"' INT TERM HUP
	fresh=yes
	[ ! -x "$bin" ] || fresh=no
	fetch
	read_options "$@"
	make_config
	look_around
	own_user
	if [ $init = openrc ]; then openrc_script; else systemd_unit; fi >"$work/unit"
	uninstall_script >"$work/uninstall"
	was_running=no
	! running || was_running=yes
	if [ $was_running = yes ] && ready && cmp -s "$new" "$bin" && cmp -s "$work/config" "$config" && cmp -s "$work/unit" "$unit"; then
		say "$version is installed already, with these options, and ready"
		return
	fi
	stopped=$was_running
	stop_service || fail "the running version could not be stopped"
	[ "$fresh" = yes ] || back_up
	owned
	switch_over
	if [ $init != none ]; then
		start_service || fail "$version could not be started"
		wait_ready || { warn "$version was not ready within $waited s. Its log ends with:" && log_lines && fail "$version is given up"; }
		enable_service
	fi
	switched=no stopped=no
	each_file forget
	have kubectl || ln -s karve "$bin_dir/kubectl" || warn "$bin_dir/kubectl could not be created"
	what_next
}

# install_binary is for CI: it downloads and checks in the same way, and leaves nothing outside
# the directory.
install_binary() {
	layout
	if [ -n "${1:-}" ]; then bin_dir=$1 bin=$1/karve; else not_packaged; fi
	# A service's binary is only replaced with a backup and a way back.
	[ ! -e "$bin_dir/karve-uninstall.sh" ] || fail "Karve is installed in $bin_dir as a service: run install.sh without \"binary\" to upgrade it, or name another directory"
	work=$(umask 077 && mktemp -d "${TMPDIR:-/tmp}/karve-install.XXXXXX") || fail "a temporary directory could not be created in ${TMPDIR:-/tmp}"
	trap clean_up EXIT
	trap 'fail "interrupted"' INT TERM HUP
	fetch
	mv -f "$new" "$bin_dir/karve" || fail "$bin_dir/karve could not be written"
	[ -e "$bin_dir/kubectl" ] || have kubectl || ln -s karve "$bin_dir/kubectl" || warn "$bin_dir/kubectl could not be created"
	say "$version is $bin_dir/karve"
}

# --- a node: this only installs and calls `karve node` ---

# check_node fails where there can be no node, before anything is downloaded.
check_node() {
	[ "$scope" = system ] || fail "a node is made by root: run the script with sudo"
	[ "$(uname -s)" = Linux ] || fail "a node needs Linux, not $(uname -s)"
	[ $init != none ] || fail "this machine has neither systemd nor OpenRC to run the kubelet: use kubeadm instead (docs/nodes.md)"
}

# has_node PROGRAM fails if that Karve is older than karve node.
has_node() { "$1" node --help >/dev/null 2>&1 || fail "${version:-the installed Karve} is too old to make a node: $2"; }

# install_node makes this machine a node of a server elsewhere, or upgrades its kubelet.
install_node() {
	layout
	not_packaged
	check_node
	work=$(umask 077 && mktemp -d "${TMPDIR:-/tmp}/karve-install.XXXXXX") || fail "a temporary directory could not be created in ${TMPDIR:-/tmp}"
	trap clean_up EXIT
	trap 'fail "interrupted"' INT TERM HUP
	token=${KARVE_TOKEN:-} verb="upgrade" version=''
	unset KARVE_TOKEN
	[ $# -gt 0 ] || [ -e "$node_record" ] ||
		fail "a node needs --server, --token and --ca-hash: \`karve token create --print-install-command\` on the server prints the whole line"
	left=$#
	while [ $left -gt 0 ]; do # other users could see the token among a program's arguments
		case $1 in
		--token=*) token=${1#*=} ;;
		--token)
			[ $left -gt 1 ] || fail "--token needs a value"
			token=$2 left=$((left - 1))
			shift
			;;
		--server | --server=* | --token-file | --token-file=*) verb="join" && set -- "$@" "$1" ;;
		*) set -- "$@" "$1" ;;
		esac
		shift
		left=$((left - 1))
	done
	[ -e "$node_record" ] || verb="join"
	if [ -n "$token" ]; then
		verb="join"
		(umask 077 && printf '%s\n' "$token" >"$work/token") || fail "$work/token could not be written"
		set -- "$@" --token-file "$work/token"
	fi
	if [ -e "$uninstall" ]; then # a server's program is only replaced with a backup and a way back
		new=$bin
		has_node "$bin" "upgrade it first, by install.sh without \"node\""
	else
		fetch
		has_node "$new" "take a newer release"
	fi
	if [ -e "$node_record" ] && [ -x "$bin" ]; then # the program that made the node is there to remove it
		"$new" node $verb "$@" || fail
		[ "$new" = "$bin" ] || place_program || fail "$bin could not be written"
		rm -f "$bin.previous"
	else
		[ -e "$node_record" ] || joining=yes
		[ "$new" = "$bin" ] || place_program || fail "$bin could not be written"
		node_uninstall_script no
		"$bin" node $verb "$@" || fail
		[ -e "$node_record" ] || return 0 # it was asked for --help
		joining=no
		rm -f "$bin.previous"
	fi
	# An earlier release may have written it. It stays the server's, if that calls it.
	node_uninstall_script "$(with_server)"
	say "to remove the node: $node_uninstall"
}

# place_program puts $new in its place, and keeps what was there.
place_program() {
	rm -f "$bin.previous" # from an installation that was killed
	replace "$new" "$bin" 0755 || return 1
	placed=yes
	! have restorecon || restorecon "$bin" 2>/dev/null || :
	have kubectl || { ln -s karve "$bin_dir/kubectl" && made_kubectl=yes; } || warn "$bin_dir/kubectl could not be created"
}

# unplace_node takes away what was installed for a node that did not come about.
unplace_node() {
	joining=no
	rm -f "$node_uninstall"
	[ $made_kubectl = no ] || rm -f "$bin_dir/kubectl"
	[ $placed = no ] || put_back "$bin"
}

# with_server tells whether the node is that of the server on this machine.
with_server() { if grep -qx with_server=yes "$node_uninstall" 2>/dev/null; then echo yes; else echo no; fi; }

# join_own makes this machine a node of the server on it, with a token for that alone.
join_own() {
	had="the server is installed and ready, but this machine is not its node. Run the script again when that is repaired"
	has_node "$bin" "take a newer release"
	address=$(sed -n 's/^ *server: *//p' "$data_dir/admin.kubeconfig" | head -n 1)
	if [ -e "$node_record" ]; then
		[ "$(with_server)" = yes ] || fail "this machine is a node of another server: $node_uninstall removes it"
		upgrade_own "$@"
		return
	fi
	joining=yes
	node_uninstall_script yes
	(umask 077 && : >"$work/token") && token_made=yes
	"$bin" token create --data-dir "$data_dir" --ttl 15m --description "for install.sh --with-node" >"$work/token" || fail
	"$bin" node join --server "$address" --token-file "$work/token" --ca-file "$data_dir/certs/server-ca.crt" "$@" || fail
	[ -e "$node_record" ] || return 0 # it was asked for --help
	joining=no
	say "to remove the node: $node_uninstall"
}

# delete_token ends the token that was made for the node here.
delete_token() {
	token_made=no
	[ -s "$work/token" ] || return 0
	"$bin" token delete --data-dir "$data_dir" "$(cut -d . -f 1 "$work/token")" >"$work/deleted" 2>&1 || warn "the token that was used could not be deleted, and expires in 15 minutes: $(tail -n 1 "$work/deleted")"
}

# upgrade_own upgrades the node of the server here. Options that only matter when a node joins
# may be among the arguments, because the same line is run again for an upgrade.
upgrade_own() {
	left=$#
	while [ $left -gt 0 ]; do
		case $1 in
		--no-network | --no-network=* | --node-name=* | --node-ip=* | --pod-cidr=* | --ssh-user=*) ignored=${1%%=*} ;;
		--node-name | --node-ip | --pod-cidr | --ssh-user)
			ignored=$1
			[ $left -gt 1 ] || fail "$1 needs a value"
			shift
			left=$((left - 1))
			;;
		*) ignored='' && set -- "$@" "$1" ;;
		esac
		[ -z "$ignored" ] || warn "$ignored was not looked at, because this machine is a node already. To change it: $node_uninstall, then run the script again"
		shift
		left=$((left - 1))
	done
	"$bin" node upgrade --server "$address" "$@" || fail
	node_uninstall_script yes # an earlier release may have written it
}

# node_uninstall_script WITH-SERVER writes a script that removes the node; yes: the server's
# uninstaller calls it. It is there before the node: a join that was killed can be removed.
node_uninstall_script() {
	cat <<END >"$work/node-uninstall"
#!/bin/sh
# Removes the node. Written by install.sh.
set -u
with_server=$1
bin_dir='$bin_dir'
END
	cat <<'END' >>"$work/node-uninstall"

if [ "$(id -u)" != 0 ]; then
	echo "karve-node-uninstall.sh: run it as root" >&2
	exit 1
fi
# `karve node remove` may have been called already.
[ ! -e /etc/karve-node/installed.json ] || "$bin_dir/karve" node remove || exit 1
if [ "$with_server" = no ] && [ ! -e "$bin_dir/karve-uninstall.sh" ]; then
	[ "$(readlink "$bin_dir/kubectl")" != karve ] || rm -f "$bin_dir/kubectl"
	rm -f "$bin_dir/karve"
fi
rm -f "$bin_dir/karve-node-uninstall.sh"
END
	if ! cat "$work/node-uninstall" >"$node_uninstall" || ! chmod 0755 "$node_uninstall"; then
		fail "$node_uninstall could not be written"
	fi
}

# print_unit prints the unit for a server without options.
print_unit() {
	work=$(mktemp -d) || exit 1
	trap clean_up EXIT
	: >"$work/config"
	scope=system service_user=karve
	bin=/usr/local/bin/karve config=/etc/karve/config.yaml data_dir=/var/lib/karve store_dir=/var/lib/karve
	if [ "${1:-}" = user ]; then
		scope=user bin=%h/.local/bin/karve config=%h/.config/karve/config.yaml
	fi
	systemd_unit
}

main() {
	work='' stage='' had='' switched=no stopped=no backup='' service_user=root
	joining=no placed=no made_kubectl=no token_made=no signed_version=''
	comment='Karve service, made by install.sh' bind_low='^cap_net_bind_service'
	node_record=/etc/karve-node/installed.json # `karve node join` writes it
	eval "$(ours_function)"
	case ${KARVE_REQUIRE_SIGNATURE:-} in
	'') signature=if-possible ;;
	1 | yes | true) signature=yes ;;
	0 | no | false) signature=no ;;
	*) fail "KARVE_REQUIRE_SIGNATURE $KARVE_REQUIRE_SIGNATURE: want yes or no" ;;
	esac
	case ${1:-} in
	unit) print_unit "${2:-}" ;;
	binary) install_binary "${2:-}" ;;
	node)
		shift
		install_node "$@"
		;;
	*)
		for argument; do # a node that is impossible is no reason to begin with the server
			[ "$argument" != --with-node ] || { layout && not_packaged && check_node; }
		done
		install_karve "$@"
		while [ $# -gt 0 ] && [ "$1" != --with-node ]; do shift; done
		[ $# = 0 ] || { shift && join_own "$@"; }
		;;
	esac
}

main "$@"
