package ledger

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Store keeps the rows of a ledger. It decides nothing: the rules are in this package, once for every store.
//
// Implementations MUST pass the suite of package ledgertest.
type Store interface {
	// Update runs decide in one transaction and commits what it saved, all or nothing. It MAY run decide again from the start in a
	// new transaction, also where it cannot tell whether the one before was committed: decide finds that out from what it loads.
	//
	// An error of decide is returned as it is, and nothing is saved. A failure of the store is returned wrapped in [ErrUnknown] if
	// it is not known whether anything was saved; in [ErrUnavailable] if nothing was, and another time may do; and as it is if the
	// store has refused what was to be saved.
	Update(ctx context.Context, decide func(Tx) error) error
	// Load reads rows in one consistent view without locking or writing.
	Load(ctx context.Context, keys Keys) (*Rows, error)
	// View runs look on one consistent view of everything, which nothing that is written meanwhile changes, without keeping
	// anybody from writing.
	View(ctx context.Context, look func(View) error) error
	// Calls reads calls with their attempts. A query by id that finds nothing returns an empty slice.
	Calls(ctx context.Context, query CallQuery) ([]CallReport, error)
	// Call reads one call with its attempts, or returns [ErrNotFound].
	Call(ctx context.Context, id uuid.UUID) (CallReport, error)
	// Streams lists the journal's streams.
	Streams(ctx context.Context) ([]Stream, error)
	// Records reads at most limit records of one stream with a number above after, in order.
	Records(ctx context.Context, writer uuid.UUID, after int64, limit int) ([]Record, error)
	// Tail reads the newest records of all streams, oldest first.
	Tail(ctx context.Context, limit int) ([]Record, error)
	// CallRecords reads the records of one call, in order.
	CallRecords(ctx context.Context, call uuid.UUID) ([]Record, error)
	// Cursor is how far a named sink has read a stream: 0 at first. SetCursor moves it from where it was read; if another process has
	// moved it since, it returns [ErrState] and leaves it.
	Cursor(ctx context.Context, sink string, writer uuid.UUID) (int64, error)
	SetCursor(ctx context.Context, sink string, writer uuid.UUID, from, to int64) error
	// Sinks lists the sinks that have read anything.
	Sinks(ctx context.Context) ([]string, error)
	// Oldest is the earliest time of a stream's records with a number above after; zero if there is none.
	Oldest(ctx context.Context, writer uuid.UUID, after int64) (time.Time, error)
	// KeepActivation keeps the content of an activation under its digest, for as long as records name it. If it is there already its
	// content stays, and its last use moves to the store's clock, never backwards; without content it does nothing else, and returns
	// [ErrNotFound] for one that is not there. Repeated, and by processes at once, it comes to the same. It returns [ErrInvalid] for
	// what [CheckActivation] refuses.
	KeepActivation(ctx context.Context, digest [32]byte, content []byte) error
	// Activation reads the content of an activation, or returns [ErrNotFound].
	Activation(ctx context.Context, digest [32]byte) ([]byte, error)
	// OldActivations lists the activations whose last use was before a moment, in the order of their digests. DropActivations removes
	// them, and returns how many went; what may have gone with a commit whose end was not known is not counted.
	OldActivations(ctx context.Context, before time.Time) ([][32]byte, error)
	DropActivations(ctx context.Context, before time.Time) (int, error)
	// Durable says whether what is kept outlives the process.
	Durable() bool
	// Close frees what the store opened itself.
	Close() error
}

// View is one consistent view of a [Store]. What there can be any number of is read page by page, in the order of its keys, from
// the one after a key on; the zero key is before all.
type View interface {
	Load(ctx context.Context, keys Keys) (*Rows, error)
	Streams(ctx context.Context) ([]Stream, error)
	Records(ctx context.Context, writer uuid.UUID, after int64, limit int) ([]Record, error)
	// Accounts come in the order of their texts.
	Accounts(ctx context.Context, after Account, limit int) ([]Account, error)
	Charges(ctx context.Context, account Account, after int64, limit int) ([]ChargeRow, error)
	Holds(ctx context.Context, after uuid.UUID, limit int) ([]HoldRow, error)
	Calls(ctx context.Context, after uuid.UUID, limit int) ([]Call, error)
}

// Tx is one transaction of a [Store].
type Tx interface {
	// Load reads rows and locks what it reads, in the order of their keys. It may be called again for rows that turn out to be
	// needed; the first call should name as much as it can, for each is a round trip while rows are locked.
	Load(ctx context.Context, keys Keys) (*Rows, error)
	// Save writes what has changed. It is called at most once, last.
	Save(ctx context.Context, changes *Changes) error
}

// DueMax bounds the due holds that one transaction ends, so that what is left by a replica that died does not keep the others from
// their own work.
const DueMax = 256

