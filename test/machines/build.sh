# shellcheck shell=bash disable=SC2154 # scripts/nodes has $build and $run
# Builds what a node runs: upstream's programs from the module proxy, at the versions in
# go.mod, and images of them. $build has the result: bin/ and images/. What is already there
# is not built again by Go, nor packed again.

# build_programs builds into $build/bin, and what nodes of another version run into $programs.
build_programs() {
	local version
	version=$(server_version)
	mkdir -p "$build/bin"
	CGO_ENABLED=0 go -C test build -trimpath -o "$build/bin/" -ldflags "$(link_flags "$version")" \
		k8s.io/kubernetes/cmd/{kubelet,kubeadm,kube-proxy} k8s.io/kubernetes/test/images/agnhost \
		./machines/coredns ./machines/image ./machines/pause
	if [ -n "${KARVE:-}" ]; then
		[ "$KARVE" -ef "$build/bin/karve" ] || cp -f --remove-destination "$KARVE" "$build/bin/karve"
	else
		scripts/build "$build/bin/karve"
	fi
	ln -sf karve "$build/bin/kubectl"
	[ -z "${KARVE_NODES_KUBERNETES:-}" ] || build_other "$KARVE_NODES_KUBERNETES"
}

# build_other VERSION builds the programs of a node of that version, in a module of its own.
build_other() {
	local dir=$build/$1 tools=(k8s.io/kubernetes/cmd/{kubelet,kubeadm})
	mkdir -p "$dir/bin"
	make_module "$dir" k8s.io/kubernetes "$1" "${tools[@]}" || die "the modules of Kubernetes $1 cannot be had: $(tail -n 3 "$dir/log")"
	CGO_ENABLED=0 go -C "$dir" build -trimpath -o "$dir/bin/" -ldflags "$(link_flags "$1")" "${tools[@]}"
	ln -f "$build/bin/karve" "$dir/bin/karve" # for karve node
}

# server_version prints the version of Kubernetes in go.mod.
server_version() { go -C test list -m -f '{{.Version}}' k8s.io/kubernetes; }

# link_flags VERSION prints what makes it the version that kubelet and kubeadm print, and compare with the server's.
link_flags() {
	local minor=${1#v1.}
	echo "-s -w -X k8s.io/component-base/version.gitVersion=$1" \
		"-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=${minor%%.*}"
}

# add_program ROOT PROGRAM puts a program of this machine, and the libraries that it is linked
# with, into the root of an image.
add_program() {
	local root=$1 file
	file=$(readlink -f "$(command -v "$2")") || die "$2 is not installed"
	install -D "$file" "$root/usr/bin/$(basename "$2")"
	add_libraries "$root" "$file"
}

# add_libraries ROOT FILE puts the libraries that a program or library is linked with there.
add_libraries() {
	local file
	ldd "$2" | grep -oE '/[^ ]*\.so[^ ]*' | while read -r file; do
		[ -e "$1$file" ] || install -D "$file" "$1$file"
	done
}

# add_users ROOT makes the files that a runtime looks names of users up in.
add_users() {
	mkdir -p "$1/etc" "$1/tmp"
	chmod 1777 "$1/tmp"
	printf 'root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n' >"$1/etc/passwd"
	printf 'root:x:0:\nnogroup:x:65534:\n' >"$1/etc/group"
}

# add_busybox ROOT adds busybox' programs, but bash as the shell: Debian's busybox has one that prefers its
# own nc and others to those of the image, and drops variables whose names are no names in a shell.
add_busybox() {
	local applet
	install -D "$(command -v busybox)" "$1/bin/busybox"
	for applet in $("$1/bin/busybox" --list); do
		case $applet in busybox | sh | ash | bash) continue ;; esac
		ln -s busybox "$1/bin/$applet"
	done
	add_program "$1" bash
	ln -s ../usr/bin/bash "$1/bin/sh"
	ln -s ../usr/bin/bash "$1/bin/bash"
}

# add_agnhost ROOT: upstream's image is an Alpine with more programs.
add_agnhost() {
	add_busybox "$1"
	add_program "$1" curl
	cp "$build/bin/agnhost" "$1/agnhost"
	install -m 644 "$(go -C test list -m -f '{{.Dir}}' k8s.io/kubernetes)"/test/images/agnhost/porter/localhost.{crt,key} "$1/"
	ln -s agnhost "$1/agnhost-2"
	mkdir "$1/uploads"
	echo 'user-defined-in-image:x:1000:1000::/home:/bin/sh' >>"$1/etc/passwd"
	printf 'user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n' >>"$1/etc/group"
}

# pack NAME OPTIONS packs $root as $images/NAME.tar.
pack() {
	local name=$1
	shift
	"$build/bin/image" -o "$images/$name.new" -root "$root" "$@"
	mv "$images/$name.new" "$images/$name.tar"
}

