package policy

import (
	"encoding/json"
	"testing"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/util"
	"pgregory.net/rapid"
)

// What policy judges and what records say must be the same document.
func TestTheDocumentIsTheJSONOfFacts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		facts := drawFacts(t)
		text, err := json.Marshal(facts)
		if err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := util.UnmarshalJSON(text, &tree); err != nil {
			t.Fatal(err)
		}
		want, err := ast.InterfaceToValue(tree)
		if err != nil {
			t.Fatal(err)
		}
		got := documentOf(wholeTerm(facts.Now), callTerm(facts.Call), identityTerm(facts.Identity),
			candidateTerm(facts.Candidate), attemptsTerm(facts.Attempts))
		if got.Compare(want) != 0 {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	})
}

func drawFacts(t *rapid.T) Facts {
	text := rapid.String()
	list := rapid.SliceOfN(text, 0, 4)
	optionalText := rapid.Ptr(text, true)
	optionalNumber := rapid.Ptr(rapid.Int64(), true)
	is := rapid.Bool()
	attempt := rapid.Custom(func(t *rapid.T) Attempt {
		return Attempt{Source: text.Draw(t, "source"), Provider: text.Draw(t, "provider"), Reason: text.Draw(t, "reason")}
	})
	facts := Facts{
		Now: rapid.Int64().Draw(t, "now"),
		Call: Call{
			Model:           text.Draw(t, "model"),
			Protocol:        text.Draw(t, "protocol"),
			Kind:            text.Draw(t, "kind"),
			Stream:          is.Draw(t, "stream"),
			Residency:       optionalText.Draw(t, "residency"),
			Modalities:      list.Draw(t, "modalities"),
			InputTokens:     optionalNumber.Draw(t, "input tokens"),
			OutputTokensMax: optionalNumber.Draw(t, "output tokens"),
			TokensBounded:   is.Draw(t, "tokens bounded"),
			CostBounded:     is.Draw(t, "cost bounded"),
		},
		Identity: Identity{
			User:          optionalText.Draw(t, "user"),
			Groups:        list.Draw(t, "groups"),
			Tenant:        optionalText.Draw(t, "tenant"),
			Principal:     optionalText.Draw(t, "principal"),
			PrincipalKind: optionalText.Draw(t, "principal kind"),
		},
		Candidate: Candidate{
			Source:            text.Draw(t, "source"),
			Provider:          text.Draw(t, "provider"),
			Model:             text.Draw(t, "candidate's model"),
			Residency:         optionalText.Draw(t, "candidate's residency"),
			Enabled:           is.Draw(t, "enabled"),
			Connection:        text.Draw(t, "connection"),
			Stale:             is.Draw(t, "stale"),
			CoolingUntil:      rapid.Int64().Draw(t, "cooling"),
			Protocols:         list.Draw(t, "protocols"),
			Modalities:        list.Draw(t, "candidate's modalities"),
			ContextTokens:     optionalNumber.Draw(t, "context tokens"),
			OutputTokensMax:   optionalNumber.Draw(t, "candidate's output tokens"),
			Priced:            is.Draw(t, "priced"),
			OpenRouterRouting: is.Draw(t, "routing"),
			Accounting:        rapid.SampledFrom([]string{ByAPIKey, BySubscription, Unmetered, ""}).Draw(t, "accounting"),
		},
		Attempts: rapid.SliceOfN(attempt, 0, 3).Draw(t, "attempts"),
	}
	if is.Draw(t, "nil lists") {
		facts.Call.Modalities, facts.Identity.Groups, facts.Attempts = nil, nil, nil
		facts.Candidate.Protocols, facts.Candidate.Modalities = nil, nil
	}
	return facts
}
