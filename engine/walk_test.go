package engine

import (
	"errors"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"regent/engine/policy"
	"regent/ledger"
	"regent/policies"
)

func refusalOf(class Class, code Code, reason string, retryAfterMs ...int64) *Error {
	refusal := &Error{Code: code, Details: Details{Class: class, Reason: reason}}
	if len(retryAfterMs) > 0 {
		refusal.Details.RetryAfterMs = &retryAfterMs[0]
	}
	return refusal
}

// TestExhausted is the answer to a call after all its candidates, whatever order they came in.
func TestExhausted(t *testing.T) {
	denied := func(refusal *Error) step { return step{outcome: DeniedStep, refusal: refusal} }
	var (
		rule    = denied(refusalOf(ClassPolicy, CodeResidency, "rule"))
		hidden  = denied(refusalOf(ClassAccess, CodePolicy, "hidden"))
		cooling = denied(refusalOf(ClassCapacity, CodePolicy, "cooling", 700))
		later   = denied(refusalOf(ClassCapacity, CodePolicy, "later", 900))
		limit   = denied(refusalOf(ClassCallerLimit, CodeBudget, "limit", 5000))
		fast    = denied(refusalOf(ClassRate, CodeRateLimit, "fast", 300))
		ledger  = denied(refusalOf(ClassUnavailable, CodeState, "ledger"))
		foreign = denied(refusalOf(ClassProtocol, CodePolicy, "foreign"))
		missed  = step{outcome: Miss, refusal: refusalOf(ClassCapacity, CodeUnknownProvider, ReasonMiss)}
		failed  = step{outcome: Failed}
	)
	for name, test := range map[string]struct {
		steps      []step
		class      Class
		code       Code
		reason     string
		retryAfter int64 // 0: none
	}{
		"a rule":                              {[]step{rule}, ClassPolicy, CodeResidency, "rule", 0},
		"another protocol alone":              {[]step{foreign, foreign}, ClassProtocol, CodePolicy, "foreign", 0},
		"a rule before another protocol":      {[]step{foreign, rule}, ClassPolicy, CodeResidency, "rule", 0},
		"the caller may not know the model":   {[]step{hidden, hidden}, ClassAccess, CodePolicy, "hidden", 0},
		"access refuses some only":            {[]step{hidden, rule}, ClassPolicy, CodePolicy, "hidden", 0},
		"capacity before a rule":              {[]step{rule, cooling}, ClassCapacity, CodePolicy, "cooling", 700},
		"the least of the times":              {[]step{later, cooling}, ClassCapacity, CodePolicy, "later", 700},
		"a time that another candidate gave":  {[]step{missed, cooling}, ClassCapacity, CodePolicy, ReasonMiss, 700},
		"the caller's limit before capacity":  {[]step{cooling, limit, rule}, ClassCallerLimit, CodeBudget, "limit", 5000},
		"the caller's rate before capacity":   {[]step{cooling, fast, rule}, ClassRate, CodeRateLimit, "fast", 300},
		"a ledger that cannot answer":         {[]step{cooling, ledger}, ClassUnavailable, CodeState, "ledger", 0},
		"misses alone":                        {[]step{missed, missed}, ClassCapacity, CodeUnknownProvider, ReasonMiss, 0},
		"a miss among others is none of them": {[]step{rule, missed}, ClassCapacity, CodePolicy, ReasonMiss, 0},
		"a miss after a failure":              {[]step{failed, missed}, ClassCapacity, CodePolicy, ReasonMiss, 0},
		"failures alone":                      {[]step{failed, failed}, ClassCapacity, CodeAttempts, ReasonAttempts, 0},
	} {
		w := &walk{request: &Request{Candidates: make([]Candidate, len(test.steps))}, steps: test.steps}
		if got := w.exhausted().Details.Reason; got != test.reason {
			t.Errorf("%s: got the reason %s", name, got)
		}
		for _, order := range []string{"in order", "backwards"} {
			got := w.exhausted()
			if got.Details.Class != test.class || got.Code != test.code || value(got.Details.RetryAfterMs) != test.retryAfter {
				t.Errorf("%s, %s: got class %d, %s, retry after %d", name, order, got.Details.Class, got.Code, value(got.Details.RetryAfterMs))
			}
			slices.Reverse(w.steps)
		}
	}
	if rule.refusal.Details.Class != ClassPolicy || hidden.refusal.Details.Class != ClassAccess || missed.refusal.Code != CodeUnknownProvider {
		t.Error("a step was changed")
	}
	none := (&walk{request: &Request{}}).exhausted()
	if none.Code != CodeUnknownProvider || none.Details.Class != ClassAccess || none.Details.Reason != ReasonNoCandidates {
		t.Errorf("a model without sources: %+v", none)
	}
}

// TestPrecedence is which of a candidate's denials is told.
func TestPrecedence(t *testing.T) {
	terminal, other := policy.Denial{Terminal: true}, policy.Denial{}
	order := []int{
		precedence(other, ClassAccess), precedence(other, ClassProtocol), precedence(terminal, ClassPolicy), precedence(other, ClassPolicy),
		precedence(terminal, ClassCapacity),
	}
	if !slices.Equal(order, []int{0, 1, 2, 3, 4}) {
		t.Errorf("got %v", order)
	}
}

