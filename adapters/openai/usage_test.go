package openai

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/ledger"
)

// invoice is a report whose classes were computed independently, of a whole answer or a stream.
type invoice struct {
	Name, Dialect string
	Protocol      adapters.Protocol
	Answer        map[string]json.RawMessage
	Stream        []json.RawMessage
	Want          ledger.Usage
}

// body is the invoice's answer as a provider sends it.
func (i invoice) body() string {
	if i.Stream == nil {
		for _, content := range []string{"choices", "output", "data"} { // of which each protocol needs its own
			i.Answer[content] = json.RawMessage("[]")
		}
		text, _ := json.Marshal(i.Answer) // what was read is written
		return string(text)
	}
	var stream strings.Builder
	for _, document := range i.Stream {
		fmt.Fprintf(&stream, "data: %s\n\n", document)
	}
	if i.Protocol == adapters.OpenAIChat {
		stream.WriteString("data: [DONE]\n\n")
	}
	return stream.String()
}

func TestUsage(t *testing.T) {
	text, err := os.ReadFile("testdata/usage.json")
	if err != nil {
		t.Fatal(err)
	}
	var invoices []invoice
	if err := json.Unmarshal(text, &invoices); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, test := range invoices {
		seen[test.Dialect], seen[string(test.Protocol)] = true, true
		got := read(t, test.Dialect, strings.NewReader(test.body()), adapters.Request{Protocol: test.Protocol, Stream: test.Stream != nil})
		if got.err != nil || got.usage == nil || !reflect.DeepEqual(*got.usage, test.Want) {
			t.Errorf("%s: got %+v, %v, want %+v", test.Name, got.usage, got.err, test.Want)
		}
	}
	if want := len(dialects) + len(endpoints); len(seen) != want {
		t.Errorf("there are cases of %d dialects and protocols, want %d", len(seen), want)
	}
}

// untrue are reports of usage that cannot be true.
func untrue() map[string]string {
	return map[string]string{
		"nothing":                 ``,
		"null":                    `null`,
		"a list":                  `[]`,
		"negative":                `{"prompt_tokens":-1,"completion_tokens":1}`,
		"huge":                    `{"prompt_tokens":1e300,"completion_tokens":1}`,
		"a text":                  `{"prompt_tokens":"12","completion_tokens":1}`,
		"a fraction":              `{"prompt_tokens":1.5,"completion_tokens":1}`,
		"2^53":                    `{"prompt_tokens":9007199254740992,"completion_tokens":1}`,
		"a sum beyond 2^53":       `{"prompt_tokens":9007199254740991,"completion_tokens":1}`,
		"no completion":           `{"prompt_tokens":1}`,
		"no prompt":               `{"completion_tokens":1}`,
		"no token at all":         `{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}`,
		"more cached than prompt": `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":6}}`,
		"cached and written":      `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3,"cache_write_tokens":3}}`,
		"more reasoning":          `{"prompt_tokens":5,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":2}}`,
		"cached that is a text":   `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":"3"}}`,
		"cached is true":          `{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":true}}`,
		"a list of counts":        `{"prompt_tokens":[5],"completion_tokens":1}`,
		"a report in a list":      `[{"prompt_tokens":5,"completion_tokens":1}]`,
		"null completion":         `{"prompt_tokens":5,"completion_tokens":null}`,
		"minus nothing":           `{"prompt_tokens":-0,"completion_tokens":1}`,
		"an exponent":             `{"prompt_tokens":1e2,"completion_tokens":1}`,
		"beyond 64 bits":          `{"prompt_tokens":18446744073709551617,"completion_tokens":1}`,
		"negative reasoning":      `{"prompt_tokens":5,"completion_tokens":1,"completion_tokens_details":{"reasoning_tokens":-2}}`,
	}
}

