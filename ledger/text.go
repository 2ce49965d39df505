package ledger

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// textMax bounds, in bytes, a text by which something is named. An index of PostgreSQL takes 2,704 of a row, and some hold two texts.
	textMax = 1000
	// accountMax bounds an account's text, in which all but plain characters are escaped.
	accountMax = 2000
)

// validateTexts returns [ErrInvalid] for a text that not every database can keep.
func validateTexts(texts ...string) error {
	for _, text := range texts {
		if len(text) > textMax || !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
			return fmt.Errorf("%w: %.40q: a text must be UTF-8 without NUL, and at most %d bytes", ErrInvalid, text, textMax)
		}
	}
	return nil
}

func (c *Call) validate() error {
	if c == nil {
		return nil
	}
	return validateTexts(c.Owner, c.ClientRequestID, c.IdempotencyKey, c.Model, c.Protocol)
}

// clean makes what an ending says something that every database can keep: no hold stays open for what a provider said of it.
func (e *Ending) clean() {
	for _, text := range []*string{&e.Outcome.Result, &e.Outcome.Reason} {
		if validateTexts(*text) != nil {
			*text = strings.ToValidUTF8((*text)[:min(len(*text), textMax)], "")
			*text = strings.ReplaceAll(*text, "\x00", "")
		}
	}
}
