package engine

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"regent/engine/policy"
	"regent/ledger"
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

func (b *Budgets) validate() error {
	if b == nil {
		return nil
	}
	for _, max := range []*int64{b.MaxTokens, b.MaxCostNanoUSD} {
		if max != nil && (*max < 0 || *max > ledger.NanoUSDMax) {
			return invalid("engine.Budgets: a ceiling must be within 0 and 2^62")
		}
	}
	if b.Window == 0 {
		b.Window = 24 * time.Hour
	}
	if err := (ledger.Fixed{Length: b.Window}).Validate(); err != nil || b.ReservationTTL < 0 {
		return invalid("engine.Budgets: a window is more than 0 and at most 31 days, and a reservation's time to live is positive")
	}
	return nil
}

// Budget names what is spent from: a task's pool, or else an owner's use of one provider's model.
type Budget struct {
	// Identity is who spends. Verified says that the host has proved that, which durable state requires.
	Identity policy.Identity
	Verified bool
	// Provider and Model are the candidate's.
	Provider, Model string
	// TaskID is the task whose pool it is; empty outside of tasks.
	TaskID string
	// Kind of work: generation, embedding, compaction or tool. Empty is generation.
	Kind string
}

// candidate is what the budget is spent on.
func (b *Budget) candidate() *Candidate {
	return &Candidate{Candidate: policy.Candidate{Source: sourceOf(b.Provider, b.Model), Provider: b.Provider, Model: b.Model}}
}

// Reservation names a hold and its newest token. Whoever has both can end the hold: they belong into no log.
type Reservation struct {
	ID    uuid.UUID
	Token int64
}

// String leaves the token out.
func (r Reservation) String() string { return r.ID.String() }

// ReleaseBudget gives a hold back in full. It returns an [*Error]: with code STATE for a dead token, an ended hold, and one of another
// budget.
func (r *Router) ReleaseBudget(ctx context.Context, budget Budget, reservation Reservation) error {
	if err := r.checkIdentity(budget.Identity, budget.Verified); err != nil {
		return err
	}
	ending, err := r.ending(&budget, reservation)
	if err == nil {
		ending.State, ending.Outcome = ledger.Cancelled, ledger.Outcome{Result: ledger.Aborted, Reason: "released"}
		err = r.Ledger.Release(ctx, ending)
	}
	if err != nil {
		return storeError(err)
	}
	return nil
}

// ending is the end of a budget's own hold. What it says of the candidate is [Router.RecordOutcome]'s to tell. It returns
// [ledger.ErrState] for a budget that names no provider, whose no hold is.
func (r *Router) ending(budget *Budget, reservation Reservation) (ledger.Ending, error) {
	if budget.Provider == "" {
		return ledger.Ending{}, ledger.ErrState
	}
	ending := ledger.Ending{Hold: reservation.ID, Token: reservation.Token, Provider: budget.Provider, Health: ledger.Unsaid}
	if r.Budgets != nil {
		ending.Account = r.poolOf(budget).account(ledger.Tokens)
	}
	return ending, nil
}

// RenewBudget moves a hold's deadline to now + extend, if that is later, and returns the hold with a new token; the old token is
// worthless from then on. 0 extends by the router's own time to live. It returns an [*Error]: with code STATE for a dead token, an
// expired hold, and one of another budget.
func (r *Router) RenewBudget(ctx context.Context, budget Budget, reservation Reservation, extend time.Duration) (Reservation, error) {
	if extend < 0 {
		return Reservation{}, invalid("a hold is extended by a time that is not negative")
	}
	if err := r.checkIdentity(budget.Identity, budget.Verified); err != nil {
		return Reservation{}, err
	}
	if err := r.ownsHold(ctx, &budget, reservation.ID); err != nil {
		return Reservation{}, err
	}
	if extend == 0 {
		extend = r.HoldTTL
	}
	hold, err := r.Ledger.Renew(ctx, reservation.ID, reservation.Token, extend)
	if err != nil {
		return Reservation{}, storeError(err)
	}
	return Reservation{ID: hold.ID, Token: hold.Token}, nil
}

// ownsHold sees that a hold was made for a budget: whose it is never changes, so that this look stays true.
func (r *Router) ownsHold(ctx context.Context, budget *Budget, id uuid.UUID) error {
	rows, err := r.Ledger.Store().Load(ctx, ledger.Keys{Holds: []uuid.UUID{id}})
	if err != nil {
		return storeError(err)
	}
	if hold, known := rows.Holds[id]; !known || !r.isOf(&hold, budget) {
		return storeError(ledger.ErrState)
	}
	return nil
}

