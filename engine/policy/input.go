package policy

import "time"

// Facts are what policy sees of one candidate of one call, as `input` in Rego. Their JSON form, with exactly these names,
// is the input document; policies/schemas/input/candidate.json says the same for the tools of authors. Facts hold no
// balance, prompt, secret or id of the call, so that equal facts are decided equally, now and in a replay. A nil list is an
// empty one.
type Facts struct {
	// Now is the only clock of policy: nanoseconds since 1970 UTC, as Rego's time built-ins take it, in whole microseconds.
	Now       int64     `json:"now"`
	Call      Call      `json:"call"`
	Identity  Identity  `json:"identity"`
	Candidate Candidate `json:"candidate"`
	// Attempts are the candidates contacted so far for this call, in order.
	Attempts []Attempt `json:"attempts"`
}

// Call is what is asked.
type Call struct {
	// Model is the public model id.
	Model string `json:"model"`
	// Protocol is the client's, for example "openai.chat".
	Protocol string `json:"protocol"`
	// Kind of work: generation, embedding, compaction or tool.
	Kind   string `json:"kind"`
	Stream bool   `json:"stream"`
	// Residency that the caller asks for; null if none.
	Residency *string `json:"residency"`
	// Modalities beyond text that the request contains: image, audio, file.
	Modalities []string `json:"modalities"`
	// InputTokens is the estimate of the prompt's size; null where the router does not see the prompt.
	InputTokens *int64 `json:"input_tokens"`
	// OutputTokensMax is the request's own bound of its output; null if it has none.
	OutputTokensMax *int64 `json:"output_tokens_max"`
	// TokensBounded and CostBounded say whether a limit or the request bounds that dimension of the call.
	TokensBounded bool `json:"tokens_bounded"`
	CostBounded   bool `json:"cost_bounded"`
}

// Identity is who asks. Fields that a host does not know are null; the gateway always knows User.
type Identity struct {
	User      *string  `json:"user"`
	Groups    []string `json:"groups"`
	Tenant    *string  `json:"tenant"`
	Principal *string  `json:"principal"`
	// PrincipalKind is for example "user", "agent" or "service".
	PrincipalKind *string `json:"principal_kind"`
}

// Candidate is one source that could serve the call.
type Candidate struct {
	// Source is the catalogue's id of the source.
	Source   string `json:"source"`
	Provider string `json:"provider"`
	// Model is the provider's own name of the model.
	Model     string  `json:"model"`
	Residency *string `json:"residency"`
	// Enabled is false if the model, the source or its connection is switched off.
	Enabled bool `json:"enabled"`
	// Connection is the state of the source's connection: "authorised", "pending" or "needs_reauthorisation".
	Connection string `json:"connection"`
	// Stale says that what is known of the source is too old to be relied on.
	Stale bool `json:"stale"`
	// CoolingUntil is when the source may be tried again after its provider asked to be left alone: nanoseconds since
	// 1970 UTC, 0 if it did not.
	CoolingUntil int64 `json:"cooling_until"`
	// Protocols that the source serves.
	Protocols []string `json:"protocols"`
	// Modalities beyond text that the source accepts.
	Modalities []string `json:"modalities"`
	// ContextTokens is the size of the model's context; null if unknown.
	ContextTokens *int64 `json:"context_tokens"`
	// OutputTokensMax bounds the model's output; null if unknown.
	OutputTokensMax *int64 `json:"output_tokens_max"`
	// Priced says that the candidate has a price for the call: for the service tier that it asks for, too.
	Priced bool `json:"priced"`
	// InputPrice and OutputPrice are what a token of the prompt and one of the output cost at least, in pico-USD; null if that is not
	// known. Long prompts and service tiers may cost more.
	InputPrice  *int64 `json:"input_price"`
	OutputPrice *int64 `json:"output_price"`
	// OpenRouterRouting says that the request carries OpenRouter routing metadata that this source would act on.
	OpenRouterRouting bool `json:"openrouter_routing"`
	// Accounting is how the source is paid: "api_key" by money, "subscription" by credits, "unmetered" not at all.
	Accounting string `json:"accounting"`
}

// The ways in which a source is paid.
const (
	ByAPIKey       = "api_key"
	BySubscription = "subscription"
	Unmetered      = "unmetered"
)

// Attempt is a candidate that was contacted for this call and failed.
type Attempt struct {
	Source   string `json:"source"`
	Provider string `json:"provider"`
	// Reason is one of the reasons of package adapters, for example "rate_limited".
	Reason string `json:"reason"`
	// Accounting is the candidate's.
	Accounting string `json:"accounting"`
}

