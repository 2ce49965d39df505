package ledgertest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// oracle is a ledger as a flat log that is summed anew for every question: slow and without any cleverness.
type oracle struct {
	// uses are the moments at which a fixed window of an account was used: admissions under it, and charges once it is known.
	uses    map[use][]moment
	charges map[ledger.Account][]charge
	// entries counts all of them, in the order in which they happened.
	entries int
	holds   map[uuid.UUID]oracleHold
	// expired are holds that ran out, which a late settlement may still lower.
	expired map[uuid.UUID]oracleHold
	// floors count the entries that were there when an account was reset: none of them stands in a window any more.
	floors map[ledger.Account]int
	// charged are what holds became, less what was taken back, which a correction may lower.
	charged map[uuid.UUID]oracleCharge
}

type oracleCharge struct {
	at   time.Time
	left int64
}

type use struct {
	account ledger.Account
	window  ledger.Fixed
}

// moment tells what happened at one time apart, too.
type moment struct {
	at    time.Time
	entry int
}

type charge struct {
	moment
	amount int64
	hold   uuid.UUID
}

type oracleHold struct {
	token    int64
	deadline time.Time
	amounts  map[ledger.Account]int64
}

func newOracle() *oracle {
	return &oracle{
		uses: map[use][]moment{}, charges: map[ledger.Account][]charge{}, holds: map[uuid.UUID]oracleHold{},
		expired: map[uuid.UUID]oracleHold{}, floors: map[ledger.Account]int{}, charged: map[uuid.UUID]oracleCharge{},
	}
}

func (o *oracle) clone() *oracle {
	c := newOracle()
	c.holds, c.entries, c.floors = maps.Clone(o.holds), o.entries, o.floors
	for u, moments := range o.uses {
		c.uses[u] = slices.Clone(moments)
	}
	for account, charges := range o.charges {
		c.charges[account] = slices.Clone(charges)
	}
	return c
}

// used sums the charges of a window.
func (o *oracle) used(account ledger.Account, window ledger.Window, now time.Time) (sum int64) {
	counts := o.counting(account, window, now)
	for _, charge := range o.charges[account] {
		if counts(charge.moment) && charge.entry > o.floors[account] {
			sum += charge.amount
		}
	}
	return sum
}

// counting says which charges stand in a window at a time. A fixed window's last opening is found by walking all uses from the first.
func (o *oracle) counting(account ledger.Account, window ledger.Window, now time.Time) func(moment) bool {
	switch w := window.(type) {
	case ledger.Rolling:
		return func(charged moment) bool { return now.Before(charged.at.Add(w.Length)) }
	case ledger.Month:
		month := firstOfMonth(w, now)
		return func(charged moment) bool { return !charged.at.Before(month) } // none is from the future
	case ledger.Fixed:
		var opened moment
		for _, use := range o.uses[use{account, w}] {
			if opened.at.IsZero() || !use.at.Before(opened.at.Add(w.Length)) {
				opened = use
			}
		}
		open := !opened.at.IsZero() && now.Before(opened.at.Add(w.Length))
		return func(charged moment) bool { return open && charged.entry >= opened.entry }
	}
	panic(fmt.Sprintf("a window of type %T", window))
}

func firstOfMonth(month ledger.Month, t time.Time) time.Time {
	zone, err := time.LoadLocation(month.Zone)
	if err != nil {
		panic(err)
	}
	t = t.In(zone)
	return time.Date(t.Year(), t.Month(), 1, 0, 0, 0, 0, zone)
}

func (o *oracle) held(account ledger.Account) (sum int64) {
	for _, hold := range o.holds {
		sum += hold.amounts[account]
	}
	return sum
}

func (o *oracle) charge(account ledger.Account, at time.Time, amount int64, hold uuid.UUID) {
	if amount == 0 {
		return
	}
	o.entries++
	entry := moment{at, o.entries}
	o.charges[account] = append(o.charges[account], charge{entry, amount, hold})
	for u := range o.uses {
		if u.account == account {
			o.uses[u] = append(o.uses[u], entry)
		}
	}
}

