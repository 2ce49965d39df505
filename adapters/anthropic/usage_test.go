package anthropic

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"regent/ledger"
)

func usageOf(piece string) *ledger.Usage {
	var r report
	r.merge(gjson.Parse(piece))
	return r.usage()
}

// TestUsage reads the cases whose classes were computed independently: reports of whole answers, and streams of events.
func TestUsage(t *testing.T) {
	text, err := os.ReadFile("testdata/usage.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Name   string
		Usage  json.RawMessage
		Stream []json.RawMessage
		Want   ledger.Usage
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for _, test := range cases {
		usage := usageOf(string(test.Usage))
		if test.Stream != nil {
			var stream strings.Builder
			for _, event := range test.Stream {
				fmt.Fprintf(&stream, "data: %s\n\n", event)
			}
			got := relayed(t, strings.NewReader(stream.String()))
			if usage = got.usage; got.err != nil {
				t.Errorf("%s: %v", test.Name, got.err)
			}
		}
		if usage == nil || !reflect.DeepEqual(*usage, test.Want) {
			t.Errorf("%s: got %+v, want %+v", test.Name, usage, test.Want)
		}
	}
	if len(cases) < 7 {
		t.Errorf("only %d cases", len(cases))
	}
}

func begun(usage string) string {
	return `{"type":"message_start","message":{"usage":` + usage + `}}`
}

func told(stopReason, usage string) string {
	return `{"type":"message_delta","delta":{"stop_reason":` + stopReason + `},"usage":` + usage + `}`
}

// TestUsageInPieces: servers differ in which of the two kinds of events says what. A later piece replaces the fields that it has, be
// they smaller or 0, and no others.
func TestUsageInPieces(t *testing.T) {
	const text = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}`
	for name, test := range map[string]struct {
		stream []string
		want   *ledger.Usage
	}{
		"input first, output last": {
			[]string{begun(`{"input_tokens":25,"cache_read_input_tokens":7,"cache_creation_input_tokens":3,"output_tokens":1}`), text, told(`"end_turn"`, `{"output_tokens":5}`), stopped},
			&ledger.Usage{UncachedInput: 25, CachedInput: 7, CacheWrite5m: 3, Output: 5},
		},
		"the same twice": {
			[]string{begun(`{"input_tokens":25,"cache_read_input_tokens":7,"output_tokens":1}`), told(`"end_turn"`, `{"input_tokens":25,"cache_read_input_tokens":7,"output_tokens":5}`), stopped},
			&ledger.Usage{UncachedInput: 25, CachedInput: 7, Output: 5},
		},
		"all of it last": {
			[]string{begun(`{"input_tokens":0,"output_tokens":0}`), told(`"end_turn"`, `{"input_tokens":25,"cache_read_input_tokens":7,"output_tokens":5}`), stopped},
			&ledger.Usage{UncachedInput: 25, CachedInput: 7, Output: 5},
		},
		"the prompt first, its split last": {
			[]string{begun(`{"input_tokens":8849,"output_tokens":0}`), told(`"end_turn"`, `{"input_tokens":18,"cache_read_input_tokens":8831,"output_tokens":5}`), stopped},
			&ledger.Usage{UncachedInput: 18, CachedInput: 8831, Output: 5},
		},
		"a later 0 counts": {
			[]string{begun(`{"input_tokens":25,"cache_read_input_tokens":7,"output_tokens":1}`), told(`"end_turn"`, `{"cache_read_input_tokens":0,"output_tokens":0}`), stopped},
			&ledger.Usage{UncachedInput: 25},
		},
		"null says nothing": {
			[]string{begun(`{"input_tokens":25,"cache_read_input_tokens":7}`), told(`"end_turn"`, `{"input_tokens":null,"cache_read_input_tokens":null,"output_tokens":5,"output_tokens_details":null}`), stopped},
			&ledger.Usage{UncachedInput: 25, CachedInput: 7, Output: 5},
		},
		"several deltas": {
			[]string{begun(`{"input_tokens":25}`), told(`null`, `{"output_tokens":2}`), told(`"end_turn"`, `{"output_tokens":5}`), told(`null`, `{"output_tokens":4}`), stopped},
			&ledger.Usage{UncachedInput: 25, Output: 4},
		},
		"no stop reason at all": {
			[]string{begun(`{"input_tokens":25}`), text, told(`null`, `{"output_tokens":5}`), stopped},
			&ledger.Usage{UncachedInput: 25, Output: 5},
		},
		"the times of cache writes stay": {
			[]string{begun(`{"input_tokens":1,"cache_creation_input_tokens":50,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":20}}`), told(`"end_turn"`, `{"cache_creation_input_tokens":60,"output_tokens":5}`), stopped},
			&ledger.Usage{UncachedInput: 1, CacheWrite5m: 40, CacheWrite1h: 20, Output: 5},
		},
		"fewer cache writes than before": {
			[]string{begun(`{"input_tokens":1,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":20}}`), told(`"end_turn"`, `{"cache_creation_input_tokens":10,"output_tokens":5}`), stopped},
			&ledger.Usage{UncachedInput: 1, CacheWrite1h: 10, Output: 5},
		},
		"searches": {
			[]string{begun(`{"input_tokens":1,"server_tool_use":{"web_search_requests":0}}`), told(`"end_turn"`, `{"output_tokens":5,"server_tool_use":{"web_search_requests":2,"web_fetch_requests":1}}`), stopped},
			&ledger.Usage{UncachedInput: 1, Output: 5, Units: map[string]int64{"web_search": 2}},
		},
		"broken after the reason": {
			[]string{begun(`{"input_tokens":25}`), text, told(`"end_turn"`, `{"output_tokens":5}`)}, &ledger.Usage{UncachedInput: 25, Output: 5},
		},
		"broken before it":               {[]string{begun(`{"input_tokens":25,"output_tokens":1}`), text, told(`null`, `{"output_tokens":5}`)}, nil},
		"broken at its beginning":        {[]string{begun(`{"input_tokens":25,"output_tokens":1}`)}, nil},
		"the beginning alone":            {[]string{begun(`{"input_tokens":25,"output_tokens":1}`), text, stopped}, nil},
		"a delta without usage":          {[]string{begun(`{"input_tokens":25,"output_tokens":1}`), text, `{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`, stopped}, nil},
		"a delta of null":                {[]string{begun(`{"input_tokens":25,"output_tokens":1}`), told(`"end_turn"`, `null`), stopped}, nil},
		"a delta without output":         {[]string{begun(`{"input_tokens":25,"output_tokens":1}`), told(`"end_turn"`, `{"input_tokens":25}`), stopped}, nil},
		"output without input":           {[]string{begun(`{}`), told(`"end_turn"`, `{"output_tokens":5}`), stopped}, nil},
		"zeros without input":            {[]string{begun(`{"input_tokens":0,"output_tokens":0}`), told(`"end_turn"`, `{"output_tokens":5}`), stopped}, nil},
		"an untrue beginning":            {[]string{begun(`{"input_tokens":-1}`), told(`"end_turn"`, `{"output_tokens":5}`), stopped}, nil},
		"an untrue end":                  {[]string{begun(`{"input_tokens":25}`), told(`"end_turn"`, `{"output_tokens":5}`), told(`null`, `{"output_tokens":-5}`), stopped}, nil},
		"an end that is no report":       {[]string{begun(`{"input_tokens":25}`), told(`"end_turn"`, `{"output_tokens":5}`), told(`null`, `"5"`), stopped}, nil},
		"an untrue beginning, corrected": {[]string{begun(`{"input_tokens":-1}`), told(`"end_turn"`, `{"input_tokens":1,"output_tokens":5}`), stopped}, &ledger.Usage{UncachedInput: 1, Output: 5}},
	} {
		if got := relayed(t, strings.NewReader(events(test.stream...))).usage; !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

func TestUsageOfAWholeAnswer(t *testing.T) {
	for piece, want := range map[string]ledger.Usage{
		`{"input_tokens":1,"output_tokens":0}`:                                                                                  {UncachedInput: 1},
		`{"input_tokens":0,"cache_read_input_tokens":5,"output_tokens":1}`:                                                      {CachedInput: 5, Output: 1},
		`{"input_tokens":1,"output_tokens":1,"cache_creation":{"ephemeral_1h_input_tokens":4}}`:                                 {UncachedInput: 1, CacheWrite1h: 4, Output: 1},
		`{"input_tokens":1,"output_tokens":1,"cache_creation_input_tokens":7,"cache_creation":null}`:                            {UncachedInput: 1, CacheWrite5m: 7, Output: 1},
		`{"input_tokens":1,"output_tokens":1,"cache_creation_input_tokens":7,"cache_creation":{"ephemeral_1h_input_tokens":4}}`: {UncachedInput: 1, CacheWrite5m: 3, CacheWrite1h: 4, Output: 1},
		`{"input_tokens":1,"output_tokens":1,"cache_creation_input_tokens":0,"cache_creation":{"ephemeral_5m_input_tokens":4}}`: {UncachedInput: 1, CacheWrite5m: 4, Output: 1},
		`{"input_tokens":1,"output_tokens":9,"output_tokens_details":{"thinking_tokens":9}}`:                                    {UncachedInput: 1, Reasoning: 9},
		`{"input_tokens":1,"output_tokens":1,"iterations":[{"type":"message","input_tokens":1,"output_tokens":1}]}`:             {UncachedInput: 1, Output: 1},
		`{"input_tokens":1,"output_tokens":1,"iterations":null}`:                                                                {UncachedInput: 1, Output: 1},
		`{"input_tokens":1,"output_tokens":1,"iterations":[{"type":"message"},{"type":"compaction","input_tokens":7,"output_tokens":3,"cache_read_input_tokens":2},{"type":"advisor_message","model":"m","input_tokens":10,"output_tokens":20}]}`: {UncachedInput: 18, CachedInput: 2, Output: 24},
	} {
		if got := usageOf(piece); got == nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: got %+v, want %+v", piece, got, want)
		}
	}
}

