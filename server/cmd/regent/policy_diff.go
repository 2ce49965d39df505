package main

import (
	"context"
	"encoding/json"

	"regent/engine/workshop"
)

type policyDiffCmd struct {
	Old      string   `arg:"" help:"The bundle before: a folder or a .tar.gz; - is the shipped bundle alone."`
	New      string   `arg:"" help:"The bundle after, likewise."`
	Inputs   []string `arg:"" name:"input" help:"Input documents, decision logs as regent decisions tail prints them, or folders of such."`
	Settings string   `placeholder:"FILE" help:"Settings in JSON that replace those of both, as data.regent.settings has them."`
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
		return e.printf("%s %s: %s -> %s\n", d.Where, d.Candidate, d.Was, d.WouldBe)
	})
	if err != nil {
		return err
	}
	if c.JSON {
		err = lines.Encode(total)
	} else {
		err = e.printComparison(total)
	}
	if err == nil && total.Differ > 0 {
		return answered(exitFailed)
	}
	return err
}

func (e *environment) printComparison(total workshop.Comparison) error {
	err := e.printf("%d of %s differ: %d now denied, %d now allowed, %d otherwise\n", total.Differ, counted(total.Inputs, "decision"),
		total.NowDenied, total.NowAllowed, total.Differ-total.NowDenied-total.NowAllowed)
	if err == nil && total.Undecided > 0 {
		err = e.printf("%d have no decision by either\n", total.Undecided)
	}
	if err == nil && total.Inputs == 0 {
		err = e.printf("there was nothing to compare: no input document and no decision upon a candidate\n")
	}
	return err
}
