// Package engine is the router: candidates in; decision, hold and settlement out. It governs a Go host's own providers, and the gateway
// is built on it.
//
// A [Router] wraps the host's [Resolver] and executes nothing itself. For each call it ranks the candidates, the call's own and then the
// configuration's fallbacks, and asks for one after the other: policy (tested Rego, package policy), which may refuse it; the ledger
// (package ledger), which sets its cost aside, counts it under its rate and lets it through its circuit, all or nothing; and then the
// resolver. No provider is contacted while state is being updated. There are three ways to use it:
//
//   - [Router.NewGovernedProvider] makes a provider of it: each call is admitted, held, streamed, taken to the next candidate if it fails
//     before any output, and settled once. This is the one to begin with.
//   - [Router.Resolve] returns the first candidate that may serve. The host contacts it, and tells [Router.RecordUsage] what was used and
//     [Router.RecordOutcome] how it ended, or gives the hold back by [Router.ReleaseBudget].
//   - [Router.Serve] hands each admitted candidate to the caller to contact, and settles: the gateway's way.
//
// [Router.ProviderSource] is a synchronous facade for hosts that only restrict models and residencies. A host with nothing but a static
// list of models needs no router.
//
// State is the process's own unless [Config.Store] is a database: then it is shared by replicas, on the database's time, and every call
// needs an identity that the host has verified. Amounts are integers: tokens, and nano-USD. A hold that nobody ends expires and is charged
// in full, which one diagnostic says.
//
// Refusals are [*Error]: a code that is a contract with hosts, a message that may be shown, and redacted diagnostics. The router never
// holds a prompt; neither diagnostics nor records hold a secret or a reservation's token.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/memory"
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

// Config configures a [Router].
type Config struct {
	// Policy holds the activation that judges; see [policy.NewEngine]. Required.
	Policy *policy.Engine
	// Resolver finds what executes a candidate. Required.
	Resolver Resolver
	// Store is where the router's ledger keeps budgets, rates, circuits, holds and the journal: a database of package sqldb, for state that
	// outlives the process and is shared by replicas. The router closes it. Defaults to the process's memory, which is for one process.
	Store ledger.Store
	// Ledger is a ledger that the host shares with the router, in place of Store. The host closes it after the router, and passes
	// [Router.Expired] to it.
	Ledger *ledger.Ledger
	// BudgetKeys, RateKeys and CircuitKeys cap what is kept in the process's memory: accounts, of which a budget has one for tokens and one
	// for money; rates; circuits. Default to 4,096, 4,096 and 1,024; at most 65,536, 65,536 and 16,384. What is beyond
	// a cap is forgotten, the idle and oldest first, and what was spent with it: where callers choose the names of their tasks freely, keep
	// state in a Store.
	BudgetKeys, RateKeys, CircuitKeys int
	// Fallbacks are candidates of every call, after its own.
	Fallbacks []Candidate
	// Selection ranks candidates, unless policy has a selection of its own. Without one they are tried in the order of the request.
	Selection Selection
	// Budgets limit what the router's own scope may use. Optional.
	Budgets *Budgets
	// RateLimit is how often each owner may ask each model, and Circuit leaves alone a model that failed an owner again and again, where
	// a candidate does not bring its own. Optional.
	RateLimit *RateLimit
	Circuit   *Circuit
	// HoldTTL is how long a hold lives unless it is renewed. Defaults to Budgets.ReservationTTL, then to 60 s.
	HoldTTL time.Duration
	// Attempts caps the candidates contacted for one call. Defaults to 3; at most 8.
	Attempts int
	// DiagnosticsBytes caps the size of diagnostics. Defaults to 8 KiB; at most 64 KiB.
	DiagnosticsBytes int
	// OnDiagnostics is told the redacted record of each allow, deny and unknown usage, and OnSettlement once of each attempt that was
	// settled: in order, from a goroutine of their own, so that one that blocks holds up no call, and one that panics ends nothing. If
	// more wait than the router keeps, what comes is dropped, and logged. Optional.
	OnDiagnostics func(Diagnostics)
	OnSettlement  func(Settlement)
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
	// durable says that the ledger's state outlives the process, so that it is kept for verified identities only.
	durable bool
	// selectionName is the host's selection's.
	selectionName string
	// limits are those of the router's own budgets; nil without.
	limits map[ledger.Unit][]ledger.Limit
	// own is the ledger that the router opened itself; nil if it is the host's.
	own     *ledger.Ledger
	running calls
	// settling counts the settlements under way, which outlive their calls' requests. Each begins while its call runs.
	settling sync.WaitGroup
	denials  denialFold
	desk     *desk
	teller   teller
	stamp    atomic.Pointer[stamp]
}

