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
	mu       sync.Mutex
	changed  sync.Cond
	buffer   *[bufferSize]byte // nil while nothing waits
	from, to int               // what waits is between these
	shown    bool              // the reader may read it

	readErr  error // after what waits
	writeErr error // why the writer may not write
}

func newPipe() *pipe {
	p := &pipe{}
	p.changed.L = &p.mu
	return p
}

// Write waits while the buffer is full.
func (p *pipe) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		switch {
		case p.writeErr != nil:
			return n, p.writeErr
		case p.buffer == nil:
			p.buffer = buffers.Get().(*[bufferSize]byte)
		case p.to == bufferSize && p.from > 0:
			p.to, p.from = copy(p.buffer[:], p.buffer[p.from:]), 0
		case p.to == bufferSize:
			p.show()
			p.changed.Wait()
			continue
		}
		k := copy(p.buffer[p.to:], b)
		p.to += k
		n, b = n+k, b[k:]
	}
	if p.to == bufferSize {
		p.show()
	}
	return n, nil
}

func (p *pipe) show() {
	p.shown = true
	p.changed.Broadcast()
}

// Flush lets the reader read what waits.
func (p *pipe) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.buffer != nil {
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
	for !p.shown || p.buffer == nil {
		if p.readErr != nil {
			return 0, p.readErr
		}
		p.changed.Wait()
	}
	n := copy(b, p.buffer[p.from:p.to])
	if p.from += n; p.from == p.to {
		p.empty()
	}
	return n, nil
}

// empty gives the buffer back.
func (p *pipe) empty() {
	if p.buffer != nil {
		buffers.Put(p.buffer)
	}
	p.buffer, p.from, p.to, p.shown = nil, 0, 0, false
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
	p.empty()
}
