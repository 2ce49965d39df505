package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"regent/adapters"
)

// openingMax bounds, in bytes, what is held back before the first output: hundreds of times what providers open with.
const openingMax = 256 << 10

// governedAnswer is the answer of whichever candidate gives it. One goroutine reads it; any may close it; and its context may end at any
// time. Whoever claims the attempt under way ends it, and nobody else.
type governedAnswer struct {
	provider *GovernedProvider
	walk     *walk
	request  adapters.Request
	ctx      context.Context // ends with the caller's, or when the answer is closed
	cancel   context.CancelCauseFunc
	watch    func() bool // stops watching the caller's context
	left     sync.Once

	// These are the reader's own. opening is held back, openingBytes large; once something is passed on it is, too, one by one. over is
	// what the reader gets after that.
	opening      []adapters.Event
	openingBytes int
	passing      bool
	over         error

	mu      sync.Mutex      // guards all below
	attempt *attempted      // under way, from before its candidate is contacted; nil once it is claimed
	sent    bool            // to its candidate
	answer  adapters.Answer // nil until it has begun to answer
	granted *Grant          // of the newest attempt
	outcome Outcome         // so far
	done    bool            // the protocol's last event has come
	ending  error           // ErrAborted or ErrEarlyClose, once the consumer wants nothing more
}

// contact finds the first candidate that begins to answer, after one that has failed, nil at first. Its error is the consumer's.
func (a *governedAnswer) contact(last *attempted) error {
	for {
		grant, err := a.walk.onward(a.ctx, last)
		if err != nil {
			return asFailure(err)
		}
		last = a.walk.begin(grant)
		a.enter(last)
		failure := a.send(grant)
		if failure == nil {
			return nil
		}
		claimed, outcome := a.claim(nil)
		if claimed == nil { // the consumer has ended it meanwhile
			return a.told(nil)
		}
		var upstream *adapters.Failure
		outcome.Err, outcome.Accepted = failure, errors.As(failure, &upstream) && upstream.Accepted
		if a.walk.end(a.ctx, last, outcome); !last.retry(a.ctx) {
			a.walk.finish(last, nil, failure)
			return a.told(failure)
		}
	}
}

// enter puts an attempt under way: from here on whoever claims it ends it, also while its candidate takes its time.
func (a *governedAnswer) enter(attempt *attempted) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.attempt, a.granted, a.sent, a.answer, a.done = attempt, attempt.grant, false, nil, false
	a.outcome = Outcome{InputTokens: a.inputTokens()}
}

// send contacts the candidate of the attempt under way. A panic ends the attempt, and goes on.
func (a *governedAnswer) send(grant *Grant) error {
	returned := false
	defer func() {
		if !returned {
			_ = a.conclude(a.claim(errPanicked)) // the panic says more
		}
	}()
	answer, err := a.dispatch(grant)
	status := 0
	if err == nil {
		status = answer.Status()
	}
	returned = true
	if err != nil {
		return a.failure(err)
	}
	if !a.answered(answer, status) {
		a.closeQuietly(answer) // nobody reads it
		return a.failure(context.Cause(a.ctx))
	}
	return nil
}

// dispatch has the policies of the request make what the candidate gets, and sends it, unless the consumer wants nothing more by then.
func (a *governedAnswer) dispatch(grant *Grant) (adapters.Answer, error) {
	request := a.request
	request.Model = grant.Candidate.Model
	request, err := RequestPolicies(append(slices.Clip(a.provider.config.RequestPolicies), grant.RequestPolicy())...)(request)
	if err != nil {
		return nil, &adapters.Failure{Reason: adapters.InvalidRequest, Cause: fmt.Errorf("engine: a request's policy: %w", err)}
	}
	if !a.sends() {
		return nil, context.Cause(a.ctx)
	}
	request.Model = grant.Candidate.Model // what was judged is what is asked
	answer, err := grant.Provider.Send(a.ctx, request)
	if err == nil && answer == nil {
		err = errNoAnswer
	}
	return answer, err
}

// errNoAnswer is the failure of a provider that returns neither an answer nor an error.
var errNoAnswer = errors.New("engine: the provider returned no answer")

// sends notes that the candidate is contacted now, and says whether it still may be.
func (a *governedAnswer) sends() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = a.attempt != nil && a.ctx.Err() == nil
	return a.sent
}

