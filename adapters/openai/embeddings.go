package openai

import (
	"regent/adapters"
	"regent/adapters/exchange"
	"regent/adapters/sse"
)

// embeddings reads the answer of one call for embeddings, lists of numbers or base64, of which nothing is read.
type embeddings struct{ reader }

var _ exchange.Reader = (*embeddings)(nil)

func newEmbeddings(request adapters.Request, d *dialect) exchange.Reader {
	return &embeddings{reader{editor: exchange.NewEditor(request), places: d.embeddings()}}
}

// Whole reads the answer.
func (e *embeddings) Whole(document []byte) (adapters.Event, *adapters.Failure) {
	root, ok := exchange.Object(document)
	if !ok || isError(root) || !root.Get("data").IsArray() {
		return adapters.Event{}, reported(root, adapters.UpstreamError)
	}
	return adapters.Event{Kind: adapters.Done, Relay: e.editor.Whole(document, root), Usage: e.places.usage(root)}, nil
}

// Event is not called, as no answer is a stream.
func (e *embeddings) Event(sse.Event) (adapters.Event, *adapters.Failure) {
	return adapters.Event{}, &adapters.Failure{Reason: adapters.UpstreamError}
}
