package anthropic

import (
	"github.com/tidwall/gjson"

	"regent/adapters/exchange"
	"regent/ledger"
)

// report is what a provider has said so far of what a call used. A stream says it in pieces, of which a later one replaces the earlier
// field by field, as they are cumulative: nothing is added up, and what a piece leaves out stands. The zero value says nothing.
type report struct {
	input, cacheRead, write5m, write1h field
	output                             field // with thinking
	thinking, webSearches              field
	beside                             beside
	tier                               string
	unreadable                         bool // the last piece, and so what it was to replace
}

// field is a number of a report.
type field struct {
	n            int64
	told, untrue bool
}

func read(piece gjson.Result, path string) field {
	n, told, ok := exchange.Count(piece.Get(path))
	return field{n, told, !ok}
}

// take replaces the field by a piece's, if that has it.
func (f *field) take(piece gjson.Result, path string) {
	if later := read(piece, path); later.told {
		*f = later
	}
}

// begin takes what a stream's message_start says. Its output is that of a call that is still under way, so that it is not kept:
// without a message_delta that tells the output there is no report.
func (r *report) begin(piece gjson.Result) {
	r.merge(piece)
	r.output, r.thinking = field{}, field{}
}

// merge takes what another piece says, if there is one.
func (r *report) merge(piece gjson.Result) {
	if piece.Type == gjson.Null {
		return
	}
	r.unreadable = !piece.IsObject()
	r.input.take(piece, "input_tokens")
	r.cacheRead.take(piece, "cache_read_input_tokens")
	r.takeWrites(piece)
	r.output.take(piece, "output_tokens")
	r.thinking.take(piece, "output_tokens_details.thinking_tokens")
	r.webSearches.take(piece, "server_tool_use.web_search_requests")
	if iterations := piece.Get("iterations"); iterations.IsArray() {
		r.beside = readBeside(iterations)
	}
	if tier := servedTier(piece); tier != "" {
		r.tier = tier
	}
}

// takeWrites takes a piece's cache writes: by how long they live, or all together, of which then as many as before live for an hour.
// What is not said to live for an hour lives for five minutes.
func (r *report) takeWrites(piece gjson.Result) {
	all := read(piece, "cache_creation_input_tokens")
	short := read(piece, "cache_creation.ephemeral_5m_input_tokens")
	long := read(piece, "cache_creation.ephemeral_1h_input_tokens")
	switch {
	case short.told, long.told:
		short.n = max(short.n, all.n-long.n)
	case all.told:
		long.n = min(r.write1h.n, all.n)
		short.n = all.n - long.n
	default:
		return
	}
	short.untrue = short.untrue || all.untrue
	r.write5m, r.write1h = short, long
}

// usage is the report in disjoint classes: Anthropic counts cached tokens and cache writes beside the input, and thinking inside the
// output. A report that lacks input or output, or cannot be true, is none at all: it returns nil, so that the call is settled as one
// whose usage is unknown, and never as one that cost nothing.
func (r *report) usage() *ledger.Usage {
	if !r.input.told || !r.output.told || r.unreadable || r.beside.untrue {
		return nil
	}
	for _, field := range []field{r.input, r.cacheRead, r.write5m, r.write1h, r.output, r.thinking, r.webSearches} {
		if field.untrue {
			return nil
		}
	}
	if r.input.n+r.cacheRead.n+r.write5m.n+r.write1h.n == 0 { // there is no prompt without a token
		return nil
	}
	usage := &ledger.Usage{
		UncachedInput: r.input.n, CachedInput: r.cacheRead.n, CacheWrite5m: r.write5m.n, CacheWrite1h: r.write1h.n,
		Output: r.output.n - r.thinking.n, Reasoning: r.thinking.n, Tier: r.tier,
	}
	if _, err := usage.Tokens(); err != nil { // before anything is added, as a sum could hide it
		return nil
	}
	add(usage, &r.beside.usage)
	if r.webSearches.n > 0 {
		usage.Units = map[string]int64{"web_search": r.webSearches.n}
	}
	if _, err := usage.Tokens(); err != nil {
		return nil
	}
	return usage
}

// beside is what a call used that the report's own fields leave out.
type beside struct {
	usage  ledger.Usage
	untrue bool
}

// readBeside adds up the iterations of a call whose tokens the report's own fields leave out: those that made the context smaller, and
// those that asked a model for advice. The latter's tokens have no other price here than those of the model that was called.
func readBeside(iterations gjson.Result) beside {
	var b beside
	iterations.ForEach(func(_, iteration gjson.Result) bool {
		switch iteration.Get("type").Str {
		case "compaction", "advisor_message":
			var one report
			one.merge(iteration)
			b.add(one.usage())
		}
		return !b.untrue
	})
	return b
}

func (b *beside) add(usage *ledger.Usage) {
	if usage == nil {
		b.untrue = true
		return
	}
	add(&b.usage, usage)
	_, err := b.usage.Tokens()
	b.untrue = err != nil
}

// add adds the tokens of another usage. Of two that were in range, the sum is to be looked at.
func add(usage, other *ledger.Usage) {
	usage.UncachedInput += other.UncachedInput
	usage.CachedInput += other.CachedInput
	usage.CacheWrite5m += other.CacheWrite5m
	usage.CacheWrite1h += other.CacheWrite1h
	usage.Output += other.Output
	usage.Reasoning += other.Reasoning
}

// servedTier is the service tier that a piece tells of; empty if it does not. A speed that is not the ordinary one is told as a tier,
// as it has a price of its own, too.
func servedTier(piece gjson.Result) string {
	if speed := exchange.Tier(piece.Get("speed")); speed != "" && speed != "standard" {
		return speed
	}
	return exchange.Tier(piece.Get("service_tier"))
}
