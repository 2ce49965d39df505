// Package ledger keeps the money: what was used, what is held for calls that run, and the journal that says why.
//
// Before a provider hears of a call, [Ledger.Admit] sets its cost aside under a token and a deadline, or denies it; when the
// call is over, [Ledger.Settle] charges what was used, or [Ledger.Release] gives the hold back. Whatever happens to the
// caller, its process or the store, a hold ends exactly once: one that nobody ends expires and is charged.
//
// Amounts are integers: tokens, nano-USD, nano-credits. A [Price] says what a call costs, in pico-USD per token of each class and
// nano-USD per unit; a [CreditRate] what it takes of a subscription. Both are pure arithmetic, exact, and rounded up once; what
// was frozen with a charge is in its record, so that it can be computed again by hand. Limits travel with each admission; account
// rows hold totals only. The rules are decided here, once for every [Store], by one writer at a time per process that takes what waits
// in batches: a batch is one transaction.
//
// Some words:
//   - A [Rate] is how often something may begin: so many times in a window that opens with the first.
//   - A [Circuit] leaves alone what failed again and again: it opens, lets a probe through after a while, and closes with a success.
//   - A report says of an attempt what the end of its hold does not, or that of one that had none.
//   - A sweep looks for holds that are due and ends them, also when nobody calls; of several processes on a store one sweeps.
//   - A suspension is a time in which no hold expires, since owners could not renew theirs: after an outage, or a step of the clock.
//
// The package imports nothing of Regent, does no network I/O of its own, and stores no prompt, secret or credential.
package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Config configures a [Ledger].
type Config struct {
	// Store keeps the rows. Required. The ledger closes it.
	Store Store
	// TTL is how long a hold lives unless it is renewed, where the admission does not say. Defaults to 60 s.
	TTL time.Duration
	// LateRefund is how long after its expiry a hold's charge may still be lowered, once, to what was really used.
	// Defaults to 0: never.
	LateRefund time.Duration
	// QueueMax bounds the admissions and denials that wait. Defaults to 4096: at 2,000 admissions a second, 2 s of waiting.
	QueueMax int
	// Timeout bounds one transaction. Defaults to 10 s.
	Timeout time.Duration
	// SweepEvery is how often due holds are looked for when nothing else touches the ledger. Defaults to 1 s, or to a tenth of
	// TTL if that is less: a longer pause is taken for an outage from TTL/2 on, before a hold that is renewed in time could be due.
	SweepEvery time.Duration
	// Elapsed is the process's monotonic clock, by which steps of the store's clock are told from time that passed.
	// Defaults to the time since Open. A test that moves the store's clock moves this one too.
	Elapsed func() time.Duration
	// LeaveDue leaves holds that are due to another process: for a ledger that only administrates the store of one that may run.
	LeaveDue bool
	// OnExpire is called once for each hold that expired, after its charge is committed. It is called by whoever writes, so that it must
	// neither block nor ask the ledger for anything. Optional.
	OnExpire func(Expiry)
	// OnStore is called, in the same way, when the store stops answering, with the error, and with nil when it answers again. Optional.
	OnStore func(error)
}

// Expiry is a hold that expired and was charged at what it held.
type Expiry struct {
	Hold, Call       uuid.UUID
	Source, Provider string
	Charge           Charge
}

// Ledger admits, renews, settles, releases and reads. It is safe for concurrent use.
type Ledger struct {
	config Config
	store  Store
	writer uuid.UUID
	queue  *queue
	// turn is held by whoever writes: a caller, or the writer's goroutine.
	turn  chan struct{}
	clock stepDetector
	// sweepFor is how long a process is the sweeper unless it says so again.
	sweepFor time.Duration
	done     chan struct{}
	ending   sync.Once
	// pruning lets one Prune at a time choose what goes.
	pruning sync.Mutex
	unsure  unsure // of whoever writes
	// away says that the store does not answer, as OnStore was told; of whoever writes.
	away bool

	mu     sync.Mutex // guards status, and seen
	status Status
	// seen is the store's clock as it was last read, at seenAt by the process's.
	seen   time.Time
	seenAt time.Duration
	// began is when the transaction under way began, by the system's clock; zero if there is none.
	began time.Time
	// sweeps says that this process is the sweeper, as of the last look.
	sweeps bool
}

