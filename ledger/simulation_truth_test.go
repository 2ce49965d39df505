package ledger_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/ledgertest"
)

// truth is what a schedule's callers asked for and were told, and a flat log of what was committed. It shares no arithmetic with the
// ledger, and knows no rows: what the ledger wrote is compared with it.
type truth struct {
	sim *simulation

	mu       sync.Mutex // guards all below, and what holds and calls point to
	holds    map[uuid.UUID]*heldFor
	calls    map[uuid.UUID]*askedFor
	charges  map[ledger.Account][]entry
	uses     map[use][]entry
	entries  int
	findings []finding
}

// finding is something that must not be. Its kind is the same whatever it is about.
type finding struct{ kind, what string }

// entry is a charge, or the use of a fixed window. Its number tells what happened at one time apart.
type entry struct {
	number int
	at     time.Time
	amount int64
}

type use struct {
	account ledger.Account
	window  ledger.Fixed
}

// heldFor is a hold as its caller knows it, and what was committed of it.
type heldFor struct {
	admission ledger.Admission
	replica   *replica
	// admitted says that the caller was told so. forsaken says that nobody will end it: its caller never knew that it exists.
	admitted, forsaken bool
	// end is how the caller decided to end it; nil before. replacing says that an admission was to do it.
	end       *decidedEnd
	replacing bool
	// told is what the caller was told that it was charged; nil before.
	told *ledger.Charge

	state ledger.HoldState // empty if it was never committed
	// renewed is when the last admission or renewal that was committed was decided.
	renewed  time.Time
	token    int64
	deadline time.Time
	// late says that it expired, and had to: it could not be renewed for its whole time to live.
	late    bool
	charged int
}

type decidedEnd struct {
	consumption *ledger.Consumption
	state       ledger.State // empty if another attempt was to follow
}

// askedFor is a call, and its state as it was committed.
type askedFor struct {
	state ledger.State
	// denied says that the caller was told that the denial is recorded.
	denied bool
}

func newTruth(sim *simulation) *truth {
	return &truth{
		sim: sim, holds: map[uuid.UUID]*heldFor{}, calls: map[uuid.UUID]*askedFor{}, charges: map[ledger.Account][]entry{}, uses: map[use][]entry{},
	}
}

func (t *truth) find(kind, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	t.sim.tracef("FOUND %s: %s", kind, what)
	t.findings = append(t.findings, finding{kind, what})
}

// report is find from outside.
func (t *truth) report(kind, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.find(kind, format, args...)
}

