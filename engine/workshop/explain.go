package workshop

import (
	"bytes"
	"context"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/lineage"

	"regent/engine/policy"
)

// Explanation is why a policy says what it says of an input document.
type Explanation struct {
	Verdict Verdict `json:"verdict"`
	// Denials are the grounds of a refusal.
	Denials []Ground `json:"denials"`
	// Passed are the grounds on which it was not refused; only if all was asked for.
	Passed []Ground `json:"passed,omitempty"`
	// Trace is OPA's own, a line each step; only if all was asked for.
	Trace string `json:"trace,omitempty"`
}

// Ground is one `deny`, and where its evaluation led.
type Ground struct {
	Rule     string `json:"rule"`
	Code     string `json:"code"`
	Title    string `json:"title"`
	Remedy   string `json:"remedy"`
	Terminal bool   `json:"terminal"`
	Bundle   string `json:"bundle"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	// Steps are the expressions of its body: all of them if it denies, since all held; else the first one that did not. None if it was
	// not asked.
	Steps []Step `json:"steps"`
}

// Step is one expression of a rule's body.
type Step struct {
	Line int `json:"line"`
	// Text is the expression as it is written, in one line.
	Text string `json:"text"`
	Held bool   `json:"held"`
	// Reads are the values of what it reads.
	Reads []Read `json:"reads,omitempty"`
	// Asked are the rules that it asks, with where they end.
	Asked []Asked `json:"asked,omitempty"`
}

// Read is a reference or a variable, and its value.
type Read struct {
	Name string `json:"name"`
	// Value as JSON or as Rego writes it, cut if it is long; "undefined" if there is none.
	Value string `json:"value"`
}

// Asked is a rule that an expression asks.
type Asked struct {
	Name   string `json:"name"`
	Bundle string `json:"bundle"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	Held   bool   `json:"held"`
	// Failed is the first expression of it that did not hold; nil if it held.
	Failed *Step `json:"failed,omitempty"`
}

// Explain says why the policy decides as it does upon an input. all adds the grounds on which it did not refuse, and OPA's trace.
func Explain(ctx context.Context, activation *policy.Activation, input policy.Document, all bool) (*Explanation, error) {
	decision, undecided := activation.Decide(ctx, input)
	events := topdown.NewBufferTracer()
	failure := activation.Trace(ctx, input, events)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	explanation := &Explanation{Verdict: verdictOf(decision, undecided), Denials: []Ground{}}
	if failure != nil && undecided == nil {
		return nil, failure
	}
	t := readTrace(ctx, activation, input, *events)
	denied := map[string]bool{}
	for _, denial := range decision.Denials {
		denied[denial.Code] = true
	}
	for _, rule := range activation.Rules() {
		switch ground := t.ground(rule, denied[rule.Code]); {
		case denied[rule.Code]:
			explanation.Denials = append(explanation.Denials, ground)
		case all:
			explanation.Passed = append(explanation.Passed, ground)
		}
	}
	if all {
		var text bytes.Buffer
		topdown.PrettyTraceWithLocation(&text, lineage.Full(*events))
		explanation.Trace = text.String()
	}
	return explanation, nil
}

// ground leads a rule's evaluation down to its lines. The entry point itself refuses because something in its body did not hold.
func (t *trace) ground(rule policy.Rule, denied bool) Ground {
	ground := Ground{
		Rule: rule.Name, Code: rule.Code, Title: rule.Title, Remedy: rule.Remedy, Terminal: rule.Terminal,
		Bundle: rule.Bundle, File: rule.File, Line: rule.Line, Steps: []Step{},
	}
	isEntryPoint := rule.Name == entryRule
	for _, frame := range t.frames {
		switch {
		case isEntryPoint && denied && frame.name() == entryPoint && !frame.rule.Default && !frame.held():
			ground.Steps = t.failedStep(frame, maxAsked)
			return ground
		case isEntryPoint || !frame.isAt(rule):
		case denied && frame.held():
			ground.Steps = t.heldSteps(frame)
			return ground
		case !denied && !frame.held():
			ground.Steps = t.failedStep(frame, maxAsked)
			return ground
		}
	}
	return ground
}

// The entry point, and the name of the rule that it refuses by itself as: what it refuses so is incomplete, and no rule was asked.
const (
	entryPoint = "data.regent.main.decision"
	entryRule  = "main"
)

func (f *frame) isAt(rule policy.Rule) bool {
	place := f.rule.Loc()
	return place != nil && place.Row == rule.Line && place.File == rule.Bundle+"/"+rule.File
}

func (t *trace) heldSteps(f *frame) []Step {
	steps := []Step{}
	for _, part := range f.parts() {
		steps = append(steps, t.step(f, part, f.exit, true, maxAsked))
	}
	return steps
}

// failedStep is the expression that the evaluation did not get beyond; of several tries with other values, that of the furthest.
func (t *trace) failedStep(f *frame, deep int) []Step {
	parts := f.parts()
	for i := len(parts) - 1; i >= 0; i-- {
		for _, expr := range parts[i].exprs {
			if event := f.failed[expr.Index]; event != nil {
				return []Step{t.step(f, parts[i], event, false, deep)}
			}
		}
	}
	return []Step{}
}

// maxAsked is how deep rules that rules ask are led down: deeper is for OPA's trace.
const maxAsked = 4

func (t *trace) step(f *frame, part part, at *topdown.Event, held bool, deep int) Step {
	step := Step{Line: part.line, Text: oneLine(part.text), Held: held}
	seen := map[string]bool{}
	for _, expr := range part.exprs {
		for _, read := range t.reads(f, expr, at) {
			if !seen[read.Name] {
				seen[read.Name] = true
				step.Reads = append(step.Reads, read)
			}
		}
	}
	if deep > 0 {
		step.Asked = t.asked(f, part, deep-1)
	}
	return step
}

// asked are the rules that a part of a body asks, where they are first answered.
func (t *trace) asked(f *frame, part part, deep int) (asked []Asked) {
	for _, name := range part.rules() {
		for _, answered := range t.answers(f, name) {
			place := answered.rule.Loc()
			bundle, file, _ := strings.Cut(place.File, "/")
			one := Asked{Name: shortName(name, f.rule), Bundle: bundle, File: file, Line: place.Row, Held: answered.held()}
			if steps := t.failedStep(answered, deep); !one.Held && len(steps) > 0 {
				one.Failed = &steps[0]
			}
			asked = append(asked, one)
		}
	}
	return asked
}

// shortName leaves out the package of whoever reads.
func shortName(name string, reader *ast.Rule) string {
	if short, within := strings.CutPrefix(name, reader.Module.Package.Path.String()+"."); within {
		return short
	}
	return name
}

// maxShown bounds what is shown of an expression or a value, in letters: a line or two.
const maxShown = 160

func oneLine(text string) string { return cut(strings.Join(strings.Fields(text), " ")) }

func cut(text string) string {
	letters := []rune(text)
	if len(letters) > maxShown {
		return string(letters[:maxShown]) + "…"
	}
	return text
}
