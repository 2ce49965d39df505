package engine

import (
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"regent/engine/policy"
	"regent/ledger"
)

// Kinds of work that usage is attributed to.
const (
	Generation = "generation"
	Embedding  = "embedding"
	Compaction = "compaction"
	Tool       = "tool"
)

// Request is a call that is to be routed.
type Request struct {
	// ID is the call's id and its decision id. The zero value lets the router make one.
	ID uuid.UUID
	// Attempt names the attempt, if the host has a name for it: a charge that names it later settles its hold.
	Attempt uuid.UUID
	// Call is recorded with the first hold or denial; nil for a host that keeps its own records.
	Call *ledger.Call
	// Identity is who asks. Verified says that the host has proved that, which durable state requires.
	Identity policy.Identity
	Verified bool
	// Token names the credential that the caller came with, without telling it: equal denials of one are counted together.
	Token string
	// Facts of the call that policy sees. TokensBounded and CostBounded are filled in by the router.
	Facts policy.Call
	// MaxTokens and MaxCostNanoUSD are caps of this call: each reserves its full amount. nil is no cap. No provider hears of them: a host
	// bounds the output of its request accordingly, since what is used beyond a cap is charged all the same.
	MaxTokens      *int64
	MaxCostNanoUSD *int64
	// AddedInput is how many tokens the provider may read besides the prompt, as what its own tools bring. They are set aside, and no part of
	// what policy sees.
	AddedInput int64
	// Units are the most that the call can use of what is not charged by tokens, for example web_search. What of it a candidate's price
	// lists is set aside.
	Units map[string]int64
	// TaskID puts the call into a task's one shared pool.
	TaskID string
	// Scopes are whose accounts the call stands on, with their limits, besides those of the router's own budgets.
	Scopes []Scope
	// Rates are how often the caller may make calls: each counts once, however many candidates it takes.
	Rates []ledger.Rate
	// Candidates in the order in which they are tried, unless a selection ranks them: the primary, then its fallbacks. Those of the
	// router's configuration follow.
	Candidates []Candidate
	// Attempts are the candidates that were contacted for this call already, and failed. They count towards the cap, policy sees them,
	// and none of them is tried again.
	Attempts []policy.Attempt
	// Session is what calls have in common that are better served by one source; empty if nothing is known of it. Only selections read it.
	Session string
}

// complete fills in what a request may leave out, and refuses one that cannot be.
func (r *Request) complete() error {
	for _, n := range []*int64{r.MaxTokens, r.MaxCostNanoUSD, r.Facts.InputTokens, r.Facts.OutputTokensMax} {
		if n != nil && (*n < 0 || *n > ledger.TokensMax) {
			return invalid("caps and counts of tokens must be within 0 and 2^53 - 1")
		}
	}
	for _, n := range append(slices.Collect(maps.Values(r.Units)), r.AddedInput) {
		if n < 0 || n > ledger.TokensMax {
			return invalid("units and the input of tools must be within 0 and 2^53 - 1")
		}
	}
	if len(r.Candidates) > candidatesMax {
		return tooManyCandidates
	}
	if err := r.completeFacts(); err != nil {
		return err
	}
	if r.ID == uuid.Nil {
		id, err := uuid.NewV7()
		if err != nil {
			return fmt.Errorf("engine: naming a call: %w", err)
		}
		r.ID = id
	}
	return nil
}

var tooManyCandidates = invalid(fmt.Sprintf("a call has at most %d candidates", candidatesMax))

// isOpen says whether any candidate leaves out what the router fills in, or has what it may have to change.
func (r *Request) isOpen() bool {
	for i := range r.Candidates {
		if r.leavesOpen(&r.Candidates[i]) {
			return true
		}
	}
	return false
}

func (r *Request) leavesOpen(candidate *Candidate) bool {
	return !isName(candidate.Provider) || !isName(candidate.Model) || candidate.Source == "" || candidate.Accounting == "" ||
		candidate.Modalities == nil || candidate.Routing != nil || candidate.Price != nil && candidate.InputPrice == nil ||
		candidate.named && (r.Facts.Protocol != hostProtocol || hasSuffix(candidate.Model) || isPreset(candidate.Model)) || candidate.Protocols == nil
}

// hostProtocol is the protocol of a call whose host does not name one: it is the host's own affair.
const hostProtocol = "host"

var hostProtocols = []string{hostProtocol}

// completeFacts fills in what a host need not know of policy: a call that names no model is for the primary's.
func (r *Request) completeFacts() error {
	if r.Facts.Model == "" && len(r.Candidates) > 0 {
		r.Facts.Model = r.Candidates[0].Model
	}
	if r.Facts.Protocol == "" {
		r.Facts.Protocol = hostProtocol
	}
	r.Facts.Modalities, r.Identity.Groups = listOf(r.Facts.Modalities), listOf(r.Identity.Groups)
	var err error
	r.Facts.Kind, err = kindOf(r.Facts.Kind)
	return err
}

// listOf is a list of facts: in a record, one that is nil would be none.
func listOf(texts []string) []string {
	if texts == nil {
		return []string{}
	}
	return texts
}

// kindOf is the kind of work by its name; generation if it has none.
func kindOf(name string) (string, error) {
	if name == "" {
		return Generation, nil
	}
	if !slices.Contains([]string{Generation, Embedding, Compaction, Tool}, name) {
		return "", invalid("kind must be generation, embedding, compaction or tool")
	}
	return name, nil
}