// isOf says whether a hold was made for a budget.
func (r *Router) isOf(hold *ledger.HoldRow, budget *Budget) bool {
	return hold.Provider == budget.Provider && (r.Budgets == nil || slices.Contains(hold.Accounts, r.poolOf(budget).account(ledger.Tokens)))
}

func (r *Router) poolOf(budget *Budget) Scope {
	return r.pool(budget.Identity, budget.TaskID, budget.Provider, budget.Model)
}

// scopes are the request's own, the candidate's and, if the router has budgets, the pool of the task or of the owner's use of the
// model. What is charged to a task is also charged to the part of it that the candidate's model and the kind of work are.
func (r *Router) scopes(request *Request, candidate *Candidate) []Scope {
	scopes := make([]Scope, 0, 2+len(request.Scopes)+len(candidate.Scopes)) // one and a part of it besides
	if r.Budgets != nil {
		scopes = append(scopes, r.pool(request.Identity, request.TaskID, candidate.Provider, candidate.Model))
	}
	scopes = append(append(scopes, request.Scopes...), candidate.Scopes...)
	for _, scope := range scopes {
		if scope.Kind == ledger.ScopeTask {
			scopes = append(scopes, part(scope, request.Facts.Kind, candidate))
		}
	}
	return scopes
}

// pool is what the router's own budgets limit.
func (r *Router) pool(identity policy.Identity, taskID, provider, model string) Scope {
	if taskID != "" {
		return Scope{Kind: ledger.ScopeTask, ID: TaskKey(identity, taskID), Limits: r.limits}
	}
	return Scope{Kind: ledger.ScopeModel, ID: modelKey(identity, provider, model), Limits: r.limits}
}

