package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"

	"regent/engine/policy"
	"regent/ledger"
)

// Model is a provider's model as a host's own catalogue has it. [Model.Candidate] makes a candidate of it.
type Model struct {
	Provider string `json:"provider"`
	// ID is the provider's own name of the model, exactly.
	ID string `json:"model"`
	// Cost is nil for a model whose price is not known.
	Cost *Cost `json:"cost,omitempty"`
	// ContextTokens and OutputTokensMax are the model's limits; nil if they are not known.
	ContextTokens   *int64 `json:"contextTokens,omitempty"`
	OutputTokensMax *int64 `json:"maxOutputTokens,omitempty"`
	// Modalities are what the model accepts beyond text: image, audio, file.
	Modalities []string `json:"modalities,omitempty"`
	Compat     Compat   `json:"compat,omitzero"`
}

// Compat is what only some models have.
type Compat struct {
	// Residency is where the model is served; empty if that is not known.
	Residency string `json:"residency,omitempty"`
	// OpenRouterRouting is what OpenRouter's field "provider" would be. It is taken away unless policy honours it.
	OpenRouterRouting json.RawMessage `json:"openRouterRouting,omitempty"`
}

// Cost is what tokens cost, in US dollars for each or for a million of them: whatever unit names a million is for a million. A class
// that is nil is not listed; one that is free is written as 0.
type Cost struct {
	Input      *float64 `json:"input,omitempty"`
	Output     *float64 `json:"output,omitempty"`
	CacheRead  *float64 `json:"cacheRead,omitempty"`
	CacheWrite *float64 `json:"cacheWrite,omitempty"`
	// Unit is for example "per_million_tokens" or "per_token". Empty is a token, so that what was forgotten makes no call too cheap.
	Unit string `json:"unit,omitempty"`
}

// PerMillion is the unit of costs for a million tokens.
const PerMillion = "per_million_tokens"

// Price is the cost as the ledger charges it, with what is not listed at the rate that is never cheaper: a cached token and a 5-minute
// cache write at the input's, a 1-hour write at the 5-minute one's, reasoning at the output's. Rates are rounded up to a pico-USD. priced
// is false without an input and an output, and where anything is negative, no number, or more than the ledger can count.
func (c *Cost) Price() (price ledger.Price, priced bool) {
	if c == nil || c.Input == nil || c.Output == nil {
		return ledger.Price{}, false
	}
	for _, class := range []struct {
		listed, instead *float64
		rates           []*int64
	}{
		{c.Input, nil, []*int64{&price.UncachedInput}},
		{c.CacheRead, c.Input, []*int64{&price.CachedInput}},
		{c.CacheWrite, c.Input, []*int64{&price.CacheWrite5m, &price.CacheWrite1h}},
		{c.Output, nil, []*int64{&price.Output, &price.Reasoning}},
	} {
		usd := class.listed
		if usd == nil {
			usd = class.instead
		}
		rate, ok := c.rate(*usd)
		if !ok {
			return ledger.Price{}, false
		}
		for _, to := range class.rates {
			*to = rate
		}
	}
	return price, true
}

// rateMax bounds a rate, in pico-USD: a million US dollars for a token, so that the sum of three rates is an int64.
const rateMax = 1 << 60

// rate is an amount of the cost's unit in pico-USD for a token, exactly as the shortest decimal that means the number, rounded up.
func (c *Cost) rate(usd float64) (pico int64, ok bool) {
	if math.IsNaN(usd) || math.IsInf(usd, 0) || usd < 0 {
		return 0, false
	}
	exact, ok := new(big.Rat).SetString(strconv.FormatFloat(usd, 'g', -1, 64))
	if !ok {
		return 0, false
	}
	scale := int64(1e12) // pico-USD of a US dollar
	if c.isPerMillion() {
		scale = 1e6
	}
	exact.Mul(exact, new(big.Rat).SetInt64(scale))
	whole, rest := new(big.Int).QuoRem(exact.Num(), exact.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	return whole.Int64(), whole.IsInt64() && whole.Int64() <= rateMax
}

func (c *Cost) isPerMillion() bool { return strings.Contains(strings.ToLower(c.Unit), "million") }

// unitPrice is what ranks the model: input, output and cached input of one token each, in pico-USD. A cached input that is not listed
// counts nothing.
func (c *Cost) unitPrice(price ledger.Price) int64 {
	sum := price.UncachedInput + price.Output
	if c.CacheRead != nil {
		sum += price.CachedInput
	}
	return sum
}

// Candidate is the model as a candidate that is available. Its source is named "provider/model".
func (m Model) Candidate() Candidate {
	candidate := Candidate{
		Candidate: policy.Candidate{
			Source: sourceOf(m.Provider, m.ID), Accounting: policy.ByAPIKey, Provider: m.Provider, Model: m.ID, Enabled: true, Connection: "authorised",
			Protocols: hostProtocols, Modalities: listOf(m.Modalities), ContextTokens: m.ContextTokens, OutputTokensMax: m.OutputTokensMax,
		},
		named: true,
	}
	if routing := m.Compat.OpenRouterRouting; string(bytes.TrimSpace(routing)) != "null" {
		candidate.Routing = routing
	}
	if m.Compat.Residency != "" {
		candidate.Residency = &m.Compat.Residency
	}
	if price, priced := m.Cost.Price(); priced {
		candidate.Price, candidate.Priced, candidate.UnitPrice = &price, true, new(m.Cost.unitPrice(price))
		candidate.InputPrice, candidate.OutputPrice = &price.UncachedInput, &price.Output
	}
	return candidate
}

// UnmarshalModel reads a model of a catalogue. It returns an [*Error] with code VALIDATION.
func UnmarshalModel(text []byte) (Model, error) {
	var model Model
	if err := json.Unmarshal(text, &model); err != nil {
		return Model{}, &Error{Code: CodeValidation, Message: "a model is a JSON object with provider and model", cause: err, Details: invalidDetails}
	}
	return model, model.validate()
}

// nameMax bounds the names of providers and models, in bytes: what the ledger's stores can keep twice in a key.
const nameMax = 400

func (m Model) validate() error {
	for _, name := range []string{m.Provider, m.ID} {
		if !isName(name) {
			return invalid(fmt.Sprintf("a model needs a provider and an id: texts of at most %d bytes", nameMax))
		}
	}
	for _, n := range []*int64{m.ContextTokens, m.OutputTokensMax} {
		if n != nil && (*n < 0 || *n > ledger.TokensMax) {
			return invalid("a model's limits must be within 0 and 2^53 - 1 tokens")
		}
	}
	if len(m.Compat.Residency) > nameMax || !utf8.ValidString(m.Compat.Residency) {
		return invalid("a model's residency is a short text")
	}
	if routing := m.Compat.OpenRouterRouting; len(routing) > 0 && !json.Valid(routing) {
		return invalid("a model's OpenRouter routing is JSON")
	}
	return nil
}

// isName says whether a text can name a provider or a model.
func isName(name string) bool {
	return name != "" && len(name) <= nameMax && utf8.ValidString(name) && !strings.ContainsRune(name, 0)
}