// ErrUnresolved is what a [Resolver] returns for a candidate that it does not know.
var ErrUnresolved = errors.New("no provider for this candidate")

// New makes a router; the caller must Close it. It returns an [*Error] with code LIMITS for a cap above its hard cap, VALIDATION for
// anything else that is wrong.
func New(config Config) (*Router, error) {
	if config.Policy == nil || config.Resolver == nil {
		return nil, invalid("engine.Config: Policy and Resolver are required")
	}
	if err := config.checkCaps(); err != nil {
		return nil, err
	}
	config.Budgets, config.RateLimit, config.Circuit = copied(config.Budgets), copied(config.RateLimit), copied(config.Circuit)
	if err := cmp.Or(config.Budgets.validate(), config.RateLimit.validate(), config.Circuit.validate()); err != nil {
		return nil, err
	}
	if config.HoldTTL == 0 && config.Budgets != nil {
		config.HoldTTL = config.Budgets.ReservationTTL
	}
	if config.HoldTTL == 0 {
		config.HoldTTL = time.Minute
	}
	if config.HoldTTL < 0 {
		return nil, invalid("engine.Config: a hold's time to live must be positive")
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
	r := &Router{Config: config, desk: newDesk(), limits: config.Budgets.limits()}
	if r.Selection != nil {
		r.selectionName = r.Selection.Name()
	}
	r.denials.write = r.recordDenials
	r.teller.log = config.Log
	if r.Ledger == nil {
		if err := r.openLedger(); err != nil {
			return nil, err
		}
	}
	r.durable = r.Ledger.Store().Durable()
	return r, nil
}

// copied is the router's own copy of a part of a host's configuration, into which it writes what is left out.
func copied[T any](part *T) *T {
	if part == nil {
		return nil
	}
	own := *part
	return &own
}

// checkCaps fills in the caps and refuses those that cannot be.
func (c *Config) checkCaps() error {
	if c.Ledger != nil && c.Store != nil {
		return invalid("engine.Config: either Store or Ledger")
	}
	if (c.Ledger != nil || c.Store != nil) && (c.BudgetKeys != 0 || c.RateKeys != 0 || c.CircuitKeys != 0) {
		return invalid("engine.Config: BudgetKeys, RateKeys and CircuitKeys are for state in the process's memory")
	}
	for _, limit := range []struct {
		name           string
		value          *int
		standard, hard int
	}{
		{"Attempts", &c.Attempts, attempts, attemptsMax},
		{"DiagnosticsBytes", &c.DiagnosticsBytes, diagnosticsBytes, diagnosticsBytesMax},
		{"BudgetKeys", &c.BudgetKeys, 0, memory.AccountsMax},
		{"RateKeys", &c.RateKeys, 0, memory.RatesMax},
		{"CircuitKeys", &c.CircuitKeys, 0, memory.CircuitsMax},
	} {
		if *limit.value == 0 {
			*limit.value = limit.standard
		}
		if *limit.value < 0 || *limit.value > limit.hard {
			return &Error{Code: CodeLimits, Message: fmt.Sprintf("engine.Config.%s must be within 1 and %d, not %d", limit.name, limit.hard, *limit.value)}
		}
	}
	return nil
}

// openLedger opens the router's own ledger, in memory if there is no store for it.
func (r *Router) openLedger() error {
	store, err := r.Store, error(nil)
	if store == nil {
		store, err = memory.Open(memory.Config{Now: r.Now, Accounts: r.BudgetKeys, Rates: r.RateKeys, Circuits: r.CircuitKeys})
	}
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	if r.own, err = ledger.Open(ledger.Config{Store: store, TTL: r.HoldTTL, OnExpire: r.Expired}); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	r.Ledger = r.own
	return nil
}

// checkIdentity returns IDENTITY for whoever is not verified where state is durable: it would be kept under a name that anybody can claim.
func (r *Router) checkIdentity(identity policy.Identity, verified bool) error {
	named := value(identity.User) != "" || value(identity.Principal) != "" || value(identity.Tenant) != ""
	if !r.durable || verified && named {
		return nil
	}
	return &Error{Code: CodeIdentity, Message: "durable state requires an identity that the host has verified", Details: Details{
		Class: ClassInvalid, Reason: ReasonIdentity,
	}}
}

// calls are those that run, until no more begin.
type calls struct {
	mu     sync.Mutex // guards closed, and all against it
	closed bool
	all    sync.WaitGroup
}

// begin counts a call in, unless the router is closed, which is STATE. Its end is all.Done.
func (c *calls) begin() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return &Error{Code: CodeState, Message: "the router is closed", Details: Details{Class: ClassUnavailable, Reason: ReasonUnavailable}}
	}
	c.all.Add(1)
	return nil
}