// Keys names rows.
type Keys struct {
	// Accounts that do not exist are locked all the same where a transaction reads them.
	Accounts []Account
	Holds    []uuid.UUID
	// Ends names holds that are about to end: with each come the rows that its end changes, its accounts, call, rates and circuit.
	Ends []uuid.UUID
	// Failing names those of Ends whose circuits will count a failure.
	Failing  []uuid.UUID
	Calls    []uuid.UUID
	Rates    []string
	Circuits []string
	// Counting names further circuits, that will count a failure; Hearing those that may hear of anything else: one that nobody knows
	// has nothing to hear, and is not made.
	Counting, Hearing []string
	// Idempotency names calls by owner and key, if they run or have completed.
	Idempotency []IdempotencyKey
	// Due asks for the live holds whose deadline has passed by the store's clock, the first [DueMax] by deadline, as Ends does.
	Due bool
	// Sweep locks the sweep's row, which is read in any case.
	Sweep bool
	// Edges asks for what accounts had used in all when a window of a length began that ends now.
	Edges []Edge
	// Refunded asks for the charges of accounts that have a refund and that a window can reach.
	Refunded []Account
	// Standing asks for the live holds of these accounts.
	Standing []Account
	// Totals asks what accounts had used in all at moments, charges at the very moment included.
	Totals []Moment
	// Marks asks for the first charge with which an account's total reached an amount.
	Marks []Mark
	// Refunds asks what was refunded of an account's charges above one total and up to another.
	Refunds []Span
	// Amendments names what persons did to the books, and postings that bear an id.
	Amendments []uuid.UUID
	// Page asks for records of a stream.
	Page Page
	// Stream asks for the last number of this writer's records.
	Stream uuid.UUID
}

// Edge is where a window of an account begins that is so long and ends now.
type Edge struct {
	Account Account
	Length  time.Duration
}

// Page is the first records of a stream after a number. The zero value asks for none.
type Page struct {
	Writer uuid.UUID
	After  int64
	Limit  int
}

// Moment is a moment of an account.
type Moment struct {
	Account Account
	At      time.Time
}

// Mark is a total of an account; it names the charge that made it.
type Mark struct {
	Account Account
	Total   int64
}

// Span is a range of an account's totals: above one, up to and including another.
type Span struct {
	Account     Account
	Above, UpTo int64
}

// IdempotencyKey is a client's key within its owner's.
type IdempotencyKey struct{ Owner, Key string }

// Rows are what was found. What does not exist is absent.
type Rows struct {
	// Now is the store's clock, read once per transaction, in whole microseconds UTC.
	Now      time.Time
	Accounts map[Account]AccountRow
	Holds    map[uuid.UUID]HoldRow
	Calls    map[uuid.UUID]Call
	Rates    map[string]RateRow
	Circuits map[string]CircuitRow
	// CircuitsFull says that the store has no room for another circuit: it keeps as many as it may, and all of them are open.
	CircuitsFull bool
	Sweep        SweepRow
	// Idempotency holds the ids of the calls that have the keys asked for; the rows are in Calls.
	Idempotency map[IdempotencyKey]uuid.UUID
	// Due holds the ids of the due holds, by deadline and id; the rows are in Holds.
	Due []uuid.UUID
	// Standing holds the ids of live holds; the rows are in Holds.
	Standing map[Account][]uuid.UUID
	// Totals hold what was asked for; a moment before the first charge may be absent. For an edge they hold the moment its length
	// before Now, and before the newest entry of all accounts that were read if that is later: an account's time never runs
	// backwards, and a decision's is that of its newest account.
	Totals map[Moment]int64
	// Refunded holds the charges asked for, by total: those of the last [LengthMax] and a day, and maybe older ones. An account that
	// has none is there.
	Refunded map[Account][]ChargeRow
	// Marks hold the charges that were found.
	Marks map[Mark]ChargeRow
	// Refunds hold the sums that are above 0.
	Refunds    map[Span]int64
	Amendments map[uuid.UUID]AmendmentRow
	// Page holds the records asked for, in order.
	Page []Record
	// Last is the last number of the stream asked for.
	Last int64
}

// AccountRow is an account.
type AccountRow struct {
	// Used is everything that was ever charged: it never falls. Held is what live holds set aside.
	Used, Held int64
	// Refunds is everything that was ever taken back of charges; Refunded is the highest total whose charge has a refund.
	Refunds, Refunded int64
	// Floor is the total from which windows count at the earliest: what was used before was reset, or is pruned.
	Floor int64
	// TouchedAt is the account's newest entry, ChargedAt its newest charge: its time never runs backwards.
	TouchedAt, ChargedAt time.Time
	// Openings are the fixed windows that were ever used, by length.
	Openings map[time.Duration]OpeningRow
	// Month is the calendar month that the account counts; zero if it never did.
	Month MonthRow
}

// MonthRow is a calendar month that an account began to count: to its end it is counted in its own zone.
type MonthRow struct {
	Zone string
	Ends time.Time
}

