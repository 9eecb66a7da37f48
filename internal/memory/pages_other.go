//go:build !linux

package memory

// dropProgram is for systems that say which pages of a program are its file's.
func dropProgram() error { return nil }
