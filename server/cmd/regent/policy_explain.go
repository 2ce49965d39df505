package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/google/uuid"

	"regent/engine"
	"regent/engine/decisions"
	"regent/engine/policy"
	"regent/engine/workshop"
	"regent/ledger"
)

type policyExplainCmd struct {
	What      string `arg:"" name:"file|decision-id" help:"An input document or a decision log; or the id of a recorded decision, which is read from the gateway's database."`
	Candidate string `placeholder:"SOURCE" help:"Only the candidate of this source."`
	Full      bool   `help:"Also the rules that did not deny, with the first expression that was not true, and OPA's own trace."`
	bundleFlags
	asJSON
}

// explainDocument is an explanation with what it explains.
type explainDocument struct {
	Where     string `json:"where"`
	Candidate string `json:"candidate"`
	// Recorded is how the candidate fared; absent if it is no record's.
	Recorded *decisions.Candidate `json:"recorded,omitempty"`
	*workshop.Explanation
}

// Run explains. Bundles that are named explain a recorded decision in place of those that decided.
func (c policyExplainCmd) Run(ctx context.Context, e *environment) error {
	_, missing := os.Stat(c.What)
	if id, err := uuid.Parse(c.What); err == nil && errors.Is(missing, fs.ErrNotExist) {
		return c.explainRecorded(ctx, e, id)
	}
	bench, activation, err := c.load(ctx, e, c.JSON)
	if err != nil {
		return err
	}
	explained := 0
	_, err = workshop.ReadInputs([]string{c.What}, func(input workshop.Input) error {
		if c.Candidate != "" && input.Candidate != c.Candidate {
			return nil
		}
		explained++
		return c.explain(ctx, e, bench, activation, input)
	})
	if err != nil {
		return err
	}
	return c.found(explained)
}

// explainRecorded explains each judgement of a decision's records.
func (c policyExplainCmd) explainRecorded(ctx context.Context, e *environment, id uuid.UUID) error {
	return e.withStore(ctx, func(store ledger.Store) error {
		records, err := store.CallRecords(ctx, id)
		if err != nil {
			return err
		}
		if len(records) == 0 {
			return fmt.Errorf("no record of decision %s", id)
		}
		judge := &judges{command: c, store: store, kept: map[string]*policy.Activation{}}
		explained := 0
		for _, record := range records {
			if record.Kind != ledger.DecisionRecord {
				continue
			}
			inputs, err := workshop.InputsOf(record.Body, "decision")
			if err != nil {
				return err
			}
			for _, input := range inputs {
				if c.Candidate != "" && input.Candidate != c.Candidate {
					continue
				}
				explained++
				if err := judge.explain(ctx, e, input); err != nil {
					return err
				}
			}
		}
		return c.found(explained)
	})
}

func (c policyExplainCmd) found(explained int) error {
	switch {
	case explained > 0:
		return nil
	case c.Candidate != "":
		return fmt.Errorf("policy judged no candidate %s in %s", c.Candidate, c.What)
	}
	return fmt.Errorf("policy judged no candidate in %s", c.What)
}

// judges are the policies that recorded decisions are explained by: those that decided, or the one that was named.
type judges struct {
	command policyExplainCmd
	store   ledger.Store
	bench   *workshop.Bench
	kept    map[string]*policy.Activation // by digest, or under named
}

// named stands for the digest where bundles or settings are named.
const named = "named"

func (j *judges) explain(ctx context.Context, e *environment, input workshop.Input) error {
	digest := input.Activation
	if len(j.command.Bundles) > 0 || j.command.Settings != "" {
		digest = named
	}
	activation := j.kept[digest]
	if activation == nil {
		var err error
		if digest == named {
			j.bench, activation, err = j.command.load(ctx, e, j.command.JSON)
		} else {
			activation, err = archived(ctx, j.store, digest)
		}
		if err != nil {
			return err
		}
		j.kept[digest] = activation
	}
	return j.command.explain(ctx, e, j.bench, activation, input)
}

func (c policyExplainCmd) explain(ctx context.Context, e *environment, bench *workshop.Bench, activation *policy.Activation, input workshop.Input) error {
	explanation, err := workshop.Explain(ctx, activation, input.Document, c.Full)
	if err != nil {
		return err
	}
	if c.JSON {
		return e.document(explainDocument{Where: input.Where, Candidate: input.Candidate, Recorded: input.Recorded, Explanation: explanation})
	}
	if bench == nil {
		bench = &workshop.Bench{}
	}
	p := &explanationPrinter{bench: bench}
	p.explanation(input, explanation)
	return e.printf("%s", p.text.String())
}

// explanationPrinter writes explanations for persons.
type explanationPrinter struct {
	bench *workshop.Bench
	text  strings.Builder
}

// line writes a line, indented by so many steps.
func (p *explanationPrinter) line(depth int, format string, args ...any) {
	fmt.Fprintf(&p.text, strings.Repeat("  ", depth)+format+"\n", args...)
}

func (p *explanationPrinter) explanation(input workshop.Input, explanation *workshop.Explanation) {
	p.line(0, "%s %s: %s", input.Where, input.Candidate, explanation.Verdict)
	if input.Recorded != nil {
		p.recorded(input, explanation.Verdict)
	}
	for _, ground := range explanation.Denials {
		p.line(1, "%s %s: %s", ground.Rule, ground.Code, ground.Title)
		p.line(2, "remedy: %s", ground.Remedy)
		p.line(2, "%s", p.bench.Place(ground.Bundle, ground.File, ground.Line))
		p.steps(ground.Steps)
	}
	if len(explanation.Passed) > 0 {
		p.line(1, "did not deny:")
	}
	for _, ground := range explanation.Passed {
		p.line(1, "%s %s  %s", ground.Rule, ground.Code, p.bench.Place(ground.Bundle, ground.File, ground.Line))
		p.steps(ground.Steps)
	}
	if explanation.Trace != "" {
		p.line(1, "trace:")
		p.text.WriteString(explanation.Trace)
	}
}

// recorded says how the candidate fared, where that does not follow from what policy says now.
func (p *explanationPrinter) recorded(input workshop.Input, verdict workshop.Verdict) {
	fared := input.Recorded
	switch denials := input.RecordedDenials(); {
	case !slices.Equal(denials, verdict.Denials):
		p.line(1, "the record says otherwise: %s %s: another policy decided, or other settings", fared.Outcome, strings.Join(denials, ", "))
	case verdict.Allow && fared.Outcome != engine.Selected:
		p.line(1, "policy allowed it; yet it ended so: %s %s", fared.Outcome, fared.Reason)
	}
}

func (p *explanationPrinter) steps(steps []workshop.Step) {
	for _, step := range steps {
		p.step(3, step)
	}
}

func (p *explanationPrinter) step(depth int, step workshop.Step) {
	not := ""
	if !step.Held {
		not = "not true: "
	}
	p.line(depth, "line %d: %s%s", step.Line, not, step.Text)
	for _, read := range step.Reads {
		p.line(depth+1, "%s = %s", read.Name, read.Value)
	}
	for _, asked := range step.Asked {
		place := p.bench.Place(asked.Bundle, asked.File, asked.Line)
		if asked.Held {
			p.line(depth+1, "%s holds  %s", asked.Name, place)
			continue
		}
		p.line(depth+1, "%s does not hold  %s", asked.Name, place)
		if asked.Failed != nil {
			p.step(depth+2, *asked.Failed)
		}
	}
}
