package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"regent/adapters"
	"regent/engine/decisions"
	"regent/engine/policy"
	"regent/ledger"
)

// costLatency makes one that cannot be refused.
func costLatency(t testing.TB, weight float64) *CostLatency {
	t.Helper()
	s, err := NewCostLatency(weight)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// observed tells a selection of a success of the provider "fake".
func (s *CostLatency) observed(model string, latency time.Duration) {
	s.Observe(Observation{Provider: "fake", Model: model, Success: true, Latency: &latency})
}

// ranked are the models of candidates in a selection's order.
func ranked(t testing.TB, s Selection, request *Request) string {
	t.Helper()
	order, err := s.Rank(time.Unix(0, 0), request)
	if err != nil {
		t.Fatal(err)
	}
	var models []string
	for _, place := range order {
		models = append(models, request.Candidates[place].Model)
	}
	return strings.Join(models, " ")
}

// catalogued is a request for models of these costs, named a, b, c and so on.
func catalogued(costs ...*Cost) *Request {
	request := &Request{}
	for i, cost := range costs {
		request.Candidates = append(request.Candidates, modelOf(string(rune('a'+i)), cost).Candidate())
	}
	return request
}

func TestCostLatencyRanksByPrice(t *testing.T) {
	s := costLatency(t, DefaultLatencyWeight)
	cached := func(cost *Cost, read float64) *Cost { cost.CacheRead = &read; return cost }
	for name, test := range map[string]struct {
		request *Request
		want    string
	}{
		"the sum of input and output":          {catalogued(perMillion(3, 1), perMillion(1, 2), perMillion(1, 4)), "b a c"},
		"and of cached input, where listed":    {catalogued(cached(perMillion(1, 2), 0.5), perMillion(1, 2), cached(perMillion(1, 2), 0.1)), "b c a"},
		"in one unit":                          {catalogued(perMillion(2, 2), &Cost{Input: usd(1e-6), Output: usd(1e-6)}, &Cost{Input: usd(1), Output: usd(2), Unit: "1 million"}), "b c a"},
		"whatever names a million":             {catalogued(perMillion(2, 2), &Cost{Input: usd(1), Output: usd(1), Unit: "USD/MillionTokens"}), "b a"},
		"what is free is the cheapest":         {catalogued(perMillion(1, 1), perMillion(0, 0)), "b a"},
		"without a price last, as given":       {catalogued(nil, &Cost{Input: usd(1)}, perMillion(9, 9), &Cost{Output: usd(0)}, perMillion(1, 1)), "e c a b d"},
		"with what is no amount last":          {catalogued(perMillion(-1, 1), perMillion(math.NaN(), 1), perMillion(1, math.Inf(1)), cached(perMillion(1, 1), -1), perMillion(5, 5)), "e a b c d"},
		"ties as given":                        {catalogued(perMillion(1, 2), perMillion(2, 1), perMillion(1.5, 1.5)), "a b c"},
		"nothing":                              {catalogued(), ""},
		"by the price of who made it directly": {&Request{Candidates: []Candidate{unitPriced("a", 5), directly("b", ledger.Rates{UncachedInput: 1, Output: 1, CachedInput: 2}), unitPriced("c", -1), directly("d", ledger.Rates{Reasoning: -1}), unitPriced("e", 0)}}, "e b a c d"},
		"however dear":                         {&Request{Candidates: []Candidate{directly("a", ledger.Rates{UncachedInput: math.MaxInt64, Output: math.MaxInt64, CachedInput: math.MaxInt64}), unitPriced("b", math.MaxInt64)}}, "b a"},
	} {
		if got := ranked(t, s, test.request); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// unitPriced and directly are candidates that no catalogue made.
func unitPriced(model string, price int64) Candidate {
	return Candidate{Candidate: policy.Candidate{Provider: "fake", Model: model}, UnitPrice: &price}
}

func directly(model string, rates ledger.Rates) Candidate {
	return Candidate{Candidate: policy.Candidate{Provider: "fake", Model: model}, Price: &ledger.Price{Rates: rates}}
}

func TestCostLatencyBreaksTiesByLatency(t *testing.T) {
	s := costLatency(t, DefaultLatencyWeight)
	request := catalogued(perMillion(1, 1), perMillion(1, 1), perMillion(1, 1), perMillion(0, 1), nil, nil)
	want := func(order string) {
		t.Helper()
		if got := ranked(t, s, request); got != order {
			t.Fatalf("got %q, want %q", got, order)
		}
	}
	want("d a b c e f")
	s.observed("c", time.Hour)
	want("d c a b e f") // one with a sample, however slow, before those without
	s.observed("b", time.Minute)
	want("d b c a e f")
	s.observed("a", time.Minute)
	want("d a b c e f")
	for _, o := range []Observation{
		{Provider: "fake", Model: "c", Latency: new(time.Duration)},                               // a failure is no sample
		{Provider: "fake", Model: "c", Success: true},                                             // nobody measured it
		{Provider: "fake", Model: "c", Success: true, Latency: new(-time.Hour)},                   // nor can it be
		{Provider: "other", Model: "c", Success: true, Latency: new(time.Duration)},               // of another provider
		{Provider: "fake", Model: "f", Success: true, Latency: new(time.Duration)},                // without a price
		{Provider: "fake", Model: "d", Success: true, Latency: new(time.Duration(math.MaxInt64))}, // the cheapest, however slow
	} {
		s.Observe(o)
		want("d a b c e f")
	}
	s.observed("b", 58*time.Second) // 0.5 x 58 s + 0.5 x 60 s
	want("d b a c e f")
	s.observed("a", 57*time.Second)
	want("d a b c e f")
}

func TestTheWeightOfTheLatestLatency(t *testing.T) {
	for weight, want := range map[float64]float64{0: 100, 0.25: 0.25*40 + 0.75*(0.25*20+0.75*100), 0.5: 50, 1: 40} {
		s := costLatency(t, weight)
		for _, latency := range []time.Duration{100, 20, 40} {
			s.observed("a", latency)
		}
		if got := s.rankOf(&catalogued(perMillion(1, 1)).Candidates[0]).latency; got != want {
			t.Errorf("%v: got %v, want %v", weight, got, want)
		}
	}
	if DefaultLatencyWeight != 0.5 {
		t.Errorf("the default is %v", DefaultLatencyWeight)
	}
	for _, weight := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, -math.SmallestNonzeroFloat64, math.Nextafter(1, 2), 2} {
		var refusal *Error
		if _, err := NewCostLatency(weight); !errors.As(err, &refusal) || refusal.Code != CodeValidation {
			t.Errorf("%v: got %v, want VALIDATION", weight, err)
		}
	}
}

// TestLatenciesAreBounded: who was heard of longest ago is forgotten.
func TestLatenciesAreBounded(t *testing.T) {
	s := costLatency(t, 1)
	request := catalogued(perMillion(1, 1), perMillion(1, 1))
	s.observed("b", time.Second)
	for i := range latenciesMax - 1 {
		s.observed(fmt.Sprint("other ", i), time.Second)
	}
	if got := ranked(t, s, request); got != "b a" {
		t.Errorf("among %d: %s", latenciesMax, got)
	}
	s.observed("one more", time.Second)
	if got := ranked(t, s, request); got != "a b" || s.latencies.Len() != latenciesMax {
		t.Errorf("with one more: %s, and %d are remembered", got, s.latencies.Len())
	}
}

// TestCostLatencyIsASort: a permutation, by the stated tuple, that is the same each time and leaves what has no price as it was given.
func TestCostLatencyIsASort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		weight := rapid.OneOf(rapid.SampledFrom([]float64{0, 0.5, 1}), rapid.Float64Range(0, 1)).Draw(t, "weight")
		s, err := NewCostLatency(weight)
		if err != nil {
			t.Fatal(err)
		}
		averages := map[string]float64{} // the reference
		names := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(0, 20).Draw(t, "observations") {
			name, latency := names.Draw(t, "model"), time.Duration(rapid.Int64Range(-1, 5).Draw(t, "latency"))*time.Second
			success := rapid.Bool().Draw(t, "success")
			s.Observe(Observation{Provider: "fake", Model: name, Success: success, Latency: &latency})
			if !success || latency < 0 {
				continue
			}
			if average, sampled := averages[name]; sampled {
				averages[name] = weight*float64(latency) + (1-weight)*average
			} else {
				averages[name] = float64(latency)
			}
		}
		request := &Request{}
		few := rapid.Ptr(rapid.SampledFrom([]float64{0, 1, 2, 3, -1, math.NaN()}), true)
		for range rapid.IntRange(0, 8).Draw(t, "candidates") {
			cost := &Cost{Input: few.Draw(t, "input"), Output: few.Draw(t, "output"), CacheRead: few.Draw(t, "cache read"), Unit: PerMillion}
			request.Candidates = append(request.Candidates, modelOf(names.Draw(t, "name"), cost).Candidate())
		}
		order, err := s.Rank(time.Time{}, request)
		if err != nil {
			t.Fatal(err)
		}
		again, err := s.Rank(time.Unix(1, 0), request)
		if err != nil || !slices.Equal(order, again) {
			t.Fatalf("ranked %v, and then %v, %v", order, again, err)
		}
		wantPermutation(t, order, len(request.Candidates))
		for i := 1; i < len(order); i++ {
			a, b := order[i-1], order[i]
			before := compareKeys(keyOf(averages, &request.Candidates[a]), keyOf(averages, &request.Candidates[b]))
			if before > 0 || before == 0 && a > b {
				t.Fatalf("%v: %d stands before %d", order, a, b)
			}
		}
	})
}

