package openai

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"regent/adapters"
	"regent/adapters/upstream"
)

// A later report that is unusable must not leave the one before standing, which would charge too little.
func TestAnUnusableLastReportIsUnknownUsage(t *testing.T) {
	good := `"usage":{"prompt_tokens":1,"completion_tokens":1}`
	for name, stream := range map[string]string{
		"after a report with the finish": `data: {"choices":[{"delta":{},"finish_reason":"stop"}],` + good + "}\n\n" +
			`data: {"choices":[],"usage":{"prompt_tokens":1e300,"completion_tokens":1}}` + "\n\ndata: [DONE]\n\n",
		"after a running count": `data: {"choices":[{"delta":{"content":"x"}}],` + good + "}\n\n" +
			`data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":-1}}` + "\n\ndata: [DONE]\n\n",
	} {
		_, _, usage, err := relayed(t, stream, false)
		if err != nil || usage != nil {
			t.Errorf("%s: %+v, %v", name, usage, err)
		}
	}
}

func TestAnErrorDocumentIsNoChunk(t *testing.T) {
	_, _, _, err := relayed(t, "data: {\"object\":\"error\",\"message\":\"secret\",\"code\":500}\n\ndata: [DONE]\n\n", false)
	var failure *adapters.Failure
	if !errors.As(err, &failure) || failure.Reason != adapters.StreamBroken {
		t.Errorf("got %v", err)
	}
}

// A refusal whose body does not come must not hold up the next source.
func TestARefusalIsKnownByItsHeader(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	provider, err := New(Config{BaseURL: server.URL, Client: upstream.New(upstream.Config{AllowPrivate: true})})
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	_, err = provider.Send(t.Context(), adapters.Request{Body: []byte(`{"model":"pub"}`), Model: "up"})
	var failure *adapters.Failure
	if !errors.As(err, &failure) || failure.Reason != adapters.Overloaded {
		t.Errorf("got %v", err)
	}
	if took := time.Since(started); took > errorTimeMax+3*time.Second {
		t.Errorf("it took %v", took)
	}
}