// answered takes the candidate's answer, and says whether the attempt is still under way.
func (a *governedAnswer) answered(answer adapters.Answer, status int) (underWay bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.attempt == nil || a.ctx.Err() != nil {
		return false
	}
	a.answer, a.outcome.Accepted, a.outcome.Status = answer, true, status
	return true
}

// claim takes the attempt under way, for its end; nil if there is none. ending is why the consumer wants nothing more; nil if it does.
func (a *governedAnswer) claim(ending error) (attempt *attempted, outcome Outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending == nil {
		a.ending = ending
	}
	attempt, a.attempt = a.attempt, nil
	if attempt != nil {
		attempt.unused = !a.sent
	}
	outcome = a.outcome
	if outcome.Err = ending; a.done { // whatever comes after its last event, the answer is complete
		outcome.Err = nil
	}
	return attempt, outcome
}

// Status is that of the candidate that answers; 0 if none does.
func (a *governedAnswer) Status() int {
	if answer := a.upstream(); answer != nil {
		return answer.Status()
	}
	return 0
}

func (a *governedAnswer) upstream() adapters.Answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answer
}

// Next passes on the next event. At the end of a complete answer it settles first: an error of that is the consumer's. Nothing is passed
// on once the call has been ended, whatever its provider still has to say: it would be for nothing.
func (a *governedAnswer) Next() (adapters.Event, error) {
	for {
		if a.passing && len(a.opening) > 0 {
			event := a.opening[0]
			a.opening = a.opening[1:]
			return event, nil
		}
		if a.over != nil {
			return adapters.Event{}, a.over
		}
		event, err := a.pull()
		opens := a.opens(&event)
		switch {
		case err != nil:
			a.over = a.end(err)
		case !a.count(&event, !opens && event.Kind != adapters.Done):
			a.over = a.told(nil)
		case opens || len(a.opening) > 0: // then it waits behind those that were held back
			a.passing = !opens
			a.hold(event)
		default:
			a.passing = true
			return event, nil
		}
	}
}

// pull reads the next event. A panic ends the attempt, and goes on.
func (a *governedAnswer) pull() (event adapters.Event, err error) {
	returned := false
	defer func() {
		if !returned {
			_ = a.conclude(a.claim(errPanicked)) // the panic says more
		}
	}()
	event, err = a.upstream().Next()
	returned = true
	return event, err
}

// opens says whether an event comes before the first output, and is held back.
func (a *governedAnswer) opens(event *adapters.Event) bool {
	return !a.passing && !event.Kind.IsOutput() && event.Kind != adapters.Done && a.openingBytes+sizeOf(event) <= openingMax
}

// sizeOf is what an event takes that is held back, roughly: one that relays nothing takes something, too.
func sizeOf(event *adapters.Event) int { return len(event.Relay) + 128 }

// hold keeps a copy of an event: its bytes are good only until the next one is read.
func (a *governedAnswer) hold(event adapters.Event) {
	event.Relay = slices.Clone(event.Relay)
	a.opening = append(a.opening, event)
	a.openingBytes += sizeOf(&event)
}

// count notes an event, and whether it reaches the consumer as output. It says whether the attempt is still under way: what comes after
// its end was not settled with it.
func (a *governedAnswer) count(event *adapters.Event, output bool) (underWay bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.attempt == nil {
		return false
	}
	a.outcome.Count(event)
	a.outcome.Output = a.outcome.Output || output
	a.done = a.done || event.Kind == adapters.Done
	return true
}

// end ends the attempt whose answer has ended. It returns what the consumer gets, nil if another candidate answers. Whatever becomes of
// the provider's own Close, the attempt is settled before it, or on its way to be.
func (a *governedAnswer) end(err error) error {
	attempt, outcome := a.claim(nil)
	if attempt == nil { // the consumer itself has ended it
		return a.told(nil)
	}
	if !a.isDone() && (err != io.EOF || a.ctx.Err() != nil) { // an end that the consumer has brought about completes nothing
		outcome.Err = a.failure(err)
	}
	answer := a.upstream()
	if outcome.Err == nil {
		a.passing = true
		err := cmp.Or(a.conclude(attempt, outcome), io.EOF)
		_ = answer.Close() // what matters of its end has been read
		return err
	}
	if a.walk.end(a.ctx, attempt, outcome); !attempt.retry(a.ctx) {
		a.walk.finish(attempt, nil, outcome.Err)
		a.leave()
		_ = answer.Close()
		return a.told(outcome.Err)
	}
	go a.closeQuietly(answer) // nobody waits for a candidate that has failed
	a.opening, a.openingBytes = nil, 0
	if err = a.contact(attempt); err != nil {
		a.leave()
	}
	return err
}

