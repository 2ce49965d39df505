package openai

import (
	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/exchange"
)

// reader is what the readers of all protocols have in common: how a refusal is read, and a document changed on its way to the client.
type reader struct {
	editor exchange.Editor
	places places
}

// Refused reads the error of a response that is no success. See [exchange.Reader].
func (r *reader) Refused(status int, document gjson.Result) (reason adapters.Reason, code string) {
	return refusal(status, document)
}

// output is what a document, or a part of one, brings of what the model has made.
type output struct {
	bytes          int // of text and tool arguments
	some, toolCall bool
}

func (o *output) add(other output) {
	o.bytes += other.bytes
	o.some, o.toolCall = o.some || other.some, o.toolCall || other.toolCall
}
