// Package engine is the router: candidates in; decision, hold and settlement out.
//
// [Router.Resolve] judges the candidates of a call in order, each by policy and then by the ledger, and returns the first one
// that may serve it, with its cost set aside. [Router.Serve] does the same for a whole call: it hands each admitted candidate
// to the caller to contact, goes on to the next one while nothing has been answered, and settles exactly once, whatever
// happens. The gateway is built on Serve; there is no other path to a provider.
//
// The router contacts nobody. It never holds a prompt.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"regent/engine/policy"
	"regent/ledger"
)

// Caps on the candidates contacted for one call. Raising the hard one is a change of this source, with its tests: it bounds
// how often a failing request can be repeated at somebody's cost.
const (
	attempts    = 3
	attemptsMax = 8
	// candidatesMax bounds the candidates of a call: more sources of one model than anybody has, and few enough to judge in
	// a few milliseconds.
	candidatesMax = 64
)

// Budgets limit each owner's use of one provider's model, or of a task.
type Budgets struct {
	// MaxTokens and MaxCostNanoUSD are the ceilings; nil is none.
	MaxTokens      *int64
	MaxCostNanoUSD *int64
	// Window is the span of the ceilings. Defaults to 24 h.
	Window time.Duration
	// ReservationTTL is how long a hold lives unless it is renewed. Defaults to 60 s.
	ReservationTTL time.Duration
}

// Config configures a [Router].
type Config struct {
	// Policy holds the activation that judges. Required.
	Policy *policy.Engine
	// Ledger keeps budgets, holds and the journal. Required.
	Ledger *ledger.Ledger
	// Resolver finds what executes a candidate. Required.
	Resolver Resolver
	// Budgets limit what the router's own scope may use. Optional.
	Budgets *Budgets
	// HoldTTL is how long a hold lives unless it is renewed. Defaults to Budgets.ReservationTTL, then to 60 s.
	HoldTTL time.Duration
	// Attempts caps the candidates contacted for one call. Defaults to 3; at most 8.
	Attempts int
	// DiagnosticsBytes caps the size of diagnostics. Defaults to 8 KiB; at most 64 KiB.
	DiagnosticsBytes int
	// OnDiagnostics is called with the redacted record of each allow, deny and unknown usage. It must not block. Optional.
	OnDiagnostics func(Diagnostics)
	// OnSettlement is called once for each attempt that was settled. It must not block. Optional.
	OnSettlement func(Settlement)
	// Meter is told what calls do. Optional.
	Meter Meter
	// Now is the clock of decisions. Defaults to time.Now.
	Now func() time.Time
	// Labels go into each decision record, for example the id of the process.
	Labels map[string]string
	// Log takes what nobody can be told any more, such as a settlement that has to be repeated. Defaults to slog.Default.
	Log *slog.Logger
}

// Router routes calls. It is safe for concurrent use.
type Router struct {
	Config
	// settling counts the settlements under way, which outlive their requests.
	settling sync.WaitGroup
	denials  denialFold
	desk     *desk
}

// ErrUnresolved is what a [Resolver] returns for a candidate that it does not know.
var ErrUnresolved = errors.New("no provider for this candidate")

