package inference

import (
	"net/http"
	"slices"

	"regent/adapters"
	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
)

// Headers of clients.
const (
	clientRequestIDHeader = "X-Client-Request-Id"
	idempotencyHeader     = "Idempotency-Key"
	taskHeader            = "X-Regent-Task-Id"
)

// chat serves POST /chat/completions.
func (i *Inference) chat(x *exchange) {
	body, err := i.chatBody(x)
	if err != nil {
		x.fail(describe(err, false))
		return
	}
	defer body.close()
	if !i.begin() { // only now is it a call, for which a stop waits
		x.fail(draining)
		return
	}
	defer i.running.Done()
	e, err := readEnvelope(body.bytes)
	if err != nil {
		x.fail(describe(err, false))
		return
	}
	request, err := i.route(x, e)
	if err != nil {
		x.fail(describe(err, false))
		return
	}
	relay := i.newRelay(x, e, body.bytes)
	defer relay.close()
	x.abort = relay.fail
	err = i.Router.Serve(x.r.Context(), *request, relay.attempt)
	if err != nil {
		model := x.catalogue.Models[e.model]
		relay.fail(describe(err, model != nil && !model.Enabled))
	}
}

func (i *Inference) chatBody(x *exchange) (*requestBody, error) {
	if encoding := x.r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, answerError(answer{status: http.StatusUnsupportedMediaType, kind: "invalid_request_error", code: "unsupported_encoding",
			message: "Send the body without a Content-Encoding."})
	}
	return i.bodies.read(x.token.User.ID, x.r)
}

// route is what is asked, as the router takes it: the call, its facts, whose accounts it stands on, and every source of the
// model. A model that does not exist has none.
func (i *Inference) route(x *exchange, e *envelope) (*engine.Request, error) {
	call := &ledger.Call{ID: x.id, Owner: x.token.User.ID, Model: e.model, Protocol: string(adapters.OpenAIChat), Stream: e.stream}
	task := ""
	var err error
	for _, header := range []struct {
		name string
		to   *string
	}{{clientRequestIDHeader, &call.ClientRequestID}, {idempotencyHeader, &call.IdempotencyKey}, {taskHeader, &task}} {
		if *header.to, err = clientHeader(x.r, header.name); err != nil {
			return nil, err
		}
	}
	user := x.token.User
	request := &engine.Request{
		ID: x.id, Call: call, Identity: x.identity(), Verified: true, Token: x.token.ID(), TaskID: task,
		Facts: policy.Call{
			Model: e.model, Protocol: call.Protocol, Kind: engine.Generation, Stream: e.stream, Residency: user.Residency,
			Modalities: e.names(), OutputTokensMax: e.outputTokensMax,
		},
		Scopes: slices.Concat(x.catalogue.Scopes(user, x.identity(), task), x.token.Scopes()), Rates: x.token.Rates,
	}
	var tokens int64
	if model := x.catalogue.Models[e.model]; model != nil {
		tokens = e.inputTokens(x.r.Context(), model)
		request.Candidates = model.Candidates(i.Cooling, len(e.routing) > 0, e.serviceTier)
		multiplyBound(request, e.choices)
	}
	request.Facts.InputTokens = &tokens
	e.texts = nil // counted; a stream that runs for minutes need not hold the prompt twice
	return request, nil
}

// multiplyBound makes a model's bound of one answer's output the bound of all the answers that are asked for.
func multiplyBound(request *engine.Request, choices int64) {
	for c := range request.Candidates {
		if bound := request.Candidates[c].OutputTokensMax; bound != nil {
			total := min(*bound, ledger.TokensMax/choices) * choices
			request.Candidates[c].OutputTokensMax = &total
		}
	}
}