// committed hears of each COMMIT, at the moment at which it takes effect.
func (t *truth) committed(changes *ledger.Changes, decided time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, record := range changes.Records {
		t.recorded(record)
	}
	for _, id := range slices.SortedFunc(maps.Keys(changes.Holds), compareIDs) {
		t.held(changes.Holds[id], decided)
	}
	for id, call := range changes.Calls {
		t.called(id, call.State)
	}
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// body is what the records of a simulation have in common. A decision's body is that of its caller, which names the hold.
type body struct {
	Hold     uuid.UUID                `json:"hold"`
	Accounts map[ledger.Account]int64 `json:"accounts"`
	Tokens   int64                    `json:"tokens"`
	NanoUSD  int64                    `json:"nano_usd"`
}

// recorded plays the journal: it has the operations of a batch in their order.
func (t *truth) recorded(record ledger.Record) {
	var b body
	if err := json.Unmarshal(record.Body, &b); err != nil {
		t.find("journal", "a record cannot be read: %v", err)
		return
	}
	hold := t.holds[b.Hold]
	if hold == nil { // a denial
		return
	}
	switch record.Kind {
	case ledger.DecisionRecord:
		t.admitted(hold, record.At)
	case ledger.ChargeRecord:
		if hold.charged++; hold.charged > 1 {
			t.find("charged twice", "hold %s has a further charge", b.Hold)
		}
		t.entries++
		for account, amount := range b.Accounts {
			t.charge(account, entry{t.entries, record.At, amount})
		}
	case ledger.OutcomeRecord:
		hold.state = "" // until its row is read, it counts no more
	}
}

func (t *truth) charge(account ledger.Account, charge entry) {
	if charge.amount == 0 {
		return
	}
	t.charges[account] = append(t.charges[account], charge)
	for u := range t.uses {
		if u.account == account {
			t.uses[u] = append(t.uses[u], charge)
		}
	}
}

// admitted sees that an admission passes no limit.
func (t *truth) admitted(hold *heldFor, at time.Time) {
	if hold.state != "" {
		t.find("admitted twice", "hold %s", hold.admission.Hold)
	}
	hold.state = ledger.HoldLive
	t.entries++
	for _, claim := range hold.admission.Claims {
		for _, limit := range claim.Limits {
			if fixed, ok := limit.Window.(ledger.Fixed); ok {
				u := use{claim.Account, fixed}
				t.uses[u] = append(t.uses[u], entry{number: t.entries, at: at})
			}
			used, held := t.used(claim.Account, limit.Window, at), t.standing(claim.Account)
			if used+held > limit.Max {
				t.find("limit passed", "hold %s has %s stand at %d used and %d held of %d in %s", hold.admission.Hold, claim.Account, used, held, limit.Max, limit.Window)
			}
		}
	}
}

// standing is what live holds set aside.
func (t *truth) standing(account ledger.Account) (sum int64) {
	for _, hold := range t.holds {
		for _, claim := range hold.admission.Claims {
			if hold.state == ledger.HoldLive && claim.Account == account {
				sum += *hold.admission.Reserve.Of(account.Unit)
			}
		}
	}
	return sum
}

// used sums the charges of a window, one by one.
func (t *truth) used(account ledger.Account, window ledger.Window, now time.Time) (sum int64) {
	counts := t.counting(account, window, now)
	for _, charge := range t.charges[account] {
		if counts(charge) {
			sum += charge.amount
		}
	}
	return sum
}

// counting says which charges stand in a window. A fixed one's last opening is found by walking all uses from the first.
func (t *truth) counting(account ledger.Account, window ledger.Window, now time.Time) func(entry) bool {
	switch w := window.(type) {
	case ledger.Rolling:
		return func(charge entry) bool { return now.Before(charge.at.Add(w.Length)) }
	case ledger.Month:
		zone, _ := time.LoadLocation(w.Zone)
		year, month, _ := now.In(zone).Date()
		begins := time.Date(year, month, 1, 0, 0, 0, 0, zone)
		return func(charge entry) bool { return !charge.at.Before(begins) }
	case ledger.Fixed:
		var opened entry
		for _, use := range t.uses[use{account, w}] {
			if opened.at.IsZero() || !use.at.Before(opened.at.Add(w.Length)) {
				opened = use
			}
		}
		return func(charge entry) bool { return charge.number >= opened.number && now.Before(opened.at.Add(w.Length)) }
	}
	panic(fmt.Sprintf("a window of type %T", window))
}

// held compares a hold's row with what may become of it.
func (t *truth) held(row ledger.HoldRow, decided time.Time) {
	hold := t.holds[row.ID]
	switch {
	case hold == nil:
		t.find("unknown hold", "hold %s", row.ID)
		return
	case row.State == ledger.HoldLive && hold.token != 0 && hold.state != ledger.HoldLive:
		t.find("ended twice", "hold %s had ended, and lives again", row.ID)
	case row.State != ledger.HoldLive && hold.state != "":
		t.find("ended twice", "hold %s is %s without a record of its end", row.ID, row.State)
	}
	if row.State == ledger.HoldLive && (row.Token != hold.token || !row.Deadline.Equal(hold.deadline)) {
		hold.renewed = decided
	}
	t.sim.tracef("hold %s is %s under token %d until %s", short(row.ID), row.State, row.Token, row.Deadline.Format(time.StampMilli))
	hold.state, hold.token, hold.deadline = row.State, row.Token, row.Deadline
	if row.State == ledger.HoldExpired {
		t.expired(hold)
	}
}

func short(id uuid.UUID) string { return id.String()[:8] }

// expired sees that a hold whose caller is there has not expired before its whole time to live had passed without a renewal, nor in an
// outage or after a step of the clock, nor for a time to live from then on, in which it could be renewed.
func (t *truth) expired(hold *heldFor) {
	if hold.forsaken || hold.replica.crashed {
		return
	}
	now := time.Now()
	life, suspended := t.sim.lifetime(hold.renewed, now)
	if life < simTTL || suspended && t.sim.cutFor(hold.replica, hold.renewed, now) < simTTL/2 {
		t.find("expired too soon", "hold %s: it was renewed %v ago, of which %v count; suspended: %v", hold.admission.Hold, now.Sub(hold.renewed), life, suspended)
	}
	hold.late = true
}

func (t *truth) called(id uuid.UUID, state ledger.State) {
	call := t.calls[id]
	switch {
	case call == nil:
		t.find("unknown call", "call %s", id)
		return
	case call.state != "" && call.state != ledger.Held && call.state != state:
		t.find("two states", "call %s was %s and is %s", id, call.state, state)
	}
	call.state = state
}

// lives says whether a hold is live.
func (t *truth) lives(id uuid.UUID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holds[id].state == ledger.HoldLive
}

// running counts the holds that are live.
func (t *truth) running() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, hold := range t.holds {
		if hold.state == ledger.HoldLive {
			n++
		}
	}
	return n
}

// charge is what a consumption comes to: what was used at the price, or what was held.
func (h *heldFor) charge(consumption *ledger.Consumption) (c ledger.Charge) {
	if consumption == nil {
		return c
	}
	held := *h.admission.Reserve.Tokens
	switch used := consumption.Usage; {
	case used == nil:
		c = ledger.Charge{Tokens: held, UnknownUsage: true}
	case consumption.Estimated:
		c = ledger.Charge{Tokens: min(used.Output, held), Estimated: true}
	default:
		c = ledger.Charge{Tokens: used.Output, Overage: used.Output > held}
	}
	c.NanoUSD = nanoUSDPerToken * c.Tokens
	return c
}

