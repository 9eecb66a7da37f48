# shellcheck shell=bash
# For the scripts that start a virtual machine: its kernel, Debian's, and the
# first file system, busybox with what the kernel needs to find its disks and sockets. They
# are emulated (KARVE_VM_ACCEL=tcg) unless another accelerator of qemu's is named.
# Needs Debian's packages qemu-system-x86, busybox-static and e2fsprogs.

# shellcheck disable=SC2034 # the scripts use it
vm_accel=${KARVE_VM_ACCEL:-tcg}

# vm_needs says which tools are missing.
vm_needs() {
	local tool missing=
	for tool in qemu-system-x86_64 busybox mkfs.ext4 dpkg-deb apt-get "$@"; do
		command -v "$tool" >/dev/null || missing="$missing $tool"
	done
	[ -z "$missing" ] || { echo "$(basename "$0"): not here:$missing (Debian: qemu-system-x86 busybox-static e2fsprogs debootstrap)" >&2 && exit 2; }
}

# vm_kernel DIR puts Linux into DIR/vmlinuz, its modules into DIR/modules, its configuration into
# DIR/config and its release into DIR/release. The "cloud" kernel is the small one for virtual machines.
vm_kernel() {
	local package
	[ ! -e "$1/release" ] || return 0
	rm -rf "$1/modules" "$1/deb"
	mkdir -p "$1/deb"
	chmod 755 "$1" "$1/deb"
	package=$(apt-cache depends linux-image-cloud-amd64 | awk '$1 == "Depends:" && /linux-image/ { print $2; exit }')
	(cd "$1/deb" && apt-get download -qq "$package" 2>/dev/null) || { echo "the package $package could not be downloaded: apt-get update?" >&2 && exit 1; }
	dpkg-deb -x "$1"/deb/*.deb "$1/deb/tree"
	mv "$1"/deb/tree/lib/modules/* "$1/modules"
	cp "$1"/deb/tree/boot/vmlinuz-* "$1/vmlinuz"
	cp "$1"/deb/tree/boot/config-* "$1/config"
	basename "$1"/deb/tree/boot/vmlinuz-* | sed 's/^vmlinuz-//' >"$1/release"
	rm -r "$1/deb"
}

# vm_initrd DIR INIT makes DIR/initrd with INIT as its first process.
vm_initrd() {
	local tree=$1/initrd.tree module
	mkdir -p "$tree/bin" "$tree/modules"
	cp "$(command -v busybox)" "$tree/bin/busybox"
	for module in drivers/virtio/virtio{_ring,,_pci_legacy_dev,_pci_modern_dev,_pci} \
		net/core/failover drivers/net/net_failover drivers/block/virtio_blk drivers/net/virtio_net net/ipv4/{inet,tcp}_diag; do
		cp "$1/modules/kernel/$module.ko" "$tree/modules/"
	done
	# An order in which each finds what it needs.
	cat >"$tree/modules/load" <<'END'
for m in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk failover net_failover virtio_net inet_diag tcp_diag; do
	/bin/busybox insmod /modules/$m.ko
done
END
	cp "$2" "$tree/init"
	chmod 755 "$tree/init"
	(cd "$tree" && find . | busybox cpio -o -H newc) >"$1/initrd" 2>/dev/null
	rm -r "$tree"
}
