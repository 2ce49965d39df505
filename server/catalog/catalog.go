// Package catalog holds what an administrator publishes: users and their tokens, groups, connections to providers, models and
// their sources, limits, and the settings of policy. It turns each source of a model into a candidate with facts; it judges
// nothing.
//
// A catalogue is immutable. [Live] holds the current one and replaces it when its file changes.
package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"regent/adapters"
	"regent/engine/policy"
	"regent/ledger"
)

// Feature is what a user or one of their groups must be granted to use inference at all.
const Feature = "feat:ai:use"

// FakeURL as a connection's base URL stands for the built-in provider.
const FakeURL = "builtin:fake"

// sourcesMax bounds the sources of a model, as the router does.
const sourcesMax = 64

// States of a connection, as policy sees them.
const (
	Authorised = "authorised"
	Pending    = "pending" // its credential has not been given yet
)

// Catalogue is everything that is published, as of one reading of its file.
type Catalogue struct {
	// InferenceEnabled is whether inference is on at all.
	InferenceEnabled bool
	Users            map[string]*User
	Models           map[string]*Model
	// ModelIDs are the public ids in the order of the file.
	ModelIDs    []string
	Sources     map[string]*Source
	Connections map[string]*Connection
	// TaskLimits are what one task may use, by unit; nil if tasks have none of their own.
	TaskLimits Limits
	// GroupLimits and TenantLimits are what all users of a group or tenant may use together; nil if they are not counted.
	GroupLimits  map[string]Limits
	TenantLimits map[string]Limits
	// Bundles of policy beside the shipped one, or in its place.
	Bundles []Bundle
	// RequiredRules are the rules without which nothing is decided.
	RequiredRules []string
	// Settings go into policy: the file's own, and who may use what.
	Settings policy.Settings
	Sinks    []Sink

	tokens map[[sha256.Size]byte]*Token
}

// User is somebody who may call inference.
type User struct {
	ID string
	// Tenant is nil for a user of none.
	Tenant *string
	Groups []string
	// Residency is where the user's calls must be served; nil if anywhere.
	Residency *string
	// Limits are what the user may use, by unit. A unit without an entry is closed.
	Limits Limits
}

// Token is one credential of a user.
type Token struct {
	User *User
	Name string
	// Rates are how often calls may be made under it, and Concurrency how many may run at once; 0 is any number.
	Rates       []ledger.Rate
	Concurrency int64
}

// Model is a published model.
type Model struct {
	ID      string
	Enabled bool
	// ContextTokens and OutputTokensMax are nil if unknown.
	ContextTokens   *int64
	OutputTokensMax *int64
	// Modalities beyond text, with the most tokens that one such part can be.
	Modalities map[string]int64
	// Multiplier of credits, which a source may override.
	Multiplier ledger.Multiplier
	Sources    []*Source
}

// Source is a provider's model that serves a published one.
type Source struct {
	ID         string
	Connection *Connection
	// Model is the provider's own name.
	Model     string
	Residency *string
	// Price is nil if it is not known.
	Price *ledger.Price
	// PublishedPrice is the id of the published price that it was taken from; empty if the file has the rates themselves.
	PublishedPrice string
	Enabled        bool
	// Accounting is one of the ways that policy knows.
	Accounting string
	// Multiplier of credits, for a source of a subscription.
	Multiplier ledger.Multiplier
	// Limits are what all calls together may use of the source; nil if they are not counted.
	Limits Limits
	// Circuit stands before it while it fails, whoever calls; nil if none does.
	Circuit *ledger.Circuit
}

// Connection is one account at one provider.
type Connection struct {
	ID       string
	Provider string
	Adapter  string
	// Protocols are those that the provider serves.
	Protocols    []string
	BaseURL      string
	APIVersion   string
	Credential   string `json:"-"`
	AllowPrivate bool
	Enabled      bool
	State        string
	// Limits are what all calls together may use of the connection; nil if they are not counted.
	Limits Limits
}

// Sink is where decision records are shipped to.
type Sink struct {
	Name string
	// File is appended to; empty for standard output.
	File string
}

// Authenticate finds whose token it is: nil if nobody's.
func (c *Catalogue) Authenticate(token string) *Token {
	return c.tokens[sha256.Sum256([]byte(token))]
}

