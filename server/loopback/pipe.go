package loopback

import (
	"io"
	"sync"
)

// bufferSize is how much of an answer may wait for its reader before the writer has to wait.
// An answer of which nothing waits needs no buffer.
const bufferSize = 16 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// pipe carries the body of an answer. The reader sees what was written when the
// writer flushes, when the buffer is full, and at the end, so a message of many
// writes wakes it once.
type pipe struct {
	mu      sync.Mutex
	changed sync.Cond
	buffer  *[bufferSize]byte // nil while nothing waits
	data    []byte            // what waits: a part of buffer, or of the slice of a writer
	shown   bool              // the reader may read it

	readErr  error // after the data
	writeErr error // why the writer may not write
}

func newPipe() *pipe {
	p := &pipe{}
	p.changed.L = &p.mu
	return p
}

// Write waits while the buffer is full. The reader reads a slice as large as the buffer from b
// itself.
func (p *pipe) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		if p.writeErr != nil {
			return n, p.writeErr
		}
		if len(p.data) == 0 && len(b) >= bufferSize {
			return n + p.lend(b), p.writeErr
		}
		if len(p.data) == bufferSize {
			p.changed.Wait()
			continue
		}
		k := p.append(b)
		n, b = n+k, b[k:]
		if len(p.data) == bufferSize {
			p.show()
		}
	}
	return n, nil
}

// lend lets the reader read from b. It waits until the reader has read all of b, or never
// will, and returns how much was read.
func (p *pipe) lend(b []byte) int {
	p.data = b
	p.show()
	for len(p.data) > 0 && p.writeErr == nil {
		p.changed.Wait()
	}
	taken := len(b) - len(p.data)
	p.data = nil // b belongs to the writer again
	return taken
}

// append moves as much of b into the buffer as fits.
func (p *pipe) append(b []byte) int {
	if p.buffer == nil {
		p.buffer = buffers.Get().(*[bufferSize]byte)
		p.data = p.buffer[:0]
	}
	if k := cap(p.data) - len(p.data); k < len(b) && cap(p.data) < bufferSize {
		p.data = p.buffer[:copy(p.buffer[:], p.data)] // to the front
	}
	k := min(len(b), cap(p.data)-len(p.data))
	p.data = append(p.data, b[:k]...)
	return k
}

func (p *pipe) show() {
	p.shown = true
	p.changed.Broadcast()
}

// Flush lets the reader read what waits.
func (p *pipe) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.data) > 0 {
		p.show()
	}
	return p.writeErr
}

func (p *pipe) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for !p.shown || len(p.data) == 0 {
		if p.readErr != nil {
			return 0, p.readErr
		}
		p.changed.Wait()
	}
	n := copy(b, p.data)
	p.data = p.data[n:]
	if len(p.data) == 0 {
		p.drained()
	}
	return n, nil
}

func (p *pipe) drained() {
	p.shown = false
	if p.buffer != nil {
		buffers.Put(p.buffer)
		p.buffer, p.data = nil, nil
	}
	p.changed.Broadcast()
}

// finish ends the writing: the reader gets what waits, and then err.
func (p *pipe) finish(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writeErr == nil {
		p.readErr, p.writeErr = err, io.ErrClosedPipe
		p.show()
	}
}

// abort ends both sides immediately; what waits is lost.
func (p *pipe) abort(readErr, writeErr error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writeErr == nil {
		p.writeErr = writeErr
	}
	p.readErr = readErr
	if p.buffer != nil {
		p.data = p.data[len(p.data):]
		p.drained()
	}
	p.shown = false // what was lent is the writer's again
	p.changed.Broadcast()
}
