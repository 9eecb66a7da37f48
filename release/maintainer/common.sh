# What the scripts of both packages share: release/packages puts it in front of each, and new, the version in the package.
config=/etc/karve/config.yaml
data_dir=/var/lib/karve
backup=$data_dir.before-upgrade # wherever the data is: only root can change what is in /var/lib
without_backup=/etc/karve/upgrade-without-backup
backup_due=/etc/karve/backup-before-start # data were there before the program
unit=karve.service

say() { printf 'karve: %s\n' "$*" >&2; }
refuse() { say "$*" && exit 1; }

# before refuses what would be in the way, before anything is changed.
before() {
	[ ! -e /usr/local/bin/karve-uninstall.sh ] ||
		refuse "install.sh has installed Karve here. Run karve-uninstall.sh without --purge, then install this package: it goes on with the data and the configuration"
}

# keep_a_way_back backs up the datastore with the version that is still installed. The server
# may run meanwhile. The same version converts nothing: then an older backup stays. Without a
# program, as after a removal, the new one makes the backup, in set_up.
keep_a_way_back() {
	if [ -x /usr/bin/karve ]; then
		[ -e "$config" ] || return 0
		installed=$(/usr/bin/karve version | awk 'NR == 1 { print $2 }')
		[ "$installed" != "$new" ] || return 0
	fi
	read_places
	case $store in
	external)
		say "the datastore is an external one: back it up yourself"
		return 0
		;;
	memory)
		say "the datastore is in memory: the restart of the service begins an empty cluster"
		return 0
		;;
	esac
	[ -e "$store/mvcc.db" ] || return 0
	if [ -e "$without_backup" ]; then
		say "no backup is made, because of $without_backup"
		return 0
	fi
	otherwise="Nothing has been changed. To upgrade without a backup: touch $without_backup, and upgrade again"
	(umask 077 && mkdir -p "$backup") || refuse "no upgrade without a backup: $backup could not be created. $otherwise"
	only_roots "$backup" || refuse "no upgrade without a backup: $backup has to be a directory that only root can change, and no link: move it away. $otherwise"
	if [ -x /usr/bin/karve ]; then
		back_up || refuse "no upgrade without a backup, which failed: see the error above. $otherwise"
	else
		mkdir -p "${backup_due%/*}"
		: >"$backup_due"
	fi
}

# back_up makes the backup. The one before it is kept: after an upgrade, it is what a return to the old version may need.
# Neither changes before the new one is complete.
back_up() {
	if [ -d "$backup/mvcc.db.previous" ]; then # mv would move into it
		say "$backup/mvcc.db.previous is a directory: move it away"
		return 1
	fi
	rm -f "$backup/mvcc.db.kept" || return 1
	# Not every file system has hard links.
	[ ! -e "$backup/mvcc.db" ] || ln "$backup/mvcc.db" "$backup/mvcc.db.kept" 2>/dev/null || cp -p "$backup/mvcc.db" "$backup/mvcc.db.kept" || return 1
	if ! /usr/bin/karve datastore backup --config "$config" --overwrite "$backup/mvcc.db" >&2; then
		rm -f "$backup/mvcc.db.kept"
		return 1
	fi
	[ ! -e "$backup/mvcc.db.kept" ] || mv -f "$backup/mvcc.db.kept" "$backup/mvcc.db.previous" || return 1
	rm -f "$backup_due"
}

# read_places reads where the data is: data, the data directory, and store, the directory of the
# datastore, which may be "external" or "memory" instead.
read_places() {
	data=$data_dir store=$data_dir
	[ -e "$config" ] || return 0
	data=$(option data-dir "$config")
	data=${data:-$data_dir} data=${data%/}
	store=$(datastore_dir "$(option datastore-endpoint "$config")" "$data") || store=external
	store=${store:-memory}
}

# option NAME FILE prints a value in a configuration file.
option() {
	awk -v key="$1" '
		{ name = $0; sub(/[ \t]*:.*/, "", name); gsub(/["\047]/, "", name) }
		/^[^ \t#-]/ && name == key {
			sub(/^[^:]*:[ \t]*/, "")
			if (!/^["\047]/) sub(/[ \t]+#.*/, "")
			gsub(/^["\047]|["\047][ \t]*$/, "")
			print
			exit
		}' "$2"
}

# datastore_dir ENDPOINT DATA_DIR prints the directory of the built-in datastore, nothing for one in memory, and
# fails for another one.
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

# only_roots DIR tells whether only root can change what is in a directory.
only_roots() {
	[ -d "$1" ] && [ ! -L "$1" ] && [ "$(stat -c %u "$1")" = 0 ] || return 1
	case $(stat -c %A "$1") in ?????w* | ????????w*) return 1 ;; esac
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
	elif [ -s "$data_dir/karve-data" ] && [ ! -L "$data_dir/karve-data" ]; then
		take_over
	fi
	if [ -e "$backup_due" ] && [ ! -e "$without_backup" ]; then
		back_up || refuse "no start on the data of another version without a backup, which failed: see the error above. After that: dpkg --configure karve, or dnf reinstall karve. To go on without a backup, touch $without_backup before"
	fi
	rm -f "$without_backup" "$backup_due" # they were meant for one upgrade
}

# take_over gives the data to the service, if they are root's, as after install.sh on some machines, or those
# of a user who has been removed. That user may have put a hard link
# there to a file of somebody else: only files of the directory's owner change theirs.
take_over() {
	dir=$(readlink -f "$data_dir")
	owner=$(stat -c %u "$dir")
	[ "$owner" != "$(id -u karve)" ] || return 0
	if [ "$owner" = 0 ] && only_roots "$dir" || ! getent passwd "$owner" >/dev/null; then
		chown -hR --from="$owner" karve:karve "$dir"
	else
		say "$dir belongs to the user $(stat -c %U "$dir"), so the service cannot use it. If all in it is Karve's: chown -hR karve:karve $dir"
	fi
}

# not_a_node refuses to leave a node without the program that removes it.
not_a_node() {
	[ ! -e /etc/karve-node/installed.json ] || refuse "this machine is a node: run karve node remove first"
}

# what_is_kept says it, and removes only what is empty.
what_is_kept() {
	for dir in "$data_dir" "$backup"; do
		rmdir "$dir" 2>/dev/null || [ ! -e "$dir" ] || kept "$dir"
	done
	read_places
	case $data in "$data_dir" | "$backup") ;; *) [ ! -e "$data" ] || kept "$data" ;; esac
	case $store in external | memory | "$data" | "$data_dir" | "$backup") ;; *) [ ! -e "$store" ] || kept "$store" ;; esac
}

kept() { say "$1 is kept, with the data of the cluster. To delete them: rm -r $1"; }