func TestUsageThatCannotBeTrue(t *testing.T) {
	for name, report := range untrue() {
		for dialect := range dialects {
			if usage := dialects[dialect].chat().usage(gjson.Parse(`{"usage":` + report + `}`)); usage != nil && !isTrueOf(dialect, name) {
				t.Errorf("%s, %s: got %+v, want none", dialect, name, *usage)
			}
		}
	}
	for name, test := range map[string]struct {
		places places
		report string
	}{
		"deepseek: hit and miss are not the prompt":    {dialects["deepseek"].chat(), `{"prompt_tokens":100,"completion_tokens":1,"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":35}`},
		"deepseek: a miss that is a text":              {dialects["deepseek"].chat(), `{"prompt_tokens":100,"completion_tokens":1,"prompt_cache_hit_tokens":64,"prompt_cache_miss_tokens":"36"}`},
		"gemini: a total below its parts":              {dialects["gemini"].chat(), `{"prompt_tokens":30,"completion_tokens":10,"total_tokens":39}`},
		"gemini: a total below the prompt":             {dialects["gemini"].chat(), `{"prompt_tokens":30,"total_tokens":29}`},
		"gemini: more reasoning than output":           {dialects["gemini"].chat(), `{"prompt_tokens":30,"completion_tokens":10,"total_tokens":40,"completion_tokens_details":{"reasoning_tokens":11}}`},
		"gemini: a total that is none":                 {dialects["gemini"].chat(), `{"prompt_tokens":30,"completion_tokens":10,"total_tokens":1e300}`},
		"moonshot: more cached than prompt":            {dialects["moonshot"].chat(), `{"prompt_tokens":3,"completion_tokens":1,"cached_tokens":4}`},
		"responses: another protocol's":                {dialects["openai"].response(), `{"prompt_tokens":3,"completion_tokens":1}`},
		"responses: no output":                         {dialects["openai"].response(), `{"input_tokens":3}`},
		"responses: more cached and written":           {dialects["openai"].response(), `{"input_tokens":5,"output_tokens":1,"input_tokens_details":{"cached_tokens":3,"cache_write_tokens":3}}`},
		"responses: more reasoning":                    {dialects["openai"].response(), `{"input_tokens":5,"output_tokens":1,"output_tokens_details":{"reasoning_tokens":2}}`},
		"responses: negative":                          {dialects["openai"].response(), `{"input_tokens":-5,"output_tokens":1}`},
		"responses: a number of searches that is none": {dialects["openai"].response(), `{"input_tokens":5,"output_tokens":1},"tool_usage":{"web_search":{"num_requests":-1}}`},
		"embeddings: nothing":                          {dialects["openai"].embeddings(), `{"prompt_tokens":0,"total_tokens":0}`},
		"embeddings: no prompt":                        {dialects["openai"].embeddings(), `{"total_tokens":8}`},
	} {
		if usage := test.places.usage(gjson.Parse(`{"usage":` + test.report + `}`)); usage != nil {
			t.Errorf("%s: got %+v, want none", name, *usage)
		}
	}
}

// isTrueOf says whether a report that cannot be true of OpenAI can be of a dialect that does not read what makes it so.
func isTrueOf(dialect, name string) bool {
	return name == "cached and written" && !dialects[dialect].writes
}

// FuzzUsage: whatever is reported, in whichever dialect, a usage is in range or none.
func FuzzUsage(f *testing.F) {
	for _, report := range untrue() {
		f.Add([]byte(`{"usage":` + report + `}`))
	}
	for _, document := range []string{
		`{"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":3}}}`,
		`{"usage":{"prompt_tokens":-1,"completion_tokens":1e9}}`,
		`{"usage":{"prompt_tokens":1000,"completion_tokens":200,"total_tokens":1200,"prompt_tokens_details":{"cached_tokens":800,"cache_write_tokens":7},"completion_tokens_details":{"reasoning_tokens":80}}}`,
		`{"usage":{"prompt_tokens":1,"prompt_tokens":2,"completion_tokens":3,"prompt_tokens_details":null}}`,
		`{"usage":{"prompt_tokens":007,"completion_tokens":+1,"prompt_tokens_details":{"cached_tokens":NaN}}}`,
		`{"usage":{"prompt_tokens":1,"completion_tokens":1},"timings":{"cache_n":1}}`,
		`{"usage":{"prompt_tokens":1,"total_tokens":9007199254740991,"cached_tokens":1,"prompt_cache_miss_tokens":0}}`,
		`{"usage":{"input_tokens":1,"output_tokens":1,"input_tokens_details":{"cache_write_tokens":1}},"tool_usage":{"web_search":{"num_requests":1}}}`,
	} {
		f.Add([]byte(document))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		root := gjson.ParseBytes(document)
		for name, d := range dialects {
			for _, places := range []places{d.chat(), d.response(), d.embeddings()} {
				usage := places.usage(root)
				if usage == nil {
					continue
				}
				if _, err := usage.Tokens(); err != nil {
					t.Fatalf("%s: %s gave %+v: %v", name, document, *usage, err)
				}
			}
		}
	})
}
