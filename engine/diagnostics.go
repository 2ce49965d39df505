package engine

import (
	"encoding/json"

	"regent/engine/policy"
)

// Outcomes of a candidate.
const (
	Selected   = "selected"
	DeniedStep = "denied"
	Miss       = "miss"
	// CircuitOpen: a candidate whose circuit is open. It yields to the next one.
	CircuitOpen = "circuit_open"
	// NotReached: a candidate after the selected one. Its facts are recorded; nothing was asked of it.
	NotReached = "not_reached"
	// Failed: a candidate that was contacted and did not serve the call.
	Failed = "failed"
)

const (
	diagnosticsBytes    = 8 << 10  // default: fits a header-sized log field with 3 attempts many times over
	diagnosticsBytesMax = 64 << 10 // hard cap: the largest line that common log shippers take
)

// Diagnostics is what a host may log of a call: who asked and how each candidate fared. It holds no prompt, secret, raw key,
// token or hold.
type Diagnostics struct {
	// Outcome is "allow", "deny" or "unknown_usage".
	Outcome          string `json:"outcome"`
	SelectedProvider string `json:"selectedProvider,omitempty"`
	SelectedModel    string `json:"selectedModel,omitempty"`
	// Selection names what ranked the candidates; empty if they were tried as they were given.
	Selection    string        `json:"selection,omitempty"`
	Attempts     []AttemptStep `json:"attempts"`
	IdentityRefs IdentityRefs  `json:"identityRefs"`
	// OpenRouterRoutingHonored says that the request's OpenRouter routing metadata may be passed on.
	OpenRouterRoutingHonored bool   `json:"openRouterRoutingHonored"`
	Residency                string `json:"residency,omitempty"`
	// Truncated says that attempts were left out to fit the cap on the size.
	Truncated bool `json:"diagnostics_truncated,omitempty"`
}

// AttemptStep is one candidate as diagnostics show it.
type AttemptStep struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	Outcome  string `json:"outcome"`
	Reason   string `json:"reason,omitempty"`
}

// IdentityRefs name who asked.
type IdentityRefs struct {
	TenantID      string `json:"tenantId,omitempty"`
	PrincipalID   string `json:"principalId,omitempty"`
	PrincipalKind string `json:"principalKind,omitempty"`
}

func identityRefs(identity policy.Identity) IdentityRefs {
	refs := IdentityRefs{TenantID: value(identity.Tenant), PrincipalID: value(identity.Principal), PrincipalKind: value(identity.PrincipalKind)}
	if refs.PrincipalID == "" && identity.User != nil {
		refs.PrincipalID, refs.PrincipalKind = *identity.User, "user"
	}
	return refs
}

// capped cuts attempts, the last ones first, until the JSON form fits. If all of them do not suffice, the outcome alone is left.
func (d Diagnostics) capped(bytesMax int) Diagnostics {
	if d.bytesMost() <= bytesMax {
		return d
	}
	for {
		text, err := json.Marshal(d)
		if err != nil || len(text) <= bytesMax {
			return d
		}
		if len(d.Attempts) == 0 {
			return Diagnostics{Outcome: d.Outcome, Attempts: []AttemptStep{}, OpenRouterRoutingHonored: d.OpenRouterRoutingHonored, Truncated: true}
		}
		d.Truncated = true
		d.Attempts = d.Attempts[:len(d.Attempts)-1]
	}
}

// bytesMost is more than the JSON form takes: at most six bytes for one of a text, and the names of its fields.
func (d Diagnostics) bytesMost() int {
	const fields, step, escaped = 300, 60, 6
	refs := d.IdentityRefs
	texts := len(d.Outcome) + len(d.SelectedProvider) + len(d.SelectedModel) + len(d.Selection) + len(d.Residency) +
		len(refs.TenantID) + len(refs.PrincipalID) + len(refs.PrincipalKind)
	for _, attempt := range d.Attempts {
		texts += len(attempt.Provider) + len(attempt.Model) + len(attempt.Outcome) + len(attempt.Reason)
	}
	return fields + step*len(d.Attempts) + escaped*texts
}

// value is what a pointer points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
