package engine

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"regent/engine/policy"
)

// Selection puts the candidates of a call into the order in which they are tried, before any of them is judged: it can prefer, and
// allow nothing. Implementations MUST be safe for concurrent use.
type Selection interface {
	// Name is what diagnostics and records call it.
	Name() string
	// Rank returns the places that request.Candidates have now, in the order in which they are to be tried: each place once, or the call
	// is refused. now is the call's time. It must not change the request.
	Rank(now time.Time, request *Request) ([]int, error)
}

// Observer is a [Selection] that learns from how attempts end.
type Observer interface {
	// Observe is told of each attempt's end, from many goroutines. It must not block.
	Observe(Observation)
}

// Observation is how one attempt ended.
type Observation struct {
	Provider, Model string
	Success         bool
	// Latency is how long the provider took; nil if nobody measured it.
	Latency *time.Duration
}

// DefaultLatencyWeight is what one sample counts beside all those before it, if nobody says otherwise.
const DefaultLatencyWeight = 0.5

// latenciesMax bounds the models whose latencies are remembered: as many as have circuits.
const latenciesMax = 1024

// CostLatency is a selection: the cheapest candidate first, by what a token of input, of output and of cached input cost together; of
// those that cost the same, the one that has answered fastest, and one without a sample after those with one. Candidates without a
// price come last, as they were given.
//
// Latency is an exponential moving average of the successes of a provider's model in this process: the first sample sets it, each later
// one makes it weight x sample + (1 - weight) x average.
type CostLatency struct {
	weight float64

	mu        sync.Mutex // guards latencies
	latencies *simplelru.LRU[modelName, float64]
}

// modelName is a provider's model.
type modelName struct{ provider, model string }

var _ interface {
	Selection
	Observer
} = (*CostLatency)(nil)

// NewCostLatency makes one. weight is what the latest sample counts: 0 keeps the first one for ever, 1 only the latest. It returns an
// [*Error] with code VALIDATION for anything that is not within 0 and 1.
func NewCostLatency(weight float64) (*CostLatency, error) {
	if !(weight >= 0 && weight <= 1) { // which is also false for what is no number
		return nil, invalid(fmt.Sprintf("the weight of the latest latency must be within 0 and 1, not %v", weight))
	}
	latencies, err := simplelru.NewLRU[modelName, float64](latenciesMax, nil)
	if err != nil {
		return nil, fmt.Errorf("engine: remembering latencies: %w", err)
	}
	return &CostLatency{weight: weight, latencies: latencies}, nil
}

// Name is "cost-latency".
func (s *CostLatency) Name() string { return "cost-latency" }

// Rank ranks by unit price, then by latency.
func (s *CostLatency) Rank(_ time.Time, request *Request) ([]int, error) {
	ranks := make([]costRank, len(request.Candidates))
	order := make([]int, len(ranks))
	s.mu.Lock()
	for i := range ranks {
		ranks[i], order[i] = s.rankOf(&request.Candidates[i]), i
	}
	s.mu.Unlock()
	slices.SortStableFunc(order, func(a, b int) int { return ranks[a].compare(ranks[b]) })
	return order, nil
}

// costRank is what ranks a candidate.
type costRank struct {
	priced, sampled bool
	price           uint64 // the sum of three rates
	latency         float64
}

func (s *CostLatency) rankOf(candidate *Candidate) (rank costRank) {
	if rank.price, rank.priced = unitPriceOf(candidate); !rank.priced {
		return rank
	}
	rank.latency, rank.sampled = s.latencies.Peek(modelName{candidate.Provider, candidate.Model})
	return rank
}

