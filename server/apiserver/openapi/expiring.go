package openapi

import (
	"sync"
	"time"
)

// keepFor is how long a kept value outlives the last request for it.
const keepFor = 5 * time.Minute

// expiring is a value that is made when it is asked for, and forgotten when nobody
// has asked for a while. Who was given it may go on using it.
type expiring[T any] struct {
	make  func() (T, error)
	mu    sync.Mutex
	value *T
	timer *time.Timer
}

// get makes the value or returns the one that is there. Callers at the same
// time share one making.
func (k *expiring[T]) get() (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.value == nil {
		value, err := k.make()
		if err != nil {
			return value, err
		}
		k.value = &value
	}
	if k.timer == nil {
		k.timer = time.AfterFunc(keepFor, k.forget)
	} else {
		k.timer.Reset(keepFor)
	}
	return *k.value, nil
}

// peek returns the value if it is there, and does not count as asking for it.
func (k *expiring[T]) peek() (value T, there bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.value == nil {
		return value, false
	}
	return *k.value, true
}

func (k *expiring[T]) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.value = nil
}
