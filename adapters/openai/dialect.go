package openai

import (
	"maps"
	"net/http"
	"slices"
)

// dialect is in what a server differs from others that are compatible with OpenAI.
type dialect struct {
	// keyHeader is the header that holds the API key as it is. If it is empty, the key is a bearer token.
	keyHeader string
	// deployments says that there is an API with a date, and a path for each model.
	deployments bool
	// never lists fields of chat completions for which the server refuses a request. None of them changes the answer: what a client would
	// miss is left to the server to refuse.
	never []string
	// olderBound says that the server reads only the older name of the output's bound: it would answer without one.
	olderBound bool

	// endless says that the server goes on until the context is full, and beyond, unless it is told a bound.
	endless bool

	// cached lists where a chat completion tells how many tokens of the prompt were cached. The first place that tells it counts.
	cached []string
	// uncached is where it tells how many were not, if it does: with those that were, they are the prompt.
	uncached string
	// writes says that what was written to the cache has a price of its own. Elsewhere it is a part of the prompt like any other.
	writes bool
	// shows says that answers show all of the output that is charged: models behind the others think without telling.
	shows bool
	// searches says that the server makes web searches of its own, where a request of Responses offers it a tool for them.
	searches bool
	// counted is where a chat completion tells how many web searches the server has made, if it does.
	counted string
	// hidden says that the completion may leave out the model's reasoning, which then shows in the total alone.
	hidden bool
}

// dialects has a row for each. What no row mentions is as OpenAI has it, or read by what it is and not by who sent it: the usage that
// vLLM sends with each chunk, and twice at the end, OpenRouter's comments and errors inside a stream, Azure's first chunk, which has
// no choices. OpenRouter's own idea of the cost is not read: what a call costs is for the catalogue's prices to say.
var dialects = map[string]*dialect{
	"openai":     {cached: []string{detailed}, writes: true, searches: true},
	"azure":      {cached: []string{detailed}, writes: true, searches: true, keyHeader: "Api-Key", deployments: true},
	"openrouter": {cached: []string{detailed}, writes: true, searches: true, counted: "usage.server_tool_use.web_search_requests"},
	"vllm":       {cached: []string{detailed}, shows: true},
	"ollama":     {cached: []string{detailed}, olderBound: true, endless: true, shows: true},
	"llamacpp":   {cached: []string{detailed, "timings.cache_n"}, olderBound: true, endless: true, shows: true}, // the latter in what is older
	"deepseek": {
		cached: []string{"usage.prompt_cache_hit_tokens", detailed}, uncached: "usage.prompt_cache_miss_tokens",
		olderBound: true, shows: true,
	},
	"moonshot": {cached: []string{"usage.cached_tokens", detailed}, olderBound: true, shows: true},
	"gemini": {
		cached: []string{detailed}, hidden: true,
		never: []string{"store", "metadata", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier"},
	},
}

// detailed is where OpenAI tells how many tokens of a prompt were cached.
const detailed = "usage.prompt_tokens_details.cached_tokens"

// Dialects lists what [Config.Dialect] can be.
func Dialects() []string { return slices.Sorted(maps.Keys(dialects)) }

// WritesCache says whether what a dialect's server writes to its cache has a price of its own, so that a hold must cover it.
func WritesCache(name string) bool {
	d := dialects[name]
	return d != nil && d.writes
}

// HidesTokens says whether a dialect's server charges for output that its answers do not show.
func HidesTokens(name string) bool {
	d := dialects[name]
	return d == nil || !d.shows
}

// credential is the header that sends an API key.
func (d *dialect) credential(key string) http.Header {
	header := http.Header{}
	switch {
	case key == "":
	case d.keyHeader != "":
		header.Set(d.keyHeader, key)
	default:
		header.Set("Authorization", "Bearer "+key)
	}
	return header
}

// chat is where a chat completion reports usage.
func (d *dialect) chat() places {
	p := places{
		input: "usage.prompt_tokens", cached: d.cached, uncached: d.uncached,
		output: "usage.completion_tokens", reasoning: "usage.completion_tokens_details.reasoning_tokens", searches: d.counted,
	}
	if d.writes {
		p.written = "usage.prompt_tokens_details.cache_write_tokens"
	}
	if d.hidden {
		p.total = "usage.total_tokens"
	}
	return p
}

// response is where a response does. All that have this protocol have it from OpenAI.
func (d *dialect) response() places {
	p := places{
		input: "usage.input_tokens", cached: []string{"usage.input_tokens_details.cached_tokens"},
		output: "usage.output_tokens", reasoning: "usage.output_tokens_details.reasoning_tokens",
		searches: "tool_usage.web_search.num_requests",
	}
	if d.writes {
		p.written = "usage.input_tokens_details.cache_write_tokens"
	}
	return p
}

// embeddings is where embeddings do, which have no output.
func (d *dialect) embeddings() places { return places{input: "usage.prompt_tokens"} }
