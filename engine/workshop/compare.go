package workshop

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"regent/engine/policy"
)

// Verdict is what counts of a decision: not the order of its denials, nor their texts.
type Verdict struct {
	Allow bool `json:"allow"`
	// Denials are the rules that refused, each as RULE CODE, in order; a denial that is terminal says so.
	Denials       []string `json:"denials,omitempty"`
	HonourRouting bool     `json:"honour_routing"`
	// Error is why there is no decision, which refuses the call.
	Error string `json:"error,omitempty"`
}

func (v Verdict) String() string {
	switch {
	case v.Error != "":
		return "no decision: " + v.Error
	case v.Allow && v.HonourRouting:
		return "allowed with routing"
	case v.Allow:
		return "allowed"
	}
	return "denied " + strings.Join(v.Denials, ", ")
}

func (v Verdict) equal(other Verdict) bool {
	return v.Allow == other.Allow && v.HonourRouting == other.HonourRouting && v.Error == other.Error && slices.Equal(v.Denials, other.Denials)
}

// VerdictOn is what a policy says of an input document. It fails only if the context ends.
func VerdictOn(ctx context.Context, activation *policy.Activation, input policy.Document) (Verdict, error) {
	decision, err := activation.Decide(ctx, input)
	if gone := ctx.Err(); gone != nil {
		return Verdict{}, gone
	}
	return verdictOf(decision, err), nil
}

func verdictOf(decision policy.Decision, err error) Verdict {
	if err != nil {
		return Verdict{Error: err.Error()}
	}
	verdict := Verdict{Allow: decision.Allow, HonourRouting: decision.HonourRouting}
	for _, denial := range decision.Denials {
		text := denial.Rule + " " + denial.Code
		if denial.Terminal {
			text += " (terminal)"
		}
		verdict.Denials = append(verdict.Denials, text)
	}
	slices.Sort(verdict.Denials)
	return verdict
}

// incomplete says that the entry point refuses the input itself, and no rule was asked.
func (v Verdict) incomplete() bool {
	return slices.ContainsFunc(v.Denials, func(denial string) bool { return strings.HasPrefix(denial, entryRule+" ") })
}

// Difference is an input of which two policies say something else, or that one of them refuses as incomplete.
type Difference struct {
	Where     string  `json:"where"`
	Candidate string  `json:"candidate"`
	Was       Verdict `json:"was"`
	WouldBe   Verdict `json:"would_be"`
	// Incomplete says that a policy has asked none of its rules, so that nothing was compared.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Comparison is what all inputs came to.
type Comparison struct {
	Inputs int `json:"inputs"`
	Differ int `json:"differ"`
	// NowDenied were allowed, NowAllowed were denied; the others that differ are denied by other rules, or pass routing on otherwise.
	NowDenied  int `json:"now_denied"`
	NowAllowed int `json:"now_allowed"`
	// Incomplete are inputs that a policy refuses without asking a rule.
	Incomplete int `json:"incomplete"`
	// Undecided are inputs of which neither policy makes a decision, in the same way.
	Undecided int `json:"undecided"`
	// Others are documents that are no decisions.
	Others int `json:"others"`
	// RecordedOtherwise are judgements of which the record says something else than the old policy says now, and Why so.
	RecordedOtherwise int    `json:"recorded_otherwise"`
	Why               string `json:"recorded_otherwise_why,omitempty"`
	// Unread are documents that cannot be read, and FirstUnread says what is wrong with the first one, and where.
	Unread      int    `json:"unread"`
	FirstUnread string `json:"first_unread,omitempty"`
}

// Compare has two policies judge each input of some files, and reports those of which they say something else, or that they refuse as
// incomplete, as they come. Where it fails with an *[InputError] that counts documents, the comparison is of all others.
func Compare(ctx context.Context, old, changed *policy.Activation, paths []string, report func(Difference) error) (Comparison, error) {
	var comparison Comparison
	counts, err := ReadInputs(paths, func(input Input) error {
		was, err := VerdictOn(ctx, old, input.Document)
		wouldBe, err2 := VerdictOn(ctx, changed, input.Document)
		if err := cmp.Or(err, err2); err != nil {
			return err
		}
		if input.Otherwise(was) {
			comparison.RecordedOtherwise++
			comparison.Why = WhyOtherwise
		}
		difference := Difference{
			Where: input.Where, Candidate: input.Candidate, Was: was, WouldBe: wouldBe, Incomplete: was.incomplete() || wouldBe.incomplete(),
		}
		if comparison.count(difference) {
			return report(difference)
		}
		return nil
	})
	comparison.Inputs, comparison.Others = counts.Inputs, counts.Others
	var unread *InputError
	if errors.As(err, &unread) && unread.Count > 0 {
		comparison.Unread, comparison.FirstUnread = unread.Count, unread.Err.Error()
	}
	return comparison, err
}

// count counts what two policies say of an input, and says whether it is to be reported.
func (c *Comparison) count(d Difference) bool {
	if d.Incomplete {
		c.Incomplete++
	}
	if d.Was.equal(d.WouldBe) {
		if d.Was.Error != "" {
			c.Undecided++
		}
		return d.Incomplete
	}
	c.Differ++
	switch {
	case d.Was.Allow && !d.WouldBe.Allow:
		c.NowDenied++
	case !d.Was.Allow && d.WouldBe.Allow:
		c.NowAllowed++
	}
	return true
}
