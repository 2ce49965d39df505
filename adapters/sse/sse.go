// Package sse cuts a stream of server-sent events into whole events without changing a byte.
//
// It is for relaying: every byte of the input belongs to the [Event.Raw] of exactly one event, in order, so that what was
// read can be passed on exactly as it came. It does not interpret ids or retry times, does not reconnect, and knows nothing of
// what the data means.
package sse

import (
	"bytes"
	"errors"
	"io"
)

// FrameMax is the largest event in bytes: a whole image or encrypted reasoning fits, an endless line does not fill the memory.
const FrameMax = 4 << 20

const (
	bufferStart = 2 << 10  // one read's worth: a token's event is some 300 bytes, and thousands of streams are open at a time
	bufferKeep  = 64 << 10 // a stream that once had a larger event gives its buffer back, as most never have another
	readMin     = 512      // less room than this is not worth a read
	readyMax    = 4 << 10  // a larger event takes its time anyway, and lines that do not end in LF must not be searched for one again and again
	searchMax   = 1 << 10  // most events are found in one piece
	emptyReads  = 100      // what bufio allows, so that a reader that never delivers cannot spin
)

// ErrFrame is returned for an event beyond [FrameMax].
var ErrFrame = errors.New("sse: event is larger than 4 MiB")

var byteOrderMark = []byte("\xef\xbb\xbf")

// Event is one event with all that stands between the end of the one before and its own: also comments, a byte order mark and
// surplus blank lines, so an event may have no data. Its slices are valid until the next call of [Reader.Next].
type Event struct {
	// Raw is what was read, byte for byte.
	Raw []byte
	// Data is the value of the data lines, joined by a line feed; nil if the event has none.
	Data []byte
	// Name is the value of the last event line.
	Name []byte
	// Partial says that the input ended before the blank line that completes an event. The standard discards such an event;
	// providers forget the blank line, so here the caller decides.
	Partial bool

	offset int  // of Data in Raw, -1 unless it stands there in one piece
	marked bool // Raw begins with a byte order mark
}

// AppendWithData appends the event to dst with other data in place of its own. Everything else stays: names, comments, line
// ends. The data may hold line breaks; each of its lines gets a data line. An event without data is appended as it is.
func (e Event) AppendWithData(dst, data []byte) []byte {
	if e.offset >= 0 && !bytes.ContainsAny(data, "\r\n") {
		dst = append(dst, e.Raw[:e.offset]...)
		dst = append(dst, data...)
		return append(dst, e.Raw[e.offset+len(e.Data):]...)
	}
	written, before := false, len(dst)
	rest := e.Raw
	if e.marked {
		dst = append(dst, byteOrderMark...)
		rest = rest[len(byteOrderMark):]
	}
	for len(rest) > 0 {
		line, end := cut(rest)
		name, _ := field(line)
		switch {
		case string(name) != "data":
			if rest[0] == '\n' && len(dst) > before && dst[len(dst)-1] == '\r' {
				dst = append(dst, '\n') // or the LF that ended a line of its own would become a part of the line end before it
			}
			dst = append(dst, rest[:len(line)+len(end)]...)
		case !written:
			dst = appendLines(dst, data, end)
			written = true
		}
		rest = rest[len(line)+len(end):]
	}
	return dst
}

// WithoutMark is the event without the byte order mark that the input began with. Whoever puts anything before the event in a
// stream of its own must take it off, as it would no longer stand at a beginning and would hide the event's first line.
func (e Event) WithoutMark() Event {
	if e.marked {
		e.Raw, e.marked = e.Raw[len(byteOrderMark):], false
		e.offset -= min(e.offset+1, len(byteOrderMark))
	}
	return e
}

// Completed is the event with the blank line that the sender may have forgotten after its last one.
func (e Event) Completed() Event {
	if e.Partial {
		e.Raw, e.Partial = append(e.Raw[:len(e.Raw):len(e.Raw)], "\n\n"...), false
	}
	return e
}

func appendLines(dst, data, end []byte) []byte {
	if len(end) == 0 {
		end = []byte("\n")
	}
	for {
		line, cutEnd := cut(data)
		dst = append(dst, "data: "...)
		dst = append(dst, line...)
		dst = append(dst, end...)
		if len(cutEnd) == 0 {
			return dst
		}
		data = data[len(line)+len(cutEnd):]
	}
}

