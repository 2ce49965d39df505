package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// PruneAgeMin is the least age of what may be pruned: no window reaches back as far. A month in which clocks are put back is an hour
// longer than [LengthMax].
const PruneAgeMin = LengthMax + 24*time.Hour

// pruneMax bounds the records that one transaction prunes: it takes some 20 ms on SQLite, in which nobody else writes.
const pruneMax = 500

// Pruning asks for the removal of old records, with the calls, holds and charges that they tell of.
type Pruning struct {
	// Reason and Actor go into the closing records.
	Reason, Actor string
	// OlderThan is the age from which on records go, more than [PruneAgeMin].
	OlderThan time.Duration
	// Sinks have to have read a record before it goes, as do all that ever read one, but for those that are Gone.
	Sinks, Gone []string
	// DryRun only counts what could go. Where a sink is behind, less may: what its unread records tell of stays in other streams, too.
	DryRun bool
}

// PruneReport is what was pruned, or would be.
type PruneReport struct {
	// Before is the moment at which what is kept begins at the latest.
	Before                         time.Time
	Records, Calls, Holds, Charges int64
	// Activations are those that no record names which is kept.
	Activations int
	// Behind are sinks that have not read records which could go otherwise: of each stream, the one that has read least.
	Behind []string
	// upTo holds the number of the last record that went, of each stream.
	upTo map[uuid.UUID]int64
}

// Prune removes the oldest records, a whole prefix of each stream, with the calls, holds and charges that they tell of; closing records
// say what they came to. It keeps what a window can reach, what belongs to a call that had not ended by then, what a sink has not
// read, and the newest record of each stream. Then it removes the activations that no record names any more. It works in short transactions: if it returns an error, what it had pruned by then is
// pruned and closed.
// It returns [ErrInvalid] for an age that is too little and a sink that is not known, and then prunes nothing.
func (l *Ledger) Prune(ctx context.Context, pruning Pruning) (PruneReport, error) {
	l.pruning.Lock()
	defer l.pruning.Unlock()
	var report PruneReport
	if pruning.OlderThan < PruneAgeMin || pruning.OlderThan <= l.config.LateRefund {
		return report, fmt.Errorf("%w: only what is older than %v can be pruned", ErrInvalid, max(PruneAgeMin, l.config.LateRefund))
	}
	amendment := Amendment{ID: uuid.Max, Reason: pruning.Reason, Actor: pruning.Actor}
	if err := amendment.validate(); err != nil {
		return report, err
	}
	sinks, err := l.store.Sinks(ctx)
	if err != nil {
		return report, err
	}
	known := append(sinks, pruning.Sinks...)
	for _, name := range pruning.Gone {
		if !slices.Contains(known, name) {
			return report, fmt.Errorf("%w: no sink %q has read anything; there are %q", ErrInvalid, name, known)
		}
	}
	rows, err := l.store.Load(ctx, Keys{})
	if err != nil {
		return report, err
	}
	report.Before, report.upTo = rows.Now.Add(-pruning.OlderThan), map[uuid.UUID]int64{}
	for progress := true; progress; {
		progress = false
		streams, err := l.store.Streams(ctx)
		if err != nil {
			return report, err
		}
		report.Behind = nil
		for _, stream := range streams {
			pruned, err := l.pruneStream(ctx, stream.Writer, pruning, &report)
			if err != nil {
				return report, err
			}
			progress = progress || pruned > 0 && !pruning.DryRun // what another stream waited for may be gone
		}
	}
	report.Activations, err = l.pruneActivations(ctx, &report, pruning.DryRun)
	return report, err
}

