package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"regent/adapters"
	"regent/adapters/openai"
	"regent/engine"
)

// connected is the good file with members of its connection in place of its adapter.
func connected(members string) string {
	return hashed(strings.Replace(good, "adapter: openai", members, 1))
}

// TestAdapters is what each adapter's connection serves if it does not say otherwise, whether writes to the cache are charged, and whether
// OpenRouter's routing has a meaning there.
func TestAdapters(t *testing.T) {
	const chat, responses, compact, embeddings, messages = "openai.chat", "openai.responses", "openai.compact", "openai.embeddings", "anthropic.messages"
	known := map[string]struct {
		serves         []string
		writes, routes bool
	}{
		"openai":     {serves: []string{chat, responses, compact, embeddings}, writes: true},
		"azure":      {serves: []string{chat, responses, embeddings}, writes: true},
		"openrouter": {serves: []string{chat}, writes: true, routes: true},
		"vllm":       {serves: []string{chat, embeddings}},
		"ollama":     {serves: []string{chat, embeddings}},
		"llamacpp":   {serves: []string{chat, embeddings}},
		"deepseek":   {serves: []string{chat}},
		"moonshot":   {serves: []string{chat}},
		"gemini":     {serves: []string{chat, embeddings}},
		"anthropic":  {serves: []string{messages}, writes: true},
	}
	for name, want := range known {
		c, err := Parse("c.yaml", []byte(connected("adapter: "+name)), noEnv)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := c.Models["m"].Candidates(&Cooling{}, true, "")[0]
		if !slices.Equal(got.Protocols, want.serves) || got.CacheWrites != want.writes || got.OpenRouterRouting != want.routes {
			t.Errorf("%s: serves %v, cache writes %v, routing %v", name, got.Protocols, got.CacheWrites, got.OpenRouterRouting)
		}
		if c.Models["m"].Candidates(&Cooling{}, false, "")[0].OpenRouterRouting {
			t.Errorf("%s: a request without routing is routed", name)
		}
	}
	if names := adapterNames(); len(names) != len(known) || len(names) != len(openai.Dialects())+1 {
		t.Errorf("the adapters are %v, the dialects of one of them %v", names, openai.Dialects())
	}
}

// TestAConnectionSaysWhatItServes: more or less than its adapter's providers are known to, and in which version.
func TestAConnectionSaysWhatItServes(t *testing.T) {
	for members, want := range map[string]Connection{
		"adapter: vllm, protocols: [openai.responses]":                {Protocols: []string{"openai.responses"}},
		"adapter: openai, protocols: [openai.chat, openai.responses]": {Protocols: []string{"openai.chat", "openai.responses"}},
		"adapter: openrouter, protocols: ~":                           {Protocols: []string{"openai.chat"}},
		"adapter: azure, api_version: 2024-10-21":                     {Protocols: texts(knownAdapters["azure"].serves), APIVersion: "2024-10-21"}, // no text in YAML
		`adapter: deepseek, api_version: ""`:                          {Protocols: []string{"openai.chat"}},
	} {
		c, err := Parse("c.yaml", []byte(connected(members)), noEnv)
		if err != nil {
			t.Errorf("%s: %v", members, err)
		} else if got := c.Connections["one"]; !slices.Equal(got.Protocols, want.Protocols) || got.APIVersion != want.APIVersion {
			t.Errorf("%s: got %+v", members, got)
		}
	}
	for members, want := range map[string]string{
		"adapter: openai, protocols: []":                         `c.yaml:3: connection "one" serves no protocol`,
		"adapter: openai, protocols: [soap]":                     `c.yaml:3: connection "one": "soap" is not one of the protocols of the adapter "openai", or stands twice (known: openai.chat,`,
		"adapter: openai, protocols: [openai.chat, openai.chat]": `"openai.chat" is not one of the protocols of the adapter "openai", or stands twice`,
		"adapter: openai, protocols: [anthropic.messages]":       `"anthropic.messages" is not one of`,
		"adapter: anthropic, protocols: [openai.chat]":           `"openai.chat" is not one of the protocols of the adapter "anthropic", or stands twice (known: anthropic.messages)`,
		"adapter: openai, protocols: openai.chat":                `c.yaml:3: protocols: want a list`,
		"adapter: openai, api_version: 2024-10-21":               `c.yaml:3: connection "one": the adapter "openai" knows no api_version`,
		"adapter: anthropic, api_version: \"2023-06-01\"":        `the adapter "anthropic" knows no api_version`,
		"adapter: azure, api_version: [2024-10-21]":              `c.yaml:3: api_version: want a text`,
		"adapter: azure, api_version: a, api_version: b":         `already`,
		"adapter: Openai":                        `unknown adapter "Openai" (known: anthropic, azure, `,
		"adapter: \"\"":                          `unknown adapter ""`,
		"adapter: openai, protocol: openai.chat": `c.yaml:3: unknown key protocol`,
		"adapter: openai, protocols: [openai.chat, OpenAI.Compact]": `"OpenAI.Compact" is not one of`,
	} {
		_, err := Parse("c.yaml", []byte(connected(members)), noEnv)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", members, err, want)
		}
	}
}

