package policy

import (
	"encoding/json"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The input document is built as OPA's own values, by hand: going through JSON costs five times as much. A test holds both
// forms equal.

// MarshalJSON writes the input document. A list that is nil is empty, never null, which policy would refuse.
func (f Facts) MarshalJSON() ([]byte, error) {
	type plain Facts // without this method
	f.Call.Modalities = notNil(f.Call.Modalities)
	f.Identity.Groups = notNil(f.Identity.Groups)
	f.Candidate.Protocols = notNil(f.Candidate.Protocols)
	f.Candidate.Modalities = notNil(f.Candidate.Modalities)
	f.Attempts = notNil(f.Attempts)
	return json.Marshal(plain(f))
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// The keys of the document are shared by all documents: OPA reads them only.
var (
	keyAccounting        = ast.StringTerm("accounting")
	keyAttempts          = ast.StringTerm("attempts")
	keyCall              = ast.StringTerm("call")
	keyCandidate         = ast.StringTerm("candidate")
	keyConnection        = ast.StringTerm("connection")
	keyContextTokens     = ast.StringTerm("context_tokens")
	keyCoolingUntil      = ast.StringTerm("cooling_until")
	keyCostBounded       = ast.StringTerm("cost_bounded")
	keyEnabled           = ast.StringTerm("enabled")
	keyGroups            = ast.StringTerm("groups")
	keyIdentity          = ast.StringTerm("identity")
	keyInputPrice        = ast.StringTerm("input_price")
	keyInputTokens       = ast.StringTerm("input_tokens")
	keyKind              = ast.StringTerm("kind")
	keyModalities        = ast.StringTerm("modalities")
	keyModel             = ast.StringTerm("model")
	keyNow               = ast.StringTerm("now")
	keyOpenRouterRouting = ast.StringTerm("openrouter_routing")
	keyOutputPrice       = ast.StringTerm("output_price")
	keyOutputTokensMax   = ast.StringTerm("output_tokens_max")
	keyPriced            = ast.StringTerm("priced")
	keyPrincipal         = ast.StringTerm("principal")
	keyPrincipalKind     = ast.StringTerm("principal_kind")
	keyProtocol          = ast.StringTerm("protocol")
	keyProtocols         = ast.StringTerm("protocols")
	keyProvider          = ast.StringTerm("provider")
	keyReason            = ast.StringTerm("reason")
	keyResidency         = ast.StringTerm("residency")
	keySource            = ast.StringTerm("source")
	keyStale             = ast.StringTerm("stale")
	keyStream            = ast.StringTerm("stream")
	keyTenant            = ast.StringTerm("tenant")
	keyTokensBounded     = ast.StringTerm("tokens_bounded")
	keyUser              = ast.StringTerm("user")
)

type field = [2]*ast.Term

func documentOf(now, call, identity, candidate, attempts *ast.Term) ast.Object {
	return ast.NewObject(
		field{keyNow, now},
		field{keyCall, call},
		field{keyIdentity, identity},
		field{keyCandidate, candidate},
		field{keyAttempts, attempts},
	)
}

func callTerm(c Call) *ast.Term {
	return ast.ObjectTerm(
		field{keyModel, ast.StringTerm(c.Model)},
		field{keyProtocol, ast.StringTerm(c.Protocol)},
		field{keyKind, ast.StringTerm(c.Kind)},
		field{keyStream, ast.InternedTerm(c.Stream)},
		field{keyResidency, textTerm(c.Residency)},
		field{keyModalities, listTerm(c.Modalities)},
		field{keyInputTokens, numberTerm(c.InputTokens)},
		field{keyOutputTokensMax, numberTerm(c.OutputTokensMax)},
		field{keyTokensBounded, ast.InternedTerm(c.TokensBounded)},
		field{keyCostBounded, ast.InternedTerm(c.CostBounded)},
	)
}

func identityTerm(i Identity) *ast.Term {
	return ast.ObjectTerm(
		field{keyUser, textTerm(i.User)},
		field{keyGroups, listTerm(i.Groups)},
		field{keyTenant, textTerm(i.Tenant)},
		field{keyPrincipal, textTerm(i.Principal)},
		field{keyPrincipalKind, textTerm(i.PrincipalKind)},
	)
}

func candidateTerm(c Candidate) *ast.Term {
	return ast.ObjectTerm(
		field{keySource, ast.StringTerm(c.Source)},
		field{keyProvider, ast.StringTerm(c.Provider)},
		field{keyModel, ast.StringTerm(c.Model)},
		field{keyResidency, textTerm(c.Residency)},
		field{keyEnabled, ast.InternedTerm(c.Enabled)},
		field{keyConnection, ast.StringTerm(c.Connection)},
		field{keyStale, ast.InternedTerm(c.Stale)},
		field{keyCoolingUntil, wholeTerm(c.CoolingUntil)},
		field{keyProtocols, listTerm(c.Protocols)},
		field{keyModalities, listTerm(c.Modalities)},
		field{keyContextTokens, numberTerm(c.ContextTokens)},
		field{keyOutputTokensMax, numberTerm(c.OutputTokensMax)},
		field{keyPriced, ast.InternedTerm(c.Priced)},
		field{keyInputPrice, numberTerm(c.InputPrice)},
		field{keyOutputPrice, numberTerm(c.OutputPrice)},
		field{keyOpenRouterRouting, ast.InternedTerm(c.OpenRouterRouting)},
		field{keyAccounting, ast.StringTerm(c.Accounting)},
	)
}

func attemptsTerm(attempts []Attempt) *ast.Term {
	if len(attempts) == 0 {
		return ast.InternedEmptyArray
	}
	terms := make([]*ast.Term, len(attempts))
	for i, attempt := range attempts {
		terms[i] = ast.ObjectTerm(
			field{keySource, ast.StringTerm(attempt.Source)},
			field{keyProvider, ast.StringTerm(attempt.Provider)},
			field{keyReason, ast.StringTerm(attempt.Reason)},
			field{keyAccounting, ast.StringTerm(attempt.Accounting)},
		)
	}
	return ast.ArrayTerm(terms...)
}

func textTerm(text *string) *ast.Term {
	if text == nil {
		return ast.InternedNullTerm
	}
	return ast.StringTerm(*text)
}

func numberTerm(n *int64) *ast.Term {
	if n == nil {
		return ast.InternedNullTerm
	}
	return wholeTerm(*n)
}

// wholeTerm keeps every digit: a float64 would lose them above 2^53.
func wholeTerm(n int64) *ast.Term { return ast.InternedTerm(n) }

func listTerm(list []string) *ast.Term {
	if len(list) == 0 {
		return ast.InternedEmptyArray
	}
	terms := make([]*ast.Term, len(list))
	for i, text := range list {
		terms[i] = ast.StringTerm(text)
	}
	return ast.ArrayTerm(terms...)
}
