package ledger_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"regent/ledger"
	"regent/ledger/ledgertest"
	"regent/ledger/memory"
)

// The simulation runs replicas on one store in a bubble of virtual time: the ledgers, their writers and their callers are the real
// ones, and the store fails as the seed has it. Nobody acts at the same nanosecond as another, so that a seed makes the same
// schedule again: whoever sleeps wakes at a nanosecond of their own within the microsecond.
const (
	replicaClass = 10
	linkClass    = 100
	callerClass  = 200
	readClass    = 300

	simTTL = time.Minute
	// simSweep is as long as the ledger takes a pause between two transactions for granted.
	simSweep = simTTL / 10
	// suspendable is an outage, or a step of the clock, that must not have a hold expire; what is shorter, renewals outlast. None is
	// between the two.
	suspendable, bearable = simTTL, simTTL / 3
)

const nanoUSDPerToken = 2

var simPrice = ledger.Price{Rates: ledger.Rates{UncachedInput: 1000, CachedInput: 1000, Output: 1000 * nanoUSDPerToken, Reasoning: 1000 * nanoUSDPerToken}}

// replica is a process.
type replica struct {
	number  int
	ledger  *ledger.Ledger
	truth   *truth
	crashed bool // guarded by the truth
	cuts    []span
}

func (r *replica) hasCrashed() bool {
	r.truth.mu.Lock()
	defer r.truth.mu.Unlock()
	return r.crashed
}

// span is a span of virtual time.
type span struct{ from, to time.Time }

func (s span) String() string {
	return s.from.Format(time.TimeOnly) + " to " + s.to.Format(time.TimeOnly)
}

func (s span) has(t time.Time) bool { return !t.Before(s.from) && t.Before(s.to) }

// overlap is how much of a span lies in another.
func (s span) overlap(o span) time.Duration {
	from, to := s.from, s.to
	if o.from.After(from) {
		from = o.from
	}
	if o.to.Before(to) {
		to = o.to
	}
	return max(0, to.Sub(from))
}

// step is a step of the store's clock.
type step struct {
	at time.Time
	by time.Duration
}

func (s step) String() string { return fmt.Sprintf("%v at %s", s.by, s.at.Format(time.TimeOnly)) }

// simulation is one schedule.
type simulation struct {
	seed   uint64
	random *rand.Rand
	plant  plant
	truth  *truth
	db     *database

	start     time.Time
	base      time.Time // what the store's clock says at the start
	calmAfter time.Duration
	workMax   time.Duration
	// waves are the moments about which calls begin, so that they meet in batches; none if they begin at any time.
	waves     []time.Duration
	faultRate float64
	outages   []span
	steps     []step
	crashes   []time.Time
	budgets   []ledger.Claim

	replicas []*replica // guarded by the truth
	callers  []*caller
	over     chan struct{}
	// mended is by how much the clock was set forward in the end.
	mended atomic.Int64

	tracing bool
	tracer  sync.Mutex // guards trace
	trace   []string
}

// simulate runs the schedule of a seed and returns what must not be.
func simulate(t *testing.T, seed uint64, broken plant, tracing bool) (findings []finding, trace []string) {
	synctest.Test(t, func(*testing.T) {
		s := newSimulation(seed, broken)
		s.tracing = tracing
		s.run()
		findings, trace = s.truth.findings, s.trace
	})
	return findings, trace
}

func newSimulation(seed uint64, broken plant) *simulation {
	s := &simulation{
		seed: seed, random: rand.New(rand.NewPCG(seed, 0)), plant: broken, start: time.Now(), over: make(chan struct{}),
	}
	s.truth = newTruth(s)
	s.db = &database{Store: memory.New(s.storeClock), sim: s}
	s.base = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	if s.random.IntN(4) == 0 { // a month ends within minutes
		s.base = time.Date(2026, 3, 31, 21, 57, 0, 0, time.UTC)
	}
	s.calmAfter = 2*time.Minute + s.below(4*time.Minute)
	s.workMax = [...]time.Duration{20 * time.Second, time.Minute, 4 * time.Minute}[s.random.IntN(3)]
	for range s.random.IntN(4) {
		s.waves = append(s.waves, s.below(s.calmAfter/2))
	}
	s.setBudgets()
	if broken == soundStore {
		s.setFaults()
	}
	for i := range 3 + s.random.IntN(12) {
		s.callers = append(s.callers, &caller{sim: s, number: i, random: rand.New(rand.NewPCG(seed, uint64(1000+i)))})
	}
	return s
}

func (s *simulation) below(d time.Duration) time.Duration {
	return time.Duration(s.random.Int64N(int64(d)))
}

