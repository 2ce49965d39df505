package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"regent/engine/decisions"
	"regent/engine/policy"
	"regent/ledger"
)

// walk is one call's way over its candidates. Each candidate is judged once, by facts read at one moment.
type walk struct {
	*Router
	request    *Request // the walk's own, which it fills in
	asked      Request
	activation *policy.Activation
	judge      *policy.Judge
	now        time.Time
	// walksOn says that a terminal denial ends nothing but its candidate. The caller's own limit ends the walk all the same.
	walksOn bool

	given     []Candidate // in the order of the request; its own are in the order in which they are tried
	position  int         // of the next candidate
	steps     []step
	attempts  []policy.Attempt // contacted and failed
	contacted int
	// replaces ends the failed attempt before, together with the next admission; replaced tells of it then.
	replaces *ledger.Replacement
	replaced *Settlement
	// counted says that the call's rates have counted it.
	counted bool
	// onSettlement is told of the call's settlements besides the router's own. Optional.
	onSettlement func(Settlement)
}

// step is how a candidate fared.
type step struct {
	candidate *Candidate
	outcome   string
	reason    string
	denials   []policy.Denial
	// refusal is what the candidate alone would have the caller told; nil unless it was denied.
	refusal *Error
	ends    bool // the walk ends here
}

// newWalk checks the request and takes the activation that judges all of the call.
func (r *Router) newWalk(asked Request, walksOn bool) (*walk, error) {
	if err := r.checkIdentity(asked.Identity, asked.Verified); err != nil {
		return nil, err
	}
	activation := r.Policy.Current()
	if activation == nil {
		return nil, &Error{Code: CodePolicy, Message: "no policy is active", Details: Details{Class: ClassUnavailable, Reason: ReasonPolicyFailed}}
	}
	w := &walk{Router: r, asked: asked, activation: activation, walksOn: walksOn, now: r.Now().UTC().Truncate(time.Microsecond)}
	request := &w.asked
	w.request = request
	if err := r.complete(request, activation.Settings().OpenRouterRouting); err != nil {
		return nil, err
	}
	w.attempts, w.contacted, w.counted = slices.Clip(request.Attempts), len(request.Attempts), len(request.Attempts) > 0
	request.Facts.TokensBounded = request.MaxTokens != nil || limits(request.Scopes, ledger.Tokens) || limited(r.limits[ledger.Tokens])
	request.Facts.CostBounded = request.MaxCostNanoUSD != nil || limits(request.Scopes, ledger.USD) || limited(r.limits[ledger.USD])
	w.judge = activation.Judge(w.now, request.Facts, request.Identity)
	return w, nil
}

// complete fills in what a request and its candidates leave out, and has the router's own candidates follow them. Those that leave nothing
// out are taken as they are: a host may share them between calls, so that they are copied before they are changed.
func (r *Router) complete(request *Request, routing string) error {
	if err := request.complete(); err != nil {
		return err
	}
	if len(r.Fallbacks) == 0 && r.RateLimit == nil && r.Circuit == nil && !request.isOpen() {
		return nil
	}
	protocols := hostProtocols
	if request.Facts.Protocol != hostProtocol {
		protocols = []string{request.Facts.Protocol}
	}
	own := len(request.Candidates)
	all := slices.Concat(request.Candidates, r.Fallbacks)
	request.Candidates = all[:0]
	for i := range all {
		candidate := all[i]
		if err := candidate.stripSuffix(routing); err != nil {
			return err
		}
		if err := candidate.complete(protocols); err != nil {
			return err
		}
		if i >= own && slices.ContainsFunc(request.Candidates, candidate.isSame) { // a fallback is tried once
			continue
		}
		r.addGates(request.Identity, &candidate)
		request.Candidates = append(request.Candidates, candidate)
	}
	if len(request.Candidates) > candidatesMax {
		return tooManyCandidates
	}
	return nil
}

