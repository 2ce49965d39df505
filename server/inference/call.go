package inference

import (
	"cmp"
	"net/http"
	"slices"

	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
	"regent/server/catalog"
)

// Headers of clients, in their canonical form.
const (
	clientRequestIDHeader = "X-Client-Request-Id"
	idempotencyHeader     = "Idempotency-Key"
	taskHeader            = "X-Regent-Task-Id"
	anthropicVersion      = "Anthropic-Version"
	anthropicBeta         = "Anthropic-Beta"
)

// sessionHeaders are those by which agents name the conversation that a request belongs to, the surest first.
var sessionHeaders = []string{"X-Session-Affinity", "X-Session-Id", "Session-Id", "X-Claude-Code-Session-Id"}

// session names the conversation of a user that a request belongs to; empty if nothing tells it. What a provider keeps for an account, its
// cache of prompts, signatures of thoughts and sealed reasoning, is of use only at the same source.
func session(r *http.Request, user string, e *envelope) string {
	name := ""
	for _, header := range sessionHeaders {
		name = cmp.Or(name, r.Header.Get(header))
	}
	if name = cmp.Or(name, e.session); name == "" {
		return ""
	}
	return user + "\n" + name
}

// receive reads a request of a protocol and hands it on.
func (i *Inference) receive(p *protocol, handle func(x *exchange, e *envelope, body *requestBody)) func(*exchange) {
	return func(x *exchange) {
		body, err := i.bodies.read(x.token.User.ID, x.r)
		if err != nil {
			x.fail(describe(err, false))
			return
		}
		defer body.close()
		if !i.begin() { // only now is it something for which a stop waits
			x.fail(draining)
			return
		}
		defer i.running.Done()
		e, err := readEnvelope(p, body.bytes)
		if err != nil {
			x.fail(describe(err, false))
			return
		}
		handle(x, e, body)
	}
}

// call serves a call.
func (i *Inference) call(x *exchange, e *envelope, body *requestBody) {
	request, err := i.route(x, e)
	if err != nil {
		x.fail(describe(err, false))
		return
	}
	relay := i.newRelay(x, e, body)
	defer relay.close()
	x.abort = relay.fail
	err = i.Router.Serve(x.r.Context(), *request, relay.attempt)
	if err == nil {
		return
	}
	model := x.catalogue.Models[e.model]
	isOff := model != nil && !isOffered(request.Candidates)
	if model == nil {
		model = &catalog.Model{}
	}
	relay.fail(describe(err, isOff).withSizes(*request.Facts.InputTokens, model.ContextTokens))
}

// route is what is asked, as the router takes it: the call, its facts, whose accounts it stands on, and every source of the
// model. A model that does not exist has none.
func (i *Inference) route(x *exchange, e *envelope) (*engine.Request, error) {
	call := &ledger.Call{ID: x.id, Owner: x.token.User.ID, Model: e.model, Protocol: string(e.protocol.name), Stream: e.stream}
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
			Model: e.model, Protocol: call.Protocol, Kind: e.protocol.kind, Stream: e.stream, Residency: user.Residency,
			Modalities: e.names(), OutputTokensMax: e.outputTokensMax,
		},
		Scopes: slices.Concat(x.catalogue.Scopes(user, x.identity(), task), x.token.Scopes()), Rates: x.token.Rates, Session: session(x.r, user.ID, e),
	}
	if e.searches > 0 {
		request.Units = map[string]int64{webSearch: e.searches}
	}
	var tokens int64
	if model := x.catalogue.Models[e.model]; model != nil {
		tokens = e.inputTokens(x.r.Context(), model)
		request.AddedInput = e.addedInput(tokens, model.ContextTokens)
		request.Candidates = model.Candidates(i.Cooling, len(e.routing) > 0, cmp.Or(e.speed, e.serviceTier))
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
