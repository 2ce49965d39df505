package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"regent/ledger"
)

type verifyCmd struct{ inJSON }

// Run verifies the books; the gateway may run meanwhile.
func (c verifyCmd) Run(ctx context.Context, e *environment) error {
	var report ledger.Verification
	err := e.withStore(ctx, func(store ledger.Store) (err error) {
		report, err = ledger.Verify(ctx, store)
		return err
	})
	if err != nil {
		return err
	}
	if err := e.printVerification(report, c.JSON); err != nil {
		return err
	}
	if n := len(report.Differences) + report.More; n > 0 {
		return fmt.Errorf("the books differ from the journal in %d places", n)
	}
	return nil
}

func (e *environment) printVerification(report ledger.Verification, inJSON bool) error {
	if inJSON {
		return e.document(report)
	}
	for _, difference := range report.Differences {
		if _, err := fmt.Fprintln(e.stdout, difference); err != nil {
			return err
		}
	}
	found := "no difference"
	if n := len(report.Differences) + report.More; n > 0 {
		found = fmt.Sprintf("%d differences", n)
	}
	_, err := fmt.Fprintf(e.stdout, "%d records in %d streams, %d accounts, %d charges, %d calls, %d holds, %d of them live: %s\n",
		report.Records, report.Streams, report.Accounts, report.Charges, report.Calls, report.Holds, report.Live, found)
	return err
}

type pruneCmd struct {
	OlderThan   string   `required:"" help:"The age from which on records go, for example 90d. No less than 32d."`
	Yes         bool     `help:"Do it. Without this, it is only counted what would go."`
	Reason      string   `help:"Why. It is recorded; by default, the age is."`
	WithoutSink []string `help:"A sink that is gone for good: what it has not read may go."`
	person
	inJSON
}

// pruneDocument is what was pruned, or would be.
type pruneDocument struct {
	DryRun  bool      `json:"dry_run"`
	Before  time.Time `json:"before"`
	Records int64     `json:"records"`
	Calls   int64     `json:"calls"`
	Holds   int64     `json:"holds"`
	Charges int64     `json:"charges"`
	// Activations are policies that no record names any more.
	Activations int `json:"activations"`
	// SinksBehind keep what they have not read.
	SinksBehind []string `json:"sinks_behind"`
}

// Run prunes, or counts what would go.
func (c pruneCmd) Run(ctx context.Context, e *environment) error {
	age, err := parseAge(c.OlderThan)
	if err != nil {
		return err
	}
	catalogue, err := e.catalogue()
	if err != nil {
		return err
	}
	pruning := ledger.Pruning{Reason: c.Reason, OlderThan: age, Gone: c.WithoutSink, DryRun: !c.Yes}
	if pruning.Reason == "" {
		pruning.Reason = "older than " + c.OlderThan
	}
	if pruning.Actor, err = c.name(); err != nil {
		return err
	}
	for _, sink := range catalogue.Sinks {
		pruning.Sinks = append(pruning.Sinks, sink.Name)
	}
	var report ledger.PruneReport
	err = e.withLedger(ctx, func(l *ledger.Ledger) (err error) {
		report, err = l.Prune(ctx, pruning)
		return err
	})
	if err != nil {
		return err
	}
	return e.printPruned(pruneDocument{
		DryRun: pruning.DryRun, Before: report.Before, Records: report.Records, Calls: report.Calls, Holds: report.Holds,
		Charges: report.Charges, Activations: report.Activations, SinksBehind: append([]string{}, report.Behind...),
	}, c.JSON)
}

func (e *environment) printPruned(d pruneDocument, inJSON bool) error {
	if inJSON {
		return e.document(d)
	}
	did, then := "pruned", ""
	if d.DryRun {
		did, then = "would prune", " (--yes does it)"
	}
	_, err := fmt.Fprintf(e.stdout, "%s what is older than %s: %d records, %d calls, %d holds, %d charges, %d activations%s\n",
		did, d.Before.Format(time.RFC3339), d.Records, d.Calls, d.Holds, d.Charges, d.Activations, then)
	if err == nil && len(d.SinksBehind) > 0 {
		_, err = fmt.Fprintf(e.stdout, "more could go, but these sinks have not read it: %s\n", strings.Join(d.SinksBehind, ", "))
	}
	return err
}

// ageMax bounds an age: a journal is not older than a hundred years.
const ageMax = 100 * 365 * 24 * time.Hour

// parseAge reads days, such as 90d, or what Go calls a duration.
func parseAge(text string) (time.Duration, error) {
	age, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 64)
		age = time.Duration(min(n, uint64(ageMax/(24*time.Hour)))) * 24 * time.Hour
	}
	if err != nil || age <= 0 {
		return 0, fmt.Errorf("%q is no age: want for example 90d", text)
	}
	return min(age, ageMax), nil
}
