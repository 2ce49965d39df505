package inference

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tiktoken-go/tokenizer"

	"regent/ledger"
	"regent/server/catalog"
)

func TestReadEnvelope(t *testing.T) {
	e, err := readEnvelope(chatProtocol, []byte(`{"model":"demo/steady","stream":true,"stream_options":{"include_usage":true},"max_tokens":30,
		"max_completion_tokens":20,"n":3,"service_tier":"priority","messages":[{"role":"user","content":[{"type":"text","text":"Hello"},
		{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},{"type":"novelty"}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if e.serviceTier != "priority" {
		t.Errorf("service tier: %q", e.serviceTier)
	}
	if none, err := readEnvelope(chatProtocol, []byte(`{"model":"m","service_tier":null,"messages":[{}]}`)); err != nil || none.serviceTier != "" {
		t.Errorf("a service tier of null: %+v, %v", none, err)
	}
	if e.model != "demo/steady" || !e.stream || !e.usageWanted || e.choices != 3 {
		t.Errorf("envelope: %+v", e)
	}
	if e.outputTokensMax == nil || *e.outputTokensMax != 60 {
		t.Errorf("the smaller bound counts, for each of three answers: got %v, want 60", e.outputTokensMax)
	}
	if names := e.names(); !slices.Equal(names, []string{"file", "image"}) {
		t.Errorf("modalities: %v; a part of an unknown type counts as a file", names)
	}
	model := &catalog.Model{Modalities: map[string]int64{"image": 1000, "file": 50}}
	if got, want := e.inputTokens(t.Context(), model), e.textTokens(t.Context(), nil)+1050; got != want {
		t.Errorf("input tokens: got %d, want %d", got, want)
	}
	model.Modalities["image"] = ledger.TokensMax
	if got := e.inputTokens(t.Context(), model); got != ledger.TokensMax {
		t.Errorf("input tokens beyond every bound: got %d", got)
	}
}

const messages = `"messages":[{"role":"user","content":"x"}]`

// refused are bodies that are no call.
func refused() map[string]string {
	return map[string]string{
		"nothing":                  ``,
		"a text":                   `"x"`,
		"two documents":            `{"model":"m",` + messages + `}{}`,
		"broken UTF-8":             "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}",
		"a key twice":              `{"model":"m","model":"n",` + messages + `}`,
		"a key twice, escaped":     `{"model":"m","\u006dodel":"n",` + messages + `}`,
		"a nested key twice":       `{"model":"m",` + messages + `,"stream_options":{"include_usage":true,"include_usage":false}}`,
		"a part's type twice":      `{"model":"m","messages":[{"content":[{"type":"text","type":"image_url"}]}]}`,
		"a key in two cases":       `{"model":"m","Model":"n",` + messages + `}`,
		"a key in another case":    `{"model":"m","Max_Tokens":1000,` + messages + `}`,
		"a key with a long s":      `{"model":"m","\u017ftream":true,` + messages + `}`,
		"deep nesting":             `{"model":"m",` + messages + `,"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`,
		"a number as model":        `{"model":1,` + messages + `}`,
		"no messages":              `{"model":"m"}`,
		"empty messages":           `{"model":"m","messages":[]}`,
		"a text as message":        `{"model":"m","messages":["x"]}`,
		"a text as stream":         `{"model":"m","stream":"true",` + messages + `}`,
		"a fraction of a token":    `{"model":"m","max_tokens":1.5,` + messages + `}`,
		"an exponent":              `{"model":"m","max_tokens":1e3,` + messages + `}`,
		"no output":                `{"model":"m","max_tokens":0,` + messages + `}`,
		"a text as bound":          `{"model":"m","max_completion_tokens":"12",` + messages + `}`,
		"a bound beyond 2^31":      `{"model":"m","max_tokens":4294967296,` + messages + `}`,
		"no answers":               `{"model":"m","n":0,` + messages + `}`,
		"a text as temperature":    `{"model":"m","temperature":"hot",` + messages + `}`,
		"options that are a list":  `{"model":"m","stream_options":[],` + messages + `}`,
		"a number as service tier": `{"model":"m","service_tier":1,` + messages + `}`,
		"an empty service tier":    `{"model":"m","service_tier":"",` + messages + `}`,
		"a tier that is no name":   `{"model":"m","service_tier":"very fast",` + messages + `}`,
		"a tier in another case":   `{"model":"m","Service_Tier":"priority",` + messages + `}`,
		"a text for include_usage": `{"model":"m","stream_options":{"include_usage":"yes"},` + messages + `}`,
		"a key twice among many":   `{"model":"m",` + messages + `,"x":{` + numbered(100) + `,"42":0}}`,
		"a top key twice of many":  `{"model":"m",` + messages + `,` + numbered(100) + `,"stop":1,"STOP":1}`,
		"a key twice after a list": `{"model":"m",` + messages + `,"x":{"a":[{"b":1},[]],"a":1}}`,
		"a key of backslashes":     `{"model":"m",` + messages + `,"x":{"\\\\":1,"\u005c\u005c":1}}`,
		"an empty key twice":       `{"model":"m",` + messages + `,"x":{"":1,"":1}}`,
		"a very wide object":       `{"model":"m",` + messages + `,"x":[{` + numbered(keysMax+1) + `}]}`,
		"a very wide body":         `{"model":"m",` + messages + `,` + numbered(keysMax) + `}`,
		"a NUL byte":               "{\"model\":\"m\x00\"," + messages + `}`,
		"a NUL in a text":          "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\x00\"}]}",
		"a NUL after the end":      `{"model":"m",` + messages + "}\x00",
		"a byte order mark":        "\xef\xbb\xbf{\"model\":\"m\"," + messages + `}`,
		"UTF-16":                   "{\x00\"\x00m\x00\"\x00",
		"half a character":         "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xe2\x82\"}]}",
		"half a surrogate's bytes": "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xed\xa0\x80\"}]}",
		"deep objects":             strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000),
		"deep and not closed":      strings.Repeat("[", 10_000),
		"a comment":                `{"model":"m",` + messages + `} // more`,
		"a comma too many":         `{"model":"m",` + messages + `,}`,
	}
}

// numbered are members of an object, a number each.
func numbered(n int) string {
	var members strings.Builder
	for i := range n {
		fmt.Fprintf(&members, `,"%d":%d`, i, i)
	}
	return members.String()[1:]
}

// What only looks like a repeated key is none.
func TestReadEnvelopeAccepts(t *testing.T) {
	for _, member := range []string{
		`"x":{"a":{"a":{"a":1}},"b":["a","a",{"a":1},{"a":1}]}`, `"x":{"a":"a","b":"a,","c":"{\"a\":1,\"a\":2}"}`, `"x":{"A":1,"a":2}`,
		`"x":{"\\":1,"\\\"":2,"\"":3}`, `"x":["\\","a",{"b":"\\","c":"\""}]`, `"x":{` + numbered(keysMax-3) + `}`, `"x":[{},{},[],""]`,
	} {
		if _, err := readEnvelope(chatProtocol, []byte(`{"model":"m",`+messages+`,`+member+`}`)); err != nil {
			t.Errorf("%.80s: %v", member, err)
		}
	}
}

// repeats says whether an object in a valid document repeats a key, as the standard library reads it.
func repeats(document []byte) bool {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	var value func() bool
	value = func() bool {
		token, _ := decoder.Token() // the document is valid
		keys, repeated := map[json.Token]bool{}, false
		if token != json.Delim('{') && token != json.Delim('[') {
			return false
		}
		for decoder.More() {
			if token == json.Delim('{') {
				key, _ := decoder.Token()
				repeated = repeated || keys[key] && !strings.ContainsRune(key.(string), utf8.RuneError) // which stands for many
				keys[key] = true
			}
			repeated = value() || repeated
		}
		_, _ = decoder.Token()
		return repeated
	}
	return value()
}

// TestWhatCannotNameAModel looks like a model that does not exist; so does a token, which is not to be written down.
func TestWhatCannotNameAModel(t *testing.T) {
	for _, name := range []string{"GPT-5", "m\\u0000", "", "a model", "gwi_" + strings.Repeat("be", 32), strings.Repeat("m", 1000)} {
		for protocol, body := range least {
			_, err := readEnvelope(spoken[protocol], []byte(strings.Replace(body, `"m"`, `"`+name+`"`, 1)))
			var refusal answerError
			if !errors.As(err, &refusal) || refusal.code != "model_not_found" || strings.Contains(refusal.message, "gwi_") {
				t.Errorf("%s: %.20q: got %v", protocol, name, err)
			}
		}
	}
}

func TestReadEnvelopeRefuses(t *testing.T) {
	for name, body := range refused() {
		_, err := readEnvelope(chatProtocol, []byte(body))
		var refusal answerError
		if !errors.As(err, &refusal) || refusal.status != http.StatusBadRequest {
			t.Errorf("%s: got %v, want a 400", name, err)
		}
	}
}

func TestATextBeyondTheContextIsNotCounted(t *testing.T) {
	context := int64(10)
	e := &envelope{formatTokens: 4}
	e.addText(strings.Repeat("a b ", 1000))
	if got := e.textTokens(t.Context(), &context); got != 1004 {
		t.Errorf("got %d, want a quarter of the bytes and the format", got)
	}
	if got := e.textTokens(t.Context(), nil); got < 1900 {
		t.Errorf("got %d, want it counted", got)
	}
}

func TestCountTokens(t *testing.T) {
	for text, want := range map[string]int64{
		"":                         0,
		"Hello":                    2, // one token, but never below a quarter of the bytes
		strings.Repeat("a ", 4096): 4096,
	} {
		if got := countTokens(text); got < want || got > want+want/50+1 {
			t.Errorf("%.10q (%d bytes): got %d, want about %d", text, len(text), got, want)
		}
	}
	// A text of multi-byte characters that are cut at no boundary of a piece.
	if got := countTokens(strings.Repeat("é€😀", 2000)); got < 2000*9/4 {
		t.Errorf("got %d, less than a quarter of the bytes", got)
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}]}`))
	f.Add([]byte(`{"model":"m","n":2,"max_tokens":7,"messages":[{"content":[{"type":"image_url"}]}],"tools":[{}]}`))
	f.Add([]byte(`{"a":{"b":[1,"\"",{"c":null}]}}`))
	for _, body := range refused() {
		f.Add([]byte(body))
	}
	for _, member := range []string{
		`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":["string","null"]}}}}}]`,
		`"response_format":{"type":"json_schema","json_schema":{"schema":{}}},"logit_bias":{"50256":-100}`,
		`"stream":true,"stream_options":{"include_usage":true},"temperature":0.5,"top_p":null,"stop":["\n"]`,
		`"max_tokens":2147483648,"max_completion_tokens":null,"n":128`, `"n":null,"max_tokens":9007199254740993`,
		`"provider":{"order":["x"]},"models":["m"],"route":"fallback"`, `"metadata":{"a\u0000":"\ud800"}`,
		`"audio":{"voice":"x"},"modalities":["text","audio"]`,
	} {
		f.Add([]byte(`{"model":"vendor/m:1",` + messages + `,` + member + `}`))
	}
	f.Add([]byte(`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
		{"role":"tool","tool_call_id":"1","content":"ok"},{"content":[{"type":"input_audio","input_audio":{}},{"type":"refusal","refusal":"no"},1,null,[]]}]}`))
	for name := range spoken {
		f.Add([]byte(least[name]))
		f.Add([]byte(with(name, `"system":[{"type":"text","text":"x"}],"instructions":"x","metadata":{"user_id":"u"},"prompt_cache_key":"k","background":false`)))
	}
	f.Add([]byte(turns(`[{"type":"tool_result","content":[{"type":"tool_result","content":{"type":"image"}},{"type":"thinking","thinking":[]}]}]`)))
	f.Add([]byte(items(`{"id":"x"}`, `{"role":"user","content":[{"type":"input_image"}]}`, `{"type":"computer_call_output","output":{"type":"computer_screenshot"}}`)))
	f.Add([]byte(`{"model":"m","input":[[1,2],["x"],3]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, p := range spoken {
			readFuzzed(t, p, body)
		}
	})
}

// readFuzzed reads any body in a protocol: what it takes is a request for every other reader, too, and what it refuses has an answer.
func readFuzzed(t *testing.T, p *protocol, body []byte) {
	e, err := readEnvelope(p, body)
	if err != nil {
		var refusal answerError
		if !errors.As(err, &refusal) {
			t.Fatalf("an error that is no answer: %v", err)
		}
		return
	}
	bounded := e.outputTokensMax == nil || *e.outputTokensMax >= p.boundMin || p == embeddingsProtocol
	if !catalog.ValidModelID(e.model) || e.textBytes < 0 || e.formatTokens < 0 || e.choices < 1 || !bounded || e.stream && !p.streams {
		t.Fatalf("accepted %q as %+v", body, e)
	}
	var other struct { // another reader has to see the same
		Model  string `json:"model"`
		Stream *bool  `json:"stream"`
	}
	if err := json.Unmarshal(body, &other); err != nil || other.Model != e.model || e.stream != (other.Stream != nil && *other.Stream) {
		t.Fatalf("%q is read as %+v, and by another reader as %+v, %v", body, e, other, err)
	}
	if repeats(body) {
		t.Fatalf("%q repeats a key", body)
	}
}

// A text that comes again, as every turn of a conversation does, is not counted again, and counts the same.
func TestATextIsCountedOnce(t *testing.T) {
	codec := &countingCodec{}
	long, short := strings.Repeat("x", countedAtOnce), t.Name()
	for range 3 {
		for text, want := range map[string]int64{long: countedAtOnce, short: int64(len(short))} {
			if got := countPiece(codec, text); got != want {
				t.Errorf("%.20s: got %d, want %d", text, got, want)
			}
		}
	}
	if codec.counted != 2 {
		t.Errorf("the vocabulary was asked %d times, want once for each text", codec.counted)
	}
}

// countingCodec finds a token in every byte.
type countingCodec struct {
	tokenizer.Codec
	counted int
}

func (c *countingCodec) Count(text string) (int, error) {
	c.counted++
	return len(text), nil
}