// TestRoutingIsOpenRouters: whichever of the two says that it is OpenRouter that is asked.
func TestRoutingIsOpenRouters(t *testing.T) {
	for members, want := range map[string]bool{
		"adapter: openrouter": true, "adapter: openai": false, "adapter: anthropic": false,
		"provider: openrouter, adapter: openai": true, "provider: openrouter, adapter: anthropic": true,
	} {
		text := connected(members)
		if strings.HasPrefix(members, "provider") {
			text = strings.Replace(text, "provider: p, ", "", 1)
		}
		c, err := Parse("c.yaml", []byte(text), noEnv)
		if err != nil {
			t.Errorf("%s: %v", members, err)
			continue
		}
		if got := c.Models["m"].Candidates(&Cooling{}, true, "")[0].OpenRouterRouting; got != want {
			t.Errorf("%s: routed %v, want %v", members, got, want)
		}
	}
}

// TestProvidersAreMadeOfEveryAdapter: once for as long as the connection is written the same way.
func TestProvidersAreMadeOfEveryAdapter(t *testing.T) {
	var current *Catalogue
	providers := &Providers{Current: func() *Catalogue { return current }, FakeURL: "http://127.0.0.1:1/v1"}
	made := func(members string) adapters.Provider {
		var err error
		current, err = Parse("c.yaml", []byte(connected(members)), func(string) (string, bool) { return "key", true })
		if err != nil {
			t.Fatalf("%s: %v", members, err)
		}
		provider, err := providers.Resolve(current.Models["m"].Candidates(&Cooling{}, false, "")[0])
		if err != nil || provider == nil {
			t.Fatalf("%s: %v, %v", members, provider, err)
		}
		return provider
	}
	for _, name := range adapterNames() {
		first := made("adapter: " + name)
		if again := made("adapter: " + name + ", allow_private: false"); again != first {
			t.Errorf("%s: it is made again for a connection that is the same", name)
		}
		if other := made("adapter: " + name + ", allow_private: true"); other == first {
			t.Errorf("%s: it is not made again for another connection", name)
		}
		if kind := fmt.Sprintf("%T", first); strings.Contains(kind, "anthropic") != (name == "anthropic") {
			t.Errorf("%s: it is a %s", name, kind)
		}
	}
	if made("adapter: azure, api_version: a") == made("adapter: azure, api_version: b") {
		t.Error("another version has the same provider")
	}
	if _, err := providers.Resolve(engine.Candidate{}); !errors.Is(err, engine.ErrUnresolved) {
		t.Errorf("a source that is none: %v", err)
	}
}