// unitPriceOf is what ranks a candidate. One with a rate below 0 has no price.
func unitPriceOf(candidate *Candidate) (price uint64, priced bool) {
	if unit := candidate.UnitPrice; unit != nil {
		return uint64(max(*unit, 0)), *unit >= 0
	}
	p := candidate.Price
	if p == nil || min(p.UncachedInput, p.CachedInput, p.CacheWrite5m, p.CacheWrite1h, p.Output, p.Reasoning) < 0 {
		return 0, false
	}
	price, carry := bits.Add64(uint64(p.UncachedInput)+uint64(p.Output), uint64(p.CachedInput), 0)
	if carry > 0 {
		price = math.MaxUint64
	}
	return price, true
}

func (r costRank) compare(other costRank) int {
	return cmp.Or(trueFirst(r.priced, other.priced), cmp.Compare(r.price, other.price),
		trueFirst(r.sampled, other.sampled), cmp.Compare(r.latency, other.latency))
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Observe counts the latency of a success.
func (s *CostLatency) Observe(o Observation) {
	if !o.Success || o.Latency == nil || *o.Latency < 0 {
		return
	}
	name, latest := modelName{o.Provider, o.Model}, float64(*o.Latency)
	s.mu.Lock()
	defer s.mu.Unlock()
	if average, sampled := s.latencies.Get(name); sampled {
		latest = s.weight*latest + (1-s.weight)*average
	}
	s.latencies.Add(name, latest)
}

// Balanced is a selection that spreads calls over sources. Candidates that can be used come before those that cool down, and those whose
// quota is used up come last. Within each, a call of a session stays with one source as long as it can: sources are drawn by the session's
// key, in proportion to what is left of their quotas (weighted rendezvous hashing: a source that goes or comes moves the sessions of no
// other two). A call without a session goes to the source with the most left; equal ones stay as they were given. A quota that nobody
// knows counts as a whole one.
type Balanced struct{}

var _ Selection = Balanced{}

// Name is "balanced".
func (Balanced) Name() string { return "balanced" }

// Rank is the same for the same facts, in every process.
func (Balanced) Rank(now time.Time, request *Request) ([]int, error) {
	ranks := make([]balancedRank, len(request.Candidates))
	order := make([]int, len(ranks))
	for i := range ranks {
		ranks[i], order[i] = balancedRankOf(now, request.Session, &request.Candidates[i]), i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(ranks[a].group, ranks[b].group), cmp.Compare(ranks[b].score, ranks[a].score))
	})
	return order, nil
}

// QuotaWhole is a quota of which nothing has been used, in millionths.
const QuotaWhole = 1_000_000

// The groups of candidates, in their order.
const (
	usable = iota
	cooling
	exhausted
)

type balancedRank struct {
	group int
	score float64 // the greatest is first
}

func balancedRankOf(now time.Time, session string, candidate *Candidate) balancedRank {
	left := int64(QuotaWhole)
	if candidate.QuotaLeft != nil {
		left = *candidate.QuotaLeft
	}
	rank := balancedRank{score: float64(left)}
	switch {
	case left <= 0:
		rank.group, rank.score = exhausted, 1
	case candidate.CoolingUntil > policy.Nanos(now):
		rank.group = cooling
	}
	if session != "" {
		rank.score = -rank.score / math.Log(draw(session, candidate.Source))
	}
	return rank
}

// draw is a number between 0 and 1, both excluded, that looks like chance and is the same for the same texts in every process.
func draw(session, source string) float64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(session)) // a hash takes everything
	_, _ = hash.Write([]byte{0})
	_, _ = hash.Write([]byte(source))
	mixed := hash.Sum64() // whose high bits do not depend on the last bytes: the finaliser of MurmurHash3 mixes them
	mixed = (mixed ^ mixed>>33) * 0xff51afd7ed558ccd
	mixed = (mixed ^ mixed>>33) * 0xc4ceb9fe1a85ec53
	return between(mixed ^ mixed>>33)
}

// between is a number between 0 and 1, both excluded, of 52 bits: of 53, the last one would be rounded to 1.
func between(bits uint64) float64 { return (float64(bits>>12) + 0.5) / (1 << 52) }