func wantPermutation(t rapid.TB, order []int, n int) {
	t.Helper()
	sorted := slices.Sorted(slices.Values(order))
	for i := range sorted {
		if sorted[i] != i {
			t.Fatalf("%v is no permutation of %d places", order, n)
		}
	}
	if len(sorted) != n {
		t.Fatalf("%v is no permutation of %d places", order, n)
	}
}

// keyOf is what a candidate is to be ranked by, as numbers of which the least is first: unpriced, price, without a sample, latency.
func keyOf(averages map[string]float64, candidate *Candidate) [4]float64 {
	if candidate.UnitPrice == nil {
		return [4]float64{1}
	}
	average, sampled := averages[candidate.Model]
	if !sampled {
		return [4]float64{0, float64(*candidate.UnitPrice), 1}
	}
	return [4]float64{0, float64(*candidate.UnitPrice), 0, average}
}

func compareKeys(a, b [4]float64) int { return slices.Compare(a[:], b[:]) }

// source is a candidate with so much left of its quota; nil is not known.
func source(name string, left *int64) Candidate {
	return Candidate{Candidate: policy.Candidate{Source: name, Provider: "fake", Model: name}, QuotaLeft: left}
}

func TestBalancedWithoutASession(t *testing.T) {
	now := time.Unix(1000, 0)
	cooling := func(c Candidate, until time.Duration) Candidate {
		c.CoolingUntil = policy.Nanos(now.Add(until))
		return c
	}
	for name, test := range map[string]struct {
		candidates []Candidate
		want       []int
	}{
		"the most left first":                 {[]Candidate{source("a", number(10)), source("b", number(30)), source("c", number(20))}, []int{1, 2, 0}},
		"equal ones as given":                 {[]Candidate{source("c", number(10)), source("b", number(10)), source("a", number(10))}, []int{0, 1, 2}},
		"not known is a whole one":            {[]Candidate{source("a", number(QuotaWhole-1)), source("b", nil), source("c", number(QuotaWhole))}, []int{1, 2, 0}},
		"what cools down after what does not": {[]Candidate{cooling(source("a", nil), time.Microsecond), source("b", number(1)), cooling(source("c", nil), 0), cooling(source("d", nil), -1)}, []int{2, 3, 1, 0}},
		"what is used up last, cooling or not": {[]Candidate{source("a", number(0)), cooling(source("b", number(5)), time.Hour), source("c", number(-3)), source("d", number(1)),
			cooling(source("e", number(0)), time.Hour), cooling(source("f", number(7)), time.Hour)}, []int{3, 5, 1, 0, 2, 4}},
	} {
		got, err := Balanced{}.Rank(now, &Request{Candidates: test.candidates})
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, test.want)
		}
	}
}

