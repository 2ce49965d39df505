package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
	// RecordedOtherwise says that the record says something else than the verdict.
	RecordedOtherwise bool `json:"recorded_otherwise,omitempty"`
	*workshop.Explanation
}

// Run explains. Bundles that are named explain a recorded decision in place of those that decided.
func (c policyExplainCmd) Run(ctx context.Context, e *environment) error {
	x := &explaining{policyExplainCmd: c, e: e}
	if _, err := os.Stat(c.What); errors.Is(err, fs.ErrNotExist) {
		id, err := uuid.Parse(c.What)
		if err != nil {
			return usageError{fmt.Errorf("%q is neither a file nor a decision id", c.What)}
		}
		return e.withStore(ctx, func(store ledger.Store) error { return x.recorded(ctx, store, id) })
	}
	bench, activation, err := c.load(ctx, e, c.JSON)
	if err != nil {
		return err
	}
	_, unread := workshop.ReadInputs([]string{c.What}, func(input workshop.Input) error {
		return x.explain(ctx, input, func(string) (*workshop.Bench, *policy.Activation, error) { return bench, activation, nil })
	})
	return cmp.Or(unread, x.end())
}

// explaining is one run of the command.
type explaining struct {
	policyExplainCmd
	e *environment
	// explained judgements, and among them undecided ones: policy makes no decision on them.
	explained, undecided int
}

// recorded explains each judgement of a decision's records. One that cannot be read keeps none of the others from it.
func (x *explaining) recorded(ctx context.Context, store ledger.Store, id uuid.UUID) error {
	records, err := store.CallRecords(ctx, id)
	if err != nil {
		return err
	}
	if len(records) == 0 {
		return fmt.Errorf("no record of decision %s", id)
	}
	judge := &judges{command: x, store: store, kept: map[string]*policy.Activation{}}
	var unread error
	for _, record := range records {
		if record.Kind != ledger.DecisionRecord {
			continue
		}
		inputs, err := workshop.InputsOf(record.Body, "decision")
		if err != nil {
			unread = cmp.Or(unread, fmt.Errorf("record %d of %s: %w", record.Number, record.Writer, err))
		}
		for _, input := range inputs {
			if err := x.explain(ctx, input, func(digest string) (*workshop.Bench, *policy.Activation, error) { return judge.by(ctx, digest) }); err != nil {
				return err
			}
		}
	}
	return cmp.Or(unread, x.end())
}

// end is how the command ends: what was asked has to be there, and policy has to make a decision on it.
func (x *explaining) end() error {
	switch {
	case x.undecided > 0:
		return answered(exitFailed)
	case x.explained > 0:
		return nil
	case x.Candidate != "":
		return fmt.Errorf("policy judged no candidate %s in %s", x.Candidate, x.What)
	}
	return fmt.Errorf("policy judged no candidate in %s", x.What)
}

// judges are the policies that recorded decisions are explained by: those that decided, or the one that was named.
type judges struct {
	command *explaining
	store   ledger.Store
	bench   *workshop.Bench               // of what was named
	kept    map[string]*policy.Activation // by digest, or under named
}

// named stands for the digest where bundles or settings are named.
const named = "named"

// by is the policy of a digest, or the one that was named, with the bench on which its bundles lie, nil if there is none.
func (j *judges) by(ctx context.Context, digest string) (*workshop.Bench, *policy.Activation, error) {
	if len(j.command.Bundles) > 0 || j.command.Settings != "" {
		digest = named
	}
	if activation := j.kept[digest]; activation != nil {
		return j.bench, activation, nil
	}
	var activation *policy.Activation
	var err error
	if digest == named {
		j.bench, activation, err = j.command.load(ctx, j.command.e, j.command.JSON)
	} else {
		activation, err = archived(ctx, j.store, digest)
	}
	if err != nil {
		return nil, nil, err
	}
	j.kept[digest] = activation
	return j.bench, activation, nil
}

// explain explains an input, if it is of the candidate that is asked for, by the policy of its digest.
func (x *explaining) explain(ctx context.Context, input workshop.Input, by func(digest string) (*workshop.Bench, *policy.Activation, error)) error {
	if x.Candidate != "" && input.Candidate != x.Candidate {
		return nil
	}
	bench, activation, err := by(input.Activation)
	if err != nil {
		return err
	}
	explanation, err := workshop.Explain(ctx, activation, input.Document, x.Full)
	if err != nil {
		return err
	}
	x.explained++
	if explanation.Verdict.Error != "" {
		x.undecided++
	}
	if x.JSON {
		return x.e.document(explainDocument{
			Where: input.Where, Candidate: input.Candidate, Recorded: input.Recorded, RecordedOtherwise: input.Otherwise(explanation.Verdict), Explanation: explanation,
		})
	}
	if bench == nil {
		bench = &workshop.Bench{}
	}
	p := &explanationPrinter{bench: bench}
	p.explanation(input, explanation)
	return x.e.printf("%s", p.text.String())
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
	switch fared := input.Recorded; {
	case input.Otherwise(verdict):
		p.line(1, "the record says otherwise: %s: %s", ended(fared.Outcome, cmp.Or(strings.Join(input.RecordedDenials(), ", "), fared.Reason)), workshop.WhyOtherwise)
	case verdict.Allow && fared.Outcome != engine.Selected:
		p.line(1, "policy allowed it; yet it ended so: %s", ended(fared.Outcome, fared.Reason))
	}
}

// ended is how a candidate fared, with why, if that is told.
func ended(outcome, why string) string { return strings.TrimSpace(outcome + " " + why) }

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
