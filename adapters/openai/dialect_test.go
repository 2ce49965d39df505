package openai

import (
	"cmp"
	"net/http"
	"strings"
	"testing"

	"regent/adapters"
	"regent/adapters/upstream"
)

// TestWhereADialectIsSpoken: the path, the query and the credential.
func TestWhereADialectIsSpoken(t *testing.T) {
	baseURL, got := listen(t)
	bearer := http.Header{"Authorization": {"Bearer key"}}
	apiKey := http.Header{"Api-Key": {"key"}}
	azure := Config{Dialect: "azure", APIVersion: "2024-10-21"}
	for _, test := range []struct {
		config   Config
		protocol adapters.Protocol
		target   string
		header   http.Header
	}{
		{Config{}, adapters.OpenAIChat, "/chat/completions", bearer},
		{Config{Dialect: "openai"}, adapters.OpenAIResponses, "/responses", bearer},
		{Config{Dialect: "openrouter"}, adapters.OpenAIChat, "/chat/completions", bearer},
		{Config{Dialect: "gemini"}, adapters.OpenAIEmbeddings, "/embeddings", bearer},
		{Config{Dialect: "vllm"}, adapters.OpenAIResponses, "/responses", bearer},
		{Config{Dialect: "azure"}, adapters.OpenAIChat, "/chat/completions", apiKey},
		{Config{Dialect: "azure"}, adapters.OpenAICompact, "/responses/compact", apiKey},
		{azure, adapters.OpenAIChat, "/deployments/my%2Fmodel%3F/chat/completions?api-version=2024-10-21", apiKey},
		{azure, adapters.OpenAIEmbeddings, "/deployments/my%2Fmodel%3F/embeddings?api-version=2024-10-21", apiKey},
		{azure, adapters.OpenAIResponses, "/responses?api-version=2024-10-21", apiKey},
		{Config{Dialect: "azure", APIVersion: "a b&c"}, adapters.OpenAIResponses, "/responses?api-version=a+b%26c", apiKey},
	} {
		test.config.BaseURL, test.config.APIKey = baseURL, "key"
		test.config.Client = upstream.New(upstream.Config{AllowPrivate: true})
		t.Cleanup(test.config.Client.CloseIdleConnections)
		provider, err := New(test.config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := provider.Send(t.Context(), adapters.Request{Protocol: test.protocol, Body: []byte(`{}`), Model: "my/model?"}); err == nil {
			t.Error("nothing is an answer")
		}
		if got.target != test.target || got.body != `{"model":"my/model?"}` {
			t.Errorf("%+v, %s: sent to %s: %s", test.config, test.protocol, got.target, got.body)
		}
		for _, name := range []string{"Authorization", "Api-Key"} {
			if got.header.Get(name) != test.header.Get(name) {
				t.Errorf("%+v: header %v", test.config, got.header)
			}
		}
	}
}

// TestFieldsThatADialectRefuses are never sent in chat completions, and those of the answer's meaning are.
func TestFieldsThatADialectRefuses(t *testing.T) {
	const body = `{"model":"pub","store":true,"metadata":{"a":1},"prompt_cache_key":"k","seed":1,"stream":true}`
	for name := range dialects {
		want := `{"model":"up","store":true,"metadata":{"a":1},"prompt_cache_key":"k","seed":1,"stream":true,"stream_options":{"include_usage":true}}`
		if name == "gemini" {
			want = `{"model":"up","seed":1,"stream":true,"stream_options":{"include_usage":true}}`
		}
		strip := append(make([]string, 0, 9), "none")
		got, err := editChat(adapters.Request{Body: []byte(body), Model: "up", Stream: true, Strip: strip}, dialects[name])
		if err != nil || string(got) != want {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
		if strip[:2][1] != "" {
			t.Errorf("%s: the request's own list was changed", name)
		}
	}
}

// TestTheBoundOfTheOutputIsTheOneThatCounts: whatever a server reads as the bound, it reads what the call was admitted with.
func TestTheBoundOfTheOutputIsTheOneThatCounts(t *testing.T) {
	for given, want := range map[string]struct{ both, older string }{
		`{"model":"up"}`:                                                {},
		`{"model":"up","max_tokens":7}`:                                 {},
		`{"model":"up","max_completion_tokens":7}`:                      {older: `{"model":"up","max_completion_tokens":7,"max_tokens":7}`},
		`{"model":"up","max_tokens":7,"max_completion_tokens":9}`:       {both: `{"model":"up","max_tokens":7,"max_completion_tokens":7}`},
		`{"model":"up","max_tokens":90,"max_completion_tokens":8}`:      {both: `{"model":"up","max_tokens":8,"max_completion_tokens":8}`},
		`{"model":"up","max_tokens":null,"max_completion_tokens":7}`:    {older: `{"model":"up","max_tokens":7,"max_completion_tokens":7}`},
		`{"model":"up","max_tokens":7,"max_completion_tokens":null}`:    {},
		`{"model":"up","max_tokens":null,"max_completion_tokens":null}`: {},
		`{"model":"up","n_predict":-1,"max_tokens":7}`:                  {both: `{"model":"up","max_tokens":7}`},
	} {
		for name, d := range dialects {
			wanted := cmp.Or(want.both, given)
			if d.olderBound {
				wanted = cmp.Or(want.older, wanted)
			}
			got, err := editChat(adapters.Request{Body: []byte(given), Model: "up"}, d)
			if err != nil || string(got) != wanted {
				t.Errorf("%s: %s: got %s, %v, want %s", name, given, got, err, wanted)
			}
		}
	}
	for _, name := range []string{"ollama", "llamacpp", "deepseek", "moonshot"} {
		if !dialects[name].olderBound {
			t.Errorf("%s has a newer name", name)
		}
	}
}

// TestAServerWithoutAnEndIsToldOne: the bound that the call was admitted with, unless the request has one.
func TestAServerWithoutAnEndIsToldOne(t *testing.T) {
	for given, want := range map[string]string{
		`{"model":"up"}`:                   `{"model":"up","max_tokens":9}`,
		`{"max_tokens":null,"model":"up"}`: `{"max_tokens":9,"model":"up"}`,
		`{"model":"up","max_tokens":7}`:    `{"model":"up","max_tokens":7}`,
	} {
		for name, d := range dialects {
			wanted := given
			if d.endless {
				wanted = want
			}
			got, err := editChat(adapters.Request{Body: []byte(given), Model: "up", OutputTokensMax: 9}, d)
			if err != nil || string(got) != wanted {
				t.Errorf("%s: %s: got %s, %v, want %s", name, given, got, err, wanted)
			}
		}
	}
	for _, name := range []string{"ollama", "llamacpp"} {
		if !dialects[name].endless {
			t.Errorf("%s ends by itself", name)
		}
	}
}

// TestHidesTokens: only what shows all that it charges for can be estimated by what came of it; what is not known hides.
func TestHidesTokens(t *testing.T) {
	for name, want := range map[string]bool{
		"openai": true, "azure": true, "openrouter": true, "gemini": true, "novelty": true,
		"vllm": false, "ollama": false, "llamacpp": false, "deepseek": false, "moonshot": false,
	} {
		if got := HidesTokens(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNew(t *testing.T) {
	client := &http.Client{}
	for name, test := range map[string]struct {
		config Config
		want   string
	}{
		"no URL":               {Config{Client: client}, "required"},
		"no client":            {Config{BaseURL: "http://x"}, "required"},
		"an unknown dialect":   {Config{BaseURL: "http://x", Client: client, Dialect: "Azure"}, `["azure" "deepseek" "gemini" "llamacpp" "moonshot" "ollama" "openai" "openrouter" "vllm"], not "Azure"`},
		"a date that is not":   {Config{BaseURL: "http://x", Client: client, APIVersion: "2024-10-21"}, "APIVersion"},
		"a key of two lines":   {Config{BaseURL: "http://x", Client: client, APIKey: "a\nb"}, "APIKey"},
		"a key with a control": {Config{BaseURL: "http://x", Client: client, Dialect: "azure", APIKey: "a\x00"}, "APIKey"},
	} {
		if _, err := New(test.config); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, name := range Dialects() {
		if _, err := New(Config{BaseURL: "http://x", Client: client, Dialect: name}); err != nil {
			t.Error(err)
		}
	}
}
