package inference

import (
	"context"
	"time"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/engine"
	"regent/engine/policy"
)

// tokenCounter is a provider that counts the tokens of a request, for nothing.
type tokenCounter interface {
	// CountTokens asks how many input tokens a request takes, and returns the provider's answer.
	CountTokens(ctx context.Context, request adapters.Request) ([]byte, error)
}

// estimatedHeader says that a count is this gateway's own estimate.
const estimatedHeader = "X-Regent-Estimated"

// countTime bounds a count: providers answer within a second, and an estimate is at hand.
const countTime = 10 * time.Second

// countTokens says how many tokens a request would take: as a source says that policy allows the request for, or else by an estimate. It
// is no call: nothing is held, charged or recorded. Under the token's rates it counts like one.
func (i *Inference) countTokens(x *exchange, e *envelope, body *requestBody) {
	model := x.catalogue.Models[e.model]
	if model == nil {
		x.fail(modelNotFound)
		return
	}
	if usable, err := i.mayUse(x, model); err != nil || !usable {
		if err == nil {
			err = answerError(modelNotFound)
		}
		x.fail(describe(err, false))
		return
	}
	request, err := i.route(x, e)
	if err != nil {
		x.fail(describe(err, false))
		return
	}
	if err := i.Router.CountIn(x.r.Context(), x.id, x.token.Rates); err != nil {
		x.fail(describe(err, false))
		return
	}
	if tokens, counted := i.countUpstream(x, request, body.bytes, e); counted {
		x.reply(map[string]any{"input_tokens": tokens})
		return
	}
	x.w.Header().Set(estimatedHeader, "true")
	x.reply(map[string]any{"input_tokens": *request.Facts.InputTokens})
}

// countUpstream asks the first source that may have the request, and can count it.
func (i *Inference) countUpstream(x *exchange, request *engine.Request, body []byte, e *envelope) (tokens int64, counted bool) {
	activation := i.Policy.Current()
	if activation == nil {
		return 0, false
	}
	request.Facts.TokensBounded, request.Facts.CostBounded = true, true // by costing nothing
	request.Facts.OutputTokensMax = new(int64)
	ctx, cancel := context.WithTimeout(x.r.Context(), countTime)
	defer cancel()
	judge := activation.Judge(i.Now(), request.Facts, request.Identity)
	for _, candidate := range request.Candidates {
		decision, err := judge.Decide(ctx, candidate.Candidate, []policy.Attempt{})
		if err != nil || !decision.Allow {
			continue
		}
		provider, err := i.Router.Resolver.Resolve(candidate)
		counter, counts := provider.(tokenCounter)
		if err != nil || !counts {
			continue
		}
		asked := adapters.Request{
			Protocol: e.protocol.name, Body: body, Model: candidate.Model, PublicModel: e.model, Header: spokenHeader(x.r.Header), Query: x.r.URL.RawQuery,
		}
		if !decision.HonourRouting {
			asked.Strip = e.routing
		}
		if answer, err := counter.CountTokens(ctx, asked); err == nil {
			return wholeNumber(gjson.GetBytes(answer, "input_tokens"))
		}
	}
	return 0, false
}
