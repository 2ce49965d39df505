package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"

	"regent/engine/policy"
	"regent/policies"
)

const policyStage = "policy"

// What is measured of policy.
const (
	trivial    = "trivial"    // the least that a query of OPA costs: allow := true
	cold       = "cold"       // a decision of the shipped bundle, made afresh, of a call with one candidate
	remembered = "remembered" // the same again
	steady     = "steady"     // calls through the gateway
	swapping   = "swapping"   // the same while its policy is exchanged
)

// policies measures what a decision costs, and what calls feel of an exchange of the policy.
func (b *bench) policies() error {
	decisions, err := newDecisions()
	if err != nil {
		return err
	}
	for round := range b.rounds {
		for name, decide := range decisions.timed {
			took, err := timeOf(decide)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			b.samples = append(b.samples, sample{Stage: policyStage, Target: name, Round: round, Values: values{"ns": took}})
		}
	}
	b.samples = append(b.samples, sample{Stage: policyStage, Target: regent, Values: decisions.counted()})
	return b.exchanges()
}

// decisions are what one decision does, by name.
type decisions struct {
	timed    map[string]func() error
	few, all func() error // with 5 and with 1,000 models on the allow-list
}

func newDecisions() (*decisions, error) {
	query, err := rego.New(rego.Module("trivial.rego", "package trivial\n\nallow := true\n"), rego.Query("data.trivial.allow")).
		PrepareForEval(context.Background())
	if err != nil {
		return nil, err
	}
	empty := ast.NewObject()
	d := &decisions{timed: map[string]func() error{trivial: func() error {
		results, err := query.Eval(context.Background(), rego.EvalParsedInput(empty))
		if err == nil && len(results) != 1 {
			err = errors.New("it has no result")
		}
		return err
	}}}
	for name, to := range map[string]struct {
		decide     func(func() error)
		models     int
		remembered int
	}{
		cold:       {func(f func() error) { d.timed[cold] = f }, 0, -1},
		remembered: {func(f func() error) { d.timed[remembered] = f }, 0, 0},
		"few":      {func(f func() error) { d.few = f }, 5, -1},
		"all":      {func(f func() error) { d.all = f }, 1000, -1},
	} {
		decide, err := decision(to.models, to.remembered)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		to.decide(decide)
	}
	return d, nil
}

// decision decides an ordinary call, with so many models on the allow-list, of which the last one is its own; 0 is no allow-list.
func decision(models, remembered int) (func() error, error) {
	settings := policy.Settings{}
	if models > 0 {
		list := make([]string, models)
		for i := range list {
			list[i] = fmt.Sprintf("openai/model-%d", i)
		}
		list[models-1] = "openai/gpt-large"
		settings.AllowList = &policy.AllowList{Models: &list}
	}
	activation, err := policy.Load(context.Background(), policy.Source{
		Bundles: []policy.Bundle{{Name: "regent", FS: policies.Files(), Tested: true}}, Settings: settings, Remembered: remembered,
	})
	if err != nil {
		return nil, err
	}
	user, residency, size := "ada", "eu", int64(4096)
	call := policy.Call{Model: "large", Protocol: "openai.chat", Kind: "generation", InputTokens: &size, OutputTokensMax: &size, TokensBounded: true, CostBounded: true}
	identity := policy.Identity{User: &user, Groups: []string{"staff", "research", "board"}}
	candidate := policy.Candidate{
		Source: "source", Provider: "openai", Model: "gpt-large", Residency: &residency, Enabled: true, Connection: "authorised",
		Protocols: []string{"openai.chat"}, ContextTokens: &size, OutputTokensMax: &size, Priced: true, InputPrice: &size, OutputPrice: &size,
		Accounting: policy.ByAPIKey,
	}
	now := time.Now()
	return func() error {
		now = now.Add(time.Millisecond) // no call comes at the time of another
		decision, err := activation.Judge(now, call, identity).Decide(context.Background(), candidate, nil)
		if err == nil && !decision.Allow {
			err = fmt.Errorf("it is denied: %v", decision.Denials)
		}
		return err
	}, nil
}

// timeOf is the time of one of many, in nanoseconds.
func timeOf(do func() error) (float64, error) {
	const span = 200 * time.Millisecond // long enough that a collection of garbage is in every sample
	if err := do(); err != nil {
		return 0, err
	}
	began, n := time.Now(), 0
	for ; time.Since(began) < span; n++ {
		if err := do(); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(began).Nanoseconds()) / float64(n), nil
}

