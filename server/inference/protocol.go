package inference

import (
	"github.com/tidwall/gjson"

	"regent/adapters"
)

// protocol is one language in which clients ask: what the gateway reads of a request, and how it tells a failure. Everything else in a
// body is the provider's business.
type protocol struct {
	name adapters.Protocol
	// kind of work that a call by it is, whatever the client says.
	kind string
	form *form
	// streams says that a client may ask for a stream.
	streams bool
	// boundMin is the smallest bound of the output that a request can have.
	boundMin int64
	// needs are the members besides model without which a request is none.
	needs []string
	// read reads one top-level member into the envelope. Its error is the client's fault: a text for it, or an [answerError].
	read func(e *envelope, name string, value gjson.Result) error
}
