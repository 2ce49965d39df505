// Package openai speaks OpenAI's chat completions protocol to a provider, and relays its answers to clients of the same
// protocol byte for byte, except for the few fields that the vocabulary names.
//
// It translates nothing and keeps nothing of what passes through it.
package openai

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/tidwall/gjson"

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
	// Memory bounds what whole answers take together, with those of other providers that have the same. Optional.
	Memory *upstream.Memory
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
	if strings.ContainsFunc(config.APIKey, unicode.IsControl) {
		return nil, errors.New("openai: Config.APIKey holds a character that no header can")
	}
	if config.Memory == nil {
		config.Memory = &upstream.Memory{}
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
		failure := upstream.Failure(causeOr(ctx, err), false)
		end(nil)
		return nil, failure
	}
	answer := &answer{
		request: request, status: response.StatusCode, ctx: ctx, end: end,
		body: upstream.NewBody(response.Body, end), memory: p.config.Memory,
	}
	if failure := answer.open(response); failure != nil {
		_ = answer.Close() // the failure says more than its end could
		return nil, failure
	}
	return answer, nil
}

// post sends the body. Over HTTP/1.1 the transport sends it again only if nothing of it had left on a connection that turned
// out to be closed: it has no leave to repeat a POST otherwise, since no idempotency key is passed on.
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

// edit changes what the request names in the body, leaves out foreign fields, and leaves every other byte alone. A field that is
// stripped is not set either.
func edit(request adapters.Request) ([]byte, error) {
	root := gjson.ParseBytes(request.Body)
	if !root.IsObject() || !gjson.ValidBytes(request.Body) {
		return nil, errors.New("openai: the body is not a JSON object")
	}
	s := &splicer{document: request.Body, out: make([]byte, 0, len(request.Body)+editRoom)}
	missing := map[string]string{"model": string(gjson.AppendJSONString(nil, request.Model))}
	if request.Stream {
		missing["stream_options"] = wantUsage
	}
	for _, name := range request.Strip {
		delete(missing, name)
	}
	var err error
	root.ForEach(func(key, value gjson.Result) bool {
		name := key.String()
		switch {
		case slices.Contains(request.Strip, name), slices.Contains(foreignFields, strings.ToLower(name)):
			s.cut(key, value)
		case name == "model":
			s.replaceText(value, request.Model)
		case name == "stream_options" && request.Stream:
			err = askForUsage(s, value)
		}
		delete(missing, name)
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(request.Body, '}')
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		s.add(end, name, missing[name])
	}
	s.copyTo(len(request.Body))
	return s.out, nil
}

const (
	editRoom  = 128 // for a longer model name and the wish for usage
	wantUsage = `{"include_usage":true}`
)

// askForUsage sets include_usage in the stream's options, wherever it stands: of a repeated key each reader sees another.
func askForUsage(s *splicer, options gjson.Result) error {
	switch {
	case options.Type == gjson.Null:
		s.replace(options, wantUsage)
		return nil
	case !options.IsObject():
		return errors.New("openai: stream_options is not an object")
	}
	found := false
	options.ForEach(func(key, value gjson.Result) bool {
		if key.String() == "include_usage" {
			s.replace(value, "true")
			found = true
		}
		return true
	})
	if !found {
		s.add(options.Index+len(options.Raw)-1, "include_usage", "true")
	}
	return nil
}

// foreignFields are top-level fields by which some gateways and servers behind this protocol let a request name another
// upstream, key or principal. No client may, so that they are never passed on.
var foreignFields = []string{
	"api_base", "api_key", "api_version", "api_type", "base_url", "organization", "extra_body", "extra_headers", "fallbacks",
	"mock_response", "custom_llm_provider", "litellm_params", "cache_salt",
}

// isEventStream says whether a response is a stream of events.
func isEventStream(response *http.Response) bool {
	media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	return err == nil && media == "text/event-stream"
}
