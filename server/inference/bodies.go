package inference

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
)

const (
	// bodyMax bounds a request's body: a long conversation with some images fits.
	bodyMax = 32 << 20
	// bodiesMax bounds the bodies of all calls under way together: thousands of usual ones, a handful of the largest. With the
	// copies that are made of each, the program then takes some four times as much.
	bodiesMax = 256 << 20
	// bodySmall is the size up to which a body may also use what is kept free of larger ones: nearly all are far smaller.
	bodySmall = 1 << 20
	// bodiesKept is what larger bodies leave to small ones, so that these are served while those are turned away.
	bodiesKept = bodiesMax / 4
	// bodyStart is how much is made ready for a body before any of it has come: a usual one fits.
	bodyStart = 16 << 10
)

// bodies is the memory that the bodies of calls take together.
type bodies struct {
	mu   sync.Mutex
	held int64
}

// boundFor is what all bodies together may take if one of them has so many bytes.
func boundFor(size int64) int64 {
	if size > bodySmall {
		return bodiesMax - bodiesKept
	}
	return bodiesMax
}

// room says whether a body of a size would find room now.
func (b *bodies) room(size int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held+size <= boundFor(size)
}

// take takes more memory for a body that can then have a size. It returns false if that would be too much.
func (b *bodies) take(more, size int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held+more > boundFor(size) {
		return false
	}
	b.held += more
	return true
}

func (b *bodies) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
}

// requestBody is a request's body in memory.
type requestBody struct {
	bodies *bodies
	bytes  []byte
}

// read reads a whole body, which is to be closed when the call has ended. One that is announced as too large, or for which there
// is no room, is refused unread. Memory is taken as bytes arrive, so that a body that is only announced takes none from others.
// An error is an [answerError].
func (b *bodies) read(r *http.Request) (*requestBody, error) {
	switch {
	case r.ContentLength > bodyMax:
		return nil, answerError(tooLarge)
	case !b.room(r.ContentLength):
		return nil, answerError(overloaded)
	}
	body := &requestBody{bodies: b}
	if err := body.readFrom(r.Body, r.ContentLength); err != nil {
		body.close()
		return nil, err
	}
	return body, nil
}

// close gives the body's memory back.
func (b *requestBody) close() {
	b.bodies.give(int64(cap(b.bytes)))
	b.bytes = nil
}

// readFrom reads to the end. announced is how many bytes the client has said that there are, -1 if it has not.
func (b *requestBody) readFrom(r io.Reader, announced int64) error {
	for {
		if len(b.bytes) == cap(b.bytes) && !b.grow(announced) {
			return answerError(overloaded)
		}
		n, err := r.Read(b.bytes[len(b.bytes):cap(b.bytes)])
		b.bytes = b.bytes[:len(b.bytes)+n]
		switch {
		case len(b.bytes) > bodyMax:
			return answerError(tooLarge)
		case err == io.EOF:
			return nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return answerError(tooSlow)
		case err != nil:
			return answerError(invalid("the body could not be read"))
		}
	}
}

// grow makes room for more bytes: for twice as many, but not for more than have been announced or are allowed, and for one by
// which the end is seen. It returns false if others have taken what there is.
func (b *requestBody) grow(announced int64) bool {
	size := max(2*int64(cap(b.bytes)), bodyStart)
	if announced >= int64(cap(b.bytes)) {
		size = min(size, announced+1)
	}
	size = min(size, bodyMax+1)
	if !b.bodies.take(size-int64(cap(b.bytes)), size-1) {
		return false
	}
	b.bytes = append(make([]byte, 0, size), b.bytes...)
	return true
}