// next goes on to the first candidate that every check allows. This is the one loop over candidates: policy, then the ledger,
// then the resolver, and none of them is asked if the one before refused.
func (w *walk) next(ctx context.Context) (*Grant, error) {
	if w.given == nil {
		if err := w.rank(ctx); err != nil {
			return nil, err
		}
	}
	most := len(w.request.Candidates)
	if !w.walksOn {
		most = min(most, w.Attempts)
	}
	for w.position < most {
		if w.contacted >= w.Attempts {
			return nil, w.exhausted()
		}
		candidate := &w.request.Candidates[w.position]
		w.position++
		if w.wasTried(candidate) {
			continue
		}
		decision, denied := w.decide(ctx, candidate)
		if denied == nil {
			var grant *Grant
			grant, denied = w.admit(ctx, candidate, decision)
			if grant != nil {
				return grant, nil
			}
		}
		w.steps = append(w.steps, *denied)
		if denied.ends {
			break
		}
	}
	return nil, w.exhausted()
}

// decide asks policy. Anything but a well-formed allow is a denial.
func (w *walk) decide(ctx context.Context, candidate *Candidate) (policy.Decision, *step) {
	decision, err := w.judged(ctx, candidate)
	if err != nil {
		refusal := policyFailure("policy could not be evaluated", ReasonPolicyFailed, err)
		return decision, &step{candidate: candidate, outcome: DeniedStep, reason: ReasonPolicyFailed, refusal: refusal, ends: !w.walksOn}
	}
	if decision.Allow {
		return decision, nil
	}
	denied := &step{candidate: candidate, outcome: DeniedStep, reason: decision.Denials[0].Code, denials: decision.Denials}
	told := len(precedences)
	for _, denial := range decision.Denials {
		denied.ends = denied.ends || denial.Terminal && !w.walksOn
		code, class := classify(denial)
		if first := precedence(denial, class); denied.refusal == nil || first < told {
			told = first
			denied.refusal = &Error{Code: code, Message: denial.Title, Details: Details{
				Class: class, Reason: denial.Code, Title: denial.Title, Remedy: denial.Remedy,
			}}
			denied.reason = denial.Code
		}
	}
	if denial := denied.refusal; denial.Details.Reason == "SOURCE_COOLING" {
		ms := max(0, (candidate.CoolingUntil-policy.Nanos(w.now))/1e6)
		denial.Details.RetryAfterMs = &ms
	}
	return decision, denied
}

// judged is what policy says of a candidate: what it is known to say, or else what it says now.
func (w *walk) judged(ctx context.Context, candidate *Candidate) (policy.Decision, error) {
	began := time.Now()
	if decision, known := w.judge.Recall(candidate.Candidate, w.attempts); known {
		w.Meter.Judged(time.Since(began), decision, nil)
		return decision, nil
	}
	type timed struct {
		policy.Decision
		took time.Duration // without the wait for a turn
	}
	facts, attempts := candidate.Candidate, w.attempts
	made, err := evaluated(ctx, w, func(judge *policy.Judge) (timed, error) {
		began := time.Now()
		decision, err := judge.Decide(ctx, facts, attempts)
		return timed{decision, time.Since(began)}, err
	})
	if err != nil && made.took == 0 { // it had no turn, or has not ended
		made.took = time.Since(began)
	}
	w.Meter.Judged(made.took, made.Decision, err)
	return made.Decision, err
}

// grace is how much longer than its time limit an evaluation may take to notice that: one step of it, on a busy machine.
const grace = time.Second

// evaluated is what a judge says on the desk. One that does not end is left behind, with the judge that it works with.
func evaluated[T any](ctx context.Context, w *walk, ask func(*policy.Judge) (T, error)) (answer T, err error) {
	judge := w.judge
	type said struct {
		answer T
		err    error
	}
	answers := make(chan said, 1)
	err = w.desk.run(ctx, w.activation.TimeLimit()+grace, func() {
		answer, err := ask(judge)
		answers <- said{answer, err}
	})
	if errors.Is(err, errStuck) {
		w.judge = w.activation.Judge(w.now, w.request.Facts, w.request.Identity)
		w.Log.Error("a policy evaluation does not end: one step of a rule takes longer than policy may", "activation", w.activation.Digest())
		err = fmt.Errorf("%w: %w", policy.ErrLate, err)
	}
	if err != nil {
		return answer, err
	}
	spoken := <-answers
	return spoken.answer, spoken.err
}

// policyFailure is the refusal of a call for which policy has no answer.
func policyFailure(message, reason string, cause error) *Error {
	refusal := &Error{Code: CodePolicy, Message: message, cause: cause, Details: Details{Class: ClassPolicy, Reason: reason}}
	if errors.Is(cause, policy.ErrLate) { // a busy machine, or a rule that runs away: another time may do
		refusal.Details.Class = ClassCapacity
	}
	return refusal
}