// pruneStream prunes one stream as far as it goes.
func (l *Ledger) pruneStream(ctx context.Context, writer uuid.UUID, pruning Pruning, report *PruneReport) (pruned int64, err error) {
	sink, read, err := l.leastRead(ctx, writer, pruning)
	if err != nil {
		return 0, err
	}
	op := &prune{
		writer: writer, read: read, before: report.Before, dry: pruning.DryRun,
		by: Amendment{Reason: pruning.Reason, Actor: pruning.Actor},
	}
	for {
		if op.by.ID, err = uuid.NewV7(); err != nil {
			return pruned, fmt.Errorf("ledger: naming a closing record: %w", err)
		}
		if op.dry {
			err = op.tryOn(ctx, l.store)
		} else {
			err = l.do(ctx, laneEnd, op)
		}
		if err != nil {
			return pruned, err
		}
		pruned += op.records
		report.add(op)
		if op.unread && !slices.Contains(report.Behind, sink) {
			report.Behind = append(report.Behind, sink)
		}
		if op.records == 0 || op.unread {
			return pruned, nil
		}
	}
}

func (r *PruneReport) add(op *prune) {
	r.Records += op.records
	r.Calls += int64(len(op.gone.Calls))
	r.Holds += int64(len(op.gone.Holds))
	r.Charges += int64(len(op.gone.Charges))
	if op.gone.UpTo > 0 {
		r.upTo[op.gone.Stream] = op.gone.UpTo
	}
}

// leastRead is the sink that has read least of a stream, and how far it has read.
func (l *Ledger) leastRead(ctx context.Context, writer uuid.UUID, pruning Pruning) (sink string, read int64, err error) {
	known, err := l.store.Sinks(ctx)
	if err != nil {
		return "", 0, err
	}
	read = NanoUSDMax // without a sink, all is read
	for _, name := range append(known, pruning.Sinks...) {
		if slices.Contains(pruning.Gone, name) {
			continue
		}
		number, err := l.store.Cursor(ctx, name, writer)
		if err != nil {
			return "", 0, err
		}
		if number < read {
			sink, read = name, number
		}
	}
	return sink, read, nil
}

// prune is one transaction of [Ledger.Prune]: it prunes the first records of one stream.
type prune struct {
	writer uuid.UUID
	// read is the number of the last record that every sink has read.
	read   int64
	before time.Time
	by     Amendment
	// dry only chooses; after is where it has come to.
	dry   bool
	after int64
	// records and gone are what was pruned; unread says that more could have been if a sink had read it.
	records int64
	gone    Pruned
	unread  bool
}

func (op *prune) keys(*Keys, time.Time) {}

func (op *prune) decide(ctx context.Context, b *batch) error {
	rows, err := b.tx.Load(ctx, Keys{Page: Page{Writer: op.writer, Limit: pruneMax + 1}})
	if err != nil {
		return err
	}
	if err := op.choose(ctx, b, rows.Page); err != nil || op.records == 0 {
		return err
	}
	return op.close(ctx, b, rows.Page[:op.records])
}

// tryOn chooses without pruning, from where it has come to.
func (op *prune) tryOn(ctx context.Context, store Store) error {
	records, err := store.Records(ctx, op.writer, op.after, pruneMax+1)
	if err != nil {
		return err
	}
	if err := op.choose(ctx, newBatch(reader{store}, &Rows{}), records); err != nil || op.records == 0 {
		return err
	}
	op.after = records[op.records-1].Number
	return nil
}