// end charges a hold the same amount in each of its accounts.
func (o *oracle) end(id uuid.UUID, at time.Time, amount int64) {
	for account := range o.holds[id].amounts {
		o.charge(account, at, amount, id)
	}
	o.charged[id] = oracleCharge{at, amount}
	delete(o.holds, id)
}

// reset has all that was used so far leave every window.
func (o *oracle) reset(account ledger.Account) {
	o.entries++
	o.floors[account] = o.entries
}

// takeBack lowers the charges of a hold.
func (o *oracle) takeBack(id uuid.UUID, amount int64) {
	for account, charges := range o.charges {
		for i, charge := range charges {
			if charge.hold == id {
				o.charges[account][i].amount -= amount
			}
		}
	}
	o.charged[id] = oracleCharge{o.charged[id].at, o.charged[id].left - amount}
	delete(o.expired, id) // no late settlement lowers it any more
}

// refund lowers the charges of a hold that ran out.
func (o *oracle) refund(id uuid.UUID, to int64) {
	for account := range o.expired[id].amounts {
		for i, charge := range o.charges[account] {
			if charge.hold == id {
				o.charges[account][i].amount = min(charge.amount, to)
			}
		}
	}
	o.charged[id] = oracleCharge{o.charged[id].at, min(o.charged[id].left, to)}
	delete(o.expired, id)
}

func (o *oracle) expire(now time.Time) {
	ids := slices.SortedFunc(maps.Keys(o.holds), func(a, b uuid.UUID) int {
		return cmp.Or(o.holds[a].deadline.Compare(o.holds[b].deadline), slices.Compare(a[:], b[:]))
	})
	for _, id := range ids {
		hold := o.holds[id]
		if hold.deadline.After(now) {
			continue
		}
		delete(o.holds, id)
		o.expired[id] = hold
		for account, amount := range hold.amounts {
			o.charge(account, hold.deadline, amount, id)
			o.charged[id] = oracleCharge{hold.deadline, amount} // it is the same in each
		}
	}
}

// fits says whether an admission would be granted at a time at which nothing else has happened.
func (o *oracle) fits(a ledger.Admission, at time.Time) bool {
	later := o.clone()
	later.expire(at)
	amount := *a.Reserve.Tokens
	if amount == 0 {
		return true
	}
	ordinary, further, below := true, true, true
	for _, claim := range a.Claims {
		for _, limit := range claim.Limits {
			stands := later.used(claim.Account, limit.Window, at) + later.held(claim.Account)
			spendable := cmp.Or(limit.Spendable, limit.Max)
			ordinary = ordinary && stands+amount <= spendable
			further = further && stands+amount <= max(spendable, limit.Final)
			below = below && stands < spendable
		}
	}
	return ordinary || further && below
}

// changes are the moments after now at which anything can change by itself.
func (o *oracle) changes(a ledger.Admission, now time.Time) (moments []time.Time) {
	add := func(t time.Time) {
		if t.After(now) {
			moments = append(moments, t)
		}
	}
	starts := []time.Time{now}
	for _, hold := range o.holds {
		starts = append(starts, hold.deadline)
	}
	for _, claim := range a.Claims {
		for _, charge := range o.charges[claim.Account] {
			starts = append(starts, charge.at)
		}
		for u, uses := range o.uses {
			if u.account == claim.Account {
				for _, moment := range uses {
					starts = append(starts, moment.at)
				}
			}
		}
		for _, limit := range claim.Limits {
			for _, start := range starts {
				switch w := limit.Window.(type) {
				case ledger.Rolling:
					add(start.Add(w.Length))
				case ledger.Fixed:
					add(start.Add(w.Length))
				case ledger.Month:
					add(firstOfMonth(w, firstOfMonth(w, start).AddDate(0, 0, 40)))
				}
			}
		}
	}
	for _, start := range starts {
		add(start)
	}
	return moments
}

