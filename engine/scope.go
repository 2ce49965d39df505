package engine

import (
	"slices"

	"regent/ledger"
)

// Scope is whose accounts are charged.
type Scope struct {
	// Kind and ID name the accounts, one a unit.
	Kind, ID string
	// Limits are the scope's, by unit. A unit without an entry is closed: the scope's owner has not been given any of it; but calls may
	// always run, and a token is given nothing else. An entry without limits is counted and not limited.
	Limits map[ledger.Unit][]ledger.Limit
}

func (s Scope) account(unit ledger.Unit) ledger.Account {
	return ledger.Account{Scope: s.Kind, ID: s.ID, Unit: unit}
}

// countedUnits are what scopes have accounts in.
var countedUnits = append(slices.Clone(ledger.Units), ledger.Calls)

// Claims are the scope's accounts with their limits.
func (s Scope) Claims() []ledger.Claim { return s.appendClaims(nil) }

func (s Scope) appendClaims(claims []ledger.Claim) []ledger.Claim {
	for _, unit := range countedUnits {
		if limits, open := s.Limits[unit]; open {
			claims = append(claims, ledger.Claim{Account: s.account(unit), Limits: limits})
		}
	}
	return claims
}

// claims are all accounts of some scopes. A compaction may take all of a limit: it makes the calls after it smaller.
func claims(scopes []Scope, kind string) []ledger.Claim {
	n := 0
	for _, scope := range scopes {
		n += len(scope.Limits)
	}
	all := make([]ledger.Claim, 0, n)
	for _, scope := range scopes {
		all = scope.appendClaims(all)
	}
	if kind == Compaction {
		for i := range all {
			all[i].Limits = slices.Clone(all[i].Limits)
			for j := range all[i].Limits {
				all[i].Limits[j].Spendable, all[i].Limits[j].Final = 0, 0
			}
		}
	}
	return all
}

// charged are the accounts of some scopes, and their limits, for a charge without a hold.
func charged(scopes []Scope) (accounts []ledger.Account, limits map[ledger.Account][]ledger.Limit) {
	limits = map[ledger.Account][]ledger.Limit{}
	for _, claim := range claims(scopes, "") {
		accounts = append(accounts, claim.Account)
		limits[claim.Account] = claim.Limits
	}
	return accounts, limits
}

// closedUnit finds an account that the call would need and that its owner has been given none of.
func closedUnit(scopes []Scope, reserve ledger.Reserve) (ledger.Account, bool) {
	for _, scope := range scopes {
		if scope.Kind == ledger.ScopeToken {
			continue
		}
		for _, unit := range ledger.Units {
			amount := reserve.Of(unit)
			if _, open := scope.Limits[unit]; !open && (amount == nil || *amount > 0) {
				return scope.account(unit), true
			}
		}
	}
	return ledger.Account{}, false
}

// limits says whether any scope limits a unit.
func limits(scopes []Scope, unit ledger.Unit) bool {
	return slices.ContainsFunc(scopes, func(scope Scope) bool { return limited(scope.Limits[unit]) })
}

// limited says whether any of some limits can be reached.
func limited(limits []ledger.Limit) bool {
	return slices.ContainsFunc(limits, func(l ledger.Limit) bool { return l.Max < unlimited })
}