// Status is the ledger's health.
type Status struct {
	// Err is what the last transaction failed with; nil if it succeeded.
	Err error
	// Waiting is the number of operations in the queue.
	Waiting int
	// SuspendedUntil is the end of a suspension of expiry, by the store's clock, after a step of that clock or an outage, which
	// a process that stood still is, too; zero if there is none.
	SuspendedUntil time.Time
}

// Open starts a ledger. The caller must Close it.
func Open(config Config) (*Ledger, error) {
	if config.Store == nil {
		return nil, fmt.Errorf("%w: Config.Store is required", ErrInvalid)
	}
	if config.TTL == 0 {
		config.TTL = 60 * time.Second
	}
	if config.QueueMax == 0 {
		config.QueueMax = 4096
	}
	if config.Timeout == 0 {
		config.Timeout = 10 * time.Second
	}
	if config.SweepEvery == 0 {
		config.SweepEvery = min(time.Second, max(config.TTL/10, time.Millisecond))
	}
	if config.Elapsed == nil {
		start := time.Now()
		config.Elapsed = func() time.Duration { return time.Since(start) }
	}
	if config.TTL < 0 || config.LateRefund < 0 || config.QueueMax < 0 || config.Timeout < 0 || config.SweepEvery < 0 {
		return nil, fmt.Errorf("%w: a negative Config field", ErrInvalid)
	}
	writer, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("ledger: naming the journal's stream: %w", err)
	}
	l := &Ledger{
		config: config,
		store:  config.Store,
		writer: writer,
		queue:  newQueue(config.QueueMax),
		turn:   make(chan struct{}, 1),
		clock:  stepDetector{ttl: config.TTL, idle: config.SweepEvery, elapsed: config.Elapsed},
		done:   make(chan struct{}),
		unsure: unsure{},
		// Well below the time after which holds expire, and several looks long.
		sweepFor: max(config.TTL/10, 3*config.SweepEvery),
	}
	go l.write()
	return l, nil
}

// Close works off what waits, refuses what comes, and closes the store.
func (l *Ledger) Close() error {
	l.queue.close()
	<-l.done
	var err error
	l.ending.Do(func() { err = l.store.Close() })
	return err
}

// Reserve is what an admission sets aside, a unit each. nil leaves that unit unbounded: such a call is only denied if the
// limit is spent already.
type Reserve struct {
	Tokens  *int64 `json:"tokens"`
	NanoUSD *int64 `json:"nano_usd"`
	// NanoCredits is 0, and not nil, for a candidate that takes none.
	NanoCredits *int64 `json:"nano_credits"`
}

// Of is the amount in a unit.
func (r Reserve) Of(unit Unit) *int64 {
	switch unit {
	case USD:
		return r.NanoUSD
	case Credits:
		return r.NanoCredits
	case Calls: // whatever a call takes, it is one
		return new(int64(1))
	}
	return r.Tokens
}

// Replacement ends a hold in the transaction that admits the next one.
type Replacement struct {
	Ending
	// Consumption is charged; nil gives everything back.
	Consumption *Consumption
}

// Claim is one account of an admission, and the limits that it stands under.
type Claim struct {
	Account Account
	Limits  []Limit
}

// Admission asks to contact one candidate.
type Admission struct {
	// Hold is the caller's id for the hold, new for each candidate: the same admission again returns the first answer, and another one
	// under its id is [ErrState].
	Hold uuid.UUID
	// Call is the call that it is for: created by its first admission. nil for a host that has no calls.
	Call *Call
	// Replaces ends the attempt before this one in the same transaction. It is required if the call has one, and takes
	// effect only if this admission succeeds.
	Replaces         *Replacement
	Source, Provider string
	// Price is frozen into the hold; nil if the candidate has none. CreditRate likewise; nil if it takes no credits.
	Price      *Price
	CreditRate *CreditRate
	Reserve    Reserve
	Claims     []Claim
	// Rates are how often the like of it may begin. Circuit stands before the candidate; nil if none does. Without a hold they hear of
	// the attempt by [Ledger.Report].
	Rates   []Rate
	Circuit *Circuit
	// TTL is how long the hold lives unless renewed. Defaults to the ledger's.
	TTL time.Duration
	// Unheld checks the limits as they stand and makes no hold: for a call that reserves nothing and is charged directly.
	// Calls that run in parallel can then pass a limit together. Admitted again, it counts under its rates again; unless it is the probe
	// of its circuit, which is known while it is out.
	Unheld bool
	// Decision is the body of the decision record that is committed with the hold. Optional.
	Decision []byte
}