func (o *oracle) admit(a ledger.Admission, now time.Time, hold ledger.Hold) {
	o.entries++
	held := oracleHold{token: hold.Token, deadline: hold.Deadline, amounts: map[ledger.Account]int64{}}
	for _, claim := range a.Claims {
		held.amounts[claim.Account] = *a.Reserve.Tokens
		for _, limit := range claim.Limits {
			if fixed, ok := limit.Window.(ledger.Fixed); ok {
				u := use{claim.Account, fixed}
				o.uses[u] = append(o.uses[u], moment{now, o.entries})
			}
		}
	}
	o.holds[a.Hold] = held
}

// forget drops what no question can reach any more, so that a long history takes no longer per step than a short one.
func (o *oracle) forget(now time.Time) {
	old := func(t time.Time) bool { return t.Before(now.Add(-2 * ledger.LengthMax)) }
	for account, charges := range o.charges {
		o.charges[account] = slices.DeleteFunc(charges, func(c charge) bool { return old(c.at) })
	}
	for u, uses := range o.uses { // from an opening that is certain: a use after a pause of the window's length
		for i := len(uses) - 1; i > 0; i-- {
			if old(uses[i].at) && uses[i].at.Sub(uses[i-1].at) >= u.window.Length {
				o.uses[u] = slices.Delete(uses, 0, i)
				break
			}
		}
	}
	maps.DeleteFunc(o.expired, func(_ uuid.UUID, h oracleHold) bool { return old(h.deadline) })
	maps.DeleteFunc(o.charged, func(_ uuid.UUID, c oracleCharge) bool { return old(c.at) })
}

// steps of one random history: enough that every pair of operations meets, and a few seconds on a durable store.
const steps = 1500

func agreesWithOracle(t *testing.T, b *bench) {
	if err := agrees(b.Clock, b.ledger, Seed(t), steps); err != nil {
		t.Fatal(err)
	}
}

// RunHistory compares one long random history with a flat log, and audits its books at the end.
func RunHistory(t *testing.T, open func(now func() time.Time) ledger.Store, steps int) {
	clock := NewClock()
	l, err := openLedger(clock, open(clock.Now), nil)
	if err != nil {
		t.Fatal(err)
	}
	err = agrees(clock, l, Seed(t), steps)
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
}

// agrees says where a random history and the same on a flat log part.
func agrees(clock *Clock, l *ledger.Ledger, seed uint64, steps int) error {
	h := newHistory(clock, l, seed)
	for h.step < steps {
		if err := h.next(); err != nil {
			return err
		}
	}
	clock.Advance(4*time.Hour + time.Microsecond) // the longest hold
	if err := l.Refuse(ctx, nil, []byte(`{}`)); err != nil {
		return err
	}
	if err := Audit(ctx, l.Store()); err != nil {
		return fmt.Errorf("the books at the end: %w", err)
	}
	return nil
}

// history is a random history of a ledger, and the same on a flat log.
type history struct {
	*Clock
	ledger   *ledger.Ledger
	oracle   *oracle
	random   *rand.Rand
	accounts []ledger.Account
	live     map[uuid.UUID]ledger.Hold
	step     int
	// pruned is the time before which what a hold became may be gone.
	pruned time.Time
}

func newHistory(clock *Clock, l *ledger.Ledger, seed uint64) *history {
	return &history{
		Clock: clock, ledger: l, oracle: newOracle(), random: rand.New(rand.NewPCG(seed, 1)), live: map[uuid.UUID]ledger.Hold{},
		accounts: []ledger.Account{aliceTokens, taskTokens, {Scope: ledger.ScopeUser, ID: "bob", Unit: ledger.Tokens}},
	}
}

// windows of the histories, with limits that are reached about as often as not.
var historyLimits = []ledger.Limit{
	{Window: ledger.Fixed{Length: time.Hour}, Max: 100},
	{Window: day, Max: 400},
	{Window: ledger.Rolling{Length: 5 * time.Hour}, Max: 200, Spendable: 190, Final: 192},
	{Window: ledger.Rolling{Length: 7 * 24 * time.Hour}, Max: 2500, Spendable: 2375, Final: 2400},
	{Window: ledger.Rolling{Length: 30 * 24 * time.Hour}, Max: 9000},
	{Window: ledger.Month{Zone: "Europe/Berlin"}, Max: 8000},
}

