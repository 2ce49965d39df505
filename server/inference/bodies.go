package inference

import (
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
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
	held   int64 // of the memory of all
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
	content, err := decoded(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }() // the server closes the request's own
	if !b.take(user, content.memory, content.memory) {
		return nil, answerError(overloaded)
	}
	defer b.give(user, content.memory)
	body := &requestBody{bodies: b, user: user}
	if err := body.readFrom(content, content.announced); err != nil {
		body.close()
		if content.isOverrun() {
			return nil, answerError(tooLarge)
		}
		return nil, err
	}
	return body, nil
}

// content is a body without its Content-Encoding.
type content struct {
	io.ReadCloser
	// announced is how many bytes the client has said that there are, -1 if it has not.
	announced int64
	// memory is what decoding takes, besides what comes of it.
	memory int64
	// sent is what it is decoded from, up to one byte more than a body may have; nil if it has no encoding.
	sent *io.LimitedReader
}

const (
	// windowMax is what a compressed body may have its decoder remember: the window of zstd's usual levels.
	windowMax = 8 << 20
	// decoderMemory is what a decoder takes besides its window.
	decoderMemory = 640 << 10
	gzipMemory    = 64 << 10
)

// decoded is a body without its Content-Encoding. What it grows to counts as any other does. An error is an [answerError].
func decoded(r *http.Request) (c content, err error) {
	sent := &io.LimitedReader{R: r.Body, N: bodyMax + 1}
	c.announced, c.sent = -1, sent
	switch strings.ToLower(r.Header.Get("Content-Encoding")) {
	case "", "identity":
		return content{ReadCloser: r.Body, announced: r.ContentLength}, nil
	case "gzip":
		c.memory = gzipMemory
		c.ReadCloser, err = gzip.NewReader(sent)
	case "zstd":
		c.ReadCloser, c.memory, err = decodedZstd(sent)
	default:
		return content{}, answerError(unsupportedEncoding)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return content{}, answerError(tooSlow)
	case err != nil:
		return content{}, answerError(invalid("the body is not of its Content-Encoding"))
	}
	return c, nil
}

// isOverrun says that more has been sent than a body may have. It may decode to less, or to nothing.
func (c content) isOverrun() bool { return c.sent != nil && c.sent.N == 0 }

// decodedZstd decodes zstd. Its first frame says how much a decoder has to remember; none that follows may need more. memory is what it takes.
func decodedZstd(body io.Reader) (decoded io.ReadCloser, memory int64, err error) {
	read := bufio.NewReader(body)
	begin, err := read.Peek(zstd.HeaderMaxSize)
	if err != nil && err != io.EOF {
		return nil, 0, err
	}
	var header zstd.Header
	if err := header.Decode(begin); err != nil {
		return nil, 0, err
	}
	window := header.WindowSize
	switch {
	case header.Skippable: // what follows is not known yet
		window = windowMax
	case header.SingleSegment:
		window = header.FrameContentSize
	}
	if window > windowMax {
		return nil, 0, zstd.ErrWindowSizeExceeded
	}
	decoder, err := zstd.NewReader(read, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(max(window, zstd.MinWindowSize)))
	if err != nil {
		return nil, 0, err
	}
	return decoder.IOReadCloser(), int64(window) + decoderMemory, nil
}

// drop leaves the body to the garbage collector once nobody will be sent it any more. Its memory still counts as taken: what has been
// sent is a copy of about that size, which lasts until the answer has ended.
func (b *requestBody) drop() { b.bytes = nil }

// close gives the body's memory back.
func (b *requestBody) close() {
	b.bodies.give(b.user, b.held)
	b.bytes, b.held = nil, 0
}

// readFrom reads to the end of as many bytes as are announced, or -1.
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
			return answerError(invalid("the body could not be read to its end"))
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
	b.held = size
	b.bytes = append(make([]byte, 0, size), b.bytes...)
	return true
}
