//go:build !linux

package datastore

// watchIO reports nothing: it is for systemd.
func watchIO(Progress) (stop func()) { return func() {} }
