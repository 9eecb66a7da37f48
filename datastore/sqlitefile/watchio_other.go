//go:build !linux

package sqlitefile

// watchIO reports nothing: it is for systemd.
func WatchIO(Progress) (stop func()) { return func() {} }
