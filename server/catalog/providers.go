package catalog

import (
	"fmt"
	"net/http"
	"sync"

	"regent/adapters"
	"regent/adapters/upstream"
	"regent/engine"
)

// Providers finds what executes a candidate: one provider a connection, kept with its open connections for as long as the
// connection is written the same way.
type Providers struct {
	// Current is the catalogue that counts.
	Current func() *Catalogue
	// FakeURL is where the built-in provider listens.
	FakeURL string

	mu    sync.Mutex
	built map[string]builtProvider // by connection id
	// answers is what the whole answers of all providers take.
	answers upstream.Memory
}

type builtProvider struct {
	access
	provider adapters.Provider
}

// access is what a provider is built of.
type access struct {
	adapter, baseURL, credential, apiVersion string
	allowPrivate                             bool
}

// endpoint is where an adapter finds its provider, and how.
type endpoint struct {
	access
	client  *http.Client
	answers *upstream.Memory
}

var _ engine.Resolver = (*Providers)(nil)

// Resolve finds the provider of a candidate's source.
func (p *Providers) Resolve(candidate engine.Candidate) (adapters.Provider, error) {
	if source := p.Current().Sources[candidate.Source]; source != nil {
		return p.of(source.Connection)
	}
	return nil, fmt.Errorf("source %q: %w", candidate.Source, engine.ErrUnresolved)
}

func (p *Providers) of(connection *Connection) (adapters.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := access{connection.Adapter, connection.BaseURL, connection.Credential, connection.APIVersion, connection.AllowPrivate}
	if built, ok := p.built[connection.ID]; ok && built.access == wanted {
		return built.provider, nil
	}
	provider, err := p.build(wanted)
	if err != nil {
		return nil, fmt.Errorf("connection %q: %w", connection.ID, err)
	}
	if p.built == nil {
		p.built = map[string]builtProvider{}
	}
	p.built[connection.ID] = builtProvider{wanted, provider}
	return provider, nil
}

func (p *Providers) build(wanted access) (adapters.Provider, error) {
	if wanted.baseURL == FakeURL {
		wanted.baseURL = p.FakeURL
	}
	client := upstream.New(upstream.Config{AllowPrivate: wanted.allowPrivate})
	return knownAdapters[wanted.adapter].make(endpoint{access: wanted, client: client, answers: &p.answers})
}
