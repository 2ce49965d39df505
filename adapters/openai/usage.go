package openai

import (
	"github.com/tidwall/gjson"

	"regent/adapters/exchange"
	"regent/ledger"
)

// places are where the counts of a report stand in a document. An empty path is a count that there is not.
type places struct {
	input, output string
	// cached lists where it may stand how much of the input was cached; the first place that tells it counts. uncached, where it is told,
	// is the rest.
	cached   []string
	uncached string
	// written is what of the input was written to the cache, reasoning what of the output is that.
	written, reasoning string
	// total is input and output; what is in it and in neither is reasoning.
	total string
	// searches counts web searches.
	searches string
}

// webSearch is the unit in which web searches are counted.
const webSearch = "web_search"

// usage reads a report into disjoint classes. OpenAI counts cached tokens and cache writes inside the input, and reasoning inside the
// output. A report that cannot be true is none at all: it returns nil, so that the call is settled as one whose usage is unknown, and
// never as one that cost nothing.
func (p places) usage(document gjson.Result) *ledger.Usage {
	if !document.Get("usage").IsObject() {
		return nil
	}
	c := &counter{document: document}
	input := c.required(p.input)
	output, reasoning := p.generated(c, input)
	cached, written, searches := c.count(p.cached...), c.count(p.written), c.count(p.searches)
	if uncached, told := c.told(p.uncached); told && uncached != input-cached {
		return nil
	}
	if c.untrue || input+output == 0 { // there is no call without a token
		return nil
	}
	usage := &ledger.Usage{
		UncachedInput: input - cached - written, CachedInput: cached, CacheWrite5m: written,
		Output: output - reasoning, Reasoning: reasoning,
	}
	if searches > 0 {
		usage.Units = map[string]int64{webSearch: searches}
	}
	if _, err := usage.Tokens(); err != nil { // which none has whose part is larger than the whole
		return nil
	}
	return usage
}

// generated is the whole output, and what of it is reasoning.
func (p places) generated(c *counter, input int64) (output, reasoning int64) {
	reasoning = c.count(p.reasoning)
	total, told := c.told(p.total)
	if !told {
		return c.required(p.output), reasoning
	}
	visible := c.count(p.output) // which may be left out where it is 0
	output = total - input
	c.untrue = c.untrue || output < visible
	return output, max(reasoning, output-visible)
}

// counter reads the counts of a document.
type counter struct {
	document gjson.Result
	// untrue says that one of them cannot be a count, or is missing.
	untrue bool
}

// told is the count at a path, if there is one.
func (c *counter) told(path string) (n int64, told bool) {
	if path == "" {
		return 0, false
	}
	n, told, ok := exchange.Count(c.document.Get(path))
	c.untrue = c.untrue || !ok
	return n, told
}

// count is the count at the first of the paths that has one, or else 0.
func (c *counter) count(paths ...string) int64 {
	for _, path := range paths {
		if n, told := c.told(path); told {
			return n
		}
	}
	return 0
}

// required is the count at a path that must have one.
func (c *counter) required(path string) int64 {
	n, told := c.told(path)
	c.untrue = c.untrue || path != "" && !told
	return n
}
