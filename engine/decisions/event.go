// Package decisions holds what compliance reads: a record of each decision and of what persons did to the books, in the event form of
// OPA's decision logs, so that tools made for those read it, and shipping of records from the journal to a sink.
//
// An event holds facts and outcomes. It never holds a prompt, an output, a credential or a fencing token, because none is
// ever given to it.
package decisions

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"regent/engine/policy"
	"regent/ledger"
)

// Paths of events: what decided, what came of it, and what a person did to the books, and why.
const (
	DecisionPath   = "regent/main/decision"
	OutcomePath    = "regent/outcome"
	CorrectionPath = "regent/ledger/correction"
	ResetPath      = "regent/ledger/reset"
	ClosingPath    = "regent/ledger/closing"
)

// Event is one event of a decision log.
type Event struct {
	Labels     map[string]string `json:"labels"`
	DecisionID string            `json:"decision_id"`
	Bundles    map[string]Bundle `json:"bundles,omitempty"`
	Path       string            `json:"path"`
	Input      *Input            `json:"input,omitempty"`
	Result     any               `json:"result"`
	Timestamp  time.Time         `json:"timestamp"`
	Custom     *Custom           `json:"custom,omitempty"`
}

// Custom is what OPA's events have no field for.
type Custom struct {
	// Activation is the digest of the policy that decided.
	Activation string `json:"activation"`
}

// Bundle names the revision of a bundle that decided.
type Bundle struct {
	Revision string `json:"revision,omitempty"`
}

// Input is what was decided on. The input of one candidate's evaluation is this with `candidate` in place of `candidates`.
type Input struct {
	Now        int64              `json:"now"`
	Call       policy.Call        `json:"call"`
	Identity   policy.Identity    `json:"identity"`
	Candidates []policy.Candidate `json:"candidates"`
	Attempts   []policy.Attempt   `json:"attempts"`
}

// Result is what was decided, a candidate each in the order in which they were judged.
type Result struct {
	Allow bool `json:"allow"`
	// Selected is the source of the candidate that may serve the call; empty if none.
	Selected string `json:"selected,omitempty"`
	// Selection names what ranked the candidates; empty if they were tried in the order of the input.
	Selection  string      `json:"selection,omitempty"`
	Candidates []Candidate `json:"candidates"`
	// Code and Reason are the final ones of a refusal.
	Code   string `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Count is how many equal denials this event stands for, if more than one. Those of models without candidates are equal whatever
	// the model is called: the input names the last one.
	Count int `json:"count,omitempty"`
}

// Candidate is how one candidate fared.
type Candidate struct {
	Source   string `json:"source"`
	Provider string `json:"provider"`
	// Outcome is selected, denied, circuit_open, miss, failed or not_reached.
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"`
	// Denials are the rules that refused.
	Denials []policy.Denial `json:"denials,omitempty"`
	// Limit is the limit that refused.
	Limit *Limit `json:"limit,omitempty"`
	// Rate is the rate that refused.
	Rate *Rate `json:"rate,omitempty"`
}

// Rate is a rate that refused: so many calls may begin in a window.
type Rate struct {
	Key    string `json:"key"`
	Max    string `json:"max"`
	Window string `json:"window"`
}

// NewRate describes a denial by a rate.
func NewRate(e *ledger.RateError) *Rate {
	return &Rate{Key: e.Key, Max: ledger.FormatAmount(ledger.Calls, e.Max), Window: (ledger.Fixed{Length: e.Window}).String()}
}

// Limit is a limit that refused, with the amounts that the admitting transaction saw, as exact decimals of the unit.
type Limit struct {
	Account   string `json:"account"`
	Unit      string `json:"unit"`
	Window    string `json:"window"`
	Limit     string `json:"limit"`
	Used      string `json:"used"`
	Held      string `json:"held"`
	Shortfall string `json:"shortfall"`
}

// NewLimit describes a denial by a limit.
func NewLimit(e *ledger.LimitError) *Limit {
	unit := e.Account.Unit
	return &Limit{
		Account: e.Account.String(), Unit: string(unit), Window: e.Window.String(),
		Limit: ledger.FormatAmount(unit, e.Limit), Used: ledger.FormatAmount(unit, e.Used),
		Held: ledger.FormatAmount(unit, e.Held), Shortfall: ledger.FormatAmount(unit, e.Shortfall()),
	}
}

// Render turns a record of the journal into one line of a decision log, without the line's end. ok is false for records that
// are the ledger's own (charges), which are not shipped.
func Render(record ledger.Record, labels map[string]string) (line []byte, ok bool, err error) {
	event := Event{Labels: labels, DecisionID: decisionID(record.Call), Result: record.Body, Timestamp: record.At}
	switch record.Kind {
	case ledger.DecisionRecord:
		return record.Body, true, nil
	case ledger.OutcomeRecord:
		event.Path = OutcomePath
	case ledger.CorrectionRecord:
		event.Path = CorrectionPath
	case ledger.ResetRecord:
		event.Path = ResetPath
	case ledger.ClosingRecord:
		event.Path = ClosingPath
		event.Result, err = closing(record.Body)
	default:
		return nil, false, nil
	}
	if err == nil {
		line, err = event.Encode()
	}
	if err != nil {
		return nil, false, fmt.Errorf("decisions: record %s/%d: %w", record.Writer, record.Number, err)
	}
	return line, true, nil
}

// closing is what was pruned without the balances, which may be those of every account there is.
func closing(body json.RawMessage) (any, error) {
	var closing struct {
		ledger.ClosingBody
		Accounts json.RawMessage `json:"accounts,omitempty"`
	}
	err := json.Unmarshal(body, &closing)
	closing.Accounts = nil
	return closing, err
}

// decisionID of a record that belongs to no call is empty.
func decisionID(call uuid.UUID) string {
	if call == uuid.Nil {
		return ""
	}
	return call.String()
}
