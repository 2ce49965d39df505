package openai

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// splicer copies a JSON object and changes members on the way, in the order in which they stand. What it is not told to change
// it copies byte for byte. Its places are those that gjson reports, counted from the document's start.
type splicer struct {
	document []byte
	out      []byte
	done     int // up to here the document was copied or left out
}

const space = " \t\r\n"

func (s *splicer) copyTo(end int) {
	s.out = append(s.out, s.document[s.done:end]...)
	s.done = end
}

// replace puts other JSON in place of a value.
func (s *splicer) replace(value gjson.Result, raw string) {
	s.copyTo(value.Index)
	s.out = append(s.out, raw...)
	s.done += len(value.Raw)
}

// replaceText puts a text in place of a value.
func (s *splicer) replaceText(value gjson.Result, text string) {
	s.copyTo(value.Index)
	s.out = gjson.AppendJSONString(s.out, text)
	s.done += len(value.Raw)
}

// cut leaves a member out, with the comma before it, or, if it is the first, the one after it.
func (s *splicer) cut(key, value gjson.Result) {
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

// add puts a member at the end of the object whose closing brace stands at end. The name needs no escaping.
func (s *splicer) add(end int, name, raw string) {
	s.copyTo(end)
	if !bytes.HasSuffix(bytes.TrimRight(s.out, space), []byte("{")) {
		s.out = append(s.out, ',')
	}
	s.out = append(s.out, '"')
	s.out = append(s.out, name...)
	s.out = append(s.out, `":`...)
	s.out = append(s.out, raw...)
}