// next does one random thing and compares.
func (h *history) next() error {
	h.step++
	h.oracle.expire(h.Now())
	maps.DeleteFunc(h.live, func(id uuid.UUID, _ ledger.Hold) bool { _, lives := h.oracle.holds[id]; return !lives })
	if err := h.act(); err != nil {
		return fmt.Errorf("step %d: %w", h.step, err)
	}
	h.oracle.expire(h.Now())
	for _, account := range h.accounts {
		if err := h.compare(account); err != nil {
			return fmt.Errorf("step %d: %w", h.step, err)
		}
	}
	if h.step%1000 == 0 {
		h.oracle.forget(h.Now())
	}
	return nil
}

func (h *history) act() error {
	hold, some := anyOf(h.live)
	switch n := h.random.IntN(1000); {
	case n < 3:
		return h.prune()
	case n < 9:
		h.Advance(h.moment(10 * 24 * time.Hour)) // so that a short history has something to prune, too
		return h.ledger.Refuse(ctx, nil, []byte(`{}`))
	case n < 12:
		return h.verify()
	case n < 15: // seldom enough that windows reach back to what is pruned
		return h.reset()
	case n < 70:
		return h.correct()
	}
	switch n := h.random.IntN(12); {
	case n < 4:
		return h.admit()
	case n < 6 && some:
		return h.settle(hold)
	case n == 6 && some:
		h.oracle.end(hold.ID, h.Now(), 0)
		return h.ledger.Release(ctx, ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: ledger.Outcome{Result: ledger.Errored}})
	case n == 7 && some:
		return h.renew(hold)
	case n == 8:
		return h.settleLate()
	case n == 9:
		return h.post()
	}
	h.Advance(h.moment(3 * time.Hour))
	return h.ledger.Refuse(ctx, nil, []byte(`{}`)) // and the ledger sees it, as it would of itself
}

// moment is a random span in whole microseconds; often one that meets others exactly.
func (h *history) moment(most time.Duration) time.Duration {
	if h.random.IntN(3) == 0 {
		return time.Duration(h.random.Int64N(int64(most/time.Minute))+1) * time.Minute
	}
	return time.Duration(h.random.Int64N(most.Microseconds())+1) * time.Microsecond
}

func (h *history) settle(hold ledger.Hold) error {
	used := h.random.Int64N(60)
	_, err := h.ledger.Settle(ctx, ending(hold), h.consumption(used))
	h.oracle.end(hold.ID, h.Now(), used)
	return err
}

// consumption is a usage, sometimes with a cost that is told: nothing here has a price, and no account of it is in the log.
func (h *history) consumption(used int64) ledger.Consumption {
	c := ledger.Consumption{Usage: &ledger.Usage{Output: used}}
	if h.random.IntN(3) == 0 {
		c.NanoUSD = amount(h.random.Int64N(1000))
	}
	return c
}

func (h *history) renew(hold ledger.Hold) error {
	renewed, err := h.ledger.Renew(ctx, hold.ID, hold.Token, h.moment(2*time.Hour))
	moved := h.oracle.holds[hold.ID]
	moved.deadline, moved.token = renewed.Deadline, renewed.Token
	h.oracle.holds[hold.ID], h.live[hold.ID] = moved, renewed
	return err
}