var (
	modelID = regexp.MustCompile(`^[a-z0-9][a-z0-9._:/-]{0,254}$`)
	// plainID is for everything that an administrator names: it fits a URL, a file name and a metric's label.
	plainID  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$`)
	hexHash  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	gwiToken = regexp.MustCompile(`^gwi_[0-9a-f]{64}$`)
)

// ValidModelID says whether a text can be a public model id.
func ValidModelID(text string) bool { return modelID.MatchString(text) }

// ValidToken says whether a text has the form of an inference token.
func ValidToken(text string) bool { return gwiToken.MatchString(text) }

// Parse reads a catalogue. name is the file's, for errors; env looks up variables that the file names. Everything that is
// wrong is an [*Error] with the line. The files of keys that it names are read, too.
func Parse(name string, text []byte, env func(string) (string, bool)) (*Catalogue, error) {
	return parse(name, text, env, readKey)
}

func parse(name string, text []byte, env func(string) (string, bool), read func(string) ([]byte, error)) (*Catalogue, error) {
	f, node, err := decode(name, text)
	if err != nil {
		return nil, err
	}
	p := &parser{
		file: f, name: name, node: node, env: env, read: read,
		catalogue: &Catalogue{
			InferenceEnabled: f.Inference.Enabled,
			Users:            map[string]*User{}, Models: map[string]*Model{}, Connections: map[string]*Connection{},
			Sources: map[string]*Source{}, GroupLimits: map[string]Limits{}, TenantLimits: map[string]Limits{},
			RequiredRules: f.Policy.RequiredRules,
			tokens:        map[[sha256.Size]byte]*Token{},
		},
		groups: map[string]bool{},
	}
	for _, read := range []func() error{p.connections, p.groupsAndLimits, p.users, p.models, p.policyAndDecisions} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	return p.catalogue, nil
}

// parser checks a file part by part and builds the catalogue.
type parser struct {
	file      *file
	name      string
	node      *yaml.Node
	env       func(string) (string, bool)
	read      func(path string) ([]byte, error)
	catalogue *Catalogue
	groups    map[string]bool
}

// fail is an error at a place of the file.
func (p *parser) fail(way []any, format string, args ...any) error {
	return &Error{File: p.name, Line: lineOf(p.node, way...), Message: fmt.Sprintf(format, args...)}
}

// name checks an id that must be well formed and new among its kind.
func checkNew[T any](p *parser, kind, id string, known map[string]T, way ...any) error {
	if !plainID.MatchString(id) {
		return p.fail(append(way, "id"), "%s id %q must match %s", kind, id, plainID)
	}
	if _, twice := known[id]; twice {
		return p.fail(append(way, "id"), "%s %q is defined twice", kind, id)
	}
	return nil
}

// protocols are those that a connection's provider serves.
func (p *parser) protocols(entry connectionEntry, way ...any) ([]string, error) {
	adapter := knownAdapters[entry.Adapter]
	if entry.APIVersion != "" && !adapter.versioned {
		return nil, p.fail(append(way, "api_version"), "connection %q: the adapter %q knows no api_version", entry.ID, entry.Adapter)
	}
	if entry.Protocols == nil {
		return texts(adapter.serves), nil
	}
	for i, name := range entry.Protocols {
		if !slices.Contains(adapter.speaks, adapters.Protocol(name)) || slices.Contains(entry.Protocols[:i], name) {
			return nil, p.fail(append(way, "protocols", i), "connection %q: %q is not one of the protocols of the adapter %q, or stands twice (known: %s)",
				entry.ID, name, entry.Adapter, strings.Join(texts(adapter.speaks), ", "))
		}
	}
	if len(entry.Protocols) == 0 {
		return nil, p.fail(append(way, "protocols"), "connection %q serves no protocol", entry.ID)
	}
	return entry.Protocols, nil
}

func texts(protocols []adapters.Protocol) []string {
	names := make([]string, len(protocols))
	for i, protocol := range protocols {
		names[i] = string(protocol)
	}
	return names
}

func (p *parser) connections() error {
	for i, entry := range p.file.Connections {
		way := []any{"connections", i}
		if err := checkNew(p, "connection", entry.ID, p.catalogue.Connections, way...); err != nil {
			return err
		}
		if !plainID.MatchString(entry.Provider) {
			return p.fail(append(way, "provider"), "connection %q needs a provider, an id that policy knows it by", entry.ID)
		}
		if knownAdapters[entry.Adapter] == nil {
			return p.fail(append(way, "adapter"), "connection %q: unknown adapter %q (known: %s)", entry.ID, entry.Adapter,
				strings.Join(adapterNames(), ", "))
		}
		protocols, err := p.protocols(entry, way...)
		if err != nil {
			return err
		}
		if err := checkBaseURL(entry.BaseURL); err != nil {
			return p.fail(append(way, "base_url"), "connection %q: %v", entry.ID, err)
		}
		limits, err := p.limits(entry.Limits, append(way, "limits")...)
		if err != nil {
			return err
		}
		connection := &Connection{
			ID: entry.ID, Provider: entry.Provider, Adapter: entry.Adapter, Protocols: protocols, BaseURL: entry.BaseURL, APIVersion: entry.APIVersion,
			AllowPrivate: entry.AllowPrivate, Enabled: orTrue(entry.Enabled), State: Authorised, Limits: limits,
		}
		switch variable, fromEnv := strings.CutPrefix(entry.Credential, "env:"); {
		case fromEnv:
			var given bool
			if connection.Credential, given = p.env(variable); !given || connection.Credential == "" {
				connection.State = Pending
			}
		case entry.Credential != "" && entry.Credential != "none":
			return p.fail(append(way, "credential"), "connection %q: a credential must be env:NAME, or none; a secret does not belong into this file", entry.ID)
		}
		p.catalogue.Connections[entry.ID] = connection
	}
	return nil
}

func checkBaseURL(text string) error {
	if text == FakeURL {
		return nil
	}
	base, err := url.Parse(text)
	if err != nil || base.Scheme != "https" && base.Scheme != "http" || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" {
		return fmt.Errorf("base_url must be http(s)://HOST/PATH without user, query and fragment, or %s", FakeURL)
	}
	return nil
}

func orTrue(b *bool) bool { return b == nil || *b }

func (p *parser) groupsAndLimits() error {
	access := &policy.Access{Users: map[string][]string{}, Groups: map[string][]string{}, Models: map[string]policy.ModelAccess{}}
	p.catalogue.Settings = p.file.settings()
	p.catalogue.Settings.Access = access
	for i, entry := range p.file.Groups {
		if err := checkNew(p, "group", entry.ID, p.groups, "groups", i); err != nil {
			return err
		}
		if err := p.checkFeatures(entry.Features, "groups", i, "features"); err != nil {
			return err
		}
		p.groups[entry.ID] = true
		access.Groups[entry.ID] = append([]string{}, entry.Features...)
	}
	for _, connection := range p.catalogue.Connections {
		p.catalogue.Settings.Providers = append(p.catalogue.Settings.Providers, connection.Provider)
	}
	slices.Sort(p.catalogue.Settings.Providers)
	p.catalogue.Settings.Providers = slices.Compact(p.catalogue.Settings.Providers)
	return p.sharedLimits()
}

func (p *parser) checkFeatures(features []string, way ...any) error {
	for _, feature := range features {
		if feature != Feature {
			return p.fail(way, "unknown feature %q (known: %s)", feature, Feature)
		}
	}
	return nil
}

func (p *parser) users() error {
	byDefault, err := p.limits(p.file.Limits.User, "limits", "user")
	if err != nil {
		return err
	}
	if byDefault == nil {
		byDefault = Limits{} // nobody has said what a user may use
	}
	if err := p.tokenLimits(&Token{User: &User{}}, tokenLimits{}, nil); err != nil { // the default is checked, whoever has a token
		return err
	}
	for i, entry := range p.file.Users {
		way := []any{"users", i}
		if err := checkNew(p, "user", entry.ID, p.catalogue.Users, way...); err != nil {
			return err
		}
		for _, group := range entry.Groups {
			if !p.groups[group] {
				return p.fail(append(way, "groups"), "user %q: unknown group %q", entry.ID, group)
			}
		}
		if err := p.checkFeatures(entry.Features, append(way, "features")...); err != nil {
			return err
		}
		if entry.Tenant != "" && !plainID.MatchString(entry.Tenant) {
			return p.fail(append(way, "tenant"), "user %q: a tenant must match %s", entry.ID, plainID)
		}
		user := &User{
			ID: entry.ID, Tenant: orNil(entry.Tenant), Groups: append([]string{}, entry.Groups...), Residency: orNil(entry.Residency),
			Limits: byDefault,
		}
		if entry.Limits != nil {
			own, err := p.limits(entry.Limits, append(way, "limits")...)
			if err != nil {
				return err
			}
			user.Limits = narrower(byDefault, own)
			for unit, limits := range user.Limits {
				if ledger.OneMonth(limits) != nil {
					return p.fail(append(way, "limits", string(unit)), "a limit in %s: the default counts the months of another time zone", unit)
				}
			}
		}
		p.catalogue.Users[entry.ID] = user
		p.catalogue.Settings.Access.Users[entry.ID] = append([]string{}, entry.Features...)
		for j, token := range entry.Tokens {
			if err := p.token(user, token, entry.Disabled, append(way, "tokens", j)); err != nil {
				return err
			}
		}
	}
	return nil
}

// token enters a user's token under its hash. A disabled user's tokens are checked and not entered.
func (p *parser) token(user *User, entry tokenEntry, disabled bool, way []any) error {
	if !plainID.MatchString(entry.Name) {
		return p.fail(append(way, "name"), "user %q: a token needs a name that matches %s", user.ID, plainID)
	}
	var hash [sha256.Size]byte
	token := &Token{User: user, Name: entry.Name}
	if err := p.tokenLimits(token, entry.tokenLimits, way); err != nil {
		return err
	}
	if variable, fromEnv := strings.CutPrefix(entry.Token, "env:"); fromEnv {
		text, given := p.env(variable)
		if !given {
			return nil // offered only where the variable is set
		}
		if !ValidToken(text) {
			return p.fail(append(way, "token"), "user %q: %s must be gwi_ and 64 hex digits", user.ID, variable)
		}
		hash = sha256.Sum256([]byte(text))
	} else {
		if !hexHash.MatchString(entry.Token) {
			return p.fail(append(way, "token"), "user %q: a token is given by its SHA-256 in 64 lower-case hex digits, or as env:NAME", user.ID)
		}
		if _, err := hex.Decode(hash[:], []byte(entry.Token)); err != nil {
			return p.fail(append(way, "token"), "user %q: %v", user.ID, err)
		}
	}
	if other, taken := p.catalogue.tokens[hash]; taken {
		return p.fail(append(way, "token"), "user %q: the token is user %q's already", user.ID, other.User.ID)
	}
	if !disabled {
		p.catalogue.tokens[hash] = token
	}
	return nil
}

func orNil(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func (p *parser) models() error {
	for i, entry := range p.file.Models {
		way := []any{"models", i}
		if !ValidModelID(entry.ID) {
			return p.fail(append(way, "id"), "model id %q must match %s", entry.ID, modelID)
		}
		if p.catalogue.Models[entry.ID] != nil {
			return p.fail(append(way, "id"), "model %q is defined twice", entry.ID)
		}
		for _, bound := range []*int64{entry.ContextTokens, entry.OutputTokensMax} {
			if bound != nil && (*bound <= 0 || *bound > ledger.TokensMax) {
				return p.fail(way, "model %q: context_tokens and output_tokens_max must be above 0", entry.ID)
			}
		}
		for modality, most := range entry.Modalities {
			if !slices.Contains([]string{"image", "audio", "file"}, modality) || most <= 0 || most > ledger.TokensMax {
				return p.fail(append(way, "modalities"), "model %q: modalities are image, audio and file, each with the most tokens that one can be", entry.ID)
			}
		}
		if err := p.access(entry, way); err != nil {
			return err
		}
		model := &Model{
			ID: entry.ID, Enabled: orTrue(entry.Enabled), ContextTokens: entry.ContextTokens, OutputTokensMax: entry.OutputTokensMax,
			Modalities: entry.Modalities, Multiplier: ledger.Once,
		}
		if entry.Multiplier != "" {
			var err error
			if model.Multiplier, err = ledger.ParseMultiplier(entry.Multiplier); err != nil {
				return p.fail(append(way, "multiplier"), "model %q: %v", entry.ID, err)
			}
		}
		if len(entry.Sources) > sourcesMax {
			return p.fail(append(way, "sources"), "model %q has more than %d sources", entry.ID, sourcesMax)
		}
		for j, source := range entry.Sources {
			if err := p.source(model, source, append(way, "sources", j)); err != nil {
				return err
			}
		}
		p.catalogue.Models[model.ID] = model
		p.catalogue.ModelIDs = append(p.catalogue.ModelIDs, model.ID)
	}
	return nil
}

// access enters who may use a model. It must be written: a model without it would be nobody's or everybody's by accident.
func (p *parser) access(entry modelEntry, way []any) error {
	if entry.Access == nil {
		return p.fail(way, "model %q: access must be written: everyone: true, or users and groups", entry.ID)
	}
	for _, group := range entry.Access.Groups {
		if !p.groups[group] {
			return p.fail(append(way, "access"), "model %q: unknown group %q", entry.ID, group)
		}
	}
	for _, user := range entry.Access.Users {
		if p.catalogue.Users[user] == nil {
			return p.fail(append(way, "access"), "model %q: unknown user %q", entry.ID, user)
		}
	}
	p.catalogue.Settings.Access.Models[entry.ID] = policy.ModelAccess{
		Everyone: entry.Access.Everyone, Users: append([]string{}, entry.Access.Users...), Groups: append([]string{}, entry.Access.Groups...),
	}
	return nil
}

func (p *parser) source(model *Model, entry sourceEntry, way []any) error {
	if err := checkNew(p, "source", entry.ID, p.catalogue.Sources, way...); err != nil {
		return err
	}
	connection := p.catalogue.Connections[entry.Connection]
	if connection == nil {
		return p.fail(append(way, "connection"), "source %q: unknown connection %q", entry.ID, entry.Connection)
	}
	if entry.Model == "" {
		return p.fail(append(way, "model"), "source %q needs the provider's name of the model", entry.ID)
	}
	limits, err := p.limits(entry.Limits, append(way, "limits")...)
	if err != nil {
		return err
	}
	source := &Source{
		ID: entry.ID, Connection: connection, Model: entry.Model, Residency: orNil(entry.Residency), Enabled: orTrue(entry.Enabled),
		Limits: limits,
	}
	if err := p.accounting(source, model, entry, way); err != nil {
		return err
	}
	if source.Circuit, err = p.circuit(entry, append(way, "circuit")); err != nil {
		return err
	}
	model.Sources = append(model.Sources, source)
	p.catalogue.Sources[source.ID] = source
	return nil
}

func (p *parser) policyAndDecisions() error {
	if err := p.bundles(); err != nil {
		return err
	}
	if s := p.file.Policy.Settings; s != nil && s.Settlement != nil {
		way := []any{"policy", "settings", "settlement"}
		if !slices.Contains([]string{"estimate", "held"}, s.Settlement.Interrupted) {
			return p.fail(way, "settlement.interrupted must be estimate or held")
		}
		if !slices.Contains([]string{"release", "estimate"}, s.Settlement.AcceptedWithoutOutput) {
			return p.fail(way, "settlement.accepted_without_output must be release or estimate")
		}
		if s.Settlement.DrainMillis < 0 || s.Settlement.DrainMillis > 600_000 {
			return p.fail(way, "settlement.drain_millis must be within 0 and 600000, ten minutes")
		}
	}
	names := map[string]bool{}
	for i, sink := range p.file.Decisions.Sinks {
		way := []any{"decisions", "sinks", i}
		if !plainID.MatchString(sink.Name) || names[sink.Name] || sink.Stdout == (sink.File != "") {
			return p.fail(way, "a sink needs a name of its own, and either a file or stdout: true")
		}
		names[sink.Name] = true
		p.catalogue.Sinks = append(p.catalogue.Sinks, Sink{Name: sink.Name, File: sink.File})
	}
	return nil
}
