package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
)

// Limits are what may be used, by unit. Of a user or a task, a unit without an entry is closed; of whatever many share, it is counted
// and not limited.
type Limits map[ledger.Unit][]ledger.Limit

// limitsEntry are the limits that stand on more than one of a kind.
type limitsEntry struct {
	User    *limitEntry   `yaml:"user"`
	Task    *limitEntry   `yaml:"task"`
	Token   *tokenLimits  `yaml:"token"`
	Tenants []tenantEntry `yaml:"tenants"`
}

type tenantEntry struct {
	ID     string      `yaml:"id"`
	Limits *limitEntry `yaml:"limits"`
}

// limitEntry is what may be used, a unit each.
type limitEntry struct {
	Tokens  unitLimits `yaml:"tokens"`
	USD     unitLimits `yaml:"usd"`
	Credits unitLimits `yaml:"credits"`
}

// unitLimits are the limits of one unit: one, or a list of them, a window each.
type unitLimits []unitLimit

type unitLimit struct {
	Max    string `yaml:"max"`
	Window string `yaml:"window"`
	// Spendable is the percentage of Max that calls may take, Final the one that a further call may. They are whole numbers: YAML
	// would cut the fraction of an integer without a word.
	Spendable *float64 `yaml:"spendable"`
	Final     *float64 `yaml:"final"`
}

// UnmarshalYAML reads one limit or a list. Unknown keys are errors here, too.
func (l *unitLimits) UnmarshalYAML(node *yaml.Node) error {
	entries := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		entries = node.Content
	}
	for _, entry := range entries {
		if entry.Kind == yaml.AliasNode {
			entry = entry.Alias
		}
		for i := 0; entry.Kind == yaml.MappingNode && i+1 < len(entry.Content); i += 2 {
			if key := entry.Content[i]; !slices.Contains([]string{"max", "window", "spendable", "final"}, key.Value) {
				return fmt.Errorf("line %d: field %s not found in type limit", key.Line, key.Value)
			}
		}
		var limit unitLimit
		if err := entry.Decode(&limit); err != nil {
			return err
		}
		*l = append(*l, limit)
	}
	return nil
}

// sharedLimits reads the limits of tasks, tenants and groups.
func (p *parser) sharedLimits() (err error) {
	if p.catalogue.TaskLimits, err = p.limits(p.file.Limits.Task, "limits", "task"); err != nil {
		return err
	}
	for i, entry := range p.file.Limits.Tenants {
		way := []any{"limits", "tenants", i}
		if err := checkNew(p, "tenant", entry.ID, p.catalogue.TenantLimits, way...); err != nil {
			return err
		}
		if p.catalogue.TenantLimits[entry.ID], err = p.limits(entry.Limits, append(way, "limits")...); err != nil {
			return err
		}
	}
	for i, entry := range p.file.Groups {
		if p.catalogue.GroupLimits[entry.ID], err = p.limits(entry.Limits, "groups", i, "limits"); err != nil {
			return err
		}
	}
	return nil
}

// limits reads what may be used; nil if nothing is written.
func (p *parser) limits(entry *limitEntry, way ...any) (Limits, error) {
	if entry == nil {
		return nil, nil
	}
	limits := Limits{}
	for _, unit := range []struct {
		unit   ledger.Unit
		limits unitLimits
		parse  func(string) (int64, error)
	}{{ledger.Tokens, entry.Tokens, parseTokens}, {ledger.USD, entry.USD, ledger.ParseUSD}, {ledger.Credits, entry.Credits, ledger.ParseCredits}} {
		for i, written := range unit.limits {
			at := append(slices.Clone(way), string(unit.unit))
			if len(unit.limits) > 1 {
				at = append(at, i)
			}
			if unit.unit == ledger.Credits && written.Spendable == nil {
				written.Spendable, written.Final = new(float64(creditsSpendable)), cmp.Or(written.Final, new(float64(creditsFinal)))
			}
			limit, field, err := written.limit(unit.parse)
			if err != nil {
				return nil, p.fail(append(at, field), "a limit in %s: %s: %v", unit.unit, field, err)
			}
			if slices.ContainsFunc(limits[unit.unit], func(l ledger.Limit) bool { return l.Window == limit.Window }) {
				return nil, p.fail(append(at, "window"), "a limit in %s: there are two for the window %s", unit.unit, limit.Window)
			}
			if limits[unit.unit] = append(limits[unit.unit], limit); ledger.OneMonth(limits[unit.unit]) != nil {
				return nil, p.fail(append(at, "window"), "a limit in %s: an account counts the months of one time zone", unit.unit)
			}
		}
	}
	return limits, nil
}

