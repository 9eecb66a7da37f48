package openapi

import (
	"sync"
	"time"
)

// keepFor is how long a value is kept after the last request for it.
const keepFor = 5 * time.Minute

// expiring is a value that is made when it is requested, and dropped after keepFor without a
// request. A caller may continue to use a value that has been dropped.
type expiring[T any] struct {
	make  func() (T, error)
	mu    sync.Mutex
	value *T
	timer *time.Timer
}

// get returns the value, and makes it if it does not exist. Concurrent callers get the same
// value.
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

// peek returns the value if it exists. It does not extend the value's life.
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
