package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/profiler"
)

// probe asks the loaded rules before anybody relies on them.
func (a *Activation) probe(ctx context.Context, restored bool) error {
	err := a.probeNothing(ctx)
	if err == nil && !restored { // which may be of another version of the program
		err = cmp.Or(a.probeOrdinary(ctx), a.probeSelection(ctx))
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("policy: load: %w", ctx.Err())
	case err != nil:
		return loadError([]Problem{{Text: err.Error()}})
	}
	return nil
}

// probeNothing asks about nothing at all, which must be refused, and learns from the answer how the entry point itself refuses.
func (a *Activation) probeNothing(ctx context.Context) error {
	main, _ := entryPointAt(a.bundles)
	decision, err := a.decide(ctx, &a.decision, ast.NewObject())
	switch {
	case errors.Is(err, ErrUndefined):
		return fmt.Errorf("%s is not defined: is the bundle with root regent missing?", entryPoint)
	case err != nil:
		return fmt.Errorf("%s does not refuse an empty input: %w", entryPoint, err)
	case decision.Allow:
		return fmt.Errorf("%s allows an empty input: its default must refuse", entryPoint)
	}
	codes := make(map[string]bool, len(a.rules))
	for _, rule := range a.rules {
		codes[rule.Code] = true
	}
	for _, denial := range decision.Denials {
		if denial.Rule != mainRule || codes[denial.Code] {
			return fmt.Errorf("%s refuses an empty input as the rule %s with the code %s, not as %s with a code of its own",
				entryPoint, denial.Rule, denial.Code, mainRule)
		}
		main.Name, main.Code, main.Title = denial.Rule, denial.Code, denial.Title
		main.Remedy, main.Terminal = denial.Remedy, denial.Terminal
		codes[main.Code] = true
		a.rules = append(a.rules, main)
	}
	sortRules(a.rules)
	a.declared = make(map[Denial]bool, len(a.rules))
	for _, rule := range a.rules {
		a.declared[rule.denial()] = true
	}
	return nil
}

// probeOrdinary asks about an ordinary call. Any decision will do, and so will one that fails for what this very call is; but none that
// finds the document incomplete, which would be the program's own, and none that takes too long.
func (a *Activation) probeOrdinary(ctx context.Context) error {
	input := ordinary.document()
	decision, err := a.decide(ctx, &a.decision, input)
	if errors.Is(err, ErrLate) { // once more: the machine may have been busy
		decision, err = a.decide(ctx, &a.decision, input)
	}
	switch {
	case errors.Is(err, ErrLate):
		return fmt.Errorf("a decision on an ordinary call takes longer than %v: %s", a.timeLimit, a.slowest(input))
	case err == nil && slices.ContainsFunc(decision.Denials, func(d Denial) bool { return d.Rule == mainRule }):
		return fmt.Errorf("%s finds the facts of a call incomplete that this program gives it: the bundle is for another version of the program",
			entryPoint)
	}
	return ctx.Err()
}

// ordinary is a call as there are many: attempts included, so that their fields are asked for, too.
var ordinary = Facts{
	Now: 1_700_000_000_000_000_000,
	Call: Call{
		Model: "ordinary", Protocol: "openai.chat", Kind: "generation", Stream: true, Modalities: []string{"image"},
		InputTokens: new(int64(1000)), OutputTokensMax: new(int64(500)), TokensBounded: true, CostBounded: true,
	},
	Identity: Identity{User: new("ordinary"), Groups: []string{"ordinary"}},
	Candidate: Candidate{
		Source: "ordinary", Provider: "openai", Model: "ordinary", Enabled: true, Connection: "authorised", Protocols: []string{"openai.chat"},
		Modalities: []string{"image"}, ContextTokens: new(int64(100_000)), OutputTokensMax: new(int64(4000)), Priced: true,
		InputPrice: new(int64(250_000)), OutputPrice: new(int64(2_000_000)), Accounting: ByAPIKey,
	},
	Attempts: []Attempt{{Source: "other", Provider: "openai", Reason: "rate_limited", Accounting: ByAPIKey}},
}

// slowest says where most of a decision's time goes.
func (a *Activation) slowest(input ast.Object) string {
	ctx, cancel := context.WithTimeout(context.Background(), a.timeLimit)
	defer cancel()
	profile := profiler.New()
	_, _, _ = a.Evaluate(ctx, entryPoint, Document{value: input}, profile) // it does not end in time, which is known
	top := profile.ReportTopNResults(1, []string{"total_time_ns"})
	if len(top) == 0 || top[0].Location == nil {
		return "simplify the rules, or look entries up by key instead of going over them"
	}
	place := problemAt(top[0].Location, "look entries up by key instead of going over them")
	return "most of it here: " + place.String()
}
