package inference

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"regent/adapters"
	"regent/engine"
	"regent/engine/policy"
)

const (
	// openingMax bounds what is held back before the first output, so that another source can still be tried.
	openingMax = 256 << 10
	// coolFor is how long a source is left alone after a 429 that does not say.
	coolFor = 30 * time.Second
	// stalledAfter is how long a client may keep a provider waiting before the provider's giving up may be the client's doing. Writes
	// that take less than stallMin are not counted: a long answer is made of thousands that only a busy machine slows.
	stalledAfter = time.Second
	stallMin     = 10 * time.Millisecond
)

// errStopped ends calls when the server stops.
var errStopped = errors.New("the server is stopping")

// relay carries one call's answer from whichever source gives it to the client.
type relay struct {
	*Inference
	x        *exchange
	envelope *envelope
	body     *requestBody
	stream   *stream // nil for a whole answer
	written  bool    // a whole answer's status has been sent
	rules    policy.Settlement
}

func (i *Inference) newRelay(x *exchange, e *envelope, body *requestBody) *relay {
	r := &relay{Inference: i, x: x, envelope: e, body: body}
	if activation := i.Policy.Current(); activation != nil {
		if rules := activation.Settings().Settlement; rules != nil {
			r.rules = *rules
		}
	}
	if e.stream {
		r.stream = newStream(x.w, i.WriteStall)
	}
	return r
}

func (r *relay) close() {
	if r.stream != nil {
		r.stream.close()
	}
}

// fail tells the client what went wrong: with its own status as long as none was sent, else as an event of the stream. A client
// whose whole answer broke off sees its connection break.
func (r *relay) fail(a answer) {
	switch {
	case r.stream != nil && !r.stream.abandon():
		r.x.count(a.code)
		_ = r.stream.write(r.x.form.event(a, r.x.id.String()), false) // a client that has gone needs no answer
	case r.written:
		panic(http.ErrAbortHandler)
	default:
		r.x.fail(a)
	}
}

// attempt contacts one admitted candidate and relays its answer. The exchange with the provider outlives the client by the
// time that policy gives for learning the usage.
func (r *relay) attempt(ctx context.Context, grant *engine.Grant) engine.Outcome {
	exchange, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	defer context.AfterFunc(r.stopping, func() { end(errStopped) })()
	a := &attempt{relay: r, grant: grant}
	a.client, a.lose = context.WithCancel(ctx)
	defer a.lose()
	defer context.AfterFunc(a.client, func() { a.clientGone(exchange, end) })()
	a.run(exchange)
	switch {
	case a.outcome.Err != nil && errors.Is(context.Cause(exchange), errStopped):
		a.outcome.Err = errStopped
	case !a.delivered && a.client.Err() != nil:
		a.outcome.Err = engine.ErrAborted
	}
	r.cool(grant, a.outcome.Err)
	return a.outcome
}

// cool leaves a source alone that has asked for it.
func (r *relay) cool(grant *engine.Grant, err error) {
	var failure *adapters.Failure
	if !errors.As(err, &failure) || failure.Reason != adapters.RateLimited {
		return
	}
	wait := failure.RetryAfter
	if wait == 0 {
		wait = coolFor
	}
	r.Cooling.Set(grant.Candidate.Source, r.Now().Add(wait))
}

// attempt is one candidate's answer on its way.
type attempt struct {
	*relay
	grant *engine.Grant
	// client ends when the client has gone, or takes nothing any more, which lose says.
	client  context.Context
	lose    context.CancelFunc
	outcome engine.Outcome
	// opening holds what came before the first output.
	opening []byte
	// relayed says that output has reached the client; delivered, that all of the answer has.
	relayed     atomic.Bool
	delivered   bool
	outputBytes int64
	// stalled is how long the client kept the provider waiting.
	stalled time.Duration
}

// clientGone gives the provider's answer its last time: what policy allows for learning the usage. A stream that has brought
// the client nothing has nothing to learn: it is ended at once and nothing is charged.
func (a *attempt) clientGone(exchange context.Context, end context.CancelCauseFunc) {
	if a.stream == nil || a.relayed.Load() {
		timer := time.NewTimer(time.Duration(a.rules.DrainMillis) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-exchange.Done():
		}
	}
	end(engine.ErrAborted)
}