// begins is when a call begins.
func (s *simulation) begins(random *rand.Rand) time.Duration {
	if len(s.waves) == 0 {
		return time.Duration(random.Int64N(int64(s.calmAfter) * 3 / 4))
	}
	return s.waves[random.IntN(len(s.waves))] + time.Duration(random.Int64N(int64(30*time.Millisecond)))
}

// setBudgets chooses limits that are reached by some.
func (s *simulation) setBudgets() {
	windows := []ledger.Window{
		ledger.Fixed{Length: time.Minute}, ledger.Fixed{Length: time.Hour}, ledger.Rolling{Length: 2 * time.Minute}, ledger.Rolling{Length: 5 * time.Hour},
		ledger.Month{Zone: "Europe/Berlin"},
	}
	limits := func(scale int64) (limits []ledger.Limit) {
		for _, i := range s.random.Perm(len(windows))[:1+s.random.IntN(2)] {
			limits = append(limits, ledger.Limit{Window: windows[i], Max: scale * (40 + s.random.Int64N(400))})
		}
		return limits
	}
	for _, account := range []ledger.Account{
		{Scope: ledger.ScopeTenant, ID: "t", Unit: ledger.USD},
		{Scope: ledger.ScopeUser, ID: "u0", Unit: ledger.Tokens},
		{Scope: ledger.ScopeUser, ID: "u1", Unit: ledger.Tokens},
		{Scope: ledger.ScopeSource, ID: "s0", Unit: ledger.Tokens},
		{Scope: ledger.ScopeSource, ID: "s1", Unit: ledger.Tokens},
	} {
		scale := int64(1)
		if account.Unit == ledger.USD {
			scale = 2 * nanoUSDPerToken
		}
		s.budgets = append(s.budgets, ledger.Claim{Account: account, Limits: limits(scale)})
	}
}

func (s *simulation) user(random *rand.Rand) string { return fmt.Sprintf("u%d", random.IntN(2)) }

// claims are those of a call: its tenant's, its user's, and those of a source.
func (s *simulation) claims(user string, random *rand.Rand) []ledger.Claim {
	claims := []ledger.Claim{s.budgets[0], s.budgets[1], s.budgets[3+random.IntN(2)]}
	if user == "u1" {
		claims[1] = s.budgets[2]
	}
	return claims
}

// setFaults chooses what goes wrong, apart from what is drawn for each transaction.
func (s *simulation) setFaults() {
	s.faultRate = [...]float64{0, 0.05, 0.2, 0.4}[s.random.IntN(4)]
	for range s.random.IntN(3) {
		if s.random.IntN(2) == 0 {
			s.addOutage()
		} else {
			s.addStep()
		}
	}
	for range s.random.IntN(3) {
		s.crashes = append(s.crashes, s.start.Add(s.below(s.calmAfter)))
	}
	slices.SortFunc(s.crashes, time.Time.Compare)
}

// addOutage has the store be away for up to ten minutes.
func (s *simulation) addOutage() {
	from, lasts := s.start.Add(s.below(s.calmAfter)), 1+s.below(bearable)
	if s.random.IntN(2) == 0 {
		lasts = suspendable + s.below(10*time.Minute-suspendable)
		s.calmAfter += lasts
	}
	s.outages = append(s.outages, span{from, from.Add(lasts)})
}

// firstLooks is when somebody has swept for certain: a step before anybody has looked at the clock cannot be told.
const firstLooks = 30 * time.Second

// addStep has the store's clock step by up to three hours.
func (s *simulation) addStep() {
	by := s.below(bearable)
	if s.random.IntN(3) > 0 {
		by = suspendable + s.below(3*time.Hour-suspendable)
	}
	if s.random.IntN(2) == 0 {
		by = -by
	}
	s.steps = append(s.steps, step{s.start.Add(firstLooks + s.below(s.calmAfter-firstLooks)), by})
}

// storeClock is the store's clock.
func (s *simulation) storeClock() time.Time {
	return s.base.Add(time.Since(s.start)).Add(s.stepped(time.Now()))
}

// stepped is by how much the clock has stepped in all.
func (s *simulation) stepped(now time.Time) (sum time.Duration) {
	for _, step := range s.steps {
		if !now.Before(step.at) {
			sum += step.by
		}
	}
	return sum + time.Duration(s.mended.Load())
}

// isAway says whether a replica does not reach the store.
func (s *simulation) isAway(r *replica) bool {
	now := time.Now()
	has := func(span span) bool { return span.has(now) }
	return slices.ContainsFunc(s.outages, has) || slices.ContainsFunc(r.cuts, has)
}