// Decision is what policy says of one candidate.
type Decision struct {
	Allow bool `json:"allow"`
	// Denials holds every rule that refused, ordered by rule and code; empty exactly if Allow.
	Denials []Denial `json:"denials"`
	// HonourRouting says that OpenRouter routing metadata may be passed on; otherwise it is stripped.
	HonourRouting bool `json:"honour_routing"`
	// Remembered says that equal facts had been decided upon before.
	Remembered bool `json:"-"`
}

// Denial is one rule's refusal of a candidate. All but Rule comes from the METADATA of the rule.
type Denial struct {
	// Rule is the rule's folder, for example "allow_list" or "org/weekdays".
	Rule string `json:"rule"`
	// Code is the rule's own code, stable and unique.
	Code  string `json:"code"`
	Title string `json:"title"`
	// Remedy tells the person who was refused what to do.
	Remedy string `json:"remedy"`
	// Terminal says that no other candidate may be tried after this denial (the gateway walks on all the same, except
	// where the caller's own limit is reached).
	Terminal bool `json:"terminal"`
}

// Settings is the typed form of `data.regent.settings`: what calls share. The bundle's own settings are the defaults; the
// host's replace them key by key at the top level.
type Settings struct {
	// AllowList restricts providers and models; absent, both are unrestricted. An empty list denies everything, "*" must
	// be written to mean everything.
	AllowList *AllowList `json:"allow_list,omitempty"`
	// Providers are the ids of all configured providers: an entry of AllowList.Models that begins with one of them and
	// "/" means exactly that provider's model.
	Providers []string `json:"providers,omitempty"`
	// AllowedResidencies restricts where calls may be served; absent (nil), residency is not checked. Empty denies all.
	AllowedResidencies *[]string `json:"allowed_residencies,omitempty"`
	// Strict denies what cannot be bounded or priced beforehand.
	Strict *bool `json:"strict,omitempty"`
	// OpenRouterRouting is what happens to OpenRouter routing metadata of a request: "strip" it (the default), "honour"
	// it, or "refuse" the candidate.
	OpenRouterRouting string `json:"openrouter_routing,omitempty"`
	// Access says who may use which model; absent, the rule is not in force (a library host decides itself).
	Access *Access `json:"access,omitempty"`
	// Fallback lists the reasons of a failed attempt after which another candidate may be tried.
	Fallback *Fallback `json:"fallback,omitempty"`
	// Settlement says what is charged where the provider's usage never arrived.
	Settlement *Settlement `json:"settlement,omitempty"`
	// Accounting says which ways of paying a call may take.
	Accounting *Accounting `json:"accounting,omitempty"`
}

// Accounting: what is not allowed here is denied.
type Accounting struct {
	// Unmetered allows sources that nothing is charged for.
	Unmetered bool `json:"unmetered"`
	// MoneyAfterSubscription allows a call to go on to a source that costs money after one of a subscription has failed.
	MoneyAfterSubscription bool `json:"money_after_subscription"`
}

// AllowList: where both lists are given, both must pass. A nil list is absent.
type AllowList struct {
	Providers *[]string `json:"providers,omitempty"`
	Models    *[]string `json:"models,omitempty"`
}

// Access is who may use inference at all, and which model.
type Access struct {
	// Users and Groups hold the features granted to each, for example "feat:ai:use".
	Users  map[string][]string `json:"users"`
	Groups map[string][]string `json:"groups"`
	// Models holds who may use each public model; a model that is not in it may be used by nobody.
	Models map[string]ModelAccess `json:"models"`
}

// ModelAccess: everyone with the feature, or only the users and groups named.
type ModelAccess struct {
	Everyone bool     `json:"everyone"`
	Users    []string `json:"users"`
	Groups   []string `json:"groups"`
}

// Fallback is when another candidate may be tried.
type Fallback struct {
	On []string `json:"on"`
}

// Settlement is what the gateway does where usage is not known.
type Settlement struct {
	// Interrupted is what is charged for a call that brought output but no usage: "estimate" or "held". Where a provider charges for
	// tokens that its answers do not show, such as reasoning, it is what was held either way.
	Interrupted string `json:"interrupted"`
	// DrainMillis is how long the provider's answer is read on for its usage after the client has gone, in milliseconds;
	// 0 does not read on.
	DrainMillis int64 `json:"drain_millis"`
	// AcceptedWithoutOutput is what is charged for a call that the provider accepted but that brought no output:
	// "release" or "estimate" (the estimated input).
	AcceptedWithoutOutput string `json:"accepted_without_output"`
}

// Nanos is a time as policy sees it.
func Nanos(t time.Time) int64 { return t.UnixMicro() * 1000 }