// precedences are the kinds of denials of one candidate, in the order in which one is told: that the caller may not know the model before
// all others, so that none of them tells that it exists; then that the candidate speaks another protocol, which makes all others beside the
// point; then what no other candidate changes, and what one may; and last what passes.
var precedences = [...]func(denial policy.Denial, class Class) bool{
	func(_ policy.Denial, class Class) bool { return class == ClassAccess },
	func(_ policy.Denial, class Class) bool { return class == ClassProtocol },
	func(denial policy.Denial, class Class) bool { return class == ClassPolicy && denial.Terminal },
	func(_ policy.Denial, class Class) bool { return class == ClassPolicy },
}

// precedence is the place of a denial among them; the least is told.
func precedence(denial policy.Denial, class Class) int {
	for i, is := range precedences {
		if is(denial, class) {
			return i
		}
	}
	return len(precedences)
}

// admit asks the ledger, which commits the hold and the decision record together, and then the resolver.
func (w *walk) admit(ctx context.Context, candidate *Candidate, decision policy.Decision) (*Grant, *step) {
	reserve, err := w.request.reserve(candidate)
	if err != nil {
		return nil, w.deniedBy(candidate, storeError(err), true)
	}
	scopes := w.scopes(w.request, candidate)
	if denied := w.structural(candidate, scopes, reserve); denied != nil {
		return nil, denied
	}
	id, err := w.attemptID()
	if err != nil {
		return nil, w.deniedBy(candidate, storeError(err), true)
	}
	rates := w.rates(candidate)
	unheld := w.request.Call == nil && reserve.Tokens == nil && reserve.NanoUSD == nil && candidate.CreditRate == nil
	if unheld {
		reserve = ledger.Reserve{}
	}
	admission := ledger.Admission{
		Hold: id, Call: w.request.Call, Replaces: w.replaces, Source: candidate.Source, Provider: candidate.Provider,
		Price: candidate.Price, CreditRate: candidate.CreditRate, Reserve: reserve, Claims: claims(scopes, w.request.Facts.Kind), TTL: w.HoldTTL,
		Rates: rates, Circuit: candidate.Circuit, Unheld: unheld,
		Decision: w.event(candidate, nil),
	}
	began := time.Now()
	hold, err := w.Ledger.Admit(ctx, admission)
	took := time.Since(began)
	w.Meter.Admitted(took, err)
	if err != nil {
		if errors.Is(err, ledger.ErrUnknown) {
			w.takeBack(id)
		}
		return nil, w.deniedByLedger(candidate, err)
	}
	hold.ID = id // also without a hold, of which the ledger names none: reports and charges of the attempt do
	w.contacted++
	if w.replaces != nil {
		w.Meter.Settled(took)
	}
	if w.replaced != nil {
		w.tell(*w.replaced, hold.Replaced)
	}
	w.replaces, w.replaced = nil, nil
	grant := &Grant{Candidate: candidate, HonourRouting: decision.HonourRouting, router: w.Router, hold: hold, rates: rateKeys(rates), ttl: w.HoldTTL}
	if !grant.HonourRouting && candidate.Routing != nil { // then the candidates are the walk's own
		candidate.Routing = nil
	}
	if err = w.resolve(grant); err != nil {
		return nil, w.missed(candidate, grant, err)
	}
	w.counted = true // only now: a miss gives back what it was counted as
	return grant, nil
}

// resolve asks the host for the candidate's provider. One that is found after the hold has expired is none. If the host panics, what the
// candidate was admitted with is given back.
func (w *walk) resolve(grant *Grant) (err error) {
	returned := false
	defer func() {
		if !returned {
			if w.missed(grant.Candidate, grant, errPanicked); w.replaces != nil {
				w.abandon(nil, errPanicked)
			}
		}
	}()
	began := time.Now()
	grant.Provider, err = w.Resolver.Resolve(*grant.Candidate)
	returned = true
	switch {
	case err == nil && grant.Provider == nil:
		return ErrUnresolved
	case err == nil && time.Since(began) > grant.ttl/3 && !grant.isUnheld(): // from here on it is renewed by itself
		return grant.extend(context.Background(), grant.ttl)
	}
	return err
}