// isCalm says that nothing goes wrong any more.
func (s *simulation) isCalm() bool { return time.Since(s.start) > s.calmAfter }

// excuses are the spans in which a hold must not run out: an outage that holds do not outlast, and what comes after it or after such a
// step of the clock, in which they can be renewed.
func (s *simulation) excuses() (spans []span) {
	for _, outage := range s.outages {
		if outage.to.Sub(outage.from) >= suspendable {
			spans = append(spans, span{outage.from, outage.to.Add(simTTL)})
		}
	}
	for _, step := range s.steps {
		if step.by.Abs() >= suspendable {
			spans = append(spans, span{step.at, step.at.Add(simTTL)})
		}
	}
	return spans
}

// lifetime is how much of a hold's time to live has passed between two moments, by the store's clock without the steps that suspend
// expiry; suspended says that at the second it is suspended.
func (s *simulation) lifetime(from, to time.Time) (life time.Duration, suspended bool) {
	life = to.Sub(from)
	for _, step := range s.steps {
		if step.by > 0 && step.by < suspendable && (span{from, to}).has(step.at) {
			life += step.by
		}
	}
	return life, slices.ContainsFunc(s.excuses(), func(excuse span) bool { return excuse.has(to) })
}

// cutFor is how long a replica did not reach the store between two moments.
func (s *simulation) cutFor(r *replica, from, to time.Time) (sum time.Duration) {
	for _, cut := range r.cuts {
		sum += cut.overlap(span{from, to})
	}
	return sum
}

// sleep sleeps for at least d, until the next nanosecond of a class.
func (s *simulation) sleep(d time.Duration, class int) {
	wakes := time.Now().Add(d)
	more := (class - wakes.Nanosecond()%1000 + 1000) % 1000
	time.Sleep(d + time.Duration(more))
}

