// Package openai speaks OpenAI's chat completions protocol to a provider, and relays its answers to clients of the same
// protocol byte for byte, except for the few fields that the vocabulary names.
//
// It translates nothing and keeps nothing of what passes through it.
package openai

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"

	"regent/adapters"
	"regent/adapters/upstream"
)

// Config configures a [Provider].
type Config struct {
	// BaseURL is what stands before /chat/completions, for example https://api.openai.com/v1. Required.
	BaseURL string
	// APIKey is sent as a bearer token; empty sends none.
	APIKey string
	// Client reaches the provider. Required; see package upstream.
	Client *http.Client
}

// Provider is one account at a provider that speaks chat completions.
type Provider struct {
	config Config
	url    string
}

var _ adapters.Provider = (*Provider)(nil)

// New makes a provider. It contacts nobody.
func New(config Config) (*Provider, error) {
	if config.BaseURL == "" || config.Client == nil {
		return nil, errors.New("openai: Config.BaseURL and Config.Client are required")
	}
	return &Provider{config: config, url: strings.TrimSuffix(config.BaseURL, "/") + "/chat/completions"}, nil
}

// Send posts the request. See [adapters.Provider].
func (p *Provider) Send(ctx context.Context, request adapters.Request) (adapters.Answer, error) {
	body, err := edit(request)
	if err != nil {
		return nil, &adapters.Failure{Reason: adapters.InvalidRequest, Cause: err}
	}
	ctx, end := context.WithCancelCause(ctx)
	response, err := p.post(ctx, body, request.Stream)
	if err != nil {
		end(nil)
		return nil, upstream.Failure(causeOr(ctx, err), false)
	}
	answer := &answer{
		request: request, status: response.StatusCode, ctx: ctx, end: end,
		body: upstream.NewBody(response.Body, end),
	}
	if failure := answer.open(response); failure != nil {
		_ = answer.Close() // the failure says more than its end could
		return nil, failure
	}
	return answer, nil
}

// post sends the body. The transport sends it again only if nothing of it had left on a connection that turned out to be
// closed: it has no leave to repeat a POST otherwise, since no idempotency key is passed on.
func (p *Provider) post(ctx context.Context, body []byte, stream bool) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	// An allow-list: nothing of the client's own header is passed on.
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "regent")
	request.Header.Set("Accept", "application/json")
	if stream {
		request.Header.Set("Accept", "text/event-stream")
	}
	if p.config.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+p.config.APIKey)
	}
	return p.config.Client.Do(request)
}

// causeOr is why a context ended, if it did: it says more than what the network saw of that.
func causeOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// edit changes what the request names in the body and leaves every other byte alone.
func edit(request adapters.Request) (body []byte, err error) {
	body, err = sjson.SetBytes(bytes.Clone(request.Body), "model", request.Model)
	if err != nil {
		return nil, fmt.Errorf("openai: setting the model: %w", err)
	}
	if request.Stream {
		if options := gjson.GetBytes(body, "stream_options"); options.Type == gjson.Null && options.Exists() {
			body, err = sjson.SetRawBytes(body, "stream_options", []byte(`{"include_usage":true}`))
		} else {
			body, err = sjson.SetBytes(body, "stream_options.include_usage", true)
		}
		if err != nil {
			return nil, fmt.Errorf("openai: asking for usage: %w", err)
		}
	}
	for _, field := range request.Strip {
		if body, err = sjson.DeleteBytes(body, field); err != nil {
			return nil, fmt.Errorf("openai: stripping a field: %w", err)
		}
	}
	return body, nil
}

// routingFields are the top-level fields by which a request can choose where OpenRouter sends it.
var routingFields = []string{"provider", "models", "route", "transforms", "plugins", "preset"}

// RoutingFields lists the fields of a body by which it chooses where OpenRouter sends it, for [adapters.Request.Strip].
func RoutingFields(body []byte) []string {
	var present []string
	for _, field := range routingFields {
		if gjson.GetBytes(body, field).Exists() {
			present = append(present, field)
		}
	}
	return present
}

// isEventStream says whether a response is a stream of events.
func isEventStream(response *http.Response) bool {
	media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && media == "text/event-stream"
}