// became is what a hold must have become by the end, if it was committed.
func (h *heldFor) became(row ledger.HoldRow) (state ledger.HoldState, charge ledger.Charge) {
	abandoned := h.forsaken || h.replica.crashed
	if h.late || abandoned && (h.end == nil || row.State == ledger.HoldExpired) {
		return ledger.HoldExpired, h.charge(&ledger.Consumption{})
	}
	if h.end == nil {
		return ledger.HoldLive, ledger.Charge{}
	}
	state = ledger.HoldSettled
	if h.end.consumption == nil {
		state = ledger.HoldReleased
	}
	return state, h.charge(h.end.consumption)
}

// check compares the store with the truth at the end, when nothing runs.
func (t *truth) check(store ledger.Store) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := store.View(ctx, func(view ledger.View) error {
		return errors.Join(t.checkHolds(view), t.checkCalls(view), t.checkCharges(view))
	}); err != nil {
		t.find("view", "%v", err)
	}
	if err := ledgertest.Audit(ctx, store); err != nil {
		t.find("audit", "%v", err)
	}
}

const everything = 1 << 20

func (t *truth) checkHolds(view ledger.View) error {
	rows, err := view.Holds(ctx, uuid.Nil, everything)
	found := map[uuid.UUID]ledger.HoldRow{}
	for _, row := range rows {
		found[row.ID] = row
	}
	for _, id := range slices.SortedFunc(maps.Keys(t.holds), compareIDs) {
		t.checkHold(t.holds[id], found[id])
	}
	return err
}

func (t *truth) checkHold(hold *heldFor, row ledger.HoldRow) {
	id := hold.admission.Hold
	if row.State != hold.state {
		t.find("hold lost", "hold %s is %q, and %q was committed", id, row.State, hold.state)
		return
	}
	if row.State == "" {
		if hold.admitted || hold.told != nil {
			t.find("hold lost", "hold %s was acknowledged and is not there", id)
		}
		return
	}
	state, charge := hold.became(row)
	if row.State != state || row.Charge != charge {
		t.find("ended otherwise", "hold %s is %s with %+v; its caller had it %s with %+v", id, row.State, row.Charge, state, charge)
	}
	if hold.told != nil && *hold.told != row.Charge {
		t.find("charged otherwise", "hold %s was charged %+v; its caller was told %+v", id, row.Charge, *hold.told)
	}
	charges := 1
	if state == ledger.HoldReleased {
		charges = 0
	}
	if hold.charged != charges {
		t.find("charged twice", "hold %s has %d charges", id, hold.charged)
	}
}

func (t *truth) checkCalls(view ledger.View) error {
	rows, err := view.Calls(ctx, uuid.Nil, everything)
	found := map[uuid.UUID]ledger.State{}
	for _, row := range rows {
		found[row.ID] = row.State
	}
	for _, id := range slices.SortedFunc(maps.Keys(t.calls), compareIDs) {
		call := t.calls[id]
		switch {
		case found[id] != call.state:
			t.find("call lost", "call %s is %q, and %q was committed", id, found[id], call.state)
		case call.state == ledger.Held:
			t.find("call never ends", "call %s", id)
		case call.denied && call.state != ledger.Denied:
			t.find("call lost", "call %s was denied, and is %q", id, call.state)
		}
	}
	t.checkStates(found)
	return err
}

// checkStates sees that each call ended as the last of its attempts did.
func (t *truth) checkStates(found map[uuid.UUID]ledger.State) {
	for _, hold := range t.holds {
		var want ledger.State
		switch {
		case hold.state == ledger.HoldExpired:
			want = ledger.Failed
		case hold.state == "" || hold.end == nil || hold.replacing:
			continue
		default:
			want = hold.end.state
		}
		if got := found[hold.admission.Call.ID]; got != want {
			t.find("call's state", "call %s is %q, want %q", hold.admission.Call.ID, got, want)
		}
	}
}

// checkCharges compares the charges of every account with the log, one by one.
func (t *truth) checkCharges(view ledger.View) error {
	var accounts []ledger.Account
	for _, claim := range t.sim.budgets {
		accounts = append(accounts, claim.Account)
	}
	rows, err := view.Load(ctx, ledger.Keys{Accounts: accounts})
	if err != nil {
		return err
	}
	for _, account := range accounts {
		charges, err := view.Charges(ctx, account, 0, everything)
		if err != nil {
			return err
		}
		var used int64
		for _, charge := range t.charges[account] {
			used += charge.amount
		}
		if row := rows.Accounts[account]; row.Used != used || row.Held != 0 {
			t.find("account", "%s has %d used and %d held, want %d and nothing", account, row.Used, row.Held, used)
		}
		if !slices.EqualFunc(charges, t.charges[account], func(row ledger.ChargeRow, charge entry) bool {
			return row.Amount == charge.amount && row.At.Equal(charge.at)
		}) {
			t.find("charges", "%s has %d charges, want %d, or others", account, len(charges), len(t.charges[account]))
		}
	}
	return nil
}