// TestDenialsAreTold is what the caller is told of a candidate that several rules refuse.
func TestDenialsAreTold(t *testing.T) {
	minute := (time.Minute).Milliseconds()
	nobody := policy.Access{Models: map[string]policy.ModelAccess{"m": {}}}
	for name, test := range map[string]struct {
		settings  func(*policy.Settings)
		candidate func(*bench, *Candidate)
		code      Code
		reason    string
		class     Class
		retry     int64
	}{
		"access, and switched off": {
			settings:  func(s *policy.Settings) { s.Access = &nobody },
			candidate: func(_ *bench, c *Candidate) { c.Enabled = false },
			code:      CodePolicy, reason: "INFERENCE_NOT_GRANTED", class: ClassAccess,
		},
		"residency, and cooling": {
			settings:  func(s *policy.Settings) { s.AllowedResidencies = &[]string{"eu"} },
			candidate: func(b *bench, c *Candidate) { c.CoolingUntil = policy.Nanos(b.Now().Add(time.Minute)) },
			code:      CodeResidency, reason: "RESIDENCY_NOT_ALLOWED", class: ClassPolicy,
		},
		"cooling": {
			candidate: func(b *bench, c *Candidate) { c.CoolingUntil = policy.Nanos(b.Now().Add(time.Minute)) },
			code:      CodePolicy, reason: "SOURCE_COOLING", class: ClassCapacity, retry: minute,
		},
		"not authorised": {
			candidate: func(_ *bench, c *Candidate) { c.Connection = "pending" },
			code:      CodePolicy, reason: "CONNECTION_NOT_AUTHORISED", class: ClassCapacity,
		},
		"another protocol": {
			candidate: func(_ *bench, c *Candidate) { c.Protocols = []string{"anthropic.messages"} },
			code:      CodePolicy, reason: "PROTOCOL_NOT_SERVED", class: ClassProtocol,
		},
		"another protocol, and residency": {
			settings:  func(s *policy.Settings) { s.AllowedResidencies = &[]string{"eu"} },
			candidate: func(_ *bench, c *Candidate) { c.Protocols = []string{"anthropic.messages"} },
			code:      CodePolicy, reason: "PROTOCOL_NOT_SERVED", class: ClassProtocol,
		},
		"residency, and too long a prompt, which another model may take": {
			settings: func(s *policy.Settings) { s.AllowedResidencies = &[]string{"eu"} },
			candidate: func(_ *bench, c *Candidate) {
				c.Modalities, c.OutputTokensMax, c.ContextTokens = []string{}, number(1), number(0)
			},
			code: CodeResidency, reason: "RESIDENCY_NOT_ALLOWED", class: ClassPolicy,
		},
		"strict, without a price": {
			settings:  func(s *policy.Settings) { strict := true; s.Strict = &strict },
			candidate: func(_ *bench, c *Candidate) { c.Priced = false },
			code:      CodeBudget, reason: "SOURCE_UNPRICED", class: ClassPolicy,
		},
		"facts that are too large": {
			candidate: func(_ *bench, c *Candidate) { c.Protocols = make([]string, 1000) },
			code:      CodePolicy, reason: ReasonPolicyFailed, class: ClassPolicy,
		},
	} {
		b := newBench(t, func(_ *Config, s *policy.Settings) {
			if test.settings != nil {
				test.settings(s)
			}
		})
		request := hosted("one")
		request.MaxTokens = number(10)
		test.candidate(b, &request.Candidates[0])
		refusal := b.refused(request, test.code, test.reason)
		if refusal.Details.Class != test.class || value(refusal.Details.RetryAfterMs) != test.retry {
			t.Errorf("%s: got class %d, retry after %d", name, refusal.Details.Class, value(refusal.Details.RetryAfterMs))
		}
		if b.resolved["one"] != 0 {
			t.Errorf("%s: the resolver was asked", name)
		}
	}
}

// contradiction has a rule that contradicts itself about one model.
const contradiction = `package org.rules.contradiction

import data.regent.lib

# METADATA
# title: Contradiction
# description: It denies and does not.
# custom:
#   code: CONTRADICTION
#   remedy: Mend the rule.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if _answer == 2

_answer := 1 if input.now > 0

_answer := 2 if input.call.model == "m"
`

