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

// UsageReport is what a host says that a call used.
type UsageReport struct {
	// Reservation is the call's hold; nil charges the budget directly.
	Reservation *Reservation
	// Attempt names the attempt that a direct charge is for. If it holds money, that hold is settled, and nothing is charged twice.
	Attempt uuid.UUID
	// Request and Candidate name the budget for a direct charge.
	Request   *Request
	Candidate *Candidate
	Usage     ledger.Usage
	// NanoUSD is the cost of a direct charge.
	NanoUSD int64
}

// RecordUsage charges what was used and gives the rest of the hold back; without a hold it charges the budget directly. It
// returns an [*Error].
func (r *Router) RecordUsage(ctx context.Context, report UsageReport) (ledger.Charge, error) {
	if report.Reservation != nil {
		return r.settle(ctx, *report.Reservation, report.Usage)
	}
	if report.Attempt != uuid.Nil {
		if charge, held, err := r.settleAttempt(ctx, report.Attempt, report.Usage); held || err != nil {
			return charge, err
		}
	}
	if report.Request == nil || report.Candidate == nil {
		return ledger.Charge{}, &Error{Code: CodeValidation, Message: "a direct charge needs the request and the candidate"}
	}
	if err := report.Request.complete(); err != nil {
		return ledger.Charge{}, err
	}
	var accounts []ledger.Account
	for _, claim := range claims(r.scopes(report.Request, report.Candidate), "") {
		accounts = append(accounts, claim.Account)
	}
	err := r.Ledger.Post(ctx, ledger.Posting{
		Accounts: accounts, Usage: report.Usage, NanoUSD: report.NanoUSD,
		Source: report.Candidate.Source, Provider: report.Candidate.Provider,
	})
	if err != nil {
		return ledger.Charge{}, storeError(err)
	}
	tokens, err := report.Usage.Tokens()
	if err != nil {
		return ledger.Charge{}, storeError(err)
	}
	return ledger.Charge{Tokens: tokens, NanoUSD: report.NanoUSD}, nil
}

// settle ends a reservation with a usage.
func (r *Router) settle(ctx context.Context, reservation Reservation, usage ledger.Usage) (ledger.Charge, error) {
	charge, err := r.Ledger.Settle(ctx, ledger.Ending{
		Hold: reservation.ID, Token: reservation.Token, State: ledger.Completed, Outcome: ledger.Outcome{Result: ledger.Success},
	}, ledger.Consumption{Usage: &usage})
	if err != nil {
		return ledger.Charge{}, storeError(err)
	}
	return charge, nil
}

// settleAttempt ends the hold that an attempt has, whatever its newest token is. held is false if it has none. One that has ended was
// charged already, or given back: its charge is returned.
func (r *Router) settleAttempt(ctx context.Context, attempt uuid.UUID, usage ledger.Usage) (charge ledger.Charge, held bool, err error) {
	for {
		rows, err := r.Ledger.Store().Load(ctx, ledger.Keys{Holds: []uuid.UUID{attempt}})
		if err != nil {
			return ledger.Charge{}, false, storeError(err)
		}
		row, known := rows.Holds[attempt]
		if !known || row.State == ledger.HoldSettled || row.State == ledger.HoldReleased {
			return row.Charge, known, nil
		}
		charge, err := r.settle(ctx, Reservation{ID: attempt, Token: row.Token}, usage)
		if err == nil || !errors.Is(err, ledger.ErrState) || errors.Is(err, ledger.ErrExpired) {
			return charge, true, err
		}
		// it was renewed or ended meanwhile
	}
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

// BudgetQuery names a budget: a task's pool, or an owner's use of one provider's model.
type BudgetQuery struct {
	Identity        policy.Identity
	Provider, Model string
	TaskID          string
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

// ReadBudget reads one of the router's own budgets. It returns an [*Error].
func (r *Router) ReadBudget(ctx context.Context, query BudgetQuery) (*BudgetReport, error) {
	if r.Budgets == nil {
		return nil, &Error{Code: CodeValidation, Message: "the router has no budgets"}
	}
	pool := r.pool(query.Identity, query.TaskID, query.Provider, query.Model)
	balances, err := r.Ledger.Read(ctx, pool.Claims())
	if err != nil {
		return nil, storeError(err)
	}
	report := &BudgetReport{ByModel: map[string]Spent{}, ByKind: map[string]Spent{}}
	for _, balance := range balances {
		unit := balance.Account.Unit
		report.Used.add(unit, balance.Used)
		report.Held.add(unit, balance.Held)
		if query.TaskID != "" && balance.Used > 0 {
			if err := r.attribute(ctx, report, pool.ID, unit, balance.RecoversAt.Add(-r.Budgets.Window)); err != nil {
				return nil, storeError(err)
			}
		}
	}
	return report, nil
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
