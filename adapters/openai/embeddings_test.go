package openai

import (
	"encoding/base64"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/adaptertest"
	"regent/adapters/fake"
	"regent/ledger"
)

// TestEmbeddings are relayed as they come, numbers and base64, but for the model's name.
func TestEmbeddings(t *testing.T) {
	for _, document := range []string{
		`{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.10,-2.5E-3, 1.0]}],"model":"up","usage":{"prompt_tokens":8,"total_tokens":8}}`,
		"{ \"data\" : [ {\"embedding\":\"AACAPgAAAL8AAIA\\/\",\"model\":\"up\"} ] ,\n\"model\" : \"up\", \"usage\":{\"prompt_tokens\":8} }\n",
	} {
		want := outcome{kinds: kinds("d"), usage: &ledger.Usage{UncachedInput: 8}}
		want.text = strings.ReplaceAll(document, `"up"`, `"pub"`)
		for _, stream := range []bool{false, true} { // which nobody can ask for
			request := adapters.Request{Protocol: adapters.OpenAIEmbeddings, Stream: stream}
			if got := read(t, "", strings.NewReader(document), request); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %+v", document, got)
			}
		}
	}
}

func TestEmbeddingsThatAreNone(t *testing.T) {
	for body, want := range map[string]adapters.Reason{
		``: adapters.UpstreamError, `[]`: adapters.UpstreamError, `{}`: adapters.UpstreamError, `{"data":{}}`: adapters.UpstreamError,
		`{"data":[]}x`: adapters.UpstreamError, `{"data":[],"error":{"code":"invalid_value","message":"secret"}}`: adapters.InvalidRequest,
		`{"object":"error","code":429,"message":"secret"}`: adapters.RateLimited,
	} {
		got := read(t, "", strings.NewReader(body), adapters.Request{Protocol: adapters.OpenAIEmbeddings})
		if failure, _ := got.err.(*adapters.Failure); failure == nil || failure.Reason != want || failure.Status != 200 || strings.Contains(failure.Error(), "secret") {
			t.Errorf("%s: got %v, want %s", body, got.err, want)
		}
	}
}

// TestWholeProtocols asks the built-in provider for what is never a stream.
func TestWholeProtocols(t *testing.T) {
	adaptertest.NoLeaks(t)
	server, err := fake.Start(fake.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() }) // nothing is open
	server.SetScript("scripted", fake.Script{{Text: []string{"ab", "c"}}})
	provider := newProvider(t, server.URL(), "key")
	for protocol, test := range map[adapters.Protocol]struct {
		body  string
		path  string // of what is looked at in the answer
		want  string
		usage ledger.Usage
	}{
		adapters.OpenAIEmbeddings: {`{"input":["12","34"],"encoding_format":"base64"}`, "data.1.embedding", vector(t, 0.25, -0.5, 1), ledger.Usage{UncachedInput: 3}},
		adapters.OpenAICompact:    {`{"input":"12345"}`, "output.0.encrypted_content", "abc", ledger.Usage{UncachedInput: 2, Output: 2}},
	} {
		answer, err := provider.Send(t.Context(), adapters.Request{Protocol: protocol, Body: []byte(test.body), Model: "scripted", PublicModel: "pub"})
		if err != nil {
			t.Fatal(err)
		}
		event, err := answer.Next()
		if err != nil || gjson.GetBytes(event.Relay, test.path).Str != test.want || event.Usage == nil || !reflect.DeepEqual(*event.Usage, test.usage) {
			t.Errorf("%s: got %s, %+v, %v", protocol, event.Relay, event.Usage, err)
		}
		_ = answer.Close()
	}
}

// vector is a list of numbers in base64.
func vector(t *testing.T, numbers ...float32) string {
	t.Helper()
	raw, err := binary.Append(nil, binary.LittleEndian, numbers)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(raw)
}
