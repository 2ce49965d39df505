// Package metrics counts and times what the gateway does, in the form that Prometheus reads.
//
// A label's values are words of the program, of the policy's metadata, or ids of the catalogue: nothing that a client sends ever
// becomes one.
package metrics

import (
	"errors"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/sqldb"
)

// Metrics are one gateway's.
type Metrics struct {
	registry *prometheus.Registry
	code     func(error) string

	calls          *prometheus.CounterVec
	attempts       *prometheus.CounterVec
	denials        *prometheus.CounterVec
	errors         *prometheus.CounterVec
	renewalsFailed prometheus.Counter
	holds          prometheus.Gauge
	policy         prometheus.Histogram
	decisions      *prometheus.CounterVec
	admit          prometheus.Observer
	renew          prometheus.Observer
	settle         prometheus.Observer
	upstream       *prometheus.HistogramVec
}

var _ engine.Meter = (*Metrics)(nil)

// Buckets in seconds: where the steps of a call lie on a machine that keeps up, and far beyond, up to where each is cut off.
var (
	policyBuckets   = []float64{1e-6, 10e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 50e-3, 0.1, 0.5}
	ledgerBuckets   = []float64{50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.5, 1, 5, 10}
	upstreamBuckets = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
)

// New makes metrics. code names what a call's caller is told, in the words of the error table; status is the ledger's.
func New(code func(error) string, status func() ledger.Status) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), code: code}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(vec)
		return vec
	}
	histograms := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(vec)
		return vec
	}
	m.calls = counters("regent_calls_total", "Calls by terminal state and by the code that the client got.", "state", "code")
	m.attempts = counters("regent_attempts_total", "Candidates contacted, by source and what came of it.", "source", "outcome", "reason")
	m.denials = counters("regent_denials_total", "Candidates refused, by the rule and its code; the rules \"limit\", \"rate\" and \"circuit\" are the ledger's.", "rule", "code")
	m.errors = counters("regent_errors_total", "Errors that clients were told, by code, also of requests that were no calls.", "code")
	m.renewalsFailed = counters("regent_renewals_failed_total", "Renewals of holds that failed; each is tried again.").WithLabelValues()
	m.decisions = counters("regent_policy_decisions_total", "Candidates judged, by whether the decision was made afresh or remembered of equal facts, or failed.", "made")
	m.policy = histograms("regent_policy_seconds", "Time that policy took to judge one candidate.", policyBuckets).WithLabelValues().(prometheus.Histogram)
	ledgerSeconds := histograms("regent_ledger_seconds", "Time from asking the ledger until its transaction was committed.", ledgerBuckets, "operation")
	m.admit, m.renew, m.settle = ledgerSeconds.WithLabelValues("admit"), ledgerSeconds.WithLabelValues("renew"), ledgerSeconds.WithLabelValues("settle")
	m.upstream = histograms("regent_upstream_seconds", "Time that a provider's whole answer took.", upstreamBuckets, "provider")
	m.holds = prometheus.NewGauge(prometheus.GaugeOpts{Name: "regent_holds_live", Help: "Holds that this process keeps."})
	m.registry.MustRegister(
		m.holds,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "regent_ledger_queue_length", Help: "Operations that wait for the ledger's next transaction.",
		}, func() float64 { return float64(status().Waiting) }),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// CountDatabase adds what happened to the transactions of the ledger's database.
func (m *Metrics) CountDatabase(read func() sqldb.Counters) {
	counter := func(name, help string, labels prometheus.Labels, of func(sqldb.Counters) int64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(of(read())) }))
	}
	counter("regent_database_transactions_total", "Transactions that were begun at the database, repeated ones among them.", nil,
		func(c sqldb.Counters) int64 { return c.Transactions })
	for cause, of := range map[string]func(sqldb.Counters) int64{
		"conflict": func(c sqldb.Counters) int64 { return c.Conflicts },
		"unknown":  func(c sqldb.Counters) int64 { return c.Unknown },
		"lost":     func(c sqldb.Counters) int64 { return c.Lost },
	} {
		counter("regent_database_retries_total", "Transactions that were done again: another was in the way, nobody knew whether it was "+
			"committed, or the connection was lost.", prometheus.Labels{"cause": cause}, of)
	}
}

// Handler serves what was counted.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// Judged counts a candidate's denials. See [engine.Meter].
func (m *Metrics) Judged(took time.Duration, decision policy.Decision, err error) {
	m.policy.Observe(took.Seconds())
	m.decisions.WithLabelValues(made(decision, err)).Inc()
	if err != nil {
		m.denials.WithLabelValues("main", engine.ReasonPolicyFailed).Inc()
	}
	for _, denial := range decision.Denials {
		m.denials.WithLabelValues(denial.Rule, denial.Code).Inc()
	}
}

// made tells how a decision came about.
func made(decision policy.Decision, err error) string {
	switch {
	case err != nil:
		return "failed"
	case decision.Remembered:
		return "remembered"
	}
	return "afresh"
}

// Admitted counts a hold, or what denied it.
func (m *Metrics) Admitted(took time.Duration, err error) {
	m.admit.Observe(took.Seconds())
	var limit *ledger.LimitError
	var rate *ledger.RateError
	var circuit *ledger.CircuitError
	switch {
	case err == nil:
		m.holds.Inc()
	case errors.As(err, &limit):
		m.denials.WithLabelValues("limit", limit.Account.Scope+"_"+string(limit.Account.Unit)).Inc()
	case errors.As(err, &rate):
		m.denials.WithLabelValues("rate", engine.ReasonRateLimited).Inc()
	case errors.As(err, &circuit):
		m.denials.WithLabelValues("circuit", engine.ReasonCircuitOpen).Inc()
	}
}

// Contacted counts an attempt.
func (m *Metrics) Contacted(took time.Duration, candidate *engine.Candidate, outcome ledger.Outcome) {
	m.upstream.WithLabelValues(candidate.Provider).Observe(took.Seconds())
	m.attempts.WithLabelValues(candidate.Source, outcome.Result, outcome.Reason).Inc()
}

// Renewed counts a renewal that failed.
func (m *Metrics) Renewed(took time.Duration, err error) {
	m.renew.Observe(took.Seconds())
	if err != nil {
		m.renewalsFailed.Inc()
	}
}

// Settled counts a hold that has ended.
func (m *Metrics) Settled(took time.Duration) {
	m.settle.Observe(took.Seconds())
	m.holds.Dec()
}

// Told counts an error that a client was told.
func (m *Metrics) Told(code string) { m.errors.WithLabelValues(code).Inc() }

// Ended counts a call.
func (m *Metrics) Ended(state ledger.State, err error) {
	code := "ok"
	if err != nil {
		code = m.code(err)
	}
	m.calls.WithLabelValues(string(state), code).Inc()
}
