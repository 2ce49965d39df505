package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"regent/engine/policy"
	"regent/engine/workshop"
	"regent/policies"
)

type policyInitCmd struct {
	Folder string `arg:"" help:"The folder: empty, or not there yet."`
	Rule   string `default:"weekdays" help:"The name of its rule."`
	asJSON
}

// Run begins a bundle.
func (c policyInitCmd) Run(ctx context.Context, e *environment) error {
	written, err := workshop.Init(ctx, policies.Files(), c.Folder, c.Rule)
	if err != nil {
		return usageError{err}
	}
	if c.JSON {
		return e.document(written)
	}
	for _, path := range written {
		if err := e.printf("%s\n", path); err != nil {
			return err
		}
	}
	return nil
}

type policyCheckCmd struct {
	bundlePaths
	asJSON
}

// checkDocument is what a check has found.
type checkDocument struct {
	Loads    bool               `json:"loads"`
	Problems []problemDocument  `json:"problems"`
	Bundles  []workshop.Summary `json:"bundles"`
}

// Run checks.
func (c policyCheckCmd) Run(ctx context.Context, e *environment) error {
	bench, checked, err := c.check(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		err = e.document(checkDocument{Loads: checked.Loads, Problems: problemDocuments(bench, checked.Problems), Bundles: append([]workshop.Summary{}, checked.Bundles...)})
	} else {
		err = e.printChecked(bench, checked)
	}
	return errors.Join(err, outcomeOf(checked))
}

func (c policyCheckCmd) check(ctx context.Context) (*workshop.Bench, *workshop.Checked, error) {
	bench, err := gather(c.Paths...)
	var refused *policy.LoadError
	switch {
	case errors.As(err, &refused):
		return bench, &workshop.Checked{Problems: refused.Problems}, nil
	case err != nil:
		return nil, nil, err
	}
	checked, err := bench.Check(ctx)
	return bench, checked, err
}

// outcomeOf is how a check ends.
func outcomeOf(checked *workshop.Checked) error {
	switch {
	case !checked.Loads:
		return answered(exitNotLoaded)
	case len(checked.Problems) > 0:
		return answered(exitFailed)
	}
	return nil
}

func (e *environment) printChecked(bench *workshop.Bench, checked *workshop.Checked) error {
	if len(checked.Problems) > 0 {
		return e.tell(bench, checked.Problems, false)
	}
	for _, bundle := range checked.Bundles {
		selection := ""
		if bundle.Selection != "" {
			selection = "selection " + bundle.Selection + ", "
		}
		err := e.printf("%s: %s, %s, %srevision %s\n", bundle.Name, counted(bundle.Rules, "rule"), counted(bundle.Codes, "code"), selection, bundle.Revision)
		if err != nil {
			return err
		}
	}
	return nil
}

// counted is a number with what it counts.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

type policyFmtCmd struct {
	Paths []string `arg:"" name:"path" help:"Folders or .rego files."`
	List  bool     `short:"l" xor:"do" help:"List those that are not formatted, and exit with 0."`
	Write bool     `short:"w" xor:"do" help:"Format them, and list those that changed."`
	asJSON
}

// Run formats, or tells what is not formatted.
func (c policyFmtCmd) Run(e *environment) error {
	all := workshop.Formatted{Changed: []string{}, Broken: []string{}}
	for _, path := range c.Paths {
		found, err := workshop.FormatAt(path, c.Write)
		if err != nil {
			return usageError{err}
		}
		all.Changed, all.Broken = append(all.Changed, found.Changed...), append(all.Broken, found.Broken...)
	}
	if err := e.printFormatted(all, c.JSON); err != nil {
		return err
	}
	switch {
	case len(all.Broken) > 0:
		return answered(exitNotLoaded)
	case len(all.Changed) > 0 && !c.List && !c.Write:
		return answered(exitFailed)
	}
	return nil
}

func (e *environment) printFormatted(found workshop.Formatted, inJSON bool) error {
	if inJSON {
		return e.document(map[string][]string{"changed": found.Changed, "broken": found.Broken})
	}
	for _, line := range slices.Concat(found.Changed, found.Broken) {
		if err := e.printf("%s\n", line); err != nil {
			return err
		}
	}
	return nil
}
