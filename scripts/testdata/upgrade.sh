# shellcheck shell=bash
# What scripts/upgrade-test needs: the program of the minor version before this one, and
# comparisons of objects. $work is a directory, $old the program, and `karve kubectl` asks the server.
# shellcheck disable=SC2154 # $work

# minor COMMIT prints the minor version of Kubernetes in its go.mod, such as v1.37.
minor() { git show "$1:go.mod" | sed -n 's,^[[:space:]]*k8s\.io/kubernetes \(v1\.[0-9]*\)\..*,\1,p' | head -n 1; }

# old_commit prints the last commit before HEAD's minor version of Kubernetes.
old_commit() {
	local now newer='' commit
	now=$(minor HEAD)
	for commit in $(git rev-list --first-parent HEAD -- go.mod); do
		if [ "$(minor "$commit")" != "$now" ]; then
			git rev-parse "$newer^"
			return
		fi
		newer=$commit
	done
	echo "$(basename "$0"): no commit here has another minor version of Kubernetes than $now: fetch the history (git fetch --unshallow), or name a program" >&2
	return 1
}

# build_old sets $old to the program of that commit.
build_old() {
	local commit source
	commit=$(old_commit)
	old=$PWD/build/upgrade-test/karve-${commit:0:12}
	[ ! -x "$old" ] || return 0
	source=$PWD/build/upgrade-test/source
	printf 'building karve of %s, with Kubernetes %s\n' "$(git log -1 --format='%h (%s)' "$commit")" "$(minor "$commit")"
	rm -rf "$source"
	git worktree prune
	git worktree add --quiet --detach "$source" "$commit"
	"$source/scripts/build" "$old.partial" || { git worktree remove --force "$source"; return 1; }
	git worktree remove --force "$source"
	mv "$old.partial" "$old"
}

# objects FILE writes every object: its kind, group, namespace, name, uid and resourceVersion.
# Without what changes by itself.
objects() {
	local resources
	resources=$(karve kubectl api-resources --verbs=list,create -o name | grep -vE '^(events|leases|componentstatuses)(\.|$)' | paste -sd, -) || die "the API resources cannot be listed"
	karve kubectl get "$resources" --all-namespaces -o go-template='{{range .items}}{{.kind}} {{.apiVersion}} {{or .metadata.namespace "-"}} {{.metadata.name}} {{.metadata.uid}} {{.metadata.resourceVersion}}{{"\n"}}{{end}}' 2>"$work/out" |
		sed -E 's, ([^ /]*)/v[0-9a-z]+ , \1 ,; s,^([^ ]+) v1 ,\1 core ,' | LC_ALL=C sort >"$1" || die "the objects cannot be listed"
	[ "$(wc -l <"$1")" -gt 150 ] || die "only $(wc -l <"$1") objects are served"
}

# kept BEFORE AFTER [own]: every object is there, with its uid and resourceVersion. With "own",
# a version may rewrite its own: bootstrap roles and the like.
kept() {
	awk -v own="${3:-}" '
		{ key = $1 " " $2 " " $3 " " $4 }
		NR == FNR { uid[key] = $5; version[key] = $6; next }
		{ seen[key] = 1 }
		!(key in uid) { next }
		uid[key] != $5 { print key " has the uid " $5 ", and had " uid[key] }
		uid[key] == $5 && version[key] != $6 {
			if (key ~ /^(Endpoints core|EndpointSlice discovery.k8s.io) default kubernetes$/) next
			if (own != "" && key ~ /^(ClusterRole|Role) rbac.authorization.k8s.io [^ ]+ system:/) next
			print key " has the resourceVersion " $6 ", and had " version[key]
		}
		END {
			for (key in uid) {
				if (key in seen) continue
				if (own != "" && key ~ /^APIService apiregistration.k8s.io - v[0-9]+(alpha|beta)[0-9]+\./) continue # a version that is not served any more
				print key " is gone"
			}
		}' "$1" "$2" >"$work/differences"
	[ ! -s "$work/differences" ] || die "$(wc -l <"$work/differences") objects differ: $(head -n 5 "$work/differences")"
}
