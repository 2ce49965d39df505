package metrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/sqldb"
)

// What the engine tells is counted once, under the words that it was told with.
func TestCounts(t *testing.T) {
	m := New(func(err error) string { return err.Error() }, func() ledger.Status { return ledger.Status{Waiting: 3} })
	limit := &ledger.LimitError{Account: ledger.Account{Scope: ledger.ScopeTask, ID: "secret", Unit: ledger.USD}}
	m.Judged(time.Millisecond, policy.Decision{Denials: []policy.Denial{{Rule: "access", Code: "NO_ACCESS"}, {Rule: "residency", Code: "ELSEWHERE"}}}, nil)
	m.Judged(time.Millisecond, policy.Decision{}, policy.ErrLate)
	m.Judged(time.Microsecond, policy.Decision{Allow: true, Remembered: true}, nil)
	m.Admitted(time.Millisecond, nil)
	m.Admitted(time.Millisecond, nil)
	m.Admitted(time.Millisecond, limit)
	m.Admitted(time.Millisecond, ledger.ErrBusy)
	m.Admitted(time.Millisecond, &ledger.RateError{Rate: ledger.Rate{Key: "secret"}})
	m.Admitted(time.Millisecond, &ledger.CircuitError{Key: "secret"})
	m.Renewed(time.Millisecond, nil)
	m.Renewed(time.Millisecond, ledger.ErrUnavailable)
	m.Contacted(time.Second, &engine.Candidate{}, ledger.Outcome{Result: ledger.Errored, Reason: "timeout"})
	m.Settled(time.Millisecond)
	m.Ended(ledger.Failed, errors.New("upstream_timeout"))
	m.Told("ledger_busy")
	want := `
# HELP regent_attempts_total Candidates contacted, by source and what came of it.
# TYPE regent_attempts_total counter
regent_attempts_total{outcome="error",reason="timeout",source=""} 1
# HELP regent_calls_total Calls by terminal state and by the code that the client got.
# TYPE regent_calls_total counter
regent_calls_total{code="upstream_timeout",state="failed"} 1
# HELP regent_denials_total Candidates refused, by the rule and its code; the rules "limit", "rate" and "circuit" are the ledger's.
# TYPE regent_denials_total counter
regent_denials_total{code="ELSEWHERE",rule="residency"} 1
regent_denials_total{code="NO_ACCESS",rule="access"} 1
regent_denials_total{code="circuit_open",rule="circuit"} 1
regent_denials_total{code="policy_failed",rule="main"} 1
regent_denials_total{code="rate_limited",rule="rate"} 1
regent_denials_total{code="task_usd",rule="limit"} 1
# HELP regent_errors_total Errors that clients were told, by code, also of requests that were no calls.
# TYPE regent_errors_total counter
regent_errors_total{code="ledger_busy"} 1
# HELP regent_holds_live Holds that this process keeps.
# TYPE regent_holds_live gauge
regent_holds_live 1
# HELP regent_ledger_queue_length Operations that wait for the ledger's next transaction.
# TYPE regent_ledger_queue_length gauge
regent_ledger_queue_length 3
# HELP regent_policy_decisions_total Candidates judged, by whether the decision was made afresh or remembered of equal facts, or failed.
# TYPE regent_policy_decisions_total counter
regent_policy_decisions_total{made="afresh"} 1
regent_policy_decisions_total{made="failed"} 1
regent_policy_decisions_total{made="remembered"} 1
# HELP regent_renewals_failed_total Renewals of holds that failed; each is tried again.
# TYPE regent_renewals_failed_total counter
regent_renewals_failed_total 1
`
	err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "regent_attempts_total", "regent_calls_total", "regent_errors_total", "regent_policy_decisions_total",
		"regent_denials_total", "regent_holds_live", "regent_ledger_queue_length", "regent_renewals_failed_total")
	if err != nil {
		t.Error(err)
	}
}

// A database's counters are read when they are asked for.
func TestCountsOfADatabase(t *testing.T) {
	m := New(func(err error) string { return err.Error() }, func() ledger.Status { return ledger.Status{} })
	counters := sqldb.Counters{Transactions: 1}
	m.CountDatabase(func() sqldb.Counters { return counters })
	counters = sqldb.Counters{Transactions: 10, Conflicts: 3, Unknown: 2, Lost: 1}
	want := `
# HELP regent_database_retries_total Transactions that were done again: another was in the way, nobody knew whether it was committed, or the connection was lost.
# TYPE regent_database_retries_total counter
regent_database_retries_total{cause="conflict"} 3
regent_database_retries_total{cause="lost"} 1
regent_database_retries_total{cause="unknown"} 2
# HELP regent_database_transactions_total Transactions that were begun at the database, repeated ones among them.
# TYPE regent_database_transactions_total counter
regent_database_transactions_total 10
`
	err := testutil.GatherAndCompare(m.registry, strings.NewReader(want), "regent_database_retries_total", "regent_database_transactions_total")
	if err != nil {
		t.Error(err)
	}
}
