# What the scripts of both packages share. The first lines set new, the version in the package.
config=/etc/karve/config.yaml
data_dir=/var/lib/karve
unit=karve.service

say() { printf 'karve: %s\n' "$*" >&2; }
refuse() { say "$*" && exit 1; }

# before refuses what would be in the way, before anything is changed.
before() {
	[ ! -e /usr/local/bin/karve-uninstall.sh ] ||
		refuse "install.sh has installed Karve here. Run karve-uninstall.sh without --purge, then install this package: it goes on with the data and the configuration"
}

# keep_a_way_back backs up the datastore with the version that is still installed. The server
# may run meanwhile. The same version converts nothing: then an older backup stays.
keep_a_way_back() {
	[ -x /usr/bin/karve ] && [ -e "$config" ] || return 0
	installed=$(/usr/bin/karve version | awk 'NR == 1 { print $2 }')
	[ "$installed" != "$new" ] || return 0
	data=$(option data-dir "$config")
	store=${data:-$data_dir}
	endpoint=$(option datastore-endpoint "$config")
	case $endpoint in
	'') ;;
	sqlite:///*) store=${endpoint#sqlite://} && store=${store%%\?*} ;;
	*)
		say "the datastore is an external one: back it up yourself"
		return 0
		;;
	esac
	[ -e "$store/mvcc.db" ] || return 0
	backup=${data:-$data_dir}.before-upgrade
	(umask 077 && mkdir -p "$backup") || refuse "no upgrade without a backup: $backup could not be created"
	/usr/bin/karve datastore backup --config "$config" --overwrite "$backup/mvcc.db" >&2 ||
		refuse "no upgrade without a backup. To upgrade nevertheless, move $store away"
}

# set_up makes what the service needs, and leaves alone what is there.
set_up() {
	id karve >/dev/null 2>&1 ||
		useradd --system --user-group --no-create-home --home-dir "$data_dir" --shell /bin/false --comment 'Karve service' karve
	if [ ! -e "$config" ]; then
		mkdir -p "${config%/*}"
		(umask 077 && printf '%s\n' "# Options of karve server: karve-server(1)." "data-dir: '$data_dir'" >"$config.new")
		chgrp karve "$config.new"
		chmod 640 "$config.new"
		mv "$config.new" "$config"
	fi
	if [ ! -e "$data_dir" ]; then
		mkdir -m 700 "$data_dir"
		chown karve:karve "$data_dir"
	elif [ -s "$data_dir/karve-data" ] && [ ! -L "$data_dir/karve-data" ] && [ "$(stat -c %U "$data_dir")" != karve ]; then
		# The user has been removed and made again. No link is followed: this is root.
		chown -hR karve:karve "$data_dir"
	fi
}

# not_a_node refuses to leave a node without the program that removes it.
not_a_node() {
	[ ! -e /etc/karve-node/installed.json ] || refuse "this machine is a node: run karve node remove first"
}

# what_is_kept says it, and removes only what is empty.
what_is_kept() {
	for dir in "$data_dir" "$data_dir.before-upgrade"; do
		rmdir "$dir" 2>/dev/null || [ ! -e "$dir" ] || say "$dir is kept, with the data of the cluster. To delete them: rm -r $dir"
	done
}