// untrue are reports of usage that cannot be true.
func untrue() map[string]string {
	return map[string]string{
		"nothing":                         ``,
		"null":                            `null`,
		"a list":                          `[]`,
		"a report in a list":              `[{"input_tokens":5,"output_tokens":1}]`,
		"empty":                           `{}`,
		"negative":                        `{"input_tokens":-1,"output_tokens":1}`,
		"minus nothing":                   `{"input_tokens":-0,"output_tokens":1}`,
		"huge":                            `{"input_tokens":1e300,"output_tokens":1}`,
		"an exponent":                     `{"input_tokens":1e2,"output_tokens":1}`,
		"a fraction":                      `{"input_tokens":1.5,"output_tokens":1}`,
		"a text":                          `{"input_tokens":"12","output_tokens":1}`,
		"a list of counts":                `{"input_tokens":[5],"output_tokens":1}`,
		"2^53":                            `{"input_tokens":9007199254740992,"output_tokens":1}`,
		"beyond 64 bits":                  `{"input_tokens":18446744073709551617,"output_tokens":1}`,
		"a sum beyond 2^53":               `{"input_tokens":9007199254740991,"output_tokens":1}`,
		"no output":                       `{"input_tokens":1}`,
		"null output":                     `{"input_tokens":1,"output_tokens":null}`,
		"no input":                        `{"output_tokens":1}`,
		"no prompt":                       `{"input_tokens":0,"output_tokens":1}`,
		"no token at all":                 `{"input_tokens":0,"output_tokens":0}`,
		"more thinking":                   `{"input_tokens":5,"output_tokens":1,"output_tokens_details":{"thinking_tokens":2}}`,
		"negative thinking":               `{"input_tokens":5,"output_tokens":1,"output_tokens_details":{"thinking_tokens":-2}}`,
		"negative cache":                  `{"input_tokens":5,"output_tokens":1,"cache_read_input_tokens":-1}`,
		"cached is true":                  `{"input_tokens":5,"output_tokens":1,"cache_read_input_tokens":true}`,
		"written is a text":               `{"input_tokens":5,"output_tokens":1,"cache_creation_input_tokens":"3"}`,
		"half of it untrue":               `{"input_tokens":5,"output_tokens":1,"cache_creation":{"ephemeral_5m_input_tokens":3,"ephemeral_1h_input_tokens":-1}}`,
		"the whole untrue":                `{"input_tokens":5,"output_tokens":1,"cache_creation_input_tokens":-3,"cache_creation":{"ephemeral_5m_input_tokens":3}}`,
		"negative searches":               `{"input_tokens":5,"output_tokens":1,"server_tool_use":{"web_search_requests":-1}}`,
		"an untrue iteration":             `{"input_tokens":5,"output_tokens":1,"iterations":[{"type":"compaction","input_tokens":-1,"output_tokens":1}]}`,
		"an empty iteration":              `{"input_tokens":5,"output_tokens":1,"iterations":[{"type":"compaction"},{"type":"message"}]}`,
		"iterations too large":            `{"input_tokens":5,"output_tokens":1,"iterations":[{"type":"compaction","input_tokens":9007199254740000,"output_tokens":1},{"type":"compaction","input_tokens":9007199254740000,"output_tokens":1}]}`,
		"thinking hidden by an iteration": `{"input_tokens":5,"output_tokens":1,"output_tokens_details":{"thinking_tokens":2},"iterations":[{"type":"compaction","input_tokens":1,"output_tokens":9}]}`,
	}
}

