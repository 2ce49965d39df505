package inference

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/tiktoken-go/tokenizer"

	"regent/ledger"
	"regent/server/catalog"
)

func TestReadEnvelope(t *testing.T) {
	e, err := readEnvelope([]byte(`{"model":"demo/steady","stream":true,"stream_options":{"include_usage":true},"max_tokens":30,
		"max_completion_tokens":20,"n":3,"messages":[{"role":"user","content":[{"type":"text","text":"Hello"},
		{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}},{"type":"novelty"}]}]}`))
	if err != nil {
		t.Fatal(err)
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

func TestReadEnvelopeRefuses(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"x"}]`
	for name, body := range map[string]string{
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
		"an upper-case model":      `{"model":"GPT",` + messages + `}`,
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
		"a text for include_usage": `{"model":"m","stream_options":{"include_usage":"yes"},` + messages + `}`,
	} {
		_, err := readEnvelope([]byte(body))
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
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := readEnvelope(body)
		if err != nil {
			var refusal answerError
			if !errors.As(err, &refusal) {
				t.Fatalf("an error that is no answer: %v", err)
			}
			return
		}
		if !catalog.ValidModelID(e.model) || e.textBytes < 0 || e.choices < 1 || e.outputTokensMax != nil && *e.outputTokensMax < 1 {
			t.Fatalf("accepted %q as %+v", body, e)
		}
	})
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