// counted are allocations, which are exact.
func (d *decisions) counted() values {
	count := func(do func() error) float64 { return testing.AllocsPerRun(200, func() { _ = do() }) } // it was seen to do well
	return values{"trivial": count(d.timed[trivial]), "cold": count(d.timed[cold]), "remembered": count(d.timed[remembered]), "few": count(d.few), "all": count(d.all)}
}

// exchanges measures calls of 16 clients while the policy stays, and while a changed catalogue exchanges it some times a second.
func (b *bench) exchanges() error {
	t, err := b.openRegent(regent, catalogueText, b.regent)
	if err != nil {
		return err
	}
	defer b.stop(t)
	if err := callFor(t, 16, time.Second).err; err != nil {
		return err
	}
	for round := range b.rounds {
		for _, target := range []string{steady, swapping} {
			stop := func() int { return 0 }
			if target == swapping {
				if stop, err = exchange(filepath.Join(t.data, "catalogue.yaml")); err != nil {
					return err
				}
			}
			c := callFor(t, 16, 2*b.dur)
			exchanged := stop()
			if c.err != nil || c.refused > 0 || len(c.latencies) == 0 {
				return fmt.Errorf("%s: %d failed, %d were refused: %w", target, c.failed, c.refused, errors.Join(c.err, c.refusal))
			}
			v := values{"p99": quantile(c.latencies, .99), "failed": float64(c.failed + c.refused), "exchanged": float64(exchanged)}
			b.samples = append(b.samples, sample{Stage: policyStage, Target: target, Round: round, Values: v})
		}
	}
	return nil
}

// exchange rewrites a catalogue, so that its policy is another one each time, until it is stopped, and tells how often it did.
func exchange(file string) (stop func() int, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	write := func(text string) bool {
		return os.WriteFile(file+".next", []byte(text), 0o600) == nil && os.Rename(file+".next", file) == nil
	}
	done, counted := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		tick := time.NewTicker(300 * time.Millisecond) // a catalogue is looked at four times a second
		defer tick.Stop()
		for {
			select {
			case <-done:
				write(string(text)) // as it was, for the next round
				counted <- n
				return
			case <-tick.C:
				settings := fmt.Sprintf("policy:\n  settings: {allow_list: {providers: [mock, other-%d]}}\n", time.Now().UnixNano())
				if write(strings.Replace(string(text), "policy:\n", settings, 1)) {
					n++
				}
			}
		}
	}()
	return func() int { close(done); return <-counted }, nil
}

// judgePolicy holds what was measured of policy against its targets.
func (b *bench) judgePolicy() []judgement {
	if len(b.all(policyStage, regent, "")) == 0 {
		return nil
	}
	toTrivial := func(name string) float64 { return b.of(policyStage, name, "ns") / b.of(policyStage, trivial, "ns") }
	return []judgement{
		atMost(15, "a decision made afresh, to a trivial query", toTrivial(cold)),
		atMost(550, "its allocations", b.of(policyStage, regent, "cold")),
		atMost(1.02, "allocations with 1,000 models on the allow-list to those with 5", b.of(policyStage, regent, "all")/b.of(policyStage, regent, "few")),
		atMost(0.25, "a remembered decision, to a trivial query", toTrivial(remembered)),
		atMost(3, "p99 of calls while the policy is exchanged, to that while it stays", b.of(policyStage, swapping, "p99")/b.of(policyStage, steady, "p99")),
		atMost(0, "calls that fail meanwhile", b.of(policyStage, swapping, "failed")),
	}
}

func (b *bench) reportPolicy(w *tabwriter.Writer) {
	if len(b.all(policyStage, regent, "")) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w, "policy\t\tµs\tallocations\t")
	for _, name := range []string{trivial, cold, remembered} {
		_, _ = fmt.Fprintf(w, "\t%s\t%.2f\t%.0f\t\n", name, b.of(policyStage, name, "ns")/1e3, b.of(policyStage, regent, name))
	}
	_, _ = fmt.Fprintln(w, "calls of 16 clients\t\tp99 ms\texchanges\t")
	for _, name := range []string{steady, swapping} {
		_, _ = fmt.Fprintf(w, "\t%s\t%.2f\t%.0f\t\n", name, b.of(policyStage, name, "p99")/1e3, b.of(policyStage, name, "exchanged"))
	}
	_, _ = fmt.Fprintln(w)
}