func TestUsageThatCannotBeTrue(t *testing.T) {
	for name, piece := range untrue() {
		if usage := usageOf(piece); usage != nil {
			t.Errorf("%s: got %+v, want none", name, *usage)
		}
	}
}

// TestServedTier: the last one that is told counts, one that cannot be is not taken for the ordinary one, and a speed is one.
func TestServedTier(t *testing.T) {
	for name, test := range map[string]struct{ begun, told, want string }{
		"not told":             {`{"input_tokens":1}`, `{"output_tokens":1}`, ""},
		"null":                 {`{"input_tokens":1,"service_tier":null}`, `{"output_tokens":1}`, ""},
		"with the beginning":   {`{"input_tokens":1,"service_tier":"priority"}`, `{"output_tokens":1}`, "priority"},
		"the last one counts":  {`{"input_tokens":1,"service_tier":"priority"}`, `{"output_tokens":1,"service_tier":"standard"}`, "standard"},
		"null does not erase":  {`{"input_tokens":1,"service_tier":"batch"}`, `{"output_tokens":1,"service_tier":null}`, "batch"},
		"words":                {`{"input_tokens":1,"service_tier":"very fast"}`, `{"output_tokens":1}`, ledger.UnknownTier},
		"a number":             {`{"input_tokens":1,"service_tier":1}`, `{"output_tokens":1}`, ledger.UnknownTier},
		"a speed":              {`{"input_tokens":1,"service_tier":"standard","speed":"fast"}`, `{"output_tokens":1}`, "fast"},
		"the ordinary speed":   {`{"input_tokens":1,"service_tier":"priority","speed":"standard"}`, `{"output_tokens":1}`, "priority"},
		"a speed that is none": {`{"input_tokens":1,"service_tier":"standard","speed":2}`, `{"output_tokens":1}`, ledger.UnknownTier},
		"no speed":             {`{"input_tokens":1,"service_tier":"standard","speed":null}`, `{"output_tokens":1}`, "standard"},
	} {
		got := relayed(t, strings.NewReader(events(begun(test.begun), told(`"end_turn"`, test.told), stopped)))
		if got.err != nil || got.usage == nil || got.usage.Tier != test.want {
			t.Errorf("%s: got %+v, %v, want %q", name, got.usage, got.err, test.want)
		}
	}
}

