package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"time"

	"regent/ledger"
	"regent/server/catalog"
)

type exportCmd struct {
	Month string `required:"" help:"The month, for example 2026-11."`
	Zone  string `default:"UTC" help:"The time zone in which the month begins and ends, for example Europe/Berlin."`
	inJSON
}

// spendingDocument is a line of an export. Its costs are computed at published prices: an estimate of what a provider will bill.
type spendingDocument struct {
	Month      string `json:"month"`
	Zone       string `json:"zone"`
	Connection string `json:"connection"`
	ledger.SpendingKey
	Calls          int64  `json:"calls"`
	EstimatedCalls int64  `json:"estimated_calls"`
	UncachedInput  string `json:"uncached_input"`
	CachedInput    string `json:"cached_input"`
	CacheWrite5m   string `json:"cache_write_5m"`
	CacheWrite1h   string `json:"cache_write_1h"`
	Output         string `json:"output"`
	Reasoning      string `json:"reasoning"`
	Tokens         string `json:"tokens"`
	USDEstimate    string `json:"usd_estimate"`
	Credits        string `json:"credits"`
}

// Run prints a line for each source and model that was charged in the month.
func (c exportCmd) Run(ctx context.Context, e *environment) error {
	from, to, err := c.span()
	if err != nil {
		return err
	}
	catalogue, err := e.catalogue()
	if err != nil {
		return err
	}
	var spendings []ledger.Spending
	err = e.withStore(ctx, func(store ledger.Store) (err error) {
		spendings, err = ledger.Spendings(ctx, store, from, to)
		return err
	})
	if errors.Is(err, ledger.ErrPruned) {
		return fmt.Errorf("%s is not whole any more: %w", c.Month, err)
	}
	if err != nil {
		return err
	}
	documents := make([]spendingDocument, 0, len(spendings))
	for _, spending := range spendings {
		documents = append(documents, c.line(spending, connectionOf(catalogue, spending.Source)))
	}
	if c.JSON {
		return e.document(map[string]any{"spending": documents})
	}
	return e.printSpending(documents)
}

// span is the month, from its first moment to that of the next.
func (c exportCmd) span() (from, to time.Time, err error) {
	if err := (ledger.Month{Zone: c.Zone}).Validate(); err != nil {
		return from, to, err
	}
	zone, err := time.LoadLocation(c.Zone)
	if err != nil {
		return from, to, err
	}
	if from, err = time.ParseInLocation("2006-01", c.Month, zone); err != nil {
		return from, to, fmt.Errorf("%q is no month: want for example 2026-11", c.Month)
	}
	return from, from.AddDate(0, 1, 0), nil
}

// connectionOf is the connection of a source as the catalogue has it now; empty if it is not there any more.
func connectionOf(catalogue *catalog.Catalogue, id string) string {
	if source := catalogue.Sources[id]; source != nil {
		return source.Connection.ID
	}
	return ""
}

func (c exportCmd) line(s ledger.Spending, connection string) spendingDocument {
	text := func(n int64) string { return strconv.FormatInt(n, 10) }
	return spendingDocument{
		Month: c.Month, Zone: c.Zone, Connection: connection, SpendingKey: s.SpendingKey, Calls: s.Calls, EstimatedCalls: s.Estimated,
		UncachedInput: text(s.Usage.UncachedInput), CachedInput: text(s.Usage.CachedInput),
		CacheWrite5m: text(s.Usage.CacheWrite5m), CacheWrite1h: text(s.Usage.CacheWrite1h),
		Output: text(s.Usage.Output), Reasoning: text(s.Usage.Reasoning), Tokens: text(s.Tokens), USDEstimate: ledger.FormatUSD(s.NanoUSD),
		Credits: ledger.FormatCredits(s.NanoCredits),
	}
}

func (e *environment) printSpending(lines []spendingDocument) error {
	out := csv.NewWriter(e.stdout)
	rows := [][]string{{
		"month", "zone", "connection", "provider", "source", "model", "calls", "estimated_calls", "uncached_input", "cached_input",
		"cache_write_5m", "cache_write_1h", "output", "reasoning", "tokens", "usd_estimate", "credits",
	}}
	for _, l := range lines {
		rows = append(rows, []string{
			l.Month, l.Zone, l.Connection, l.Provider, l.Source, l.Model, strconv.FormatInt(l.Calls, 10), strconv.FormatInt(l.EstimatedCalls, 10),
			l.UncachedInput, l.CachedInput, l.CacheWrite5m, l.CacheWrite1h, l.Output, l.Reasoning, l.Tokens, l.USDEstimate, l.Credits,
		})
	}
	return out.WriteAll(rows) // which flushes
}
