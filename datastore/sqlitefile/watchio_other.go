//go:build !linux

package sqlitefile

// WatchIO reports nothing here: it is for systemd.
func WatchIO(Progress) (stop func()) { return func() {} }
