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
	[ "$(id -gn karve 2>/dev/null)" = karve ] || ! { getent passwd karve || getent group karve; } >/dev/null ||
		refuse "this machine has a user or a group karve, but not that user in that group, which the service needs. Members of the group could read the options of the service. Remove it (groupdel karve); or, if they may, add the user (useradd --system --gid karve --no-create-home --shell /bin/false karve)"
}

# keep_a_way_back backs up the datastore with the version that is still installed. The server
# may run meanwhile. The same version converts nothing: then an older backup stays. Without a
# program, as after a removal, the new one makes the backup, in set_up.
keep_a_way_back() {
	[ -e "$config" ] || [ -e "$data_dir" ] || return 0
	if [ ! -x /usr/bin/karve ]; then
		mkdir -p "${backup_due%/*}"
		: >"$backup_due"
	elif [ "$(/usr/bin/karve version | awk 'NR == 1 { print $2 }')" != "$new" ]; then
		back_up || refuse "no upgrade without a backup: see the error above. Nothing has been changed. To upgrade without a backup: touch $without_backup, and upgrade again"
	fi
}

# back_up lets the program back up what it finds by the configuration.
back_up() {
	if [ -e "$without_backup" ]; then
		say "no backup is made, because of $without_backup"
	else
		/usr/bin/karve install --back-up >&2
	fi
}

# set_up makes what the service needs, and leaves alone what is there.
set_up() {
	id karve >/dev/null 2>&1 ||
		useradd --system --user-group --no-create-home --home-dir "$data_dir" --shell /bin/false --comment 'Karve service' karve
	if [ ! -e "$config" ]; then
		mkdir -p "${config%/*}"
		install -m 640 -g karve /dev/null "$config.new"
		printf '%s\n' "# Options of karve server: karve-server(1)." "data-dir: '$data_dir'" "backup-schedule: '@daily'" >"$config.new"
		mv "$config.new" "$config"
	fi
	[ -e "$data_dir" ] || install -d -m 700 -o karve -g karve "$data_dir"
	[ "$(stat -L -c %U "$data_dir")" = karve ] ||
		say "$data_dir belongs to another user than karve, so the service cannot use it. If all in it is Karve's: chown -hR karve: $data_dir/"
	if [ -e "$backup_due" ]; then
		back_up || refuse "no start on the data of another version without a backup, which failed: see the error above. After that: dpkg --configure karve, or dnf reinstall karve. To go on without a backup, touch $without_backup before"
	fi
	rm -f "$without_backup" "$backup_due" # they were meant for one upgrade
}

# not_a_node refuses to leave a node without the program that removes it.
not_a_node() {
	[ ! -e /etc/karve-node/installed.json ] || refuse "this machine is a node: run karve node remove first"
}

# what_is_kept says it, and removes only what is empty. The program is gone, so it looks at every path in the configuration.
what_is_kept() {
	rmdir "$data_dir" "$backup" 2>/dev/null || :
	{ printf '%s\n' "$data_dir" "$backup" && grep -o "/[^]'\",?# ]*" "$config"; } 2>/dev/null | sed 's,//*,/,g; s,/$,,' | sort -u | while read -r dir; do
		if [ -e "$dir/karve-data" ] || [ -e "$dir/mvcc.db" ]; then say "$dir is kept, with the data of the cluster. To delete them: rm -r $dir"; fi
	done
}
