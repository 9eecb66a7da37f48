package directory

import "golang.org/x/sys/windows"

// FreeBytes returns how much this user can still write to the disk of dir.
func FreeBytes(dir string) (int64, bool) {
	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return 0, false
	}
	var free uint64
	if err := windows.GetDiskFreeSpaceEx(name, &free, nil, nil); err != nil {
		return 0, false
	}
	return int64(free), true
}

// fileSizeLimit returns no limit, because there is none.
func fileSizeLimit() (limit int64, limited bool) { return 0, false }
