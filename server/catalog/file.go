package catalog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"go.yaml.in/yaml/v3"

	"regent/engine/policy"
	"regent/ledger"
)

// fileBytesMax bounds a catalogue file: some hundred times a large one.
const fileBytesMax = 4 << 20

// file is the catalogue as it is written. Its keys are the words of the whole product.
type file struct {
	Inference   inferenceEntry    `yaml:"inference"`
	Connections []connectionEntry `yaml:"connections"`
	Models      []modelEntry      `yaml:"models"`
	Groups      []groupEntry      `yaml:"groups"`
	Users       []userEntry       `yaml:"users"`
	Limits      limitsEntry       `yaml:"limits"`
	Policy      policyEntry       `yaml:"policy"`
	Decisions   decisionsEntry    `yaml:"decisions"`
}

type inferenceEntry struct {
	Enabled bool `yaml:"enabled"`
}

type connectionEntry struct {
	ID         string `yaml:"id"`
	Provider   string `yaml:"provider"`
	Adapter    string `yaml:"adapter"`
	BaseURL    string `yaml:"base_url"`
	Credential string `yaml:"credential"`
	// APIVersion is Azure's. Protocols are those that the provider serves, if the adapter does not know it better.
	APIVersion string   `yaml:"api_version"`
	Protocols  []string `yaml:"protocols"`
	// AllowPrivate accepts an upstream on a private or loopback address.
	AllowPrivate bool        `yaml:"allow_private"`
	Enabled      *bool       `yaml:"enabled"`
	Limits       *limitEntry `yaml:"limits"`
}

type modelEntry struct {
	ID            string `yaml:"id"`
	ContextTokens *int64 `yaml:"context_tokens"`
	// OutputTokensMax bounds the output of one call.
	OutputTokensMax *int64 `yaml:"output_tokens_max"`
	// Modalities beyond text, with the most tokens that one such part can be.
	Modalities map[string]int64 `yaml:"modalities"`
	Access     *accessEntry     `yaml:"access"`
	Enabled    *bool            `yaml:"enabled"`
	// Multiplier of credits, 1 if it is not written.
	Multiplier string        `yaml:"multiplier"`
	Sources    []sourceEntry `yaml:"sources"`
}

type accessEntry struct {
	Everyone bool     `yaml:"everyone"`
	Users    []string `yaml:"users"`
	Groups   []string `yaml:"groups"`
}

type sourceEntry struct {
	ID         string `yaml:"id"`
	Connection string `yaml:"connection"`
	Model      string `yaml:"model"`
	Residency  string `yaml:"residency"`
	// Accounting is api_key (the default), subscription or unmetered.
	Accounting string `yaml:"accounting"`
	// Multiplier of credits, in place of the model's.
	Multiplier string      `yaml:"multiplier"`
	Price      *priceEntry `yaml:"price"`
	Enabled    *bool       `yaml:"enabled"`
	Limits     *limitEntry `yaml:"limits"`
	// Circuit is on if it is not written.
	Circuit *circuitEntry `yaml:"circuit"`
}

// number is a whole number: YAML would cut the fraction of an integer without a word.
type number float64

// count is a number of at least one, or says what is wrong with it.
func (n number) count() (int64, error) {
	count := int64(n)
	if n < 1 || n > ledger.TokensMax || number(count) != n {
		return 0, fmt.Errorf("%s must be a whole number of at least 1 and at most 2^53 - 1", strconv.FormatFloat(float64(n), 'f', -1, 64))
	}
	return count, nil
}

// circuitEntry is how often a source may fail before it is left alone, and for how long.
type circuitEntry struct {
	Enabled   *bool   `yaml:"enabled"`
	Threshold *number `yaml:"threshold"`
	CoolDown  string  `yaml:"cool_down"`
}

// priceEntry is a price in US dollars: per million tokens, and per unit. Published names one of package pricelist, PROVIDER/MODEL,
// in place of the rates; tiers and unit charges written beside it are added to it.
type priceEntry struct {
	Published        string `yaml:"published"`
	ledger.PriceList `yaml:",inline"`
}

type groupEntry struct {
	ID       string      `yaml:"id"`
	Features []string    `yaml:"features"`
	Limits   *limitEntry `yaml:"limits"`
}

type userEntry struct {
	ID        string       `yaml:"id"`
	Tenant    string       `yaml:"tenant"`
	Groups    []string     `yaml:"groups"`
	Features  []string     `yaml:"features"`
	Residency string       `yaml:"residency"`
	Disabled  bool         `yaml:"disabled"`
	Tokens    []tokenEntry `yaml:"tokens"`
	Limits    *limitEntry  `yaml:"limits"`
}

// tokenEntry names a token by its SHA-256 in hex, or by env:NAME, a variable that holds the token itself.
type tokenEntry struct {
	Name        string `yaml:"name"`
	Token       string `yaml:"token"`
	tokenLimits `yaml:",inline"`
}

// tokenLimits are how often calls may be made under a token, and how many may run at once.
type tokenLimits struct {
	Rate        *rateEntry `yaml:"rate"`
	Concurrency *number    `yaml:"concurrency"`
}

// rateEntry is so many calls in a window, a minute if none is written.
type rateEntry struct {
	Calls  *number `yaml:"calls"`
	Window string  `yaml:"window"`
}

type policyEntry struct {
	Keys          []keyEntry     `yaml:"keys"`
	Bundles       []bundleEntry  `yaml:"bundles"`
	RequiredRules []string       `yaml:"required_rules"`
	Settings      *settingsEntry `yaml:"settings"`
}

