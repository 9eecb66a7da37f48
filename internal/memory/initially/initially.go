// Package initially keeps the garbage collector off while a program's packages are initialised.
// Those of Kubernetes allocate much, most of which stays (server/DESIGN.md). Only package main imports
// this package, because a program that uses Karve as a library decides about its own process.
//
// Go initialises the package with the smallest import path among those whose imports are ready. This
// one imports next to nothing, so nearly all of Kubernetes comes after it.
package initially

import "runtime/debug"

var percent = debug.SetGCPercent(-1)

// Done gives the garbage collector the target that it had, GOGC's or Go's own. Call it first in main.
func Done() { debug.SetGCPercent(percent) }
