// Package splice changes members of JSON objects and leaves every other byte as it is: spaces, the order of keys, numbers of any
// size, escapes.
package splice

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// Splicer copies a JSON object and changes members on the way, in the order in which they stand. What it is not told to change
// it copies byte for byte. Its places are those that gjson reports, counted from the document's start.
//
// The zero value is ready for [Splicer.Reset].
type Splicer struct {
	document []byte
	out      []byte
	done     int // up to here the document was copied or left out
}

// New begins with a document that becomes longer by about so many bytes.
func New(document []byte, room int) *Splicer {
	return &Splicer{document: document, out: make([]byte, 0, len(document)+room)}
}

// Reset begins with another document, in the memory of the one before, whose result is then gone.
func (s *Splicer) Reset(document []byte) { s.document, s.out, s.done = document, s.out[:0], 0 }

// Result is the changed document, which ends the copying. Where nothing was changed it is the document itself.
func (s *Splicer) Result() (document []byte, changed bool) {
	if s.done == 0 {
		return s.document, false
	}
	s.copyTo(len(s.document))
	return s.out, true
}

const space = " \t\r\n"

func (s *Splicer) copyTo(end int) {
	s.out = append(s.out, s.document[s.done:end]...)
	s.done = end
}

// Replace puts other JSON in place of a value.
func (s *Splicer) Replace(value gjson.Result, raw string) {
	s.copyTo(value.Index)
	s.out = append(s.out, raw...)
	s.done += len(value.Raw)
}

// ReplaceText puts a text in place of a value.
func (s *Splicer) ReplaceText(value gjson.Result, text string) {
	s.copyTo(value.Index)
	s.out = gjson.AppendJSONString(s.out, text)
	s.done += len(value.Raw)
}

// Cut leaves a member out, with the comma before it, or, if it is the first, the one after it.
func (s *Splicer) Cut(key, value gjson.Result) {
	s.copyTo(key.Index)
	s.done = value.Index + len(value.Raw)
	if before := bytes.TrimRight(s.out, space); bytes.HasSuffix(before, []byte(",")) {
		s.out = before[:len(before)-1]
		return
	}
	if after := bytes.TrimLeft(s.document[s.done:], space); bytes.HasPrefix(after, []byte(",")) {
		s.done = len(s.document) - len(after) + 1
	}
}

// Add puts a member at the end of the object whose closing brace stands at end. The name needs no escaping.
func (s *Splicer) Add(end int, name, raw string) {
	s.copyTo(end)
	if !bytes.HasSuffix(bytes.TrimRight(s.out, space), []byte("{")) {
		s.out = append(s.out, ',')
	}
	s.out = append(s.out, '"')
	s.out = append(s.out, name...)
	s.out = append(s.out, `":`...)
	s.out = append(s.out, raw...)
}
