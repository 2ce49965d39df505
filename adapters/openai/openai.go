// Package openai speaks OpenAI's protocols to a provider: chat completions, Responses with their compaction, and embeddings. It relays
// the answers to clients of the same protocol byte for byte, except for the few fields that the vocabulary names. In what the servers
// that are compatible with OpenAI differ from it, and from each other, is a table: see [Dialects].
//
// It translates nothing and keeps nothing of what passes through it.
package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"unicode"

	"regent/adapters"
	"regent/adapters/exchange"
	"regent/adapters/upstream"
)

// Config configures a [Provider].
type Config struct {
	// BaseURL is what stands before /chat/completions and the other paths, for example https://api.openai.com/v1 or
	// https://example.openai.azure.com/openai/v1. Required.
	BaseURL string
	// Dialect is what is spoken there, one of [Dialects]. Defaults to "openai".
	Dialect string
	// APIKey is sent as the dialect wants it; empty sends none.
	APIKey string
	// APIVersion is the date of an API that has one, as Azure's of before v1, whose BaseURL is https://example.openai.azure.com/openai.
	// Each model is then a deployment with a path of its own. Defaults to none.
	APIVersion string
	// Client reaches the provider. Required; see package upstream.
	Client *http.Client
	// Memory bounds what whole answers take together, with those of other providers that have the same. Optional.
	Memory *upstream.Memory
}

// Provider is one account at a provider that speaks OpenAI's protocols. Which of them it serves is for whoever sends a request to know.
type Provider struct {
	config  Config
	dialect *dialect
	header  http.Header // the credential
}

var _ adapters.Provider = (*Provider)(nil)

// New makes a provider. It contacts nobody.
func New(config Config) (*Provider, error) {
	if config.Dialect == "" {
		config.Dialect = "openai"
	}
	dialect := dialects[config.Dialect]
	switch {
	case config.BaseURL == "" || config.Client == nil:
		return nil, errors.New("openai: Config.BaseURL and Config.Client are required")
	case dialect == nil:
		return nil, fmt.Errorf("openai: Config.Dialect is one of %q, not %q", Dialects(), config.Dialect)
	case config.APIVersion != "" && !dialect.deployments:
		return nil, fmt.Errorf("openai: the dialect %q has no Config.APIVersion", config.Dialect)
	case strings.ContainsFunc(config.APIKey, unicode.IsControl):
		return nil, errors.New("openai: Config.APIKey holds a character that no header can")
	}
	config.BaseURL = strings.TrimSuffix(config.BaseURL, "/")
	if config.Memory == nil {
		config.Memory = &upstream.Memory{}
	}
	return &Provider{config: config, dialect: dialect, header: dialect.credential(config.APIKey)}, nil
}

// endpoint is where and how a protocol is spoken.
type endpoint struct {
	path string
	// deployed says that a dated API has the path below each deployment's own.
	deployed bool
	// streams says that an answer can be a stream. Else it is whole, whatever the request says.
	streams bool
	edit    func(adapters.Request, *dialect) ([]byte, error)
	reader  func(adapters.Request, *dialect) exchange.Reader
}

var endpoints = map[adapters.Protocol]endpoint{
	adapters.OpenAIChat:       {path: "/chat/completions", deployed: true, streams: true, edit: editChat, reader: newChat},
	adapters.OpenAIResponses:  {path: "/responses", streams: true, edit: editResponse, reader: newResponse},
	adapters.OpenAICompact:    {path: "/responses/compact", edit: edit, reader: newResponse},
	adapters.OpenAIEmbeddings: {path: "/embeddings", deployed: true, edit: edit, reader: newEmbeddings},
}

// edit is the body of a request in which nothing has to be changed but what the vocabulary names.
func edit(request adapters.Request, _ *dialect) ([]byte, error) {
	return exchange.Body(request, nil, nil)
}

// Send posts the request. See [adapters.Provider].
func (p *Provider) Send(ctx context.Context, request adapters.Request) (adapters.Answer, error) {
	endpoint, ok := endpoints[request.Protocol]
	if !ok {
		err := fmt.Errorf("openai: %q is none of OpenAI's protocols", request.Protocol)
		return nil, &adapters.Failure{Reason: adapters.InvalidRequest, Cause: err}
	}
	body, err := endpoint.edit(request, p.dialect)
	if err != nil {
		return nil, &adapters.Failure{Reason: adapters.InvalidRequest, Cause: err}
	}
	call := exchange.Call{
		Client: p.config.Client, Memory: p.config.Memory, URL: p.url(endpoint, request.Model), Header: p.header, Body: body,
		Stream: request.Stream && endpoint.streams,
	}
	return call.Send(ctx, endpoint.reader(request, p.dialect))
}

// url is where an endpoint is found.
func (p *Provider) url(endpoint endpoint, model string) string {
	switch {
	case p.config.APIVersion == "":
		return p.config.BaseURL + endpoint.path
	case endpoint.deployed:
		endpoint.path = "/deployments/" + url.PathEscape(model) + endpoint.path
	}
	return p.config.BaseURL + endpoint.path + "?api-version=" + url.QueryEscape(p.config.APIVersion)
}
