package ledger

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/google/uuid"
)

// Aspect is what a [Difference] is about.
type Aspect string

const (
	// NumberingAspect: the records of a stream are numbered without gaps.
	NumberingAspect Aspect = "numbering"
	// HoldAspect: each hold has ended once, as its row says, and its row says what its records do.
	HoldAspect Aspect = "hold"
	// ChargeAspect: each charge is what its usage and price make, or the cost that was told, or what was held, and its outcome tells the
	// same; what was taken back is part of it; a posting that bears an id is what stands under it.
	ChargeAspect Aspect = "charge"
	// CallAspect: each call has a decision for each attempt and the one terminal state that an outcome gave it.
	CallAspect Aspect = "call"
	// UsedAspect, RefundsAspect, HeldAspect and FloorAspect are the totals of an account.
	UsedAspect    Aspect = "used"
	RefundsAspect Aspect = "refunds"
	HeldAspect    Aspect = "held"
	FloorAspect   Aspect = "floor"
	// PostingAspect: each charge of an account stands where its record says, with its time, its amount and what was taken back of it.
	PostingAspect Aspect = "posting"
	// WindowAspect: what a window counts is the sum of the charges in it; a fixed window opened between two charges, and a month ends
	// where one of its zone does.
	WindowAspect Aspect = "window"
)

// Difference is a place in which a ledger's rows are not what its journal says.
type Difference struct {
	Aspect Aspect `json:"aspect"`
	// Where names the stream, hold, call, account or window.
	Where string `json:"where"`
	// Want is what the journal, or the rule, says; Got is what is there.
	Want string `json:"want"`
	Got  string `json:"got"`
}

func (d Difference) String() string {
	return fmt.Sprintf("%s of %s: want %s, got %s", d.Aspect, d.Where, d.Want, d.Got)
}

// Verification is what [Verify] looked at, and found.
type Verification struct {
	Streams  int   `json:"streams"`
	Records  int64 `json:"records"`
	Accounts int64 `json:"accounts"`
	Charges  int64 `json:"charges"`
	Calls    int64 `json:"calls"`
	Holds    int64 `json:"holds"`
	// Live holds run still.
	Live int64 `json:"live"`
	// Differences are the first that were found, More is how many there are besides.
	Differences []Difference `json:"differences"`
	More        int          `json:"more"`
}

const (
	// verifyPage is how many records or rows are read at a time: some MB.
	verifyPage = 1000
	// differencesMax bounds what is told: whoever has more reads no further.
	differencesMax = 1000
	// passRecords is how many records' calls and holds one pass over the journal remembers: those of 350,000 calls, some 100 MB.
	passRecords = 1 << 20
)

// Verify computes everything again from the journal and compares it with what the store holds. It looks at one view of the store, so
// that the ledger may go on meanwhile: holds that run are no difference.
//
// It reads the journal page by page and remembers a few numbers of each account, of each charge that was lowered, and of each call and
// hold: the latter in as many passes over the journal as it takes for them to fit some 100 MB. Where the charges of an account are not
// what the journal says, it remembers all charges of that account to name those that are wrong.
//
// What no record tells cannot be compared: a hold's deadline, token and digest, of a call more than its end and state, when an account
// was touched last if no charge was made then, and when a fixed window opened between two charges.
//
// A store in memory that has forgotten what is beyond its bounds cannot be verified: what it forgot is a difference.
func Verify(ctx context.Context, store Store) (Verification, error) {
	return verifyIn(ctx, store, passRecords)
}

// verifyIn verifies in passes for so many records.
func verifyIn(ctx context.Context, store Store, passRecords uint64) (Verification, error) {
	v := &verifier{ctx: ctx, passRecords: passRecords, report: Verification{Differences: []Difference{}}}
	err := store.View(ctx, func(view View) error {
		v.view = view
		return v.verify()
	})
	return v.report, err
}

// verifier is a verification under way.
type verifier struct {
	ctx    context.Context
	view   View
	report Verification

	streams []streamSeen
	// missing is the number up to which each stream is pruned, before the time up to which.
	missing map[uuid.UUID]int64
	before  time.Time
	books   map[Account]*accountSeen
	lowered map[uuid.UUID]*loweredSeen
	refunds map[Mark]int64
	// suspect are accounts whose charges are not what the journal says.
	suspect map[Account]bool

	passRecords uint64
	// pass of passes is the part of the calls and holds that is looked at; they are remembered in calls and holds.
	pass, passes uint64
	calls        map[uuid.UUID]*callSeen
	holds        map[uuid.UUID]*holdSeen
}

// streamSeen is a stream, and the number of the first record that it has.
type streamSeen struct {
	Stream
	first int64
}

