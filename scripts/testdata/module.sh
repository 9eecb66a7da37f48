# shellcheck shell=bash
# What scripts/nodes needs to build nodes of other versions: Go modules of other versions of Kubernetes than that in go.mod.

# make_module DIR MODULE VERSION [TOOL...] makes DIR a Go module with MODULE at VERSION, and with what DIR's
# source and the TOOLs need. It fails if something of it cannot be had; DIR/log says what.
make_module() {
	local its tool
	its=$(go mod download -json "$2@$3" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p') # the go.mod of MODULE
	: "${its:=/dev/null}"
	{
		printf 'module other\n\ngo %s\n\nrequire %s %s\n' "$(sed -n 's/^go //p' "$its" | grep . || echo 1.26.0)" "$2" "$3"
		# k8s.io/kubernetes asks for its staging modules at v0.0.0, and replaces them inside its own repository.
		sed -n "s,^[[:space:]]*\(k8s\.io/[^ ]*\) => \./staging/.*,replace \1 => \1 v0${3#v1},p" "$its"
		for tool in "${@:4}"; do echo "tool $tool"; done
	} >"$1/go.mod"
	(cd "$1" && go mod tidy) >"$1/log" 2>&1
}
