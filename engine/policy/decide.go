package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Bounds of the facts. The time limit interrupts between expressions of Rego, not within a built-in, so that what a built-in
// works on has to be small.
const (
	maxText       = 1024 // bytes of one text; the longest real one is a public model id with 255
	maxGroups     = 512  // groups of a user; directories that nest deeper than this are flattened wrongly
	maxAttempts   = 64   // attempts before this candidate; a router tries at most 8, a gateway each source of a model once
	maxListed     = 32   // protocols or modalities; there are fewer than ten of each
	clockInterval = 8    // expressions between two looks at the clock: a look costs a tenth of an expression, and what each doubles stays small
)

// Judge decides the candidates of one call, which it knows already. It is for one goroutine at a time.
type Judge struct {
	activation *Activation
	facts      Facts // without candidate and attempts
	err        error // why the facts of the call cannot be decided upon
	// now, call and identity are those parts of the input document, once it was needed.
	now, call, identity *ast.Term
	// keyOfCall is what the call contributes to the keys of remembered decisions; keyBuffer is written over by each.
	keyOfCall, keyBuffer []byte
}

// Judge prepares to decide the candidates of one call by this activation. now is what policy takes for the time throughout
// the call.
func (a *Activation) Judge(now time.Time, call Call, identity Identity) *Judge {
	j := &Judge{activation: a, facts: Facts{Now: Nanos(now), Call: call, Identity: identity}}
	j.err = cmp.Or(checkCall(call), checkIdentity(identity))
	return j
}

// Facts returns what Decide decides upon for this candidate after these attempts: the input document, for the record.
func (j *Judge) Facts(candidate Candidate, attempts []Attempt) Facts {
	facts := j.facts
	facts.Candidate, facts.Attempts = candidate, attempts
	return facts
}

// Decide says whether the candidate may serve the call after these attempts. A refusal is a decision; an error means that
// there is none, and the caller MUST refuse. Errors are the sentinels of this package, or the context's own. The decision
// depends on nothing but the activation and the facts.
func (j *Judge) Decide(ctx context.Context, candidate Candidate, attempts []Attempt) (Decision, error) {
	if err := cmp.Or(j.err, checkCandidate(candidate), checkAttempts(attempts)); err != nil {
		return Decision{}, err
	}
	key, canRemember := j.key(candidate, attempts)
	if canRemember {
		if decision, found, err := j.remembered(ctx, key, candidate, attempts); found {
			return decision, err
		}
	}
	decision, err := j.activation.decide(ctx, &j.activation.judgement, j.document(candidate, attempts))
	if err == nil && canRemember {
		j.activation.memory.decisions.Add(key, j.activation.memory.stableOf(decision))
	}
	return decision, err
}

// document is the input document. What candidates share is built once.
func (j *Judge) document(candidate Candidate, attempts []Attempt) ast.Object {
	j.prepare()
	return documentOf(j.now, j.call, j.identity, candidateTerm(candidate), attemptsTerm(attempts))
}

func (j *Judge) prepare() {
	if j.now == nil {
		j.now, j.call, j.identity = wholeTerm(j.facts.Now), callTerm(j.facts.Call), identityTerm(j.facts.Identity)
	}
}

// decide asks for a decision.
func (a *Activation) decide(ctx context.Context, query *rego.PreparedEvalQuery, input ast.Object) (Decision, error) {
	answer, err := a.ask(ctx, query, input)
	if err != nil {
		return Decision{}, err
	}
	decision, err := decodeDecision(answer)
	if err != nil {
		return Decision{}, err
	}
	return decision, a.checkDeclared(decision)
}

// ask evaluates a query. An answer that comes after the time limit is none.
func (a *Activation) ask(ctx context.Context, query *rego.PreparedEvalQuery, input ast.Object) (answer *ast.Term, err error) {
	defer func() {
		if recover() != nil { // what it says may hold facts
			answer, err = nil, fmt.Errorf("%w: a built-in has panicked", ErrFailed)
		}
	}()
	watch := &stopwatch{ctx: ctx, deadline: time.Now().Add(a.timeLimit)}
	if watch.look(); watch.reason != nil {
		return nil, watch.reason
	}
	results, err := query.Eval(ctx,
		rego.EvalParsedInput(input),
		rego.EvalTransaction(a.txn),
		rego.EvalExternalCancel(watch),
		rego.EvalMetrics(metrics.NoOp()),
	)
	if watch.look(); watch.reason != nil {
		return nil, watch.reason
	}
	if err != nil {
		return nil, evaluationError(err)
	}
	if len(results) != 1 || len(results[0].Expressions) != 1 {
		return nil, ErrUndefined
	}
	answer, isTerm := results[0].Expressions[0].Value.(*ast.Term)
	if !isTerm {
		return nil, malformed("it is no term")
	}
	return answer, nil
}

