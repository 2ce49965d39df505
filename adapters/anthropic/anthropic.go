// Package anthropic speaks Anthropic's Messages protocol to a provider, and relays its answers to clients of the same protocol byte
// for byte, except for the model's name and for comments.
//
// It translates nothing and keeps nothing of what passes through it. What it does not know, it passes on: fields, blocks and events
// that are newer than it, but for the fields that [exchange.IsForeign] names.
package anthropic

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/exchange"
	"regent/adapters/splice"
	"regent/adapters/upstream"
)

// Config configures a [Provider].
type Config struct {
	// BaseURL is what stands before /v1/messages, for example https://api.anthropic.com. It may end in /v1, as other protocols' do.
	// Required.
	BaseURL string
	// APIKey is sent as x-api-key, AuthToken as a bearer token, for servers that take no key. At most one may be set.
	APIKey, AuthToken string
	// Client reaches the provider. Required; see package upstream.
	Client *http.Client
	// Memory bounds what whole answers take together, with those of other providers that have the same. Optional.
	Memory *upstream.Memory
}

// Provider is one account at a provider that speaks Messages.
type Provider struct {
	config     Config
	url        string
	credential http.Header
}

var _ adapters.Provider = (*Provider)(nil)

// New makes a provider. It contacts nobody.
func New(config Config) (*Provider, error) {
	switch {
	case config.BaseURL == "" || config.Client == nil:
		return nil, errors.New("anthropic: Config.BaseURL and Config.Client are required")
	case config.APIKey != "" && config.AuthToken != "":
		return nil, errors.New("anthropic: only one of Config.APIKey and Config.AuthToken can be sent")
	case strings.ContainsFunc(config.APIKey+config.AuthToken, unicode.IsControl):
		return nil, errors.New("anthropic: the credential holds a character that no header can")
	}
	if config.Memory == nil {
		config.Memory = &upstream.Memory{}
	}
	p := &Provider{config: config, credential: http.Header{}}
	p.url = strings.TrimSuffix(strings.TrimSuffix(config.BaseURL, "/"), "/v1") + "/v1/messages"
	if config.APIKey != "" {
		p.credential.Set("X-Api-Key", config.APIKey)
	}
	if config.AuthToken != "" {
		p.credential.Set("Authorization", "Bearer "+config.AuthToken)
	}
	return p, nil
}

// Send posts the request. Usage is a part of every answer of the protocol, so that it is relayed whether the client asked for it or not.
// See [adapters.Provider].
func (p *Provider) Send(ctx context.Context, request adapters.Request) (adapters.Answer, error) {
	return p.send(ctx, request, "", &answer{editor: exchange.NewEditor(request)})
}

// CountTokens asks how many input tokens a request takes, and returns the provider's answer as it came. Nothing is generated and
// nothing is charged, so that there is no [adapters.Answer] to settle; whether the request asks for a stream does not matter.
func (p *Provider) CountTokens(ctx context.Context, request adapters.Request) ([]byte, error) {
	request.Stream = false
	answer, err := p.send(ctx, request, "/count_tokens", &count{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Close() }() // all of it was read
	event, err := answer.Next()
	return event.Relay, err
}

// send posts a request to one of the protocol's endpoints.
func (p *Provider) send(ctx context.Context, request adapters.Request, endpoint string, reader exchange.Reader) (adapters.Answer, error) {
	body, err := exchange.Body(request, nil, boundSearches(request.Searches))
	if err != nil {
		return nil, &adapters.Failure{Reason: adapters.InvalidRequest, Cause: err}
	}
	call := exchange.Call{
		Client: p.config.Client, Memory: p.config.Memory, URL: p.url + endpoint + query(request.Query), Header: p.header(request.Header),
		Body: body, Stream: request.Stream,
	}
	return call.Send(ctx, reader)
}

// boundSearches tells each tool that makes web searches how many it may make, unless it has a bound of its own.
func boundSearches(most int64) exchange.Member {
	return func(s *splice.Splicer, name string, value gjson.Result) error {
		if name != "tools" || most == 0 {
			return nil
		}
		value.ForEach(func(_, tool gjson.Result) bool {
			if uses := tool.Get("max_uses"); !strings.HasPrefix(tool.Get("type").Str, "web_search") {
				return true
			} else if !uses.Exists() {
				s.Add(tool.Index+len(tool.Raw)-1, "max_uses", strconv.FormatInt(most, 10))
			} else if uses.Type == gjson.Null {
				s.Replace(uses, strconv.FormatInt(most, 10))
			}
			return true
		})
		return nil
	}
}

// query is what is passed on of a client's query: that the body is written in the protocol's beta, as the vendor's clients say there.
func query(text string) string {
	if values, _ := url.ParseQuery(text); values.Get("beta") == "true" { // what cannot be read is not passed on
		return "?beta=true"
	}
	return ""
}

const (
	versionName = "Anthropic-Version"
	betaName    = "Anthropic-Beta"
	// versionDefault is the version whose requests every server and model understands.
	versionDefault = "2023-06-01"
	betaMax        = 128 // of a beta's name: several times the longest
)

// header is an allow-list: the credential, and of the client's own header the two that say which protocol its body is written in.
func (p *Provider) header(client http.Header) http.Header {
	header := p.credential.Clone()
	header.Set(versionName, versionDefault)
	if version := client.Get(versionName); isVersion(version) {
		header.Set(versionName, version)
	}
	if betas := betas(client.Values(betaName)); len(betas) > 0 {
		header.Set(betaName, strings.Join(betas, ","))
	}
	return header
}

// isVersion says whether a text can be a version of the protocol, which are dates.
func isVersion(text string) bool {
	_, err := time.Parse(time.DateOnly, text)
	return err == nil
}

// betas lists the names of betas in a header that holds lists and may be repeated. What can be no name is left out: a provider that
// refused it would repeat it.
func betas(values []string) []string {
	var names []string
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); isBeta(name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// isBeta says whether a text can be a beta's name: letters, digits, points, hyphens and underscores.
func isBeta(name string) bool {
	return name != "" && len(name) <= betaMax && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	})
}