// limits are those of the router's own pools; nil without budgets.
func (b *Budgets) limits() map[ledger.Unit][]ledger.Limit {
	if b == nil {
		return nil
	}
	return map[ledger.Unit][]ledger.Limit{ledger.Tokens: b.limit(b.MaxTokens), ledger.USD: b.limit(b.MaxCostNanoUSD)}
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

// modelKey is the id of the accounts of an owner's use of a provider's model.
func modelKey(identity policy.Identity, provider, model string) string {
	key := make([]byte, 0, 128) // most are shorter
	key = append(appendOwner(key, identity), url.QueryEscape(provider)...)
	return string(append(append(key, ':'), url.QueryEscape(model)...))
}

// ownerKey begins the ids of an owner's accounts.
func ownerKey(identity policy.Identity) string { return string(appendOwner(nil, identity)) }

// appendOwner writes who an owner is. Absent parts are not empty ones.
func appendOwner(key []byte, identity policy.Identity) []byte {
	for _, part := range [...]*string{identity.Tenant, identity.User, identity.PrincipalKind, identity.Principal} {
		if part != nil {
			key = append(append(key, '='), url.QueryEscape(*part)...)
		}
		key = append(key, ':')
	}
	return key
}

// part is what a task uses of one model for one kind of work: it is counted, and limited by nothing but the task's pool.
func part(task Scope, kind string, candidate *Candidate) Scope {
	scope := Scope{
		Kind: ledger.ScopePart, Limits: map[ledger.Unit][]ledger.Limit{},
		ID: strings.Join([]string{task.ID, kind, url.QueryEscape(candidate.Provider), url.QueryEscape(candidate.Model)}, ":"),
	}
	for unit := range task.Limits {
		scope.Limits[unit] = nil
	}
	return scope
}

// Spent is an amount of each unit that budgets limit.
type Spent struct{ Tokens, NanoUSD int64 }

func (s *Spent) add(unit ledger.Unit, amount int64) {
	if unit == ledger.USD {
		s.NanoUSD += amount
	} else {
		s.Tokens += amount
	}
}

// BudgetReport is how a budget stands.
type BudgetReport struct {
	// Used is what was charged in the budget's window, Held what calls that run have set aside besides.
	Used, Held Spent
	// ByModel, under "provider/model", ByKind and Attributions say what a task's pool was used for. They are empty for any other.
	ByModel, ByKind map[string]Spent
	Attributions    []Attribution
}

// Attribution is what a task used of one model for one kind of work.
type Attribution struct {
	Kind, Provider, Model string
	Spent
}

// ReadBudget reads one of the router's own budgets. Without a task, what the budget does not name is summed up: without a model all
// models of its provider, without a provider all that the owner has used. It returns an [*Error].
func (r *Router) ReadBudget(ctx context.Context, budget Budget) (*BudgetReport, error) {
	if r.Budgets == nil {
		return nil, invalid("the router has no budgets")
	}
	if err := r.checkIdentity(budget.Identity, budget.Verified); err != nil {
		return nil, err
	}
	if budget.TaskID == "" && budget.Provider == "" && budget.Model != "" {
		return nil, invalid("a model is read together with its provider")
	}
	report := &BudgetReport{ByModel: map[string]Spent{}, ByKind: map[string]Spent{}}
	if budget.TaskID != "" || budget.Model != "" {
		if err := r.addPool(ctx, report, r.poolOf(&budget), budget.TaskID != ""); err != nil {
			return nil, err
		}
		return report, nil
	}
	prefix := ownerKey(budget.Identity)
	if budget.Provider != "" {
		prefix += url.QueryEscape(budget.Provider) + ":"
	}
	accounts, err := r.Ledger.Accounts(ctx, ledger.ScopeModel, prefix)
	if err != nil {
		return nil, storeError(err)
	}
	for _, account := range accounts {
		if account.Unit != ledger.Tokens { // each pool once
			continue
		}
		pool := Scope{Kind: ledger.ScopeModel, ID: account.ID, Limits: r.limits}
		if err := r.addPool(ctx, report, pool, false); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// addPool adds how a pool stands; of a task also what it was used for.
func (r *Router) addPool(ctx context.Context, report *BudgetReport, pool Scope, task bool) error {
	balances, err := r.Ledger.Read(ctx, pool.Claims())
	if err != nil {
		return storeError(err)
	}
	for _, balance := range balances {
		unit := balance.Account.Unit
		report.Used.add(unit, balance.Used)
		report.Held.add(unit, balance.Held)
		if task && balance.Used > 0 {
			if err := r.attribute(ctx, report, pool.ID, unit, balance.RecoversAt.Add(-r.Budgets.Window)); err != nil {
				return storeError(err)
			}
		}
	}
	return nil
}

// attribute adds what a task's parts used of a unit since its window opened.
func (r *Router) attribute(ctx context.Context, report *BudgetReport, task string, unit ledger.Unit, opened time.Time) error {
	parts := map[ledger.Account]Attribution{}
	accounts, err := r.Ledger.Accounts(ctx, ledger.ScopePart, task+":")
	if err != nil {
		return err
	}
	for _, account := range accounts {
		if attribution, ok := readPart(account.ID, task); ok && account.Unit == unit {
			parts[account] = attribution
		}
	}
	used, err := r.Ledger.ReadSince(ctx, slices.Collect(maps.Keys(parts)), opened)
	if err != nil {
		return err
	}
	for account, attribution := range parts {
		if used[account] > 0 {
			report.add(attribution, unit, used[account])
		}
	}
	slices.SortFunc(report.Attributions, func(a, b Attribution) int {
		return strings.Compare(a.Kind+"\n"+a.Provider+"\n"+a.Model, b.Kind+"\n"+b.Provider+"\n"+b.Model)
	})
	return nil
}

// add counts an amount for a model, for a kind of work, and for both together.
func (b *BudgetReport) add(of Attribution, unit ledger.Unit, amount int64) {
	for _, sum := range []struct {
		sums map[string]Spent
		key  string
	}{{b.ByModel, of.Provider + "/" + of.Model}, {b.ByKind, of.Kind}} {
		spent := sum.sums[sum.key]
		spent.add(unit, amount)
		sum.sums[sum.key] = spent
	}
	i := slices.IndexFunc(b.Attributions, func(a Attribution) bool {
		return a.Kind == of.Kind && a.Provider == of.Provider && a.Model == of.Model
	})
	if i < 0 {
		i, b.Attributions = len(b.Attributions), append(b.Attributions, of)
	}
	b.Attributions[i].add(unit, amount)
}

// readPart reads the id of a part of a task; a tenant's tasks may have ids that begin like it, and more parts.
func readPart(id, task string) (Attribution, bool) {
	parts := strings.Split(strings.TrimPrefix(id, task+":"), ":")
	if len(parts) != 3 {
		return Attribution{}, false
	}
	provider, providerErr := url.QueryUnescape(parts[1])
	model, modelErr := url.QueryUnescape(parts[2])
	return Attribution{Kind: parts[0], Provider: provider, Model: model}, errors.Join(providerErr, modelErr) == nil
}
