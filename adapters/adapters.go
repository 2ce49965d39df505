// Package adapters is the vocabulary in which the rest of Regent speaks of providers, and below it, a package a vendor,
// those that speak to them.
//
// The vocabulary is neutral: a [Provider] turns a client's request into an [Answer], whose [Event] values say what the
// provider sent in terms that no protocol owns (an opening, content, a tool call, usage, the end), together with the bytes
// to relay. This package holds no protocol and does no network I/O; it imports the ledger for [ledger.Usage] alone.
package adapters

import (
	"context"
	"net/http"

	"regent/ledger"
)

// Protocol names the language of a request and of its answer. The names are what policy, records and the catalogue use.
type Protocol string

const (
	// OpenAIChat is OpenAI's chat completions protocol.
	OpenAIChat Protocol = "openai.chat"
	// OpenAIResponses is OpenAI's Responses protocol.
	OpenAIResponses Protocol = "openai.responses"
	// OpenAICompact makes the input of a Responses request smaller. Its answers are whole.
	OpenAICompact Protocol = "openai.compact"
	// OpenAIEmbeddings is OpenAI's embeddings protocol. Its answers are whole.
	OpenAIEmbeddings Protocol = "openai.embeddings"
	// AnthropicMessages is Anthropic's Messages protocol.
	AnthropicMessages Protocol = "anthropic.messages"
)

// Provider is one upstream account that can serve calls. Implementations MUST be safe for concurrent use, MUST NOT contact
// the provider before Send is called, and MUST return a [*Failure] (wrapped or not) for everything that goes wrong.
type Provider interface {
	// Send contacts the provider once, without retrying, and returns when the response's header has arrived and it is a
	// success. The answer's body is read through [Answer]; ctx bounds the whole exchange, body included.
	Send(ctx context.Context, request Request) (Answer, error)
}

// Request is one call as the client sent it, and what has to be changed in it. The provider edits only what is named here
// and leaves every other byte of Body alone.
type Request struct {
	Protocol Protocol
	// Body is the client's JSON, already checked to be one well-formed object without duplicate top-level keys.
	Body []byte
	// Model is the provider's own name of the model, which replaces the public one in the body.
	Model string
	// PublicModel replaces the provider's name of the model wherever the answer shows one.
	PublicModel string
	// Stream says whether the client asked for a stream.
	Stream bool
	// UsageWanted says whether the client itself asked for usage in the stream. If not, the provider asks for it all the
	// same and keeps it out of what is relayed.
	UsageWanted bool
	// OutputTokensMax is the most that one answer may bring, which a server that would go on without an end is told where the request does not
	// say; 0 if nothing bounds it.
	OutputTokensMax int64
	// Searches is how many web searches the provider has to be told that it may make: with each of Anthropic's tools, or with all of
	// OpenAI's. 0 if the request says it itself, or offers none.
	Searches int64
	// Strip lists top-level fields to delete from the body.
	Strip []string
	// Header is what the client sent besides, for providers that a host makes itself. Those of this module pass on nothing of it, but
	// for what says how the body is to be understood: package anthropic the protocol's version and its betas.
	Header http.Header
	// Query is the query of the client's URL, as it stands there. Of it, too, only what a provider's protocol knows is passed on.
	Query string
}

// Answer is the body of a provider's successful response, read event by event.
type Answer interface {
	// Status is the HTTP status of the response, for the record.
	Status() int
	// Next returns the next event. After the last one it returns io.EOF itself if the protocol's terminal event was seen, and a
	// [*Failure] otherwise. A provider without a protocol, which a host has made, may leave Done out: its io.EOF says that the answer is
	// complete. A returned event's bytes are valid until the next call.
	Next() (Event, error)
	// Close ends the exchange and frees its connection. It may be called at any time, more than once, and from another
	// goroutine than Next's, which it unblocks.
	Close() error
}

// Kind says what an [Event] means.
type Kind int

const (
	// Opening carries no content: the start of a message, a role, a heartbeat that has to be relayed.
	Opening Kind = iota
	// Content is text, reasoning or a refusal: once relayed, the call must not be sent to another source.
	Content
	// ToolCall is a part of a tool call: like Content in every respect.
	ToolCall
	// Closing carries no content and follows it: a finish reason, usage.
	Closing
	// Done is the protocol's terminal event. A whole (not streamed) answer is one Done event.
	Done
)

// IsOutput says whether an event of this kind brings the client something that must not be repeated from another source.
func (k Kind) IsOutput() bool { return k == Content || k == ToolCall }

// Event is one piece of an answer.
type Event struct {
	Kind Kind
	// Relay holds the bytes for the client in the client's protocol: for a stream one or more whole server-sent events,
	// else the whole body. Empty if there is nothing to relay.
	Relay []byte
	// OutputBytes counts the bytes of text and tool arguments in this event, for an estimate where usage never arrives.
	OutputBytes int
	// Usage is the provider's report of the whole call, nil if this event brings none. A later report replaces an earlier one.
	// Counts of a call that is still under way, which some providers send with every chunk, are not passed on. The Done event
	// repeats the last report: nil there means that the usage is unknown, whatever an earlier event said.
	Usage *ledger.Usage
	// More says that the next event has been read already, so that Next returns it without waiting: what relays events can write them
	// together. Optional.
	More bool
}
