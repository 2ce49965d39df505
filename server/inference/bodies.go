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
	// copies that are made of each, the program takes some four times as much, and with bodies of nothing but tiny parts up to eight.
	bodiesMax = 256 << 20
	// bodiesShare is what the bodies of one user may take of that: nobody can take it all from the others.
	bodiesShare = bodiesMax / 4
	// bodySmall is the size up to which a body may also use what is kept free of larger ones: nearly all are far smaller.
	bodySmall = 1 << 20
	// keptPart of all, and of each user's share, is what larger bodies leave to small ones, so that these are served while those are
	// turned away: a quarter.
	keptPart = 4
	// bodyStart is how much is made ready for a body before any of it has come: a usual one fits.
	bodyStart = 16 << 10
)

// bodies is the memory that the bodies of calls take together.
type bodies struct {
	mu     sync.Mutex
	held   int64
	shares map[string]int64
}

// boundFor is the part of a bound up to which bodies may take memory if one of them has so many bytes.
func boundFor(bound, size int64) int64 {
	if size > bodySmall {
		return bound - bound/keptPart
	}
	return bound
}

// fits says whether a user's body that can have a size may take so much more. The mutex is held.
func (b *bodies) fits(user string, more, size int64) bool {
	return b.held+more <= boundFor(bodiesMax, size) && b.shares[user]+more <= boundFor(bodiesShare, size)
}

// room says whether a user's body of a size would find room now.
func (b *bodies) room(user string, size int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fits(user, size, size)
}

// take takes more memory for a user's body that can then have a size. It returns false if that would be too much.
func (b *bodies) take(user string, more, size int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.fits(user, more, size) {
		return false
	}
	if b.shares == nil {
		b.shares = map[string]int64{}
	}
	b.held += more
	b.shares[user] += more
	return true
}

func (b *bodies) give(user string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	if b.shares[user] -= n; b.shares[user] == 0 {
		delete(b.shares, user)
	}
}

// requestBody is a request's body in memory.
type requestBody struct {
	bodies *bodies
	user   string
	bytes  []byte
}

// read reads a whole body, which is to be closed when the call has ended. One that is announced as too large, or for which there
// is no room, is refused unread. Memory is taken as bytes arrive, at most twice as much: a body that is only announced takes none
// from others. An error is an [answerError].
func (b *bodies) read(user string, r *http.Request) (*requestBody, error) {
	switch {
	case r.ContentLength > bodyMax:
		return nil, answerError(tooLarge)
	case !b.room(user, r.ContentLength):
		return nil, answerError(overloaded)
	}
	body := &requestBody{bodies: b, user: user}
	if err := body.readFrom(r.Body, r.ContentLength); err != nil {
		body.close()
		return nil, err
	}
	return body, nil
}

// close gives the body's memory back.
func (b *requestBody) close() {
	b.bodies.give(b.user, int64(cap(b.bytes)))
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
	if !b.bodies.take(b.user, size-int64(cap(b.bytes)), size-1) {
		return false
	}
	b.bytes = append(make([]byte, 0, size), b.bytes...)
	return true
}
