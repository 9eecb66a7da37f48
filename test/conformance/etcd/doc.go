// Package etcd has only tests. They compare Karve's etcd with etcd: the flags of the
// program, and the answers to random requests. See ../DESIGN.md.
package etcd