# build_images packs $build/images/*.tar. Their names are those that kubeadm and upstream's
# tests ask for.
build_images() {
	local root kubeadm_images tool images=$build/images
	kubeadm_images=$("$build/bin/kubeadm" config images list --kubernetes-version "$("$build/bin/kubeadm" version -o short)")
	image_of() { grep -E "/$1:" <<<"$kubeadm_images"; }
	if [ "$(cat "$images/made-of" 2>/dev/null)" = "$(made_of)" ]; then return; fi
	rm -rf "$images"
	mkdir -p "$images"

	new_root pause
	cp "$build/bin/pause" "$root/pause"
	pack pause -entrypoint /pause "$(image_of pause)"

	new_root busybox
	add_busybox "$root"
	rm "$root/bin/sh"
	install -m 755 test/machines/image/sh "$root/bin/sh"
	pack busybox -arg sh e2e:busybox

	new_root agnhost
	add_agnhost "$root"
	pack agnhost -entrypoint /agnhost -arg pause e2e:agnhost

	new_root coredns
	cp "$build/bin/coredns" "$root/coredns"
	pack coredns -entrypoint /coredns "$(image_of coredns)"

	new_root kube-proxy
	add_busybox "$root"
	mkdir -p "$root/usr/local/bin"
	cp "$build/bin/kube-proxy" "$root/usr/local/bin/kube-proxy"
	for tool in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore nft conntrack; do
		add_program "$root" "/usr/sbin/$tool"
	done
	for tool in "/usr/lib/$(uname -m)-linux-gnu/xtables"/*.so; do # iptables loads them by name
		install -D "$tool" "$root$tool"
		add_libraries "$root" "$tool"
	done
	pack kube-proxy -entrypoint /usr/local/bin/kube-proxy "$(image_of kube-proxy)"
	rm -rf "$build/root"
	made_of >"$images/made-of"
}

# build_suite_images packs $build/suite/*.tar: what upstream's Conformance tests need beyond that.
build_suite_images() {
	local root source version images=$build/suite tool pet
	version=$(go -C test list -m -f '{{.Version}}' k8s.io/sample-apiserver)
	source=$(go -C test list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images
	CGO_ENABLED=0 go -C test build -trimpath -ldflags '-s -w' -o "$build/bin/etcd" go.etcd.io/etcd/server/v3
	CGO_ENABLED=0 go -C test build -trimpath -ldflags '-s -w' -o "$build/bin/" k8s.io/sample-apiserver k8s.io/kubernetes/test/images/nonewprivs
	if [ "$(cat "$images/made-of" 2>/dev/null)" = "$version $(made_of)" ]; then return; fi
	rm -rf "$images"
	mkdir -p "$images"

	new_root agnhost
	add_agnhost "$root"
	for tool in dig nc getent; do add_program "$root" "$tool"; done
	rm "$root/bin/nc"
	pack agnhost -entrypoint /agnhost -arg pause e2e:agnhost e2e:agnhost-prev
	# These are agnhost with two files.
	for pet in kitten nautilus; do
		install -m 644 "$source/$pet/html"/* "$root/"
		pack "$pet" -entrypoint /agnhost -arg test-webserver "e2e:$pet"
		rm "$root/$pet.jpg" "$root/data.json"
	done

	new_root dns
	add_busybox "$root"
	for tool in dig getent; do add_program "$root" "$tool"; done
	pack glibc-dns-testing -arg sh e2e:glibc-dns-testing

	# Debian's package is only unpacked: installed, it would start a server on this machine.
	new_root nginx
	add_busybox "$root"
	(
		mkdir "$build/nginx" && cd "$build/nginx" && apt-get download -qq nginx nginx-common 2>/dev/null
		for tool in *.deb; do dpkg -x "$tool" "$root"; done
	) || die "Debian's package nginx could not be downloaded"
	rm -rf "$build/nginx"
	mkdir -p "$root/var/lib/nginx" "$root/var/log/nginx" "$root/run"
	add_libraries "$root" "$root/usr/sbin/nginx"
	cat >"$root/etc/nginx/nginx.conf" <<-END
		events {}
		http { server { listen 80; root /usr/share/nginx/html; } }
	END
	pack nginx -entrypoint /usr/sbin/nginx -arg -g -arg "daemon off;" e2e:nginx e2e:nginx-new

	new_root nonroot
	add_busybox "$root"
	pack nonroot -user 1234 -arg sh e2e:nonroot

	new_root nonewprivs
	add_busybox "$root"
	install -D -m 6755 "$build/bin/nonewprivs" "$root/usr/local/bin/nnp"
	pack nonewprivs -arg nnp e2e:nonewprivs

	new_root sample-apiserver
	cp "$build/bin/sample-apiserver" "$root/"
	pack sample-apiserver -entrypoint /sample-apiserver e2e:sample-apiserver

	new_root etcd
	add_busybox "$root"
	install -D "$build/bin/etcd" "$root/usr/local/bin/etcd"
	pack etcd e2e:etcd
	rm -rf "$build/root"
	echo "$version $(made_of)" >"$images/made-of"
}

# made_of prints what the images depend on.
made_of() { cat "$build"/bin/{pause,agnhost,coredns,kube-proxy,kubeadm,image} test/machines/build.sh test/machines/image/sh | sha256sum; }

# new_root makes $root, an empty directory.
new_root() {
	root=$build/root
	rm -rf "$root"
	mkdir -p "$root"
	add_users "$root"
}