// ChargeRow is a charge of one account. Total is the account's after it, and so names it: an account's totals rise, and the times
// never fall with them.
type ChargeRow struct {
	Account Account
	Total   int64
	At      time.Time
	// Amount is more than 0. Refunded is what was taken back of it.
	Amount, Refunded int64
}

// AmendmentRow is something that a person did to the books, or a posting that bears an id, so that it is done once.
type AmendmentRow struct {
	// Digest identifies what was asked for.
	Digest [32]byte
}

// OpeningRow is a fixed window's last opening.
type OpeningRow struct {
	At time.Time
	// Total is the account's Used at that moment.
	Total int64
}

// RateRow counts what began under a key since its window opened.
type RateRow struct {
	OpenedAt time.Time
	Count    int64
	// ClosesAt is when the row says nothing any more.
	ClosesAt time.Time
}

// CircuitRow is what is known of something that may be down. The zero row is a closed circuit.
type CircuitRow struct {
	// Failures counts those without a success between.
	Failures int64
	// RetryAt is when an open circuit lets a probe through, if it hears nothing of the one that is out; zero while it is closed.
	RetryAt time.Time
	// Probe is the admission of the probe that is out, until ProbeUntil; zero if there is none.
	Probe      uuid.UUID
	ProbeUntil time.Time
}

// SweepRow is what the processes on one store agree on about expiry.
type SweepRow struct {
	// Sweeper is the writer that looks for what is due when nobody else does, until Until unless it says so again. Epoch counts
	// the sweepers: a write of an earlier one is void.
	Sweeper uuid.UUID
	Epoch   int64
	Until   time.Time
	// SweptAt is when one last looked.
	SweptAt time.Time
	// SuspendedUntil is the end of a suspension of expiry.
	SuspendedUntil time.Time
}

// HoldState is whether a hold lives, or how it ended.
type HoldState string

// The states of a hold.
const (
	HoldLive     HoldState = "live"
	HoldSettled  HoldState = "settled"
	HoldReleased HoldState = "released"
	HoldExpired  HoldState = "expired"
)

// HoldRow is a hold, and the attempt that it is for.
type HoldRow struct {
	ID               uuid.UUID
	Call             uuid.UUID // zero for a host that has no calls
	Source, Provider string
	State            HoldState
	// Token is the fencing token: the hold's own counter.
	Token      int64
	Reserve    Reserve
	Accounts   []Account
	Price      *Price // nil if the candidate has none
	CreditRate *CreditRate
	// Rates are the keys under which the hold was counted. Circuit is the one that hears of its end; nil if none does.
	Rates      []string
	Circuit    *Circuit
	AdmittedAt time.Time
	Deadline   time.Time
	EndedAt    time.Time
	Outcome    Outcome
	Usage      *Usage
	Charge     Charge
	// Digest identifies the settlement that ended the hold, so that a repeated one gets the same answer.
	Digest [32]byte
	// Refunded says that a late settlement or a person has lowered the charge: no late settlement does so any more.
	Refunded bool
	// Totals name the charges that the hold became, an account each that was charged anything.
	Totals map[Account]int64
}

// Attempt is the hold as its call shows it.
func (h HoldRow) Attempt() Attempt {
	return Attempt{
		Hold: h.ID, Source: h.Source, Provider: h.Provider, Outcome: h.Outcome,
		StartedAt: h.AdmittedAt, EndedAt: h.EndedAt, Usage: h.Usage, Charge: h.Charge,
	}
}

// Changes are what a transaction writes, absolute rows.
type Changes struct {
	Accounts map[Account]AccountRow
	Holds    map[uuid.UUID]HoldRow
	Calls    map[uuid.UUID]Call
	Prices   map[[32]byte]Price
	Rates    map[string]RateRow
	Circuits map[string]CircuitRow
	Sweep    *SweepRow // nil if it has not changed
	// Charges are new, in the order of their accounts' totals. Refunds are added to what was refunded of a charge before.
	Charges    []ChargeRow
	Refunds    map[Mark]int64
	Amendments map[uuid.UUID]AmendmentRow
	Records    []Record
	// Pruned is removed, after all else is written.
	Pruned Pruned
}

// Pruned is what a transaction removes: the first records of a stream, and the rows that they tell of. A call takes its idempotency
// key along.
type Pruned struct {
	Stream uuid.UUID
	// UpTo is the number of the last record that goes; 0 if none does.
	UpTo       int64
	Holds      []uuid.UUID
	Calls      []uuid.UUID
	Charges    []Mark
	Amendments []uuid.UUID
}

// Empty says whether there is nothing to write.
func (c *Changes) Empty() bool {
	rows := len(c.Accounts) + len(c.Holds) + len(c.Calls) + len(c.Prices) + len(c.Charges) + len(c.Refunds) + len(c.Amendments) +
		len(c.Rates) + len(c.Circuits)
	return rows == 0 && c.Sweep == nil && len(c.Records) == 0 && c.Pruned.UpTo == 0
}