// accountSeen is an account as its records have it.
type accountSeen struct {
	Closed
	// closed is the floor that pruning left: some charges below it are gone.
	closed int64
	held   int64
	live   int
	// charges is how many charges the records name, sum a sum over them that does not depend on their order.
	charges int64
	sum     uint64
}

// holdSeen is a hold as its records have it.
type holdSeen struct {
	call              uuid.UUID
	charges, outcomes uint8
	// charge is what was charged, until the outcome is read, which is the record after it.
	charge *ChargeBody
}

// callSeen is a call as its records have it.
type callSeen struct {
	decisions, attempts, live, ends uint32
	state                           State
	// at is the newest record, ended that of the end.
	at, ended time.Time
}

// loweredSeen is a charge that was lowered.
type loweredSeen struct {
	charged *Charge
	// refund is what a late settlement left of it, corrected what persons took back besides, below 0.
	refund *Charge
	usage  *Usage // of the late settlement
	// refunds and corrections are how many took something back.
	refunds, corrections int
	corrected            Charge
	totals               map[Account]int64
}

func (v *verifier) fault(aspect Aspect, where any, want, got any) {
	if len(v.report.Differences) == differencesMax {
		v.report.More++
		return
	}
	v.report.Differences = append(v.report.Differences,
		Difference{Aspect: aspect, Where: fmt.Sprint(where), Want: fmt.Sprintf("%+v", want), Got: fmt.Sprintf("%+v", got)})
}

// differs adds a difference if there is one.
func differs[T comparable](v *verifier, aspect Aspect, where any, want, got T) {
	if want != got {
		v.fault(aspect, where, want, got)
	}
}

// times adds a difference if two times are not the same.
func (v *verifier) times(aspect Aspect, where string, want, got time.Time) {
	if !want.Equal(got) {
		v.fault(aspect, where, timeText(want), timeText(got))
	}
}