// New makes a router. It returns an [*Error] with code LIMITS for a cap above its hard cap, VALIDATION for anything else that
// is wrong.
func New(config Config) (*Router, error) {
	if config.Policy == nil || config.Ledger == nil || config.Resolver == nil {
		return nil, &Error{Code: CodeValidation, Message: "engine.Config: Policy, Ledger and Resolver are required"}
	}
	for _, limit := range []struct {
		name           string
		value          *int
		standard, hard int
	}{
		{"Attempts", &config.Attempts, attempts, attemptsMax},
		{"DiagnosticsBytes", &config.DiagnosticsBytes, diagnosticsBytes, diagnosticsBytesMax},
	} {
		if *limit.value == 0 {
			*limit.value = limit.standard
		}
		if *limit.value < 0 || *limit.value > limit.hard {
			return nil, &Error{Code: CodeLimits, Message: fmt.Sprintf("engine.Config.%s must be within 1 and %d, not %d", limit.name, limit.hard, *limit.value)}
		}
	}
	if err := config.Budgets.validate(); err != nil {
		return nil, err
	}
	if config.HoldTTL == 0 && config.Budgets != nil {
		config.HoldTTL = config.Budgets.ReservationTTL
	}
	if config.HoldTTL == 0 {
		config.HoldTTL = time.Minute
	}
	if config.HoldTTL < 0 {
		return nil, &Error{Code: CodeValidation, Message: "engine.Config: a hold's time to live must be positive"}
	}
	if config.Meter == nil {
		config.Meter = unmetered{}
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	if config.Log == nil {
		config.Log = slog.Default()
	}
	r := &Router{Config: config, desk: newDesk()}
	r.denials.write = r.recordDenials
	return r, nil
}

func (b *Budgets) validate() error {
	if b == nil {
		return nil
	}
	for _, max := range []*int64{b.MaxTokens, b.MaxCostNanoUSD} {
		if max != nil && (*max < 0 || *max > ledger.NanoUSDMax) {
			return &Error{Code: CodeValidation, Message: "engine.Budgets: a ceiling must be within 0 and 2^62"}
		}
	}
	if b.Window == 0 {
		b.Window = 24 * time.Hour
	}
	if err := (ledger.Fixed{Length: b.Window}).Validate(); err != nil || b.ReservationTTL < 0 {
		return &Error{Code: CodeValidation, Message: "engine.Budgets: a window is more than 0 and at most 31 days, and a reservation's time to live is positive"}
	}
	return nil
}

// Close waits until every settlement and every counted denial is written, or ctx ends, and ends the router's goroutines. The
// ledger is the host's to close, afterwards.
func (r *Router) Close(ctx context.Context) error {
	r.desk.close()
	r.denials.flush()
	done := make(chan struct{})
	go func() {
		r.settling.Wait()
		r.denials.writing.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("engine: settlements are still being written: %w", context.Cause(ctx))
	}
}

// Stuck is how many evaluations of policy work on although their callers have been refused. It is 0 unless a rule runs away in one step,
// which nothing can interrupt.
func (r *Router) Stuck() int { return int(r.desk.stuck.Load()) }

// Resolution is a candidate that may serve a call.
type Resolution struct {
	*Grant
	Diagnostics Diagnostics
}

// Resolve returns the first candidate that every check allows, with the call's reserve set aside. It stops at a denial that is
// terminal. A refusal is an [*Error].
//
// A call without any cap or estimate gets no hold: it is only denied where a limit is spent already, so parallel calls
// without caps can pass a limit together.
func (r *Router) Resolve(ctx context.Context, request Request) (*Resolution, error) {
	w, err := r.newWalk(&request, false)
	if err != nil {
		return nil, err
	}
	grant, err := w.next(ctx)
	if err != nil {
		return nil, w.giveUp(ctx, nil, err)
	}
	return &Resolution{Grant: grant, Diagnostics: w.report("allow", grant)}, nil
}

// Expired tells the router of a hold that has expired, so that one diagnostic says that its usage is unknown. A host passes it
// to the ledger as [ledger.Config.OnExpire].
func (r *Router) Expired(expiry ledger.Expiry) {
	if r.OnDiagnostics == nil {
		return
	}
	r.OnDiagnostics(Diagnostics{
		Outcome: "unknown_usage", SelectedProvider: expiry.Provider, SelectedModel: expiry.Source,
		Attempts: []AttemptStep{{Provider: expiry.Provider, Model: expiry.Source, Outcome: ledger.Expired, Reason: "unknown_usage"}},
	})
}

// Reservation names a hold and its newest token.
type Reservation struct {
	ID    uuid.UUID
	Token int64
}

// ReleaseBudget gives a hold back in full. It returns an [*Error] with code STATE for a dead token or an ended hold.
func (r *Router) ReleaseBudget(ctx context.Context, reservation Reservation) error {
	err := r.Ledger.Release(ctx, ledger.Ending{
		Hold: reservation.ID, Token: reservation.Token, State: ledger.Cancelled,
		Outcome: ledger.Outcome{Result: ledger.Aborted, Reason: "released"},
	})
	if err != nil {
		return storeError(err)
	}
	return nil
}

// RenewBudget moves a hold's deadline to now + extend, if that is later, and returns the hold with a new token; the old token
// is worthless from then on. 0 extends by the router's own time to live. It returns an [*Error] with code STATE for a dead
// token or an expired hold.
func (r *Router) RenewBudget(ctx context.Context, reservation Reservation, extend time.Duration) (Reservation, error) {
	if extend == 0 {
		extend = r.HoldTTL
	}
	hold, err := r.Ledger.Renew(ctx, reservation.ID, reservation.Token, extend)
	if err != nil {
		return Reservation{}, storeError(err)
	}
	return Reservation{ID: hold.ID, Token: hold.Token}, nil
}

// scopes are the request's own, the candidate's and, if the router has budgets, the pool of the task or of the owner's use of the
// model. What is charged to a task is also charged to the part of it that the candidate's model and the kind of work are.
func (r *Router) scopes(request *Request, candidate *Candidate) []Scope {
	scopes := slices.Concat(request.Scopes, candidate.Scopes)
	if r.Budgets != nil {
		scopes = append([]Scope{r.pool(request.Identity, request.TaskID, candidate.Provider, candidate.Model)}, scopes...)
	}
	for _, scope := range scopes {
		if scope.Kind == ledger.ScopeTask {
			scopes = append(scopes, part(scope, request.Facts.Kind, candidate))
		}
	}
	return scopes
}

// pool is what the router's own budgets limit.
func (r *Router) pool(identity policy.Identity, taskID, provider, model string) Scope {
	pool := Scope{Kind: ledger.ScopeModel, ID: modelKey(identity, provider, model)}
	if taskID != "" {
		pool = Scope{Kind: ledger.ScopeTask, ID: TaskKey(identity, taskID)}
	}
	pool.Limits = map[ledger.Unit][]ledger.Limit{
		ledger.Tokens: r.Budgets.limit(r.Budgets.MaxTokens), ledger.USD: r.Budgets.limit(r.Budgets.MaxCostNanoUSD),
	}
	return pool
}

// limit is the limit of a ceiling. Without one all is counted, and nothing denied.
func (b *Budgets) limit(max *int64) []ledger.Limit {
	if max == nil {
		max = &unlimited
	}
	return []ledger.Limit{{Window: ledger.Fixed{Length: b.Window}, Max: *max}}
}

// unlimited is a limit that no account reaches: what it used and holds stays below it, or is an error.
var unlimited int64 = ledger.NanoUSDMax

// TaskKey is the id of a task's accounts: its workers share one pool, whoever they are. The escaped parts hold no colon, so
// no two tasks have one key.
func TaskKey(identity policy.Identity, taskID string) string {
	if identity.Tenant == nil {
		return url.QueryEscape(taskID)
	}
	return url.QueryEscape(*identity.Tenant) + ":" + url.QueryEscape(taskID)
}

// modelKey is the id of the accounts of an owner's use of a provider's model. Absent parts are not empty ones.
func modelKey(identity policy.Identity, provider, model string) string {
	var key strings.Builder
	for _, part := range []*string{identity.Tenant, identity.User, identity.PrincipalKind, identity.Principal} {
		if part != nil {
			key.WriteString("=" + url.QueryEscape(*part))
		}
		key.WriteByte(':')
	}
	return key.String() + url.QueryEscape(provider) + ":" + url.QueryEscape(model)
}