func TestPolicyThatFailsIsADenial(t *testing.T) {
	b := newBench(t, nil)
	strict := false
	activation, err := policy.Load(ctx, policy.Source{Settings: policy.Settings{Strict: &strict}, Bundles: []policy.Bundle{
		{Name: "regent", FS: policies.Files(), Tested: true},
		{Name: "org", FS: fstest.MapFS{
			".manifest": {Data: []byte(`{"roots": ["org"], "rego_version": 1}`)},
			"org/rules/contradiction/contradiction.rego": {Data: []byte(contradiction)},
		}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	b.router.Policy.Activate(activation)
	refusal := b.refused(hosted("one", "two"), CodePolicy, ReasonPolicyFailed)
	if refusal.Details.Class != ClassPolicy || !errors.Is(refusal, policy.ErrConflict) {
		t.Errorf("got %+v", refusal)
	}
	request := called(1000, "one", "two")
	contacted, err := b.serve(request, nil)
	if err == nil || len(contacted)+len(b.resolved) != 0 {
		t.Errorf("contacted %v, resolved %v, %v", contacted, b.resolved, err)
	}
	b.wantStory(request.ID, "decision one=denied two=denied")
	other := hosted("one") // about another model the rule has one answer
	other.Facts.Model = "n"
	if _, err := b.router.Resolve(ctx, other); err != nil {
		t.Errorf("another model: %v", err)
	}
	b.router.Policy.Activate(nil)
	b.refused(hosted("one"), CodePolicy, ReasonPolicyFailed)
}

func TestInvalidRequestsAreNoCalls(t *testing.T) {
	b := newBench(t, nil)
	for name, change := range map[string]func(*Request){
		"a negative cap":        func(r *Request) { r.MaxTokens = number(-1) },
		"another kind":          func(r *Request) { r.Facts.Kind = "thinking" },
		"too large an estimate": func(r *Request) { r.Facts.InputTokens = number(ledger.TokensMax) },
		"a negative price":      func(r *Request) { r.Candidates[0].Price = &ledger.Price{Rates: ledger.Rates{Output: -1}} },
	} {
		request := called(1000, "one")
		change(&request)
		contacted, err := b.serve(request, nil)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeValidation || refusal.Details.Class != ClassInvalid || len(contacted) != 0 {
			t.Errorf("%s: contacted %v, %v", name, contacted, err)
		}
		if _, err := b.ledger.Store().Call(ctx, request.ID); !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("%s: a call came about: %v", name, err)
		}
	}
	if len(b.resolved) != 0 {
		t.Errorf("the resolver was asked: %v", b.resolved)
	}
}

func TestResolveJudgesAsManyCandidatesAsItMayTry(t *testing.T) {
	b := newBench(t, nil)
	request := hosted("one", "two", "three", "four")
	for i, seconds := range []int{30, 10, 20} {
		request.Candidates[i].CoolingUntil = policy.Nanos(b.Now().Add(time.Duration(seconds) * time.Second))
	}
	refusal := b.refused(request, CodePolicy, "SOURCE_COOLING")
	if got := value(refusal.Details.RetryAfterMs); got != 10_000 {
		t.Errorf("retry after %d ms, want the least", got)
	}
	if len(refusal.Diagnostics.Attempts) != 3 {
		t.Errorf("attempts: %+v", refusal.Diagnostics.Attempts)
	}
	b.refused(hosted(), CodeUnknownProvider, ReasonNoCandidates)
	b.refused(hosted(make([]string, candidatesMax+1)...), CodeValidation, ReasonInvalid)
}

func TestStructuralDenials(t *testing.T) {
	b := newBench(t, nil)
	user := func(limits map[ledger.Unit][]ledger.Limit) []Scope {
		return []Scope{{Kind: ledger.ScopeUser, ID: "alice", Limits: limits}}
	}
	limit := []ledger.Limit{{Window: ledger.Fixed{Length: time.Hour}, Max: 1 << 40}}
	for name, test := range map[string]struct {
		change func(*Request)
		reason string
		class  Class
	}{
		"nobody has set a limit": {func(r *Request) { r.Scopes = user(map[ledger.Unit][]ledger.Limit{ledger.Tokens: limit}) }, ReasonNoLimit, ClassCallerLimit},
		"no price, and a limit in money": {func(r *Request) {
			r.Scopes = user(map[ledger.Unit][]ledger.Limit{ledger.Tokens: limit, ledger.USD: limit})
			r.Candidates[0].Price, r.Candidates[1].Price = nil, nil
		}, ReasonUnpriced, ClassCapacity},
		"a cost cap of nothing": {func(r *Request) { r.MaxCostNanoUSD = number(0) }, ReasonZeroCap, ClassCallerLimit},
	} {
		request := called(1000, "one", "two")
		test.change(&request)
		_, err := b.serve(request, nil)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != CodeBudget || refusal.Details.Reason != test.reason || refusal.Details.Class != test.class {
			t.Errorf("%s: got %+v", name, err)
		}
		// The caller's own limit ends the walk; what the candidate lacks does not.
		judged := 0
		for _, line := range refusal.Diagnostics.Attempts {
			if line.Outcome == DeniedStep {
				judged++
			}
		}
		if want := map[Class]int{ClassCallerLimit: 1, ClassCapacity: 2}[test.class]; judged != want {
			t.Errorf("%s: %d candidates judged, want %d", name, judged, want)
		}
		if refusal.Details.RetryAfterMs != nil {
			t.Errorf("%s: waiting helps, it says", name)
		}
	}
	if len(b.resolved) != 0 {
		t.Errorf("the resolver was asked: %v", b.resolved)
	}
}
