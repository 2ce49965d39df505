package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"regent/engine/workshop"
)

type policyDiffCmd struct {
	Old      string   `arg:"" help:"The bundle before: a folder or a .tar.gz; - is the shipped bundle alone."`
	New      string   `arg:"" help:"The bundle after, likewise."`
	Inputs   []string `arg:"" name:"input" help:"Input documents, decision logs as regent decisions tail prints them, or folders of such."`
	Settings string   `placeholder:"FILE" help:"Settings in JSON that replace those of both, as data.regent.settings has them and regent policy settings prints them."`
	asJSON
}

// Run compares. A difference is printed as soon as it is found, also as JSON: a line each, and the totals in the last one.
func (c policyDiffCmd) Run(ctx context.Context, e *environment) error {
	_, before, err := bundleFlags{Bundles: []string{c.Old}, Settings: c.Settings}.load(ctx, e, c.JSON)
	if err != nil {
		return err
	}
	_, after, err := bundleFlags{Bundles: []string{c.New}, Settings: c.Settings}.load(ctx, e, c.JSON)
	if err != nil {
		return err
	}
	lines := json.NewEncoder(e.stdout)
	total, err := workshop.Compare(ctx, before, after, c.Inputs, func(d workshop.Difference) error {
		if c.JSON {
			return lines.Encode(d)
		}
		return e.printDifference(d)
	})
	if err != nil && total.Unread == 0 {
		return err
	}
	unread := err
	if c.JSON {
		err = lines.Encode(total)
	} else {
		err = e.printComparison(total, c.Old)
	}
	return cmp.Or(err, outcomeOfComparison(total, unread))
}

// outcomeOfComparison is how a comparison ends: what was not compared, because it is no input or a policy asked no rule about it, weighs
// more than what differs.
func outcomeOfComparison(total workshop.Comparison, unread error) error {
	switch {
	case unread != nil && total.Incomplete > 0:
		return usageError{unread}
	case unread != nil:
		return unread
	case total.Incomplete > 0, total.Inputs == 0:
		return answered(exitUsage)
	case total.Differ > 0, total.Undecided > 0:
		return answered(exitFailed)
	}
	return nil
}

func (e *environment) printDifference(d workshop.Difference) error {
	incomplete := ""
	if d.Incomplete {
		incomplete = " (the input is incomplete: no rule was asked; regent policy explain tells what is missing)"
	}
	return e.printf("%s %s: %s -> %s%s\n", d.Where, d.Candidate, d.Was, d.WouldBe, incomplete)
}

func (e *environment) printComparison(total workshop.Comparison, old string) error {
	if old == shippedAlone {
		old = "the shipped bundle"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %s differ: %d now denied, %d now allowed, %d otherwise\n", total.Differ, counted(total.Inputs, "decision"),
		total.NowDenied, total.NowAllowed, total.Differ-total.NowDenied-total.NowAllowed)
	for _, also := range []struct {
		n    int
		text string
	}{
		{total.Incomplete, "incomplete: no rule was asked"},
		{total.Undecided, "without a decision by either"},
		{total.RecordedOtherwise, "recorded otherwise than " + old + " decides now: " + total.Why},
		{total.Unread, "that cannot be read"},
	} {
		if also.n > 0 {
			fmt.Fprintf(&text, "%d %s\n", also.n, also.text)
		}
	}
	if total.Inputs == 0 {
		text.WriteString("there was nothing to compare: no input document and no decision upon a candidate\n")
	}
	return e.printf("%s", text.String())
}
