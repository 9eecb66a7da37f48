# shellcheck shell=bash
# Makes a release of this source for this machine, for tests: sourced by scripts.

# quick_release DIR makes it in DIR. The binary is compressed less, and signed with a key of its own, DIR.key,
# which install.sh of the release accepts.
quick_release() {
	local dir=$1 name
	name=karve-linux-$(go env GOARCH)
	mkdir "$dir"
	scripts/build "$dir.karve" >&2
	xz -T0 -1 -c "$dir.karve" >"$dir/$name.xz"
	gzip -1 -c "$dir.karve" >"$dir/$name.gz"
	rm "$dir.karve"
	(cd "$dir" && sha256sum karve-* >SHA256SUMS)
	minisign -G -W -p "$dir.pub" -s "$dir.key" >/dev/null
	sed "s,^release_keys=.*,release_keys='$(tail -n 1 "$dir.pub")'," install.sh >"$dir/install.sh"
	INSTALL=$dir/install.sh release/sign "$dir.key" "$dir/SHA256SUMS" "karve $(scripts/version --release)" >&2
}
