// Package embed takes the place of etcd's package of this name, which links a whole etcd server.
// It has what kine's bridge uses of that (kine pkg/server/rangestream.go).
package embed

// DefaultMaxRequestBytes is the largest request of an etcd by default. test/conformance/etcd compares
// it with etcd's.
const DefaultMaxRequestBytes = 1.5 * 1024 * 1024