// cut splits off the first line and the line end that follows it, which is empty for the last.
func cut(text []byte) (line, end []byte) {
	i := bytes.IndexAny(text, "\r\n")
	switch {
	case i < 0:
		return text, nil
	case text[i] == '\r' && i+1 < len(text) && text[i+1] == '\n':
		return text[:i], text[i : i+2]
	}
	return text[:i], text[i : i+1]
}

// field splits a line into a field's name and value. A comment has an empty name.
func field(line []byte) (name, value []byte) {
	name, value, _ = bytes.Cut(line, []byte(":"))
	return name, bytes.TrimPrefix(value, []byte(" "))
}

// Reader reads events. How the input is split into reads changes nothing in what it returns.
//
// An event is returned as soon as its blank line is complete. Where lines end in CR LF that is after the LF, so that an event's
// bytes end where the sender's do; only where lines end in a lone CR is it after the CR.
type Reader struct {
	source io.Reader
	buffer []byte
	err    error // of the source, once it has ended

	start int // of the event
	pos   int // of the line
	scan  int // up to here the line is known not to end

	loneCR bool // the last line ended in CR without LF
	halfCR bool // the last event ended in CR, so an LF that follows ends no further line
	opened bool // the first event has begun, so a byte order mark is past

	joined []byte // Data of more than one line
}

// NewReader returns a reader of the source's events. It reads no more of the source than it needs for the next event, save
// what one read delivers.
func NewReader(source io.Reader) *Reader {
	return &Reader{source: source}
}

// Next returns the next event, io.EOF after the last, [ErrFrame] for one that is too large, or the source's error. An event
// that the end of the input cuts off is returned as [Event.Partial]; one that an error cuts off is not returned.
func (r *Reader) Next() (Event, error) {
	r.release()
	var parse parser
	if r.halfCR {
		if err := r.skipHalf(); err != nil {
			return Event{}, err
		}
	}
	for {
		line, blank, err := r.line()
		if err == io.EOF && len(r.buffer) > r.start {
			parse.line(r, line)
			return r.event(&parse, len(r.buffer), true)
		}
		if err != nil {
			return Event{}, err
		}
		if blank {
			return r.event(&parse, r.pos, false)
		}
		parse.line(r, line)
	}
}

// Ready says that an event with data has been read already, so that Next returns it without reading on. It may be false all the same
// where the event is large, lines do not end in LF, or other lines follow those of the data.
func (r *Reader) Ready() bool {
	ahead := r.buffer[r.start:]
	event, _, whole := bytes.Cut(ahead[:min(len(ahead), readyMax)], []byte("\n\n"))
	if !whole || bytes.HasPrefix(event, []byte("\n")) || bytes.IndexByte(event, '\r') >= 0 {
		return false
	}
	data, isData := bytes.CutPrefix(event[bytes.LastIndexByte(event, '\n')+1:], []byte("data:"))
	return isData && len(bytes.TrimSpace(data)) > 0
}

// release drops the bytes of the event before.
func (r *Reader) release() {
	if r.start < len(r.buffer) {
		return
	}
	if cap(r.buffer) > bufferKeep {
		r.buffer = nil
	}
	r.buffer = r.buffer[:0]
	r.start, r.pos, r.scan = 0, 0, 0
}

// skipHalf takes the LF of a CR LF whose CR ended the event before into this one.
func (r *Reader) skipHalf() error {
	for r.pos == len(r.buffer) {
		if err := r.fill(); err != nil {
			return err
		}
	}
	r.halfCR = false
	if r.buffer[r.pos] == '\n' {
		r.loneCR = false
		r.pos++
		r.scan = r.pos
	}
	return nil
}

// span is a part of the buffer, counted from the event's start, as the buffer may move while the event is read.
type span struct{ from, to int }

// line moves past the next line and returns it without its end. Where the input ends it returns what is left, and the error.
func (r *Reader) line() (line span, blank bool, err error) {
	for {
		if r.seek() {
			if size := r.lineEnd(r.scan); size > 0 {
				return r.take(r.scan, size)
			}
		}
		if err := r.fill(); err != nil && r.scan == len(r.buffer) {
			return r.rest(), false, err
		}
	}
}

