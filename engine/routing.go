package engine

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
)

// RequestPolicy changes a request before a provider gets it. It returns the request that is to be sent, and changes nothing of what it is
// given: bytes and maps are copied before they differ.
type RequestPolicy func(adapters.Request) (adapters.Request, error)

// RequestPolicies are applied one after the other, as one.
func RequestPolicies(policies ...RequestPolicy) RequestPolicy {
	return func(request adapters.Request) (adapters.Request, error) {
		for _, apply := range policies {
			var err error
			if request, err = apply(request); err != nil {
				return adapters.Request{}, err
			}
		}
		return request, nil
	}
}

// RequestPolicy is what the decision makes of a request to the candidate: OpenRouter's routing is taken away wherever it can hide, unless
// policy honours it. It composes with other policies in either order: fields that one of them adds afterwards are still in
// [adapters.Request.Strip], which a provider takes away.
func (g *Grant) RequestPolicy() RequestPolicy {
	if g.HonourRouting {
		return RequestPolicies()
	}
	model := g.Candidate.Model
	return func(request adapters.Request) (adapters.Request, error) {
		if request.Model != model { // what was judged is sent as it was
			request.Model = withoutSuffixes(request.Model)
		}
		return stripRouting(request)
	}
}

// routingFields are the top-level fields of a body by which a request can choose where OpenRouter sends it.
var routingFields = []string{"provider", "models", "route", "transforms", "plugins", "preset"}

// IsRoutingField says whether a request chooses by a top-level field of its body where OpenRouter sends it: what has to be in
// [adapters.Request.Strip] where the decision does not honour that. Any letter of the name may be another one that differs by its case
// alone, since some readers do not mind.
func IsRoutingField(name string) bool {
	return slices.ContainsFunc(routingFields, func(field string) bool { return strings.EqualFold(field, name) })
}

// bareModel is the name of a body's model without its routing, if a field holds one that has some. It is read as other readers do: gjson
// takes what follows half of a surrogate pair for its other half.
func bareModel(field, value gjson.Result) (bare string, routed bool) {
	var model string
	if !strings.EqualFold(field.String(), "model") || json.Unmarshal([]byte(value.Raw), &model) != nil {
		return "", false
	}
	bare = withoutSuffixes(model)
	return bare, bare != model
}

// suffixes are the endings of a model's name by which it is routed at OpenRouter: to free, fast or cheap providers, to the web, to
// tested tools.
var suffixes = []string{":free", ":nitro", ":floor", ":online", ":exacto"}

// presetMark, in any letters, is what parts a model's name from the name of a preset, which holds routing.
const presetMark = "@preset/"

// withoutSuffixes is a model's name without its routing. What is nothing but a preset has no other name.
func withoutSuffixes(model string) string {
	bare := model
	if i := strings.Index(strings.ToLower(bare), presetMark); i > 0 && len(strings.ToLower(bare)) == len(bare) {
		bare = bare[:i]
	}
	for {
		i := slices.IndexFunc(suffixes, func(s string) bool { return len(bare) > len(s) && strings.EqualFold(bare[len(bare)-len(s):], s) })
		if i < 0 {
			return bare
		}
		bare = bare[:len(bare)-len(suffixes[i])]
	}
}

// isPreset says whether a model is nothing but OpenRouter's routing: a name of settings that somebody has stored there.
func isPreset(model string) bool {
	return len(model) >= len(presetMark) && strings.EqualFold(model[:len(presetMark)], presetMark)
}

func hasSuffix(model string) bool { return len(withoutSuffixes(model)) < len(model) }

// stripSuffix takes the routing off the name of a host's model before anything is decided, so that what is judged is what is sent. The
// price of a free variant is not that of the model itself, which has none then. It returns VALIDATION for a model that is nothing else.
func (c *Candidate) stripSuffix(setting string) error {
	preset := isPreset(c.Model)
	if !c.named || !preset && !hasSuffix(c.Model) {
		return nil
	}
	if c.OpenRouterRouting = true; setting != "strip" && setting != "" { // honoured as it is, or refused by its rule
		return nil
	}
	if preset {
		return invalid("the model is nothing but OpenRouter routing, which is stripped")
	}
	bare := withoutSuffixes(c.Model)
	if strings.Contains(strings.ToLower(c.Model[len(bare):]), ":free") {
		c.Price, c.UnitPrice, c.Priced, c.InputPrice, c.OutputPrice = nil, nil, false, nil, nil
	}
	c.Model, c.Source = bare, sourceOf(c.Provider, bare)
	return nil
}

// stripRouting takes OpenRouter's routing out of a request: fields of its body, the suffix of its model, headers.
func stripRouting(request adapters.Request) (adapters.Request, error) {
	request.Strip = append(slices.Clip(request.Strip), routingFields...)
	request.Header = withoutRoutingHeaders(request.Header)
	request.Body = withoutRouting(request.Body)
	return request, nil
}

// withoutRoutingHeaders leaves out the headers by which OpenRouter is told whose call it is, and how to route it.
func withoutRoutingHeaders(header http.Header) http.Header {
	routes := func(name string) bool {
		name = http.CanonicalHeaderKey(name)
		return name == "Http-Referer" || name == "X-Title" || strings.HasPrefix(name, "X-Openrouter-")
	}
	kept := make(http.Header, len(header))
	for name, values := range header {
		if !routes(name) {
			kept[name] = values
		}
	}
	if len(kept) == len(header) {
		return header
	}
	return kept
}

// withoutRouting copies a body without its routing, and leaves every other byte as it is. A body that is no JSON object is not for
// OpenRouter.
func withoutRouting(body []byte) []byte {
	root := gjson.ParseBytes(body)
	if !root.IsObject() || !gjson.ValidBytes(body) || !hasRouting(root) {
		return body
	}
	stripped := append(make([]byte, 0, len(body)), '{')
	root.ForEach(func(key, value gjson.Result) bool {
		if IsRoutingField(key.String()) {
			return true
		}
		if len(stripped) > 1 {
			stripped = append(stripped, ',')
		}
		stripped = append(append(stripped, key.Raw...), ':')
		if bare, routed := bareModel(key, value); routed {
			stripped = gjson.AppendJSONString(stripped, bare)
		} else {
			stripped = append(stripped, value.Raw...)
		}
		return true
	})
	return append(stripped, '}')
}

func hasRouting(root gjson.Result) (has bool) {
	root.ForEach(func(key, value gjson.Result) bool {
		_, routed := bareModel(key, value)
		has = routed || IsRoutingField(key.String())
		return !has
	})
	return has
}