// wasTried says whether a candidate was contacted for the call before the walk began.
func (w *walk) wasTried(candidate *Candidate) bool {
	return slices.ContainsFunc(w.request.Attempts, func(a policy.Attempt) bool { return a.Source == candidate.Source })
}

// attemptID names the next attempt, as the host does if it has a name: one attempt can have it.
func (w *walk) attemptID() (uuid.UUID, error) {
	if named := w.request.Attempt; named != uuid.Nil {
		w.request.Attempt = uuid.Nil
		return named, nil
	}
	return uuid.NewV7()
}

// missed gives back what an unresolvable candidate was admitted with: together with the next admission, or at the end; without a hold,
// at once.
func (w *walk) missed(candidate *Candidate, grant *Grant, err error) *step {
	w.contacted--
	if grant.isUnheld() {
		unused := &settling{walk: w, last: &attempted{grant: grant, unused: true}, settled: func(ledger.Charge) {}}
		_ = w.concludeNow(unused) // which is tried again if it fails
	} else {
		w.replaces = &ledger.Replacement{Ending: ledger.Ending{
			Hold: grant.hold.ID, Token: grant.hold.Token, Outcome: ledger.Outcome{Result: ledger.Errored, Reason: ReasonMiss}, Unused: true,
		}}
	}
	return missOf(candidate, err)
}

// missOf is how a candidate fared that the resolver does not know.
func missOf(candidate *Candidate, err error) *step {
	return &step{candidate: candidate, outcome: Miss, reason: ReasonMiss, refusal: &Error{
		Code: CodeUnknownProvider, Message: "no provider is known for the candidate", cause: err,
		Details: Details{Class: ClassCapacity, Reason: ReasonMiss},
	}}
}

// structural finds a denial that no waiting and no other moment would change.
func (w *walk) structural(candidate *Candidate, scopes []Scope, reserve ledger.Reserve) *step {
	refuse := func(class Class, reason, message string) *step {
		return w.deniedBy(candidate, &Error{Code: CodeBudget, Message: message, Details: Details{Class: class, Reason: reason}},
			!w.walksOn || class == ClassCallerLimit)
	}
	if w.request.MaxTokens != nil && *w.request.MaxTokens == 0 || w.request.MaxCostNanoUSD != nil && *w.request.MaxCostNanoUSD == 0 {
		return refuse(ClassCallerLimit, ReasonZeroCap, "the call is capped at nothing")
	}
	if reserve.NanoUSD == nil && candidate.Price == nil && w.request.Facts.InputTokens != nil && limits(scopes, ledger.USD) {
		return refuse(ClassCapacity, ReasonUnpriced, "the candidate has no price, and a limit in US dollars stands")
	}
	if account, closed := closedUnit(scopes, reserve); closed {
		return refuse(ClassCallerLimit, ReasonNoLimit, fmt.Sprintf("no limit of %s has been set for %s, so none may be used", account.Unit, account))
	}
	return nil
}

// deniedByLedger turns an error of an admission into a step.
func (w *walk) deniedByLedger(candidate *Candidate, err error) *step {
	if denied := w.deniedByGate(candidate, err); denied != nil {
		return denied
	}
	var limit *ledger.LimitError
	if !errors.As(err, &limit) {
		return w.deniedBy(candidate, storeError(err), true)
	}
	refusal := &Error{Code: CodeBudget, cause: err, Details: Details{Class: ClassCallerLimit, Reason: ReasonLimitReached}}
	ends := true // the caller's own limit, their group's, tenant's or task's: no other candidate may be tried
	switch limit.Account.Scope {
	case ledger.ScopeSource, ledger.ScopeConnection:
		refusal.Details.Class, ends = ClassCapacity, false
	case ledger.ScopeModel:
		refusal.Details.Class, ends = ClassCapacity, !w.walksOn
	}
	if limit.Account.Unit == ledger.Calls {
		refusal.Code, refusal.Details.Reason = CodeRateLimit, ReasonConcurrency
		if refusal.Details.Class == ClassCallerLimit {
			refusal.Details.Class = ClassRate
		}
	}
	described := decisions.NewLimit(limit)
	refusal.Details.Limit = described
	if limit.Structural {
		refusal.Details.Reason = ReasonNeverFits
	} else {
		refusal.Details.RetryAfterMs = millis(limit.RetryAfter)
	}
	refusal.Message = limitMessage(limit, described, refusal.Details.Class)
	return w.deniedBy(candidate, refusal, ends)
}