// seek moves scan to the next line end in the buffer, or to the buffer's end. It looks for LF and CR a window at a time, as
// looking for an LF alone would go through the whole buffer for each line that ends in CR.
func (r *Reader) seek() bool {
	for r.scan < len(r.buffer) {
		window := r.buffer[r.scan:min(r.scan+searchMax, len(r.buffer))]
		i := bytes.IndexByte(window, '\n')
		if i >= 0 {
			window = window[:i]
		}
		if j := bytes.IndexByte(window, '\r'); j >= 0 {
			i = j
		}
		if i >= 0 {
			r.scan += i
			return true
		}
		r.scan += len(window)
	}
	return false
}

// lineEnd returns the size of the line end at i, 0 if it takes more input to tell.
func (r *Reader) lineEnd(i int) int {
	if r.buffer[i] == '\n' {
		return 1
	}
	if i == r.pos && r.loneCR {
		return 1 // the event is complete; to wait for an LF that such a sender never writes would hold it back
	}
	switch {
	case i+1 < len(r.buffer) && r.buffer[i+1] == '\n':
		return 2
	case i+1 < len(r.buffer), r.err != nil:
		return 1
	}
	return 0
}

func (r *Reader) take(end, size int) (line span, blank bool, err error) {
	blank = end == r.pos
	line = span{r.pos - r.start, end - r.start}
	lone := size == 1 && r.buffer[end] == '\r'
	r.halfCR = blank && lone && r.loneCR
	r.loneCR = lone
	r.pos = end + size
	r.scan = r.pos
	return line, blank, nil
}

func (r *Reader) rest() span {
	line := span{r.pos - r.start, len(r.buffer) - r.start}
	r.pos = len(r.buffer)
	r.scan = r.pos
	return line
}

// fill reads once more, and makes room for it.
func (r *Reader) fill() error {
	if r.err != nil {
		return r.err
	}
	if len(r.buffer)-r.start > FrameMax {
		r.err = ErrFrame
		return r.err
	}
	if cap(r.buffer)-len(r.buffer) < readMin {
		r.makeRoom()
	}
	for range emptyReads {
		n, err := r.source.Read(r.buffer[len(r.buffer):cap(r.buffer)])
		r.buffer = r.buffer[:len(r.buffer)+n]
		r.err = err
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	r.err = io.ErrNoProgress
	return r.err
}

// makeRoom moves the event to the front, into a larger buffer if it takes up more than half of this one.
func (r *Reader) makeRoom() {
	event := r.buffer[r.start:]
	target := r.buffer[:0]
	if len(event) > cap(r.buffer)/2 || cap(r.buffer) == 0 {
		target = make([]byte, 0, max(bufferStart, 2*cap(r.buffer)))
	}
	r.buffer = append(target, event...)
	r.pos -= r.start
	r.scan -= r.start
	r.start = 0
}

// event returns the bytes up to end as one event, and moves past them.
func (r *Reader) event(p *parser, end int, partial bool) (Event, error) {
	raw := r.buffer[r.start:end:end]
	if len(raw) > FrameMax {
		r.err = ErrFrame
		r.buffer, r.start, r.pos, r.scan = nil, 0, 0, 0
		return Event{}, ErrFrame
	}
	r.start = end
	e := Event{Raw: raw, Name: raw[p.name.from:p.name.to], Partial: partial, offset: -1, marked: p.marked}
	switch {
	case p.lines == 1:
		e.Data = raw[p.data.from:p.data.to]
		if raw[p.data.from-1] != 'a' { // which ends a line "data" that has no colon, and so no place for data
			e.offset = p.data.from
		}
	case p.lines > 1:
		e.Data = r.joined
	}
	return e, nil
}

// parser gathers an event's fields.
type parser struct {
	name  span
	data  span // of the first data line
	lines int  // of data

	marked bool
}

func (p *parser) line(r *Reader, line span) {
	if !r.opened {
		r.opened = true
		if bytes.HasPrefix(r.at(line), byteOrderMark) {
			line.from += len(byteOrderMark)
			p.marked = true
		}
	}
	name, value := field(r.at(line))
	line.from = line.to - len(value)
	switch string(name) {
	case "event":
		p.name = line
	case "data":
		p.addData(r, line)
	}
}

func (p *parser) addData(r *Reader, line span) {
	p.lines++
	switch p.lines {
	case 1:
		p.data = line
		return
	case 2:
		r.joined = append(r.joined[:0], r.at(p.data)...)
	}
	r.joined = append(r.joined, '\n')
	r.joined = append(r.joined, r.at(line)...)
}

func (r *Reader) at(s span) []byte { return r.buffer[r.start+s.from : r.start+s.to] }