// FuzzUsage merges two pieces. What comes of them is in range, or nothing.
func FuzzUsage(f *testing.F) {
	f.Add([]byte(`{"input_tokens":25,"cache_creation":{"ephemeral_5m_input_tokens":30,"ephemeral_1h_input_tokens":20},"output_tokens":1}`), []byte(`{"cache_creation_input_tokens":60,"output_tokens":5}`))
	f.Add([]byte(`{"input_tokens":1,"input_tokens":2,"output_tokens":3,"cache_creation":null}`), []byte(`{"speed":"fast","service_tier":"fl\u0065x"}`))
	f.Add([]byte(`{"input_tokens":007,"output_tokens":+1,"iterations":[{"type":"compaction","input_tokens":1,"output_tokens":1}]}`), []byte(`{"server_tool_use":{"web_search_requests":NaN}}`))
	for _, piece := range untrue() {
		f.Add([]byte(piece), []byte(`{"output_tokens":5}`))
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var r report
		r.begin(gjson.ParseBytes(first))
		r.merge(gjson.ParseBytes(second))
		usage := r.usage()
		if usage == nil {
			return
		}
		if _, err := usage.Tokens(); err != nil {
			t.Fatalf("%s and %s gave %+v: %v", first, second, *usage, err)
		}
	})
}