func (a *governedAnswer) isDone() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.done
}

// conclude settles the attempt that was claimed, if there was one, as the call's last. That of a complete answer is written before it
// returns, or else the error says why it is not yet.
func (a *governedAnswer) conclude(attempt *attempted, outcome Outcome) error {
	if attempt == nil {
		return nil
	}
	defer a.leave()
	a.walk.end(a.ctx, attempt, outcome)
	if outcome.Err != nil {
		a.walk.finish(attempt, nil, outcome.Err)
		return nil
	}
	a.walk.Meter.Ended(attempt.state, nil)
	if err := a.walk.concludeNow(a.walk.ending(attempt, nil)); err != nil {
		return asFailure(storeError(err))
	}
	return nil
}

// abort ends the call because the caller's context has ended, for a cause: it was closed, if the caller is a governed provider itself.
func (a *governedAnswer) abort(cause error) {
	ending := ErrAborted
	if errors.Is(cause, ErrEarlyClose) {
		ending = ErrEarlyClose
	}
	attempt, outcome := a.claim(ending)
	if attempt == nil {
		return
	}
	_ = a.conclude(attempt, outcome) // nobody is there to be told
	if answer := a.upstream(); answer != nil {
		a.closeQuietly(answer)
	}
}

// closeQuietly closes an answer on a goroutine of the router's own, or where a panic of the provider's would hide what has come before.
func (a *governedAnswer) closeQuietly(answer adapters.Answer) {
	defer func() {
		if failure := recover(); failure != nil { // its value may hold anything, so that its type alone is logged
			a.walk.Log.Error("a provider panicked when its answer was closed", "type", fmt.Sprintf("%T", failure))
		}
	}()
	_ = answer.Close() // nobody is there to be told
}

// Close ends the call, if it has not ended. It may be called at any time, more than once, and from any goroutine.
func (a *governedAnswer) Close() error {
	attempt, outcome := a.claim(ErrEarlyClose)
	a.cancel(ErrEarlyClose)
	concluded := a.conclude(attempt, outcome) // first: whatever comes of the provider's own Close
	answer := a.upstream()
	if answer == nil {
		return concluded
	}
	return errors.Join(concluded, answer.Close())
}

// leave frees what the call has taken, once it has ended.
func (a *governedAnswer) leave() {
	a.left.Do(func() {
		a.watch()
		a.provider.remove(a)
		a.cancel(nil)
		a.provider.router.running.all.Done()
	})
}

// failure is the outcome of an attempt that ended with an error. A host's own error is a failure of its provider.
func (a *governedAnswer) failure(err error) error {
	var failure *adapters.Failure
	switch {
	case a.ctx.Err() != nil && errors.Is(context.Cause(a.ctx), ErrEarlyClose):
		return ErrEarlyClose
	case a.ctx.Err() != nil:
		return ErrAborted
	case errors.As(err, &failure):
		return err
	}
	return &adapters.Failure{Reason: adapters.UpstreamError, Cause: err}
}

// told is what the consumer gets for the end of an attempt: that of one which it has ended itself is its own doing.
func (a *governedAnswer) told(err error) error {
	var failure *adapters.Failure
	if errors.As(err, &failure) {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	cause := a.ending
	if cause == nil {
		cause = err
	}
	return &adapters.Failure{Reason: adapters.Connection, Cause: errors.Join(cause, context.Cause(a.ctx))}
}

// inputTokens estimates the prompt.
func (a *governedAnswer) inputTokens() int64 { return tokensOf(int64(len(a.request.Body))) }

// grant is that of the newest attempt, from before its candidate is contacted; nil if there is none yet.
func (a *governedAnswer) grant() *Grant {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.granted
}
