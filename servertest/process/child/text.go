package child

import (
	"bytes"
	"sync"
)

// Text keeps what is written to it. Several goroutines may write.
type Text struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds p.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String returns all of it.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
