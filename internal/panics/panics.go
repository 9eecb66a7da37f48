// Package panics keeps a worker that panics from ending the process. A worker that tries again after
// an error, with a pause that grows, treats a panic in the same way.
package panics

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Err is wrapped by the error that [Catch] makes of a panic. It is a mistake in the program, so it
// belongs into the log at once.
var Err = errors.New("panic")

// Catch calls do and returns its error. A panic of do becomes an error with the stack. What do keeps in
// memory must be right after a panic: locks are released by defer.
func Catch(do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("%w: %v\n%s", Err, value, debug.Stack())
		}
	}()
	return do()
}