func (c *calls) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Close refuses new calls, waits until those that run have ended and every settlement and counted denial is written and told, or ctx ends,
// and ends the router's goroutines. An answer of a governed provider runs until its end, its Close, or the end of its context. A ledger of
// the host is the host's to close, afterwards.
func (r *Router) Close(ctx context.Context) error {
	r.running.close()
	done := make(chan error, 1)
	go func() {
		r.running.all.Wait()
		r.desk.close()
		r.denials.flush()
		r.settling.Wait()
		r.denials.writing.Wait()
		var err error
		if r.own != nil {
			err = r.own.Close()
		}
		r.teller.wait()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("engine: calls still run, or are being settled or told: %w", context.Cause(ctx))
	}
}

// Stuck is how many evaluations of policy work on although their callers have been refused. It is 0 unless a rule runs away in one step,
// which nothing can interrupt.
func (r *Router) Stuck() int { return int(r.desk.stuck.Load()) }

// Resolution is a candidate that may serve a call.
type Resolution struct {
	*Grant
	Diagnostics Diagnostics

	request *Request
}

// Budget is what the call is spent from: what every later report on it names.
func (r *Resolution) Budget() Budget {
	return Budget{
		Identity: r.request.Identity, Verified: r.request.Verified, TaskID: r.request.TaskID, Kind: r.request.Facts.Kind,
		Provider: r.Candidate.Provider, Model: r.Candidate.Model,
	}
}

// Failed is the resolution's candidate as an attempt that has failed, for the request of a next one.
func (r *Resolution) Failed(reason adapters.Reason) policy.Attempt {
	return policy.Attempt{Source: r.Candidate.Source, Provider: r.Candidate.Provider, Reason: string(reason), Accounting: r.Candidate.Accounting}
}

// Resolve returns the first candidate that every check allows, with the call's reserve set aside. It stops at a denial that is
// terminal. A refusal is an [*Error].
//
// A call without any cap or estimate gets no hold: it is only denied where a limit is spent already, so parallel calls
// without caps can pass a limit together.
func (r *Router) Resolve(ctx context.Context, request Request) (*Resolution, error) {
	if err := r.running.begin(); err != nil {
		return nil, err
	}
	defer r.running.all.Done()
	w, err := r.newWalk(request, false)
	if err != nil {
		return nil, err
	}
	grant, err := w.next(ctx)
	if err != nil {
		return nil, w.giveUp(ctx, nil, err)
	}
	return &Resolution{Grant: grant, Diagnostics: w.report("allow", grant), request: w.request}, nil
}

// Expired tells the router of a hold that has expired, so that one diagnostic says that its usage is unknown. A host passes it
// to the ledger as [ledger.Config.OnExpire].
func (r *Router) Expired(expiry ledger.Expiry) {
	model := strings.TrimPrefix(expiry.Source, expiry.Provider+"/")
	r.diagnose(Diagnostics{
		Outcome: "unknown_usage", SelectedProvider: expiry.Provider, SelectedModel: model,
		Attempts: []AttemptStep{{Provider: expiry.Provider, Model: model, Outcome: ledger.Expired, Reason: "unknown_usage"}},
	})
}
