//go:build !unix

package server

// writable leaves it to the claim to find out.
func writable(string) error { return nil }