func (s *simulation) tracef(format string, args ...any) {
	if s.tracing {
		s.tracer.Lock()
		defer s.tracer.Unlock()
		s.trace = append(s.trace, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// run runs the schedule, waits until nothing is under way, and compares.
func (s *simulation) run() {
	s.tracef("seed %d: faults at %.2f, outages %v, steps %v, calm after %v", s.seed, s.faultRate, s.outages, s.steps, s.calmAfter)
	for range 2 + s.random.IntN(4) {
		s.open()
		s.sleep(1+s.below(simSweep/2), 0)
	}
	var calls sync.WaitGroup
	for _, c := range s.callers {
		calls.Go(c.run)
	}
	for _, at := range s.crashes {
		s.sleep(time.Until(at), 0)
		s.crash()
	}
	s.sleep(time.Until(s.start.Add(s.calmAfter)), 0)
	s.settleDown()
	s.truth.check(s.db.Store)
	close(s.over)
	for _, r := range s.replicas {
		_ = r.ledger.Close() // the store has nothing to free, and the ledger nothing to tell
	}
	calls.Wait()
}

// open starts a replica. Some are cut off from the store for a while.
func (s *simulation) open() {
	r := &replica{number: len(s.replicas), truth: s.truth}
	s.sleep(1, replicaClass+r.number)
	if s.faultRate > 0 && s.random.IntN(6) == 0 && !s.isCalm() {
		from := time.Now().Add(s.below(2 * time.Minute))
		r.cuts = append(r.cuts, span{from, from.Add(1 + s.below(3*time.Minute))})
	}
	link := &link{Store: s.db.Store, db: s.db, sim: s, replica: r, random: rand.New(rand.NewPCG(s.seed, uint64(1+r.number)))}
	var err error
	if r.ledger, err = ledger.Open(ledger.Config{Store: link, TTL: simTTL, SweepEvery: simSweep}); err != nil {
		panic(err) // the configuration is complete
	}
	s.tracef("replica %d comes up, cut off %v", r.number, r.cuts)
	s.truth.mu.Lock()
	defer s.truth.mu.Unlock()
	s.replicas = append(s.replicas, r)
}

// crash ends a replica without a word, and starts another a while later, if not at once.
func (s *simulation) crash() {
	if r := s.choose(s.random); r != nil {
		s.tracef("replica %d crashes", r.number)
		s.truth.mu.Lock()
		r.crashed = true
		s.truth.mu.Unlock()
	}
	s.sleep(1+s.below(10*time.Second), 0)
	s.open()
}

// choose chooses a replica that runs; nil if there is none.
func (s *simulation) choose(random *rand.Rand) *replica {
	s.truth.mu.Lock()
	defer s.truth.mu.Unlock()
	running := slices.DeleteFunc(slices.Clone(s.replicas), func(r *replica) bool { return r.crashed })
	if len(running) == 0 {
		return nil
	}
	return running[random.IntN(len(running))]
}

// settleDown waits until every call is over. The clock is set right, if it was behind; what nobody ends, expires.
func (s *simulation) settleDown() {
	const patience = 30 * time.Minute
	deadline := time.Now().Add(patience)
	for s.busy() && time.Now().Before(deadline) {
		s.sleep(10*time.Second, 0)
	}
	if s.busy() {
		s.truth.report("never ends", "a caller is not done after %v without faults", patience)
	}
	if err := s.db.landAll(); err != nil {
		s.truth.report("landing", "%v", err)
	}
	s.mended.Store(int64(s.behind()))
	deadline = time.Now().Add(10 * simTTL)
	for s.truth.running() > 0 && time.Now().Before(deadline) {
		s.sleep(10*time.Second, 0)
	}
	if n := s.truth.running(); n > 0 {
		s.truth.report("never expires", "%d holds live still", n)
	}
}

// behind is by how much the clock is behind the latest that it has shown.
func (s *simulation) behind() (most time.Duration) {
	now := s.stepped(time.Now())
	for _, step := range s.steps {
		most = max(most, s.stepped(step.at)-now, s.stepped(step.at.Add(-1))-now)
	}
	return most
}

func (s *simulation) busy() bool {
	s.truth.mu.Lock()
	defer s.truth.mu.Unlock()
	return slices.ContainsFunc(s.callers, func(c *caller) bool { return !c.done && (c.replica == nil || !c.replica.crashed) })
}

// Whatever a store may do to several replicas, no admission passes a limit, nothing that was acknowledged is lost, nothing is charged
// twice, and every hold ends as its caller decided, or is charged once it is abandoned.
func TestSimulationStorm(t *testing.T) {
	seed, schedules := ledgertest.Seed(t), 100*ledgertest.Rounds(t, 10)
	counts, first := map[string]int{}, map[string]uint64{}
	for i := range uint64(schedules) {
		findings, _ := simulate(t, seed+i, soundStore, false)
		if len(findings) == 0 {
			continue
		}
		kind := findings[0].kind // what follows may come of it
		if counts[kind]++; counts[kind] == 1 {
			first[kind] = seed + i
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		findings, trace := simulate(t, first[kind], soundStore, true)
		if len(findings) == 0 {
			findings = []finding{{kind, "it is not found again"}}
		}
		t.Errorf("%s, in %d of %d schedules; REGENT_TEST_SEED=%d begins with one: %s\n%s",
			kind, counts[kind], schedules, first[kind], findings[0].what, tail(trace))
	}
}

// tail is the end of a trace up to the first finding.
func tail(trace []string) string {
	i := slices.IndexFunc(trace, func(line string) bool { return strings.Contains(line, "FOUND") })
	trace = trace[:i+1]
	return strings.Join(append(trace[:1:1], trace[max(1, len(trace)-40):]...), "\n")
}

// A seed that has found something finds it again.
func TestSimulationRepeats(t *testing.T) {
	seed := ledgertest.Seed(t)
	for i := range uint64(50) {
		_, first := simulate(t, seed+i, soundStore, true)
		_, again := simulate(t, seed+i, soundStore, true)
		if j := differs(first, again); j >= 0 {
			t.Fatalf("the schedule of REGENT_TEST_SEED=%d took another course:\n%s\nand\n%s", seed+i, first[j], again[j])
		}
	}
}

// differs is where two traces part; -1 if they do not. Callers that are answered together trace that in any order.
func differs(a, b []string) int {
	slices.Sort(a)
	slices.Sort(b)
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) == len(b) {
		return -1
	}
	return min(len(a), len(b)) - 1
}

// A simulation that finds nothing is worth what it can find.
func TestSimulationFindsPlants(t *testing.T) {
	for _, test := range []struct {
		name  string
		plant plant
	}{
		{"a commit that was acknowledged is lost", losesCommit},
		{"charges are applied twice", chargesTwice},
		{"transactions decide on what others have changed", readsStale},
		{"an admission is acknowledged and its hold is dropped", dropsHold},
	} {
		t.Run(test.name, func(t *testing.T) {
			const schedules = 20
			for seed := range uint64(schedules) {
				if findings, _ := simulate(t, seed, calmStore, false); len(findings) > 0 {
					t.Fatalf("schedule %d finds what is not planted: %s", seed, findings[0].what)
				}
				if findings, _ := simulate(t, seed, test.plant, false); len(findings) > 0 {
					t.Logf("schedule %d: %s", seed, findings[0].what)
					return
				}
			}
			t.Errorf("nothing was found in %d schedules", schedules)
		})
	}
}