// settleLate tells the usage of a hold that has run out and was charged in full.
func (h *history) settleLate() error {
	ids := slices.SortedFunc(maps.Keys(h.oracle.expired), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	if len(ids) == 0 {
		return nil
	}
	id := ids[h.random.IntN(len(ids))]
	hold, used := h.oracle.expired[id], h.random.Int64N(60)
	_, err := h.ledger.Settle(ctx, ledger.Ending{Hold: id, Token: hold.token, State: ledger.Completed}, h.consumption(used))
	if errors.Is(err, ledger.ErrState) && hold.deadline.Before(h.pruned) {
		err = nil
	}
	if h.Now().Sub(hold.deadline) <= refund {
		h.oracle.refund(id, used)
	}
	delete(h.oracle.expired, id)
	return err
}

// post charges directly; under an id it does so twice, which is once.
func (h *history) post() error {
	account, used := h.accounts[h.random.IntN(len(h.accounts))], h.random.Int64N(20)
	h.oracle.charge(account, h.Now(), used, uuid.Nil)
	posting := ledger.Posting{Accounts: []ledger.Account{account}, Usage: ledger.Usage{Output: used}}
	if h.random.IntN(2) == 0 {
		return h.ledger.Post(ctx, posting)
	}
	posting.ID = newID()
	return errors.Join(h.ledger.Post(ctx, posting), h.ledger.Post(ctx, posting))
}

func (h *history) reset() error {
	account := h.accounts[h.random.IntN(len(h.accounts))]
	err := h.ledger.Reset(ctx, amendment(), []ledger.Account{account})
	if errors.Is(err, ledger.ErrNotFound) && len(h.oracle.charges[account]) == 0 && h.step < 1000 {
		return nil // nobody has used it yet
	}
	h.oracle.reset(account)
	return err
}

// correct charges further, or takes back a part of what some hold became, sometimes more than what is left.
func (h *history) correct() error {
	ids := slices.SortedFunc(maps.Keys(h.oracle.charged), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	if len(ids) == 0 || h.random.IntN(4) == 0 {
		account, further := h.accounts[h.random.IntN(len(h.accounts))], h.random.Int64N(20)+1
		h.oracle.charge(account, h.Now(), further, uuid.Nil)
		return h.ledger.Correct(ctx, ledger.Correction{Amendment: amendment(), Accounts: []ledger.Account{account}, Tokens: further})
	}
	id := ids[max(0, len(ids)-1-h.random.IntN(50))] // a late one more often than not
	charge, back := h.oracle.charged[id], h.random.Int64N(30)+1
	err := h.ledger.Correct(ctx, ledger.Correction{Amendment: amendment(), Hold: id, Tokens: -back})
	switch {
	case errors.Is(err, ledger.ErrState) && (charge.at.Before(h.pruned) || charge.left == 0):
		return nil // it is gone, or was released
	case errors.Is(err, ledger.ErrInvalid) && back > charge.left:
		return nil
	case err == nil && back > charge.left:
		return fmt.Errorf("took back %d of the %d that were left", back, charge.left)
	}
	h.oracle.takeBack(id, back)
	return err
}

// prune removes what is older than any window; the log forgets nothing, and says the same.
func (h *history) prune() error {
	age := ledger.PruneAgeMin + h.moment(5*24*time.Hour)
	report, err := h.ledger.Prune(ctx, ledger.Pruning{Reason: "old", Actor: "root", OlderThan: age})
	if report.Before.After(h.pruned) {
		h.pruned = report.Before
	}
	if err != nil {
		return err
	}
	return h.verify()
}

// verify sees that the books are true, whatever runs.
func (h *history) verify() error {
	report, err := ledger.Verify(ctx, h.ledger.Store())
	if err == nil && len(report.Differences) > 0 {
		err = fmt.Errorf("the books are not true in %d places, the first: %s", len(report.Differences), report.Differences[0])
	}
	if live := int64(len(h.oracle.holds)); err == nil && report.Live < live { // what is due may live still
		err = fmt.Errorf("%d holds live, want %d", report.Live, live)
	}
	return err
}

func (h *history) admit() error {
	a := ledger.Admission{Hold: newID(), Reserve: ledger.Reserve{Tokens: amount(h.random.Int64N(60))}, TTL: h.moment(4 * time.Hour)}
	limits := slices.DeleteFunc(slices.Clone(historyLimits), func(ledger.Limit) bool { return h.random.IntN(3) == 0 })
	for _, account := range h.accounts[h.random.IntN(2):][:1+h.random.IntN(2)] {
		a.Claims = append(a.Claims, ledger.Claim{Account: account, Limits: limits})
	}
	replaced, used := h.replace(&a)
	hold, err := h.ledger.Admit(ctx, a)
	var denial *ledger.LimitError
	if errors.As(err, &denial) && a.Replaces != nil { // a denial counts on it: the attempt has ended whatever follows
		if _, err := h.ledger.Settle(ctx, a.Replaces.Ending, *a.Replaces.Consumption); err != nil {
			return err
		}
	}
	if a.Replaces != nil {
		h.oracle.end(replaced, h.Now(), used)
		delete(h.live, replaced)
		a.Replaces = nil
	}
	switch {
	case err == nil:
		if !h.oracle.fits(a, h.Now()) {
			return errors.New("admitted what does not fit")
		}
		h.oracle.admit(a, h.Now(), hold)
		h.live[a.Hold] = hold
		return nil
	case errors.As(err, &denial):
		if err := h.checkDenial(a, denial); err != nil || h.random.IntN(4) > 0 {
			return err
		}
		return h.wait(a, denial.RetryAfter)
	}
	return err
}

// replace has an admission end a live hold now and then, as a failover does.
func (h *history) replace(a *ledger.Admission) (replaced uuid.UUID, used int64) {
	hold, some := anyOf(h.live)
	if !some || h.random.IntN(3) > 0 {
		return uuid.Nil, 0
	}
	used = h.random.Int64N(60)
	ending := ledger.Ending{Hold: hold.ID, Token: hold.Token, Outcome: ledger.Outcome{Result: ledger.Errored}}
	consumption := h.consumption(used)
	a.Replaces = &ledger.Replacement{Ending: ending, Consumption: &consumption}
	return hold.ID, used
}

// wait really waits for the end of a denial: a microsecond before it the ledger still denies, then it admits.
func (h *history) wait(a ledger.Admission, d time.Duration) error {
	for _, wait := range []struct {
		d      time.Duration
		admits bool
	}{{d - time.Microsecond, false}, {time.Microsecond, true}} {
		h.Advance(wait.d)
		h.oracle.expire(h.Now())
		a.Hold = newID()
		hold, err := h.ledger.Admit(ctx, a)
		if (err == nil) != wait.admits {
			return fmt.Errorf("waited for %v, and then %v: %w", d, wait.d, err)
		}
		if err == nil {
			h.oracle.admit(a, h.Now(), hold)
			h.live[a.Hold] = hold
		}
	}
	return nil
}

// checkDenial sees that what was denied does not fit, that it fits when it is said to, and at no moment before.
func (h *history) checkDenial(a ledger.Admission, denial *ledger.LimitError) error {
	recovers := h.Now().Add(denial.RetryAfter)
	switch {
	case h.oracle.fits(a, h.Now()):
		return fmt.Errorf("denied what fits: %w", denial)
	case denial.Structural:
		return fmt.Errorf("denied for ever: %w", denial) // every amount here is less than every limit
	case !h.oracle.fits(a, recovers) || h.oracle.fits(a, recovers.Add(-time.Microsecond)):
		return fmt.Errorf("retry after %v is not when it fits: %w", denial.RetryAfter, denial)
	}
	if h.step%20 != 0 { // the search is long
		return nil
	}
	for _, moment := range h.oracle.changes(a, h.Now()) {
		if moment.Before(recovers) && h.oracle.fits(a, moment) {
			return fmt.Errorf("it fits after %v already, not only after %v: %w", moment.Sub(h.Now()), denial.RetryAfter, denial)
		}
	}
	return nil
}

func (h *history) compare(account ledger.Account) error {
	balances, err := h.ledger.Read(ctx, []ledger.Claim{{Account: account, Limits: historyLimits}})
	if err != nil {
		return err
	}
	for i, limit := range historyLimits {
		used, held := h.oracle.used(account, limit.Window, h.Now()), h.oracle.held(account)
		if balances[i].Used != used || balances[i].Held != held {
			return fmt.Errorf("%s in %s: used %d, held %d; the log says %d and %d", account, limit.Window,
				balances[i].Used, balances[i].Held, used, held)
		}
	}
	return nil
}

// anyOf picks the live hold with the smallest id, so that a history depends on its seed alone.
func anyOf(live map[uuid.UUID]ledger.Hold) (ledger.Hold, bool) {
	ids := slices.SortedFunc(maps.Keys(live), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	if len(ids) == 0 {
		return ledger.Hold{}, false
	}
	return live[ids[0]], true
}
