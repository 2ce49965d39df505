package catalog

import (
	"maps"
	"slices"

	"regent/adapters"
	"regent/adapters/anthropic"
	"regent/adapters/openai"
)

// adapter is what a connection can name: who speaks to its provider.
type adapter struct {
	// speaks are all protocols that the adapter can speak, serves those that its providers are known to have: a connection may say
	// otherwise.
	speaks, serves []adapters.Protocol
	// writesCache says that its providers charge for cache writes.
	writesCache bool
	// hidesTokens says that they charge for output that an answer does not show.
	hidesTokens bool
	// versioned says that its API may have a version, which the connection names.
	versioned bool
	make      func(to endpoint) (adapters.Provider, error)
}

// ofOpenAI are the protocols of OpenAI's adapter.
var ofOpenAI = []adapters.Protocol{adapters.OpenAIChat, adapters.OpenAIResponses, adapters.OpenAICompact, adapters.OpenAIEmbeddings}

// knownAdapters has a row for each. What else differs between dialects is in package openai's own table.
var knownAdapters = map[string]*adapter{
	"openai":     dialect("openai", ofOpenAI...),
	"azure":      dialect("azure", adapters.OpenAIChat, adapters.OpenAIResponses, adapters.OpenAIEmbeddings),
	"openrouter": dialect("openrouter", adapters.OpenAIChat),
	"vllm":       dialect("vllm", adapters.OpenAIChat, adapters.OpenAIEmbeddings),
	"ollama":     dialect("ollama", adapters.OpenAIChat, adapters.OpenAIEmbeddings),
	"llamacpp":   dialect("llamacpp", adapters.OpenAIChat, adapters.OpenAIEmbeddings),
	"deepseek":   dialect("deepseek", adapters.OpenAIChat),
	"moonshot":   dialect("moonshot", adapters.OpenAIChat),
	"gemini":     dialect("gemini", adapters.OpenAIChat, adapters.OpenAIEmbeddings),
	"anthropic": {
		speaks: []adapters.Protocol{adapters.AnthropicMessages}, serves: []adapters.Protocol{adapters.AnthropicMessages}, writesCache: true,
		hidesTokens: true, make: makeAnthropic,
	},
}

// dialect is the adapter of a dialect of OpenAI's, whose providers serve some of its protocols.
func dialect(name string, serves ...adapters.Protocol) *adapter {
	return &adapter{
		speaks: ofOpenAI, serves: serves, versioned: name == "azure",
		writesCache: openai.WritesCache(name), hidesTokens: openai.HidesTokens(name),
		make: func(to endpoint) (adapters.Provider, error) {
			return openai.New(openai.Config{
				Dialect: name, BaseURL: to.baseURL, APIKey: to.credential, APIVersion: to.apiVersion, Client: to.client, Memory: to.answers,
			})
		},
	}
}

// adapterNames lists what a connection can name.
func adapterNames() []string { return slices.Sorted(maps.Keys(knownAdapters)) }

func makeAnthropic(to endpoint) (adapters.Provider, error) {
	return anthropic.New(anthropic.Config{BaseURL: to.baseURL, APIKey: to.credential, Client: to.client, Memory: to.answers})
}
