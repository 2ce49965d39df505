package catalog

import (
	"fmt"
	"net/url"
	"time"

	"regent/engine"
	"regent/ledger"
)

const (
	// circuitThreshold failures in a row open a source's circuit for circuitCoolDown, where nothing else is written: about as long as a
	// provider's process takes to start again.
	circuitThreshold = 3
	circuitCoolDown  = 30 * time.Second
)

// ID names the token without telling it. Tokens of one user and one name count together, as one does while it is replaced.
func (t *Token) ID() string { return t.User.ID + "/" + t.Name }

// rateKey names a rate of the token's as its account is named.
func (t *Token) rateKey(window time.Duration) string {
	return ledger.ScopeToken + "/" + url.PathEscape(t.ID()) + "/" + ledger.FormatLength(window)
}

// Scopes are the token's account of the calls that run, if they are limited.
func (t *Token) Scopes() []engine.Scope {
	if t.Concurrency == 0 {
		return nil
	}
	return []engine.Scope{{Kind: ledger.ScopeToken, ID: t.ID(), Limits: t.limits()}}
}

func (t *Token) limits() Limits {
	if t.Concurrency == 0 {
		return nil
	}
	return Limits{ledger.Calls: {{Window: ledger.AtOnce{}, Max: t.Concurrency}}}
}

// tokenLimits sets a token's limits: its own narrow the default. Of two rates with windows of different lengths both count.
func (p *parser) tokenLimits(token *Token, own tokenLimits, way []any) error {
	both := []struct {
		tokenLimits
		way []any
	}{{own, way}}
	if byDefault := p.file.Limits.Token; byDefault != nil {
		both = append(both, both[0])
		both[0].tokenLimits, both[0].way = *byDefault, []any{"limits", "token"}
	}
	for _, limits := range both {
		if err := p.rate(token, limits.Rate, append(limits.way, "rate")); err != nil {
			return err
		}
		if err := p.concurrency(token, limits.Concurrency, append(limits.way, "concurrency")); err != nil {
			return err
		}
	}
	return nil
}

// concurrency sets how many of a token's calls may run at once, or lowers it.
func (p *parser) concurrency(token *Token, entry *number, way []any) error {
	if entry == nil {
		if isEmpty(p.node, way...) {
			return p.fail(way, "concurrency: a number must be written: so many calls may run at once")
		}
		return nil
	}
	n, err := entry.count()
	if err != nil {
		return p.fail(way, "concurrency: %v: so many calls may run at once", err)
	}
	if token.Concurrency == 0 || n < token.Concurrency {
		token.Concurrency = n
	}
	return nil
}

// rate adds a rate to a token's, or narrows the one with the same window.
func (p *parser) rate(token *Token, entry *rateEntry, way []any) error {
	if entry == nil && !isEmpty(p.node, way...) {
		return nil
	}
	if entry == nil || entry.Calls == nil {
		return p.fail(way, "a rate: calls must be written")
	}
	calls, err := entry.Calls.count()
	if err != nil {
		return p.fail(append(way, "calls"), "a rate: calls: %v", err)
	}
	window, err := length(entry.Window, time.Minute)
	if err != nil {
		return p.fail(append(way, "window"), "a rate: window: %v", err)
	}
	rate := ledger.Rate{Key: token.rateKey(window), Max: calls, Window: window}
	for i := range token.Rates {
		if token.Rates[i].Key == rate.Key {
			token.Rates[i].Max = min(token.Rates[i].Max, rate.Max)
			return nil
		}
	}
	token.Rates = append(token.Rates, rate)
	return nil
}

// circuit reads the circuit of a source, which is on unless it is switched off.
func (p *parser) circuit(entry sourceEntry, way []any) (circuit *ledger.Circuit, err error) {
	circuit = &ledger.Circuit{Key: "source/" + entry.ID, Threshold: circuitThreshold, CoolDown: circuitCoolDown}
	written := entry.Circuit
	if written == nil {
		return circuit, nil
	}
	if n := written.Threshold; n != nil {
		if circuit.Threshold, err = n.count(); err != nil {
			return nil, p.fail(append(way, "threshold"), "source %q: threshold: %v: so many failures in a row", entry.ID, err)
		}
	}
	if circuit.CoolDown, err = length(written.CoolDown, circuitCoolDown); err != nil {
		return nil, p.fail(append(way, "cool_down"), "source %q: cool_down: %v", entry.ID, err)
	}
	if !orTrue(written.Enabled) {
		return nil, nil
	}
	return circuit, nil
}

// length reads a length of time, such as 30s.
func length(text string, standard time.Duration) (time.Duration, error) {
	if text == "" {
		return standard, nil
	}
	window, err := ledger.ParseWindow("fixed/" + text)
	if err != nil {
		return 0, fmt.Errorf("%q must be a length such as 30s, 1m or 7d, at most 31 days", text)
	}
	return window.(ledger.Fixed).Length, nil
}