// Hold is what an admission obtained. Without a hold its id, token and deadline are zero.
type Hold struct {
	ID uuid.UUID
	// Token must be presented to renew, settle or release; a renewal makes a new one and the old one worthless.
	Token    int64
	Deadline time.Time
	// AdmittedAt is the store's clock at the admission: a [Report] tells by it what rates have counted.
	AdmittedAt time.Time
	// Probe says that the circuit is open, and that this admission is its probe. An admission's answer says so, a renewal's does not.
	Probe bool
	// Replaced is what the hold before it was charged, if this one was admitted in its place.
	Replaced Charge
}

// Admit sets an admission's reserve aside in all of its accounts, counts it under its rates and lets it through its circuit, or does
// none of it, and commits its decision record with it.
//
// It returns a [*LimitError], a [*RateError] or a [*CircuitError] if a limit, a rate or a circuit denies it, a [*DuplicateError] if the
// call's idempotency key is taken, [ErrState] if the call is over, [ErrInvalid], [ErrBusy], [ErrUnavailable] or [ErrClosed]. If ctx
// ends while the admission is being written, its answer is returned all the same, so that the caller can release the hold.
func (l *Ledger) Admit(ctx context.Context, admission Admission) (Hold, error) {
	if admission.TTL == 0 {
		admission.TTL = l.config.TTL
	}
	if err := admission.validate(); err != nil {
		return Hold{}, err
	}
	op := &admit{Admission: admission}
	op.detach()
	if op.Replaces != nil {
		replaced := *op.Replaces
		replaced.clean()
		op.Replaces = &replaced
	}
	err := l.do(ctx, laneAdmit, op)
	var denial *LimitError
	if errors.As(err, &denial) {
		err = l.explain(ctx, op, denial)
	}
	return op.hold, err
}

// explain finds out when a denial ends, after the transaction that denied: while it ran, others waited for its rows.
func (l *Ledger) explain(ctx context.Context, op *admit, denial *LimitError) error {
	explaining := &admit{Admission: op.Admission, explaining: true}
	keys := Keys{Standing: op.accounts()}
	explaining.keys(&keys, l.about())
	b, err := readBatch(ctx, l.store, keys, l.Status().SuspendedUntil)
	if err != nil {
		return unexplained(denial, err)
	}
	explained, err := explaining.explain(ctx, b)
	switch {
	case err != nil:
		return unexplained(denial, err)
	case explained == nil: // there is room by now
		return denial
	}
	return explained
}

// detach copies what the caller may change later, although the hold was made for it as it is now.
func (a *Admission) detach() {
	a.Reserve = a.Reserve.clone()
	a.Price = a.Price.clone()
	if a.CreditRate != nil {
		rate := *a.CreditRate
		rate.Tiers = maps.Clone(rate.Tiers)
		a.CreditRate = &rate
	}
}

func (r Reserve) clone() Reserve {
	amounts := new([3]int64)
	for i, amount := range []**int64{&r.Tokens, &r.NanoUSD, &r.NanoCredits} {
		if *amount != nil {
			amounts[i] = **amount
			*amount = &amounts[i]
		}
	}
	return r
}

func (r Reserve) equals(other Reserve) bool {
	for _, unit := range Units {
		own, others := r.Of(unit), other.Of(unit)
		if (own == nil) != (others == nil) || own != nil && *own != *others {
			return false
		}
	}
	return true
}