// limitMessage says what a reached limit means to the caller. What all calls use of a source is not for a caller to know.
func limitMessage(limit *ledger.LimitError, described *decisions.Limit, class Class) string {
	switch {
	case class == ClassCapacity && limit.Account.Scope != ledger.ScopeModel: // which is the caller's own
		return "a limit of the model's source is reached"
	case class == ClassRate:
		return fmt.Sprintf("%s calls run for %s, and %s may at once", described.Held, described.Account, described.Limit)
	case limit.Structural:
		return fmt.Sprintf("the call needs more %s than the %s that one may take of the limit for %s",
			described.Unit, ledger.FormatAmount(limit.Account.Unit, limit.Spendable), described.Account)
	}
	return fmt.Sprintf("the limit of %s %s for %s is reached: used %s, held by running calls %s; there is room again within %v",
		described.Limit, described.Unit, described.Account, described.Used, described.Held,
		(limit.RetryAfter + time.Second - 1).Truncate(time.Second))
}

func (w *walk) deniedBy(candidate *Candidate, refusal *Error, ends bool) *step {
	return &step{candidate: candidate, outcome: DeniedStep, reason: refusal.Details.Reason, refusal: refusal, ends: ends}
}

// exhausted is the refusal that the call gets after all its candidates: of the class that comes first, with the least time
// after which any of them would do.
func (w *walk) exhausted() *Error {
	var final *Error
	var retryAfter *int64
	misses := 0
	for i := range w.steps {
		refusal := w.steps[i].refusal
		if refusal == nil {
			continue
		}
		if w.steps[i].outcome == Miss {
			misses++
		}
		if final == nil || refusal.Details.Class > final.Details.Class {
			final = refusal
		}
		if ms := refusal.Details.RetryAfterMs; ms != nil && (retryAfter == nil || *ms < *retryAfter) {
			retryAfter = ms
		}
	}
	switch {
	case final == nil && len(w.request.Candidates) == 0:
		return &Error{Code: CodeUnknownProvider, Message: "the model has no sources", Details: Details{Class: ClassAccess, Reason: ReasonNoCandidates}}
	case final == nil:
		return &Error{Code: CodeAttempts, Message: "as many candidates have been tried as a call may try", Details: Details{Class: ClassCapacity, Reason: ReasonAttempts}}
	}
	refusal := *final
	if refusal.Code == CodeUnknownProvider && misses < len(w.steps) {
		refusal.Code = CodePolicy
	}
	if refusal.Details.Class == ClassCapacity {
		refusal.Details.RetryAfterMs = retryAfter
	}
	if refusal.Details.Class == ClassAccess && !w.allRefusedByAccess() {
		refusal.Details.Class = ClassPolicy
	}
	return &refusal
}

// allRefusedByAccess says whether the caller may not even know that the model exists.
func (w *walk) allRefusedByAccess() bool {
	return !slices.ContainsFunc(w.steps, func(s step) bool {
		return s.refusal == nil || s.refusal.Details.Class != ClassAccess
	})
}

// report describes the call for diagnostics.
func (w *walk) report(outcome string, grant *Grant) Diagnostics {
	d := Diagnostics{
		Outcome: outcome, IdentityRefs: identityRefs(w.request.Identity), Residency: value(w.request.Facts.Residency),
		Attempts: make([]AttemptStep, 0, len(w.steps)+1),
	}
	for _, step := range w.steps {
		d.Attempts = append(d.Attempts, AttemptStep{step.candidate.Provider, step.candidate.Model, step.outcome, step.reason})
	}
	d.Selection = w.selection()
	if grant != nil {
		d.SelectedProvider, d.SelectedModel = grant.Candidate.Provider, grant.Candidate.Model
		d.OpenRouterRoutingHonored = grant.HonourRouting && grant.Candidate.OpenRouterRouting
		d.Attempts = append(d.Attempts, AttemptStep{grant.Candidate.Provider, grant.Candidate.Model, Selected, ""})
	}
	d = d.capped(w.DiagnosticsBytes)
	w.diagnose(d)
	return d
}