// run sends the request and relays what comes back.
func (a *attempt) run(ctx context.Context) {
	answer, err := a.grant.Provider.Send(ctx, a.upstreamRequest())
	if err != nil {
		var failure *adapters.Failure
		a.outcome.Accepted = errors.As(err, &failure) && failure.Accepted
		a.outcome.Fail(err)
		return
	}
	defer func() { _ = answer.Close() }() // what matters of its end has been read
	a.outcome.Accepted, a.outcome.Status = true, answer.Status()
	for {
		event, err := answer.Next()
		if err != nil {
			if err != io.EOF { // a failure may wrap one
				a.outcome.Fail(err)
			}
			break
		}
		if a.take(event); !a.delivered && a.overdrained() {
			a.outcome.Err = engine.ErrAborted
			break
		}
	}
}

func (a *attempt) upstreamRequest() adapters.Request {
	request := adapters.Request{
		Protocol: a.envelope.protocol.name, Body: a.body.bytes, Model: a.grant.Candidate.Model, PublicModel: a.envelope.model,
		Stream: a.envelope.stream, UsageWanted: a.envelope.usageWanted, Searches: a.envelope.searchesTold(),
		Header: spokenHeader(a.x.r.Header), Query: a.x.r.URL.RawQuery,
	}
	if bound := a.grant.Candidate.OutputTokensMax; bound != nil {
		request.OutputTokensMax = *bound / a.envelope.choices // of all of them
	}
	if !a.grant.HonourRouting {
		request.Strip = a.envelope.routing
	}
	return request
}

// spokenHeader is what of a client's header says in which version of its protocol it speaks. Nothing else of it is an adapter's business.
func spokenHeader(header http.Header) http.Header {
	spoken := http.Header{}
	for _, name := range []string{anthropicVersion, anthropicBeta} {
		if values := header.Values(name); len(values) > 0 {
			spoken[name] = values
		}
	}
	return spoken
}

// take counts an event and relays it. What comes before the first output is held back: until then another source can be tried.
func (a *attempt) take(event adapters.Event) {
	a.outcome.Count(&event)
	a.outputBytes += int64(event.OutputBytes)
	switch {
	case a.stream == nil:
		a.answerWhole(event)
	case !a.outcome.Output && !event.Kind.IsOutput() && event.Kind != adapters.Done && len(a.opening)+len(event.Relay) <= openingMax:
		a.opening = append(a.opening, event.Relay...)
		if !event.More {
			_ = a.timed(a.stream.begin) // which has noted that the client is gone
		}
	default:
		a.relayEvent(event)
	}
}

// relayEvent sends an event, and before it what was held back.
func (a *attempt) relayEvent(event adapters.Event) {
	relayed := event.Relay
	if len(a.opening) > 0 {
		relayed = append(a.opening, event.Relay...)
		a.opening = nil
	}
	if event.Kind != adapters.Done {
		a.outcome.Output = true // so that no other source will be tried
		a.body.drop()
		a.relayed.Store(true)
	}
	if a.client.Err() != nil {
		return
	}
	err := a.timed(func() error { return a.stream.write(relayed, event.More) })
	// A client may go as soon as it has the last event: whether it took it is what counts.
	a.delivered = err == nil && event.Kind == adapters.Done
}

// answerWhole sends an answer that is not a stream.
func (a *attempt) answerWhole(event adapters.Event) {
	if event.Kind != adapters.Done {
		return
	}
	a.outcome.Output = true // it was made, whoever is there to take it
	if a.client.Err() != nil {
		return
	}
	a.written = true
	a.x.w.Header().Set("Content-Type", "application/json")
	err := a.x.mayWrite()
	if err == nil {
		a.x.w.WriteHeader(http.StatusOK)
		_, err = a.x.w.Write(event.Relay)
	}
	a.sent(err)
	a.delivered = err == nil
}

// timed runs a write to the client, during which nothing is read from the provider, and notes whether the client still takes it and
// how long it took over it.
func (a *attempt) timed(write func() error) error {
	began := time.Now()
	err := write()
	if took := time.Since(began); took >= stallMin {
		a.stalled += took
	}
	a.outcome.Stalled = a.stalled >= stalledAfter
	a.sent(err)
	return err
}

// sent notes whether the client still takes what it is sent.
func (a *attempt) sent(err error) {
	if err != nil {
		a.lose()
	}
}

// overdrained says that a client has gone and that more has come since than the call has set money aside for.
func (a *attempt) overdrained() bool {
	if a.client.Err() == nil {
		return false
	}
	bound := a.envelope.outputTokensMax
	if bound == nil {
		bound = a.grant.Candidate.OutputTokensMax
	}
	return bound != nil && a.outputBytes/4 > *bound
}
