//go:build !linux

package memory

// dropProgram does nothing: this system does not say which pages of a program are its
// file's.
func dropProgram() error { return nil }