// choose finds out how many of the first records of the stream can go, and the rows that go with them. The newest record of a stream
// stays, so that its numbers go on.
func (op *prune) choose(ctx context.Context, b *batch, records []Record) error {
	op.records, op.unread, op.gone = 0, false, Pruned{Stream: op.writer}
	var entries []entry
	for _, record := range records[:max(0, len(records)-1)] {
		if !record.At.Before(op.before) {
			break
		}
		e, err := readEntry(record)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	rows, err := b.tx.Load(ctx, toldOf(entries))
	if err != nil {
		return err
	}
	going := map[uuid.UUID]bool{} // holds
	for i, e := range entries {
		if op.isKept(e, rows, going) {
			break
		}
		if e.Number > op.read {
			op.unread = true
			break
		}
		if e.outcome != nil {
			going[e.outcome.Hold] = true
		}
		if e.charge == nil || e.ended() == uuid.Nil { // the outcome of what was charged goes with its charge
			op.records = int64(i + 1)
			op.gone.UpTo = e.Number
		}
	}
	op.collect(entries[:op.records], rows)
	return nil
}

// toldOf names the calls and holds of which entries tell.
func toldOf(entries []entry) (keys Keys) {
	for _, e := range entries {
		for _, hold := range []uuid.UUID{e.ended(), e.lowered()} {
			if hold != uuid.Nil {
				keys.Holds = append(keys.Holds, hold)
			}
		}
		if e.Call != uuid.Nil {
			keys.Calls = append(keys.Calls, e.Call)
		}
	}
	return keys
}

// isKept says whether a record has to stay although it is old enough: its call had not ended by then, or it lowered a charge that
// another stream's record still tells of. A dry run takes it that such a record goes too if it is old enough.
func (op *prune) isKept(e entry, rows *Rows, going map[uuid.UUID]bool) bool {
	if call, known := rows.Calls[e.Call]; known && (call.State == Held || !call.EndedAt.Before(op.before)) {
		return true
	}
	hold, known := rows.Holds[e.lowered()]
	if op.dry {
		return known && !hold.EndedAt.Before(op.before)
	}
	return known && !going[hold.ID]
}

// collect names the rows that go with entries: a hold with its outcome, a call with the entry that ended it.
func (op *prune) collect(entries []entry, rows *Rows) {
	for _, e := range entries {
		if e.outcome != nil {
			op.gone.Holds = append(op.gone.Holds, e.outcome.Hold)
		}
		call, known := rows.Calls[e.Call]
		if known && (e.outcome != nil && e.outcome.State != "" || e.Kind == DecisionRecord && call.State == Denied) {
			op.gone.Calls = append(op.gone.Calls, e.Call)
		}
		for _, charge := range e.charges() {
			op.gone.Charges = append(op.gone.Charges, Mark{charge.Account, charge.Total})
		}
		if id := e.made(); id != uuid.Nil {
			op.gone.Amendments = append(op.gone.Amendments, id)
		}
	}
}

// close books what goes, and leaves a record of what it came to. Windows count from the last charge that goes at the earliest: none
// reaches back to it, and the charge before a window's first may be gone.
func (op *prune) close(ctx context.Context, b *batch, records []Record) error {
	body := ClosingBody{
		Amendment: op.by, Before: op.before.UnixMicro(), Records: op.records,
		Streams: map[uuid.UUID]int64{op.writer: op.gone.UpTo}, Accounts: map[Account]Closed{},
	}
	for _, record := range records {
		e, err := readEntry(record)
		if err != nil {
			return err
		}
		body.add(&e)
	}
	var accounts []Account
	for account := range body.Accounts {
		accounts = append(accounts, account)
	}
	if err := b.loadAccounts(ctx, accounts); err != nil {
		return err
	}
	for account, closed := range body.Accounts {
		if row := b.rows.Accounts[account]; closed.Floor > row.Floor {
			row.Floor = closed.Floor
			b.setAccount(account, row)
		}
	}
	b.changes.Pruned = op.gone
	return b.record(ClosingRecord, uuid.Nil, b.rows.Now, body)
}

// add books an entry that goes.
func (c *ClosingBody) add(e *entry) {
	for account, sum := range e.sums() {
		closed := c.Accounts[account]
		closed.add(sum)
		c.Accounts[account] = closed
	}
	for _, charge := range e.charges() {
		closed := c.Accounts[charge.Account]
		closed.Floor = max(closed.Floor, charge.Total)
		c.Accounts[charge.Account] = closed
	}
	if e.closing == nil {
		return
	}
	c.Before = max(c.Before, e.closing.Before)
	c.Records += e.closing.Records
	for writer, number := range e.closing.Streams {
		c.Streams[writer] = max(c.Streams[writer], number)
	}
}