// checkDeclared holds the answer to what the rules declare in their METADATA, which documents and the console show. Before
// the probe nothing is known to be declared.
func (a *Activation) checkDeclared(decision Decision) error {
	if a.declared == nil {
		return nil
	}
	for _, denial := range decision.Denials {
		if !a.declared[denial] {
			return fmt.Errorf("%w: the rule %s answers with the code %s otherwise than its METADATA declares",
				ErrMalformed, denial.Rule, denial.Code)
		}
	}
	return nil
}

func evaluationError(err error) error {
	var failure *topdown.Error
	if errors.As(err, &failure) && failure.Code == topdown.ConflictErr {
		return fmt.Errorf("%w: %w", ErrConflict, err)
	}
	return fmt.Errorf("%w: %w", ErrFailed, err)
}

// stopwatch interrupts an evaluation when the context ends or the time is up. OPA asks it before every expression, so that
// it needs no goroutine and no timer.
type stopwatch struct {
	ctx      context.Context
	deadline time.Time
	asked    int
	reason   error
	stopped  atomic.Bool
}

// Cancel is OPA's to call, from anywhere.
func (w *stopwatch) Cancel() { w.stopped.Store(true) }

// Cancelled says whether to stop; OPA asks from the evaluating goroutine.
func (w *stopwatch) Cancelled() bool {
	if w.asked++; w.asked%clockInterval == 0 {
		w.look()
	}
	return w.reason != nil || w.stopped.Load()
}

func (w *stopwatch) look() {
	if w.reason != nil {
		return
	}
	if err := w.ctx.Err(); err != nil {
		w.reason = fmt.Errorf("policy: decide: %w", err)
	} else if time.Now().After(w.deadline) {
		w.reason = ErrLate
	}
}

func (f Facts) check() error {
	return cmp.Or(checkCall(f.Call), checkIdentity(f.Identity), checkCandidate(f.Candidate), checkAttempts(f.Attempts))
}

func checkCall(c Call) error {
	return cmp.Or(
		checkText("call.model", c.Model),
		checkText("call.protocol", c.Protocol),
		checkText("call.kind", c.Kind),
		checkOptional("call.residency", c.Residency),
		checkList("call.modalities", c.Modalities, maxListed),
	)
}

func checkIdentity(i Identity) error {
	return cmp.Or(
		checkOptional("identity.user", i.User),
		checkList("identity.groups", i.Groups, maxGroups),
		checkOptional("identity.tenant", i.Tenant),
		checkOptional("identity.principal", i.Principal),
		checkOptional("identity.principal_kind", i.PrincipalKind),
	)
}

func checkCandidate(c Candidate) error {
	return cmp.Or(
		checkText("candidate.source", c.Source),
		checkText("candidate.provider", c.Provider),
		checkText("candidate.model", c.Model),
		checkOptional("candidate.residency", c.Residency),
		checkText("candidate.connection", c.Connection),
		checkText("candidate.accounting", c.Accounting),
		checkList("candidate.protocols", c.Protocols, maxListed),
		checkList("candidate.modalities", c.Modalities, maxListed),
	)
}

func checkAttempts(attempts []Attempt) error {
	if len(attempts) > maxAttempts {
		return fmt.Errorf("%w: %d attempts, more than %d", ErrTooLarge, len(attempts), maxAttempts)
	}
	for _, attempt := range attempts {
		if err := cmp.Or(
			checkText("attempts.source", attempt.Source),
			checkText("attempts.provider", attempt.Provider),
			checkText("attempts.reason", attempt.Reason),
			checkText("attempts.accounting", attempt.Accounting),
		); err != nil {
			return err
		}
	}
	return nil
}

func checkText(name, text string) error {
	if len(text) > maxText {
		return fmt.Errorf("%w: %s has %d bytes, more than %d", ErrTooLarge, name, len(text), maxText)
	}
	if !utf8.ValidString(text) {
		return fmt.Errorf("%w: %s", ErrNotText, name)
	}
	return nil
}

func checkOptional(name string, text *string) error {
	if text == nil {
		return nil
	}
	return checkText(name, *text)
}

func checkList(name string, list []string, most int) error {
	if len(list) > most {
		return fmt.Errorf("%w: %s has %d elements, more than %d", ErrTooLarge, name, len(list), most)
	}
	for _, text := range list {
		if err := checkText(name, text); err != nil {
			return err
		}
	}
	return nil
}

// sortDenials puts denials into the one order that records and texts show.
func sortDenials(denials []Denial) {
	slices.SortFunc(denials, func(a, b Denial) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Code, b.Code))
	})
}