// limit reads one limit, or says in which field it is wrong. The window is 24 h from its first use if it is not written.
func (l unitLimit) limit(parse func(string) (int64, error)) (limit ledger.Limit, field string, err error) {
	if limit.Max, err = parse(l.Max); err != nil {
		return limit, "max", err
	}
	window := l.Window
	if window == "" {
		window = "fixed/24h"
	}
	if limit.Window, err = ledger.ParseWindow(window); err != nil {
		return limit, "window", err
	}
	if limit.Window == (ledger.AtOnce{}) { // what was used would count for nothing
		return limit, "window", errors.New("at-once is for the concurrency of tokens alone")
	}
	for _, share := range []struct {
		name    string
		percent *float64
		to      *int64
	}{{"spendable", l.Spendable, &limit.Spendable}, {"final", l.Final, &limit.Final}} {
		if share.percent == nil {
			continue
		}
		percent := int64(*share.percent)
		if float64(percent) != *share.percent || percent < 1 || percent > 100 {
			return limit, share.name, fmt.Errorf("%v must be a whole percentage within 1 and 100", *share.percent)
		}
		if *share.to = percentOf(limit.Max, percent); limit.Max > 0 && *share.to == 0 {
			return limit, share.name, fmt.Errorf("%d %% of %s is less than what can be counted", percent, l.Max)
		}
	}
	if spendable := cmp.Or(limit.Spendable, limit.Max); l.Final != nil && limit.Final < spendable {
		return limit, "final", fmt.Errorf("%v %% must not be less than what is spendable", *l.Final)
	}
	return limit, "", nil
}

const (
	// creditsSpendable and creditsFinal are the percentages of a limit in credits that calls and one further call may take where
	// nothing else is written: what a call takes is known afterwards only, and a person who has used up all of it waits for days.
	creditsSpendable = 95
	creditsFinal     = 96
)

// percentOf rounds down, and does not overflow.
func percentOf(amount, percent int64) int64 { return amount/100*percent + amount%100*percent/100 }

func parseTokens(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n > ledger.TokensMax {
		return 0, fmt.Errorf("%q must be a whole number of at most 2^53 - 1", text)
	}
	return n, nil
}

// narrower is what both the default and a user's own limits allow. A unit that either leaves out stays closed; a window of
// the user's own limits stands besides the default's.
func narrower(byDefault, own Limits) Limits {
	both := Limits{}
	for unit, limits := range own {
		standard, open := byDefault[unit]
		if !open {
			continue
		}
		both[unit] = slices.Clone(standard)
		for _, limit := range limits {
			i := slices.IndexFunc(both[unit], func(l ledger.Limit) bool { return l.Window == limit.Window })
			if i < 0 {
				both[unit] = append(both[unit], limit)
			} else {
				both[unit][i] = both[unit][i].Least(limit)
			}
		}
	}
	return both
}

// counted are limits that many share, with every unit in them: what is not limited is counted all the same.
func (l Limits) counted() Limits {
	all := Limits{}
	for _, unit := range ledger.Units {
		all[unit] = l[unit]
	}
	return all
}

// Scopes are whose accounts a call of a user's stands on, besides those of who serves it: the user's own, and, where they have limits,
// those of the user's groups and tenant, and of the task, if it is one's.
func (c *Catalogue) Scopes(user *User, identity policy.Identity, task string) []engine.Scope {
	scopes := []engine.Scope{{Kind: ledger.ScopeUser, ID: user.ID, Limits: user.Limits}}
	for _, group := range user.Groups {
		if limits := c.GroupLimits[group]; limits != nil {
			scopes = append(scopes, engine.Scope{Kind: ledger.ScopeGroup, ID: group, Limits: limits.counted()})
		}
	}
	if user.Tenant != nil && c.TenantLimits[*user.Tenant] != nil {
		scopes = append(scopes, engine.Scope{Kind: ledger.ScopeTenant, ID: *user.Tenant, Limits: c.TenantLimits[*user.Tenant].counted()})
	}
	if task != "" && c.TaskLimits != nil {
		scopes = append(scopes, engine.Scope{Kind: ledger.ScopeTask, ID: engine.TaskKey(identity, task), Limits: c.TaskLimits})
	}
	return scopes
}

// scopes are the accounts of who serves a call, where they have limits.
func (s *Source) scopes() (scopes []engine.Scope) {
	if s.Limits != nil {
		scopes = append(scopes, engine.Scope{Kind: ledger.ScopeSource, ID: s.ID, Limits: s.Limits.counted()})
	}
	if connection := s.Connection; connection.Limits != nil {
		scopes = append(scopes, engine.Scope{Kind: ledger.ScopeConnection, ID: connection.ID, Limits: connection.Limits.counted()})
	}
	return scopes
}

// Limits are the limits that stand on an account; nil if it has none.
func (c *Catalogue) Limits(account ledger.Account) []ledger.Limit {
	switch account.Scope {
	case ledger.ScopeUser:
		if user := c.Users[account.ID]; user != nil {
			return user.Limits[account.Unit]
		}
	case ledger.ScopeToken:
		return c.tokenLimits(account.ID)[account.Unit]
	case ledger.ScopeTask:
		return c.TaskLimits[account.Unit]
	case ledger.ScopeGroup:
		return c.GroupLimits[account.ID][account.Unit]
	case ledger.ScopeTenant:
		return c.TenantLimits[account.ID][account.Unit]
	case ledger.ScopeConnection:
		if connection := c.Connections[account.ID]; connection != nil {
			return connection.Limits[account.Unit]
		}
	case ledger.ScopeSource:
		if source := c.Sources[account.ID]; source != nil {
			return source.Limits[account.Unit]
		}
	}
	return nil
}

// tokenLimits are the least limits of the tokens that count together under an id: a token that is replaced may have had others.
func (c *Catalogue) tokenLimits(id string) Limits {
	var least Limits
	var concurrency int64
	for _, token := range c.tokens {
		if token.Concurrency > 0 && (concurrency == 0 || token.Concurrency < concurrency) && token.ID() == id {
			least, concurrency = token.limits(), token.Concurrency
		}
	}
	return least
}