func (a *Admission) validate() error {
	for _, amount := range []*int64{a.Reserve.Tokens, a.Reserve.NanoUSD, a.Reserve.NanoCredits} {
		if amount != nil && (*amount < 0 || *amount > NanoUSDMax) {
			return fmt.Errorf("%w: a reserve must be within 0 and 2^62", ErrInvalid)
		}
	}
	if a.Reserve.Tokens != nil && *a.Reserve.Tokens > TokensMax {
		return fmt.Errorf("%w: a reserve of tokens must be at most 2^53 - 1", ErrInvalid)
	}
	if a.Unheld && (a.Call != nil || a.Replaces != nil || a.Reserve != (Reserve{})) {
		return fmt.Errorf("%w: an admission without a hold reserves nothing and is for no recorded call", ErrInvalid)
	}
	if err := a.validateGates(); err != nil {
		return err
	}
	if a.Replaces != nil {
		if err := a.Replaces.Consumption.validate(); err != nil {
			return err
		}
	}
	if err := a.Call.validate(); err != nil {
		return err
	}
	if err := validateTexts(a.Source, a.Provider); err != nil {
		return err
	}
	if a.CreditRate != nil {
		if err := a.CreditRate.validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if a.Price != nil {
		if err := a.Price.validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if a.TTL < 0 || a.Hold == uuid.Nil {
		return fmt.Errorf("%w: an admission needs an id and a TTL above 0", ErrInvalid)
	}
	if err := validateAccounts(a.accounts()); err != nil {
		return err
	}
	for _, claim := range a.Claims {
		if err := validateLimits(claim.Limits); err != nil {
			return err
		}
	}
	return nil
}

// validateLimits returns [ErrInvalid] for an account's limits that cannot be.
func validateLimits(limits []Limit) error {
	if err := OneMonth(limits); err != nil {
		return err
	}
	for _, limit := range limits {
		if limit.Window == nil {
			return fmt.Errorf("%w: a limit needs a window", ErrInvalid)
		}
		if err := limit.Window.Validate(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		if limit.Spendable < 0 || limit.Final < 0 || max(limit.Spendable, limit.Final) > limit.Max {
			return fmt.Errorf("%w: what may be spent of a limit must be within 0 and the limit", ErrInvalid)
		}
		if limit.Max < 0 || limit.Max > NanoUSDMax {
			return fmt.Errorf("%w: a limit must be within 0 and 2^62", ErrInvalid)
		}
	}
	return nil
}

// accounts are those that are claimed.
func (a *Admission) accounts() []Account {
	accounts := make([]Account, len(a.Claims))
	for i, claim := range a.Claims {
		accounts[i] = claim.Account
	}
	return accounts
}

// Renew moves a live hold's deadline to now + ttl, if that is later, and makes a new token. It returns [ErrExpired],
// [ErrState], [ErrBusy], [ErrUnavailable] or [ErrClosed].
func (l *Ledger) Renew(ctx context.Context, id uuid.UUID, token int64, ttl time.Duration) (Hold, error) {
	if ttl == 0 {
		ttl = l.config.TTL
	}
	if ttl < 0 {
		return Hold{}, fmt.Errorf("%w: a negative TTL", ErrInvalid)
	}
	op := &renew{id: id, token: token, ttl: ttl}
	err := l.do(ctx, laneRenew, op)
	return op.hold, err
}

// Ending ends a hold and the attempt that it was for.
type Ending struct {
	Hold  uuid.UUID
	Token int64
	// Account is one of the hold's, and Provider its own: a hold of which that is not so is not its caller's, which is [ErrState]. Left
	// empty they ask nothing.
	Account  Account
	Provider string
	Outcome  Outcome
	// State is the call's terminal state. Empty only where a further admission replaces the hold, or there is no call.
	State State
	// Health is what the end says of the candidate: the hold's circuit hears it.
	Health Health
	// Unused says that the candidate was never contacted: what was counted under rates is taken back, and a probe is given back.
	Unused bool
	// Decision is the body of a further decision record, where the call ends because nothing else could be tried. Optional.
	Decision []byte
}

// Consumption is what a settlement charges.
type Consumption struct {
	// Usage is charged at the hold's price. nil charges what was held.
	Usage *Usage
	// Estimated says that the usage was counted by the caller: it is charged at most at what was held.
	Estimated bool
	// NanoUSD is what the usage cost, as its owner knows it: only for a hold without a price, which would say it. nil is nothing.
	NanoUSD *int64 `json:",omitempty"` // as if there were none, as in digests that were stored when there was none
}

// validate returns [ErrInvalid] for a usage that cannot be, and for a cost out of range or of no usage.
func (c *Consumption) validate() error {
	if c == nil {
		return nil
	}
	if cost := c.NanoUSD; cost != nil && (c.Usage == nil || *cost < 0 || *cost > NanoUSDMax) {
		return fmt.Errorf("%w: a cost must be that of a usage, and within 0 and 2^62", ErrInvalid)
	}
	if c.Usage != nil {
		if _, err := c.Usage.Tokens(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}

// Settle ends a hold with a charge. The same settlement again gets the same answer; another one for the same hold gets
// [ErrState]. A hold that has expired was charged already, which the charge says; a known usage may then still lower it.
func (l *Ledger) Settle(ctx context.Context, ending Ending, consumption Consumption) (Charge, error) {
	return l.end(ctx, &end{Ending: ending, consumption: &consumption})
}

// Release ends a hold without a charge and gives back what was held.
func (l *Ledger) Release(ctx context.Context, ending Ending) error {
	_, err := l.end(ctx, &end{Ending: ending})
	return err
}

func (l *Ledger) end(ctx context.Context, op *end) (Charge, error) {
	if err := op.Health.validate(); err != nil {
		return Charge{}, err
	}
	if err := op.consumption.validate(); err != nil {
		return Charge{}, err
	}
	op.clean()
	err := l.do(ctx, laneEnd, op)
	return op.charge, err
}

// Posting is a charge without a hold.
type Posting struct {
	// ID is the caller's, new for each posting: the same one again is made once, for as long as its record is kept; another under its
	// id is [ErrState], and so is one under the id of a hold. Of postings without an id each is made.
	ID       uuid.UUID
	Accounts []Account
	// Limits are those of the accounts, if they have any. They deny nothing: the charge opens their windows, as an admission would, for it
	// may be the first use. They are no part of what tells one posting from another.
	Limits map[Account][]Limit `json:"-"`
	Usage  Usage
	// NanoUSD is the cost, NanoCredits what it takes of a subscription.
	NanoUSD, NanoCredits int64
	Source, Provider     string
}

// Post charges accounts directly, whatever their limits.
func (l *Ledger) Post(ctx context.Context, posting Posting) error {
	if min(posting.NanoUSD, posting.NanoCredits) < 0 || max(posting.NanoUSD, posting.NanoCredits) > NanoUSDMax {
		return fmt.Errorf("%w: a charge must be within 0 and 2^62", ErrInvalid)
	}
	if _, err := posting.Usage.Tokens(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if err := validateTexts(posting.Source, posting.Provider); err != nil {
		return err
	}
	if err := validateAccounts(posting.Accounts); err != nil {
		return err
	}
	for _, limits := range posting.Limits {
		if err := validateLimits(limits); err != nil {
			return err
		}
	}
	return l.do(ctx, laneEnd, &post{posting.sorted()})
}

// sorted is the same posting with its accounts in order: by it, it is told from another.
func (p Posting) sorted() Posting {
	p.Accounts = slices.SortedFunc(slices.Values(p.Accounts), compareAccounts)
	return p
}

// Refuse records a call that was denied: its terminal state and its decision record. It waits among the admissions, since it
// ends no hold: whoever is refused a lot keeps nobody from renewing theirs. The call is nil for a record alone, which sums up
// others and goes first.
func (l *Ledger) Refuse(ctx context.Context, call *Call, decision []byte) error {
	if err := call.validate(); err != nil {
		return err
	}
	lane := laneAdmit
	if call == nil {
		lane = laneEnd
	}
	return l.do(ctx, lane, &refuse{call: call, decision: decision})
}

// Balance is how an account stands towards one limit.
type Balance struct {
	Account          Account
	Limit            Limit
	Used, Held, Left int64
	// RecoversAt is when what was used in the window is forgotten; zero if nothing was.
	RecoversAt time.Time
}

// Read returns the balances of claims, a balance for each limit in order. Holds that are due count as charged.
func (l *Ledger) Read(ctx context.Context, claims []Claim) ([]Balance, error) {
	return readBalances(ctx, l.store, claims, l.about(), l.Status().SuspendedUntil)
}

// unexplained is the answer to an admission of which nobody can say when it would not be denied: for its caller the store is away.
func unexplained(denial *LimitError, err error) error {
	return fmt.Errorf("%w: when %v: %w", ErrUnavailable, denial, err)
}

// Writer is the ledger's own stream of the journal.
func (l *Ledger) Writer() uuid.UUID { return l.writer }

// Sweeps says whether this process is the one that looks for holds that are due when nobody else does: of all that share the store,
// one at a time, but for a moment in which one takes over.
func (l *Ledger) Sweeps() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sweeps
}

// Store returns the store, for reading calls and the journal.
func (l *Ledger) Store() Store { return l.store }

// stalledAfter is how long a transaction may take before the store counts as one that does not answer: many times what one takes.
const stalledAfter = 3 * time.Second

// Status returns the ledger's health.
func (l *Ledger) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	status := l.status
	if took := time.Since(l.began); !l.began.IsZero() && took > stalledAfter && status.Err == nil {
		status.Err = fmt.Errorf("%w: no answer for %v", ErrUnavailable, took.Truncate(time.Second))
	}
	status.Waiting = l.queue.len()
	return status
}