// TestBalancedSharesByQuota: over many sessions each source gets its part of what is left.
func TestBalancedSharesByQuota(t *testing.T) {
	const sessions = 20_000
	lefts := map[string]int64{"a": 100_000, "b": 200_000, "c": 700_000, "d": 0}
	request := &Request{Candidates: []Candidate{source("a", number(100_000)), source("b", number(200_000)), source("c", number(700_000)), source("d", number(0))}}
	first := map[string]int{}
	for i := range sessions {
		request.Session = fmt.Sprintf("session-%d", i)
		models := strings.Split(ranked(t, Balanced{}, request), " ")
		if first[models[0]]++; models[3] != "d" {
			t.Fatalf("%s: what is used up is not last: %v", request.Session, models)
		}
	}
	for model, left := range lefts {
		share, want := float64(first[model])/sessions, float64(left)/1_000_000
		if math.Abs(share-want) > 0.015 { // more than four standard deviations
			t.Errorf("%s got %.3f of the sessions, want %.3f", model, share, want)
		}
	}
}

// TestBalancedStays: the same for the same facts, in whatever order they come; and who goes moves nobody else's sessions.
func TestBalancedStays(t *testing.T) {
	now := time.Unix(1000, 0)
	rapid.Check(t, func(t *rapid.T) {
		request := &Request{Session: rapid.StringN(1, 20, -1).Draw(t, "session")}
		for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z]{1,6}`), 1, 8, rapid.ID).Draw(t, "sources") {
			c := source(name, rapid.Ptr(rapid.Int64Range(-1, QuotaWhole), true).Draw(t, "left"))
			c.CoolingUntil = rapid.SampledFrom([]int64{0, policy.Nanos(now.Add(time.Minute))}).Draw(t, "cooling")
			request.Candidates = append(request.Candidates, c)
		}
		names := func(candidates []Candidate) (names []string) {
			order, err := Balanced{}.Rank(now, &Request{Session: request.Session, Candidates: candidates})
			if err != nil {
				t.Fatal(err)
			}
			wantPermutation(t, order, len(candidates))
			for _, place := range order {
				names = append(names, candidates[place].Source)
			}
			return names
		}
		whole := names(request.Candidates)
		if shuffled := names(rapid.Permutation(request.Candidates).Draw(t, "shuffled")); !slices.Equal(shuffled, whole) {
			t.Fatalf("got %v, and in another order %v", whole, shuffled)
		}
		groups := make([]int, len(whole))
		for i, name := range whole {
			place := slices.IndexFunc(request.Candidates, func(c Candidate) bool { return c.Source == name })
			groups[i] = balancedRankOf(now, request.Session, &request.Candidates[place]).group
		}
		if !slices.IsSorted(groups) {
			t.Fatalf("%v are of the groups %v", whole, groups)
		}
		gone := rapid.IntRange(0, len(request.Candidates)-1).Draw(t, "gone")
		left := slices.Delete(slices.Clone(request.Candidates), gone, gone+1)
		want := slices.DeleteFunc(slices.Clone(whole), func(name string) bool { return name == request.Candidates[gone].Source })
		if got := names(left); !slices.Equal(got, want) {
			t.Fatalf("without %q: got %v, want %v", request.Candidates[gone].Source, got, want)
		}
	})
}

// TestADrawIsNeitherEnd: its logarithm is a number below 0 always.
func TestADrawIsNeitherEnd(t *testing.T) {
	for _, bits := range []uint64{0, 1, 1 << 11, 1 << 12, 1 << 63, math.MaxUint64 - 1<<12, math.MaxUint64} {
		if got := between(bits); !(got > 0 && got < 1) {
			t.Errorf("%x: got %v", bits, got)
		}
	}
}

// ranking is a host's selection that ranks as it is told.
type ranking struct {
	rank func(request *Request) ([]int, error)
	// observe is told of outcomes. Optional.
	observe func(Observation)
}

func (ranking) Name() string { return "scripted" }

func (s ranking) Rank(_ time.Time, request *Request) ([]int, error) { return s.rank(request) }

func (s ranking) Observe(o Observation) {
	if s.observe != nil {
		s.observe(o)
	}
}

// reversed ranks from the last to the first.
func reversed(request *Request) (order []int, err error) {
	for i := range request.Candidates {
		order = append(order, len(request.Candidates)-1-i)
	}
	return order, nil
}

// as is a selection that always says the same.
func as(order ...int) func(*Request) ([]int, error) {
	return func(*Request) ([]int, error) { return order, nil }
}

func selecting(s Selection) func(*Config, *policy.Settings) {
	return func(c *Config, _ *policy.Settings) { c.Selection = s }
}

// TestAHostsSelectionThatIsNoPermutationRefuses: whatever else it does, the resolver is asked for nobody.
func TestAHostsSelectionThatIsNoPermutationRefuses(t *testing.T) {
	for name, rank := range map[string]func(*Request) ([]int, error){
		"adds":         as(0, 1, 2),
		"drops":        as(1),
		"nothing":      as(),
		"duplicates":   as(1, 1),
		"below":        as(-1, 0),
		"out of range": as(0, 2),
		"far out":      as(0, math.MaxInt),
		"an error":     func(*Request) ([]int, error) { return []int{0, 1}, errors.New("secret") },
		"panics":       func(*Request) ([]int, error) { panic("secret") },
		"panics at":    func(r *Request) ([]int, error) { return []int{int(r.Candidates[2].CoolingUntil)}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, selecting(ranking{rank: rank}))
			request := hosted("one", "two")
			refusal := b.refused(request, CodePolicy, ReasonSelectionFailed)
			if len(b.resolved) != 0 || len(refusal.Diagnostics.Attempts) != 0 || refusal.Diagnostics.Selection != "scripted" || refusal.Diagnostics.Outcome != "deny" {
				t.Errorf("resolved %v, diagnostics %+v", b.resolved, refusal.Diagnostics)
			}
			if strings.Contains(refusal.Error(), "secret") || len(b.diagnostics) != 1 {
				t.Errorf("told %v, %d times", refusal, len(b.diagnostics))
			}
			err := b.router.Serve(ctx, called(1000, "one", "two"), nil)
			wantRefusal(t, err, CodePolicy, ClassPolicy, ReasonSelectionFailed, 0)
		})
	}
}

// TestAHostsSelectionRanks: its name is in diagnostics and records, and no name is without one.
func TestAHostsSelectionRanks(t *testing.T) {
	for name, selection := range map[string]Selection{"scripted": ranking{rank: reversed}, "": nil} {
		b := newBench(t, selecting(selection))
		request := called(1000, "one", "two", "three")
		resolution, err := b.router.Resolve(ctx, request)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"scripted": "three", "": "one"}[name]
		if resolution.Candidate.Source != want || resolution.Diagnostics.Selection != name {
			t.Errorf("%q: selected %s by %q", name, resolution.Candidate.Source, resolution.Diagnostics.Selection)
		}
		records, err := b.ledger.Store().CallRecords(ctx, request.ID)
		if err != nil || len(records) == 0 {
			t.Fatal(records, err)
		}
		var event struct {
			Input  decisions.Input  `json:"input"`
			Result decisions.Result `json:"result"`
		}
		if err := json.Unmarshal(records[0].Body, &event); err != nil {
			t.Fatal(err)
		}
		if event.Result.Selection != name || event.Input.Candidates[0].Source != "one" || event.Result.Candidates[0].Source != want {
			t.Errorf("%q: recorded %s", name, records[0].Body)
		}
		if written := strings.Contains(string(records[0].Body), `"selection"`); written != (name != "") {
			t.Errorf("%q: recorded %s", name, records[0].Body)
		}
	}
}

// TestThePolicysSelectionWins: the host's is not asked, and is not named; but it hears of outcomes.
func TestThePolicysSelectionWins(t *testing.T) {
	b := rankedBy(t, cheapestFirst)
	heard := 0
	b.router.Selection = ranking{
		rank:    func(*Request) ([]int, error) { t.Error("the host's selection was asked"); return nil, nil },
		observe: func(Observation) { heard++ },
	}
	resolution, err := b.router.Resolve(ctx, priced(300, 100, 200))
	if err != nil || resolution.Candidate.Source != "b" || resolution.Diagnostics.Selection != "org.selection" {
		t.Fatalf("%+v, %v", resolution, err)
	}
	if err := b.router.RecordOutcome(ctx, OutcomeReport{Provider: "fake", Model: "b", Success: true}); err != nil || heard != 1 {
		t.Errorf("it heard of %d outcomes, %v", heard, err)
	}
}

// TestASelectionHearsOfOutcomes: of a host's own attempts by its reports, of others by themselves.
func TestASelectionHearsOfOutcomes(t *testing.T) {
	var heard []Observation
	b := newBench(t, selecting(ranking{rank: reversed, observe: func(o Observation) { heard = append(heard, o) }}))
	for _, report := range []OutcomeReport{
		{Provider: "fake", Model: "one", Success: true, Latency: new(3 * time.Second)}, {Provider: "fake", Model: "two"},
	} {
		if err := b.router.RecordOutcome(ctx, report); err != nil {
			t.Fatal(err)
		}
	}
	for _, report := range []OutcomeReport{{Provider: "fake", Model: "one", Latency: new(-time.Second)}, {Provider: "fake"}, {Model: "one"}} {
		var refusal *Error
		if err := b.router.RecordOutcome(ctx, report); !errors.As(err, &refusal) || refusal.Code != CodeValidation {
			t.Errorf("%+v: got %v, want VALIDATION", report, err)
		}
	}
	if len(heard) != 2 || heard[0].Provider != "fake" || heard[0].Model != "one" || !heard[0].Success || value(heard[0].Latency) != 3*time.Second ||
		heard[1].Model != "two" || heard[1].Success || heard[1].Latency != nil {
		t.Fatalf("heard of %+v", heard)
	}
	heard = nil
	outcomes := map[string]Outcome{"three": failure(adapters.UpstreamError), "two": failure(adapters.RateLimited), "one": served}
	if _, err := b.serve(called(1000, "one", "two", "three"), outcomes); err != nil {
		t.Fatal(err)
	}
	if len(heard) != 2 || heard[0].Model != "three" || heard[0].Success || heard[1].Model != "one" || !heard[1].Success || value(heard[1].Latency) <= 0 {
		t.Errorf("heard of %+v; a rate limit is no outcome", heard)
	}
}

// TestAPanicInAnObserverHarmsNothing: the outcome counts all the same.
func TestAPanicInAnObserverHarmsNothing(t *testing.T) {
	b := newBench(t, func(c *Config, _ *policy.Settings) {
		c.Selection = ranking{rank: reversed, observe: func(Observation) { panic("a fault") }}
		c.Circuit = &Circuit{Threshold: 1}
	})
	if contacted, err := b.serve(called(1000, "one"), map[string]Outcome{"one": served}); err != nil || len(contacted) != 1 {
		t.Errorf("contacted %v, %v", contacted, err)
	}
	request := hosted("one")
	if err := b.router.RecordOutcome(ctx, OutcomeReport{Identity: request.Identity, Provider: "fake", Model: "one"}); err != nil {
		t.Error(err)
	}
	b.refused(request, CodeCircuit, ReasonCircuitOpen)
}

// TestTheCheapestIsTriedFirst: with the router's own selection, which learns by itself.
func TestTheCheapestIsTriedFirst(t *testing.T) {
	s := costLatency(t, 1)
	b := newBench(t, selecting(s))
	request := hosted()
	request.MaxTokens = number(10)
	for _, each := range []struct {
		id     string
		output float64
	}{{"dear", 9}, {"cheap", 1}, {"quick", 1}} {
		request.Candidates = append(request.Candidates, modelOf(each.id, perMillion(1, each.output)).Candidate())
	}
	want := func(model string) {
		t.Helper()
		resolution, err := b.router.Resolve(ctx, request)
		if err != nil || resolution.Candidate.Model != model || resolution.Diagnostics.Selection != "cost-latency" {
			t.Fatalf("%+v, %v", resolution, err)
		}
	}
	want("cheap")
	if err := b.router.RecordOutcome(ctx, OutcomeReport{Identity: request.Identity, Provider: "fake", Model: "quick", Success: true, Latency: new(time.Second)}); err != nil {
		t.Fatal(err)
	}
	want("quick")
	s.observed("cheap", time.Second-1)
	want("cheap")
}
