package main

import (
	"context"
	"errors"
	"fmt"

	"regent/engine/policy"
)

type policyEvalCmd struct {
	Query string `arg:"" optional:"" help:"A query of Rego, for example data.org.rules.weekdays.deny. Without it: the decision."`
	Input string `short:"i" placeholder:"FILE" help:"The input document; - is the standard input. For the decision, each field has to be there, and no other."`
	bundleFlags
}

// Run evaluates.
func (c policyEvalCmd) Run(ctx context.Context, e *environment) error {
	if c.Query == "" && c.Input == "" {
		return usageError{errors.New("a decision needs --input FILE; regent/fixture/fixture_test.rego of the shipped bundle shows one")}
	}
	var text []byte
	if c.Input != "" {
		var err error
		if text, err = readAll(c.Input); err != nil {
			return err
		}
	}
	_, activation, err := c.load(ctx, e, false)
	if err != nil {
		return err
	}
	if c.Query == "" {
		return c.decide(ctx, e, activation, text)
	}
	var input policy.Document
	if c.Input != "" {
		if input, err = policy.ParseDocument(text); err != nil {
			return usageError{fmt.Errorf("%s: %w", c.Input, err)}
		}
	}
	answer, defined, err := activation.Evaluate(ctx, c.Query, input)
	if err != nil {
		return err
	}
	if !defined {
		return fmt.Errorf("%s is undefined", c.Query)
	}
	return e.document(answer)
}

func (c policyEvalCmd) decide(ctx context.Context, e *environment, activation *policy.Activation, text []byte) error {
	facts, err := policy.ParseFacts(text)
	if err != nil {
		return usageError{fmt.Errorf("%s: %w", c.Input, err)}
	}
	decision, err := activation.Decide(ctx, facts.Document())
	if err != nil {
		return err
	}
	return e.document(decision)
}