func timeText(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func (v *verifier) verify() error {
	v.missing, v.books, v.suspect = map[uuid.UUID]int64{}, map[Account]*accountSeen{}, map[Account]bool{}
	v.lowered, v.refunds = map[uuid.UUID]*loweredSeen{}, map[Mark]int64{}
	if err := v.findStreams(); err != nil {
		return err
	}
	for v.pass = 0; v.pass < v.passes; v.pass++ {
		v.calls, v.holds = map[uuid.UUID]*callSeen{}, map[uuid.UUID]*holdSeen{}
		for _, step := range []func() error{v.readJournal, v.checkHolds, v.checkCalls} {
			if err := step(); err != nil {
				return err
			}
		}
	}
	for _, step := range []func() error{v.checkLowered, v.checkAccounts, v.findCharges} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) findStreams() error {
	streams, err := v.view.Streams(v.ctx)
	if err != nil {
		return err
	}
	records := int64(0)
	for _, stream := range streams {
		first, err := v.view.Records(v.ctx, stream.Writer, 0, 1)
		if err != nil {
			return err
		}
		seen := streamSeen{Stream: stream, first: stream.Last + 1}
		if len(first) > 0 {
			seen.first = first[0].Number
		}
		records += stream.Last - seen.first + 1
		v.streams = append(v.streams, seen)
	}
	v.report.Streams = len(streams)
	v.passes = uint64(max(0, records))/v.passRecords + 1
	return nil
}

// isMine says whether a call, or a hold that has none, is looked at in this pass.
func (v *verifier) isMine(id uuid.UUID) bool {
	hash := fnv.New64a()
	_, _ = hash.Write(id[:]) // it never fails
	return hash.Sum64()%v.passes == v.pass
}

// readJournal reads every stream from its beginning.
func (v *verifier) readJournal() error {
	for _, stream := range v.streams {
		at := stream.first - 1
		err := eachPage(v.ctx, v.view, stream.Writer, func(page []Record) error {
			for _, record := range page {
				if v.pass == 0 && record.Number != at+1 {
					v.fault(NumberingAspect, "stream "+stream.Writer.String(), at+1, record.Number)
				}
				at = record.Number
			}
			return v.readPage(page)
		})
		if err != nil {
			return err
		}
		if v.pass == 0 && at != stream.Last {
			v.fault(NumberingAspect, "the end of stream "+stream.Writer.String(), stream.Last, at)
		}
	}
	if v.pass > 0 {
		return nil
	}
	for _, stream := range v.streams { // all closing records are known now
		differs(v, NumberingAspect, "the beginning of stream "+stream.Writer.String(), v.missing[stream.Writer]+1, stream.first)
	}
	return nil
}

// eachPage reads a stream page by page.
func eachPage(ctx context.Context, view View, writer uuid.UUID, read func([]Record) error) error {
	for after := int64(0); ; {
		page, err := view.Records(ctx, writer, after, verifyPage)
		if err != nil || len(page) == 0 {
			return err
		}
		after = page[len(page)-1].Number
		if err := read(page); err != nil {
			return err
		}
	}
}

// readPage books a page of records. The rows of the holds and postings of which they tell are read at once.
func (v *verifier) readPage(page []Record) error {
	var entries []entry
	for _, record := range page {
		if v.pass > 0 && record.Call != uuid.Nil && !v.isMine(record.Call) {
			continue
		}
		e, err := readEntry(record)
		if err != nil {
			return err
		}
		entries = append(entries, e)
	}
	keys := Keys{Holds: toldOf(entries).Holds}
	for _, e := range entries {
		if e.charge != nil && e.charge.Posting != uuid.Nil {
			keys.Amendments = append(keys.Amendments, e.charge.Posting)
		}
	}
	rows, err := v.view.Load(v.ctx, keys)
	if err != nil {
		return err
	}
	for i := range entries {
		if v.pass == 0 {
			v.book(&entries[i])
		}
		v.see(&entries[i], rows)
	}
	return nil
}

// book sums up what an entry comes to for accounts.
func (v *verifier) book(e *entry) {
	v.report.Records++
	for account, sum := range e.sums() {
		seen := v.account(account)
		seen.add(sum)
		if e.closing != nil {
			seen.closed = max(seen.closed, sum.Floor)
		}
	}
	for _, charge := range e.charges() {
		seen := v.account(charge.Account)
		seen.charges++
		seen.sum += charge.hash()
	}
	amounts, totals := e.amounts()
	for account, amount := range amounts {
		if amount < 0 && totals[account] > 0 {
			v.refunds[Mark{account, totals[account]}] -= amount
		}
	}
	if e.closing == nil {
		return
	}
	for writer, number := range e.closing.Streams {
		v.missing[writer] = max(v.missing[writer], number)
	}
	v.before = later(v.before, time.UnixMicro(e.closing.Before).UTC())
}

func (v *verifier) account(account Account) *accountSeen {
	if v.books[account] == nil {
		v.books[account] = &accountSeen{}
	}
	return v.books[account]
}

// hash is a number that equal charges of an account share, and hardly any others.
func (c *ChargeRow) hash() uint64 {
	hash := fnv.New64a()
	var text [24]byte
	for i, n := range []int64{c.Total, c.At.UnixMicro(), c.Amount} {
		for j := range 8 {
			text[i*8+j] = byte(n >> (8 * j))
		}
	}
	_, _ = hash.Write(text[:]) // it never fails
	return hash.Sum64()
}

// see remembers what an entry says of its call and hold.
func (v *verifier) see(e *entry, rows *Rows) {
	lowered, ended := e.lowered(), e.ended()
	switch {
	case lowered != uuid.Nil:
		if v.isMine(mineID(e.Call, lowered)) {
			v.seeLowered(e, rows.Holds[lowered])
		}
	case ended == uuid.Nil && e.Call == uuid.Nil:
		if v.pass == 0 {
			v.checkDirect(e, rows)
		}
	case v.isMine(mineID(e.Call, ended)):
		if e.Call != uuid.Nil {
			v.seeCall(e)
		}
		if ended != uuid.Nil {
			v.seeEnd(e, ended, rows)
		}
	}
}

// seeEnd remembers that a hold was charged, or has ended.
func (v *verifier) seeEnd(e *entry, hold uuid.UUID, rows *Rows) {
	seen := v.holds[hold]
	if seen == nil {
		seen = &holdSeen{call: e.Call}
		v.holds[hold] = seen
	}
	differs(v, HoldAspect, "the call of hold "+hold.String(), seen.call, e.Call)
	row, known := rows.Holds[hold]
	switch {
	case e.charge != nil:
		seen.charges++
		seen.charge = e.charge
		if known {
			v.checkCharge(e, row)
		}
	case e.outcome != nil:
		seen.outcomes++
		v.checkTold(seen, e.outcome)
		if known {
			v.checkOutcome(e, row, seen.charges > 0)
		}
	}
}

// mineID is by what a pass chooses: a call's holds stay with it.
func mineID(call, hold uuid.UUID) uuid.UUID {
	if call == uuid.Nil {
		return hold
	}
	return call
}

func (v *verifier) seeCall(e *entry) {
	seen := v.calls[e.Call]
	if seen == nil {
		seen = &callSeen{}
		v.calls[e.Call] = seen
	}
	seen.at = later(seen.at, e.At)
	switch {
	case e.Kind == DecisionRecord:
		seen.decisions++
	case e.outcome != nil && e.outcome.State != "":
		seen.ends++
		seen.state, seen.ended = interned(e.outcome.State), e.At
	}
}

// interned is the same state without memory of its own.
func interned(state State) State {
	for _, each := range []State{Denied, Held, Completed, Failed, Cancelled} {
		if each == state {
			return each
		}
	}
	return state
}

// checkHolds compares each hold's row with its records, and sums up what is held.
func (v *verifier) checkHolds() error {
	for after := uuid.Nil; ; {
		page, err := v.view.Holds(v.ctx, after, verifyPage)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for i := range page {
			if v.isMine(mineID(page[i].Call, page[i].ID)) {
				v.checkHold(&page[i])
			}
		}
		after = page[len(page)-1].ID
	}
	for id := range v.holds {
		v.fault(HoldAspect, "hold "+id.String(), "the row of a hold in the journal", "none")
	}
	return nil
}

func (v *verifier) checkHold(row *HoldRow) {
	v.report.Holds++
	seen := v.holds[row.ID]
	delete(v.holds, row.ID)
	if seen == nil {
		seen = &holdSeen{call: row.Call}
	}
	where := "hold " + row.ID.String() + ", " + string(row.State)
	differs(v, HoldAspect, "the call of "+where, seen.call, row.Call)
	if row.Call != uuid.Nil {
		v.attempt(row)
	}
	charges, outcomes := uint8(1), uint8(1)
	switch row.State {
	case HoldLive:
		charges, outcomes = 0, 0
		v.hold(row)
		differs(v, HoldAspect, "the outcome of "+where, Outcome{}, row.Outcome)
		v.usages(HoldAspect, "the usage of "+where, nil, row.Usage)
		v.checkUncharged(row, where)
	case HoldReleased:
		charges = 0
		v.checkUncharged(row, where)
	}
	differs(v, HoldAspect, "the charges of "+where, charges, seen.charges)
	differs(v, HoldAspect, "the outcomes of "+where, outcomes, seen.outcomes)
}

// checkUncharged sees that a hold which became no charge has none in its row.
func (v *verifier) checkUncharged(row *HoldRow, where string) {
	differs(v, ChargeAspect, where, Charge{}, row.Charge)
	differs(v, ChargeAspect, "the charges of "+where, 0, len(row.Totals))
	differs(v, HoldAspect, "that something was taken back of "+where, false, row.Refunded)
}

// attempt counts a hold as an attempt of its call.
func (v *verifier) attempt(row *HoldRow) {
	call := v.calls[row.Call]
	if call == nil {
		call = &callSeen{at: row.AdmittedAt}
		v.calls[row.Call] = call
	}
	call.attempts++
	if row.State == HoldLive {
		call.live++
	}
}

// hold counts what a live hold holds.
func (v *verifier) hold(row *HoldRow) {
	v.report.Live++
	for _, account := range row.Accounts {
		seen := v.account(account)
		seen.live++
		if reserved := row.Reserve.Of(account.Unit); reserved != nil {
			seen.held += *reserved
		}
	}
}

// checkCalls compares each call's row with its records and holds.
func (v *verifier) checkCalls() error {
	for after := uuid.Nil; ; {
		page, err := v.view.Calls(v.ctx, after, verifyPage)
		if err != nil {
			return err
		}
		if len(page) == 0 {
			break
		}
		for i := range page {
			if v.isMine(page[i].ID) {
				v.checkCall(&page[i])
			}
		}
		after = page[len(page)-1].ID
	}
	for id, seen := range v.calls {
		if !seen.at.Before(v.before) { // else its row was pruned with the record of its end
			v.fault(CallAspect, "call "+id.String(), "the row of a call in the journal", "none")
		}
	}
	return nil
}

func (v *verifier) checkCall(row *Call) {
	v.report.Calls++
	seen := v.calls[row.ID]
	delete(v.calls, row.ID)
	if seen == nil {
		seen = &callSeen{}
	}
	where := "call " + row.ID.String() + ", " + string(row.State)
	if least := max(1, seen.attempts); seen.decisions < least && !row.CreatedAt.Before(v.before) {
		v.fault(CallAspect, "the decisions of "+where, fmt.Sprintf("at least %d", least), seen.decisions)
	}
	ends, live, state, ended := uint32(1), uint32(0), row.State, seen.ended
	switch row.State {
	case Held:
		ends, live, state = 0, 1, ""
	case Denied:
		ends, state, ended = 0, "", row.CreatedAt
		differs(v, CallAspect, "the attempts of "+where, 0, seen.attempts)
		if seen.decisions == 1 {
			v.times(CallAspect, "the time of "+where, seen.at, row.CreatedAt)
		}
	}
	differs(v, CallAspect, "the ends of "+where, ends, seen.ends)
	differs(v, CallAspect, "the live holds of "+where, live, seen.live)
	differs(v, CallAspect, "the state of "+where, state, seen.state)
	differs(v, CallAspect, "that it has ended, of "+where, row.State != Held, !row.EndedAt.IsZero())
	if !ended.IsZero() && !row.EndedAt.IsZero() { // else that was said
		v.times(CallAspect, "the end of "+where, ended, row.EndedAt)
	}
}
