package openai

import (
	"strings"

	"github.com/tidwall/gjson"

	"regent/ledger"
)

// parseUsage reads a usage report into disjoint classes. OpenAI counts cached tokens and cache writes inside the prompt, and
// reasoning inside the completion. A report that cannot be true is none at all: it returns nil, so that the call is settled as
// one whose usage is unknown, and never as one that cost nothing.
func parseUsage(report gjson.Result) *ledger.Usage {
	if !report.IsObject() {
		return nil
	}
	prompt, ok := count(report, "prompt_tokens", true)
	completion, okCompletion := count(report, "completion_tokens", true)
	cached, okCached := count(report, "prompt_tokens_details.cached_tokens", false)
	written, okWritten := count(report, "prompt_tokens_details.cache_write_tokens", false)
	reasoning, okReasoning := count(report, "completion_tokens_details.reasoning_tokens", false)
	if !ok || !okCompletion || !okCached || !okWritten || !okReasoning {
		return nil
	}
	if prompt == 0 && completion == 0 { // there is no call without a token
		return nil
	}
	if cached > prompt || written > prompt-cached || reasoning > completion {
		return nil
	}
	usage := &ledger.Usage{
		UncachedInput: prompt - cached - written, CachedInput: cached, CacheWrite5m: written,
		Output: completion - reasoning, Reasoning: reasoning,
	}
	if _, err := usage.Tokens(); err != nil {
		return nil
	}
	return usage
}

// servedTier reads which service tier served the call; empty if the document does not tell. What cannot be a tier's name is
// [ledger.UnknownTier]: it must not be taken for the ordinary one.
func servedTier(root gjson.Result) string {
	tier := root.Get("service_tier")
	switch {
	case tier.Type == gjson.Null, tier.Type == gjson.String && tier.Str == "":
		return ""
	case tier.Type == gjson.String && ledger.ValidName(tier.Str):
		return strings.Clone(tier.Str) // the rest of the document is not kept for it
	}
	return ledger.UnknownTier
}

// count reads a whole number of tokens. What is absent or null counts 0 unless it is required.
func count(report gjson.Result, path string, required bool) (int64, bool) {
	value := report.Get(path)
	switch {
	case value.Type == gjson.Null:
		return 0, !required
	case value.Type != gjson.Number || len(value.Raw) > 16 || strings.ContainsAny(value.Raw, ".eE-"):
		return 0, false
	}
	n := value.Int()
	return n, n <= ledger.TokensMax
}
