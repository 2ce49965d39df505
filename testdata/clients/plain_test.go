package clients

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// TestCompressedBodies: a plain client may compress what it sends, which no SDK does by itself. The provider gets it plain.
func TestCompressedBodies(t *testing.T) {
	t.Parallel()
	g := start(t)
	const turns = `{"model":"open/scripted","max_tokens":100,"messages":[{"role":"user","content":"Hello"}]}`
	for _, test := range []struct{ path, body, answer string }{
		{"/chat/completions", turns, "choices.0.message.content"},
		{"/responses", `{"model":"open/scripted","input":"Hello"}`, "output.0.content.0.text"},
		{"/messages", turns, "content.0.text"},
		{"/embeddings", `{"model":"open/scripted","input":"Hello"}`, "data.0.embedding.0"},
	} {
		if err := g.script("scripted", []byte(`{"text": ["0.25"]}`)); err != nil {
			t.Fatal(err)
		}
		var compressed bytes.Buffer
		writer := gzip.NewWriter(&compressed)
		_, _ = writer.Write([]byte(test.body)) // into memory
		_ = writer.Close()
		status, answer := g.post(t, test.path, &compressed)
		if status != http.StatusOK || answer.Get(test.answer).String() != "0.25" {
			t.Errorf("%s: got %d %s", test.path, status, answer)
		}
		seen := g.upstream.Seen("scripted")
		if seen.Header.Get("Content-Encoding") != "" || !strings.Contains(string(seen.Body), `"Hello"`) {
			t.Errorf("%s: the provider was sent %v %s", test.path, seen.Header, seen.Body)
		}
		status, answer = g.post(t, test.path, strings.NewReader(test.body))
		if status != http.StatusBadRequest || answer.Get("error.code").Str != "invalid_request" {
			t.Errorf("%s, not compressed after all: got %d %s", test.path, status, answer)
		}
	}
}

// post posts what is said to be compressed.
func (g *gateway) post(t *testing.T, path string, body io.Reader) (status int, answer gjson.Result) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, g.openAI()+path, body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+richToken)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Content-Encoding", "gzip")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, gjson.ParseBytes(text)
}