// keyEntry verifies signatures: the key itself is in the variable of env:NAME, or in a file.
type keyEntry struct {
	ID        string `yaml:"id"`
	Algorithm string `yaml:"algorithm"`
	Key       string `yaml:"key"`
}

// bundleEntry comes from one of Folder, File, URL and OCI.
type bundleEntry struct {
	Name       string        `yaml:"name"`
	Folder     string        `yaml:"folder"`
	File       string        `yaml:"file"`
	URL        string        `yaml:"url"`
	OCI        string        `yaml:"oci"`
	Poll       string        `yaml:"poll"`
	Credential string        `yaml:"credential"`
	PlainHTTP  bool          `yaml:"plain_http"`
	Signing    *signingEntry `yaml:"signing"`
}

type signingEntry struct {
	Key   string `yaml:"key"`
	Scope string `yaml:"scope"`
}

type settingsEntry struct {
	AllowList          *allowListEntry  `yaml:"allow_list"`
	AllowedResidencies *[]string        `yaml:"allowed_residencies"`
	Strict             *bool            `yaml:"strict"`
	OpenRouterRouting  string           `yaml:"openrouter_routing"`
	FallbackOn         *[]string        `yaml:"fallback_on"`
	Settlement         *settlementEntry `yaml:"settlement"`
	Accounting         *accountingEntry `yaml:"accounting"`
}

type accountingEntry struct {
	Unmetered              bool `yaml:"unmetered"`
	MoneyAfterSubscription bool `yaml:"money_after_subscription"`
}

type allowListEntry struct {
	Providers *[]string `yaml:"providers"`
	Models    *[]string `yaml:"models"`
}

type settlementEntry struct {
	Interrupted           string `yaml:"interrupted"`
	DrainMillis           int64  `yaml:"drain_millis"`
	AcceptedWithoutOutput string `yaml:"accepted_without_output"`
}

type decisionsEntry struct {
	Sinks []sinkEntry `yaml:"sinks"`
}

type sinkEntry struct {
	Name   string `yaml:"name"`
	File   string `yaml:"file"`
	Stdout bool   `yaml:"stdout"`
}

// Error is something wrong in a catalogue file, and where.
type Error struct {
	File string
	// Line is 0 where no line is at fault.
	Line    int
	Message string
}

func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Message
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Message)
}

// decode reads strict YAML: one document, no unknown and no repeated keys. The node is the same document, for its lines.
func decode(name string, text []byte) (*file, *yaml.Node, error) {
	if len(text) > fileBytesMax {
		return nil, nil, &Error{File: name, Message: fmt.Sprintf("the file is larger than %d bytes", fileBytesMax)}
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		return nil, nil, yamlError(name, &node, err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	var f file
	if err := decoder.Decode(&f); err != nil {
		return nil, nil, yamlError(name, &node, err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, nil, &Error{File: name, Message: "the file must hold one YAML document"}
	}
	return &f, &node, nil
}

// isEmpty says whether a key is written, on its way from the top, with nothing behind it: YAML reads that as if the key were not there.
func isEmpty(node *yaml.Node, way ...any) bool {
	switch {
	case node.Kind == yaml.DocumentNode && len(node.Content) > 0:
		return isEmpty(node.Content[0], way...)
	case node.Kind == yaml.AliasNode:
		return isEmpty(node.Alias, way...)
	case len(way) == 0:
		return node.ShortTag() == "!!null"
	}
	switch at := way[0].(type) {
	case int:
		return node.Kind == yaml.SequenceNode && at < len(node.Content) && isEmpty(node.Content[at], way[1:]...)
	case string:
		for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == at {
				return isEmpty(node.Content[i+1], way[1:]...)
			}
		}
	}
	return false
}

// lineOf finds the line of a value by its way from the top: keys of mappings and indices of sequences. It is the line of the
// nearest thing on that way that exists.
func lineOf(node *yaml.Node, way ...any) int {
	if node.Kind == yaml.DocumentNode && len(node.Content) > 0 {
		return lineOf(node.Content[0], way...)
	}
	if len(way) == 0 {
		return node.Line
	}
	switch at := way[0].(type) {
	case int:
		if node.Kind == yaml.SequenceNode && at < len(node.Content) {
			return lineOf(node.Content[at], way[1:]...)
		}
	case string:
		for i := 0; node.Kind == yaml.MappingNode && i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == at {
				if len(way) == 1 {
					return node.Content[i].Line
				}
				return lineOf(node.Content[i+1], way[1:]...)
			}
		}
	}
	return node.Line
}

// settings are the policy settings that the file writes; what it leaves out is the bundle's.
func (f *file) settings() policy.Settings {
	var settings policy.Settings
	written := f.Policy.Settings
	if written == nil {
		return settings
	}
	settings.AllowedResidencies = written.AllowedResidencies
	settings.Strict = written.Strict
	settings.OpenRouterRouting = written.OpenRouterRouting
	if list := written.AllowList; list != nil {
		settings.AllowList = &policy.AllowList{Providers: list.Providers, Models: list.Models}
	}
	if written.FallbackOn != nil {
		settings.Fallback = &policy.Fallback{On: *written.FallbackOn}
	}
	if a := written.Accounting; a != nil {
		settings.Accounting = &policy.Accounting{Unmetered: a.Unmetered, MoneyAfterSubscription: a.MoneyAfterSubscription}
	}
	if s := written.Settlement; s != nil {
		settings.Settlement = &policy.Settlement{
			Interrupted: s.Interrupted, DrainMillis: s.DrainMillis, AcceptedWithoutOutput: s.AcceptedWithoutOutput,
		}
	}
	return settings
}
