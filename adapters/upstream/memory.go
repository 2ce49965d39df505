package upstream

import (
	"errors"
	"io"
	"sync"
)

const (
	// answersMax bounds the whole answers of all calls under way together: thousands of usual ones, a handful of the largest. With the
	// copies that are made of each, the program takes some three times as much.
	answersMax = 256 << 20
	// answerStart is how much is made ready for an answer of unknown size: a usual one fits.
	answerStart = 16 << 10
)

var (
	// ErrMemory is returned for an answer for which there is no room beside the others.
	ErrMemory = errors.New("the answers of all calls together take too much memory")
	// ErrSize is returned for an answer beyond [BodyMax].
	ErrSize = errors.New("the answer is too large")
)

// Memory is what whole answers take together. The zero value is ready; providers share one.
type Memory struct {
	mu   sync.Mutex
	held int64
}

func (m *Memory) take(n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held+n > answersMax {
		return false
	}
	m.held += n
	return true
}

func (m *Memory) give(n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held -= n
}

// Whole is an answer in memory.
type Whole struct {
	Bytes  []byte
	memory *Memory
}

// Read reads to the end. announced is the answer's size if it is known, else -1. It returns [ErrSize], [ErrMemory] or the reader's
// error. The answer is to be closed when nobody needs it any more, also after an error.
func (m *Memory) Read(r io.Reader, announced int64) (*Whole, error) {
	w := &Whole{memory: m}
	if announced > BodyMax {
		return w, ErrSize
	}
	for {
		if len(w.Bytes) == cap(w.Bytes) && !w.grow(announced) {
			return w, ErrMemory
		}
		n, err := r.Read(w.Bytes[len(w.Bytes):cap(w.Bytes)])
		w.Bytes = w.Bytes[:len(w.Bytes)+n]
		switch {
		case len(w.Bytes) > BodyMax:
			return w, ErrSize
		case err == io.EOF:
			return w, nil
		case err != nil:
			return w, err
		}
	}
}

// grow makes room for twice as many bytes, though not for more than were announced or are allowed, and for one by which the end is
// seen.
func (w *Whole) grow(announced int64) bool {
	size := max(2*int64(cap(w.Bytes)), answerStart)
	if announced >= int64(cap(w.Bytes)) {
		size = min(size, announced+1)
	}
	size = min(size, BodyMax+1)
	if !w.memory.take(size - int64(cap(w.Bytes))) {
		return false
	}
	w.Bytes = append(make([]byte, 0, size), w.Bytes...)
	return true
}

// Close gives the memory back. It may be called again.
func (w *Whole) Close() {
	w.memory.give(int64(cap(w.Bytes)))
	w.Bytes = nil
}
