package ledgertest

import (
	"cmp"
	"errors"
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
	// uses are the moments at which a window of an account was used: admissions under it, and charges once it is known.
	uses    map[window][]time.Time
	charges map[ledger.Account][]charge
	holds   map[uuid.UUID]oracleHold
}

type window struct {
	account ledger.Account
	length  time.Duration
}

type charge struct {
	at     time.Time
	amount int64
}

type oracleHold struct {
	deadline time.Time
	amounts  map[ledger.Account]int64
}

func (o *oracle) clone() *oracle {
	c := &oracle{uses: map[window][]time.Time{}, charges: map[ledger.Account][]charge{}, holds: maps.Clone(o.holds)}
	for w, uses := range o.uses {
		c.uses[w] = slices.Clone(uses)
	}
	for account, charges := range o.charges {
		c.charges[account] = slices.Clone(charges)
	}
	return c
}

// used sums the charges of a window from its last opening, found by walking all uses from the first.
func (o *oracle) used(w window, now time.Time) (sum int64) {
	var opened time.Time
	for _, use := range o.uses[w] {
		if opened.IsZero() || !use.Before(opened.Add(w.length)) {
			opened = use
		}
	}
	if opened.IsZero() || !now.Before(opened.Add(w.length)) {
		return 0
	}
	for _, charge := range o.charges[w.account] {
		if !charge.at.Before(opened) {
			sum += charge.amount
		}
	}
	return sum
}

func (o *oracle) held(account ledger.Account) (sum int64) {
	for _, hold := range o.holds {
		sum += hold.amounts[account]
	}
	return sum
}

func (o *oracle) charge(account ledger.Account, at time.Time, amount int64) {
	if amount == 0 {
		return
	}
	o.charges[account] = append(o.charges[account], charge{at, amount})
	for w := range o.uses {
		if w.account == account {
			o.uses[w] = append(o.uses[w], at)
		}
	}
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
		for account, amount := range hold.amounts {
			o.charge(account, hold.deadline, amount)
		}
	}
}

// fits says whether an admission would be granted at a time at which nothing else has happened.
func (o *oracle) fits(a ledger.Admission, at time.Time) bool {
	later := o.clone()
	later.expire(at)
	for _, claim := range a.Claims {
		amount := *a.Reserve.Tokens
		for _, limit := range claim.Limits {
			w := window{claim.Account, limit.Window.Length}
			if amount > 0 && later.used(w, at)+later.held(claim.Account)+amount > limit.Max {
				return false
			}
		}
	}
	return true
}

func (o *oracle) admit(a ledger.Admission, now time.Time, deadline time.Time) {
	hold := oracleHold{deadline: deadline, amounts: map[ledger.Account]int64{}}
	for _, claim := range a.Claims {
		hold.amounts[claim.Account] = *a.Reserve.Tokens
		for _, limit := range claim.Limits {
			w := window{claim.Account, limit.Window.Length}
			o.uses[w] = append(o.uses[w], now)
		}
	}
	o.holds[a.Hold] = hold
}

// steps of one random history: enough that every pair of operations meets, and a few seconds on a durable store.
const steps = 1500

func agreesWithOracle(t *testing.T, b *bench) {
	random := rand.New(rand.NewPCG(Seed(t), 1))
	o := &oracle{uses: map[window][]time.Time{}, charges: map[ledger.Account][]charge{}, holds: map[uuid.UUID]oracleHold{}}
	accounts := []ledger.Account{aliceTokens, taskTokens, {Scope: ledger.ScopeUser, ID: "bob", Unit: ledger.Tokens}}
	live := map[uuid.UUID]ledger.Hold{}
	for step := range steps {
		o.expire(b.Now())
		for id := range live {
			if _, ok := o.holds[id]; !ok {
				delete(live, id)
			}
		}
		hold, some := anyOf(live)
		switch n := random.IntN(10); {
		case n < 4:
			oracleAdmit(t, b, o, random, accounts, live, step)
		case n < 6 && some:
			amount := random.Int64N(60)
			b.settle(hold, ledger.Usage{Output: amount})
			for account := range o.holds[hold.ID].amounts {
				o.charge(account, b.Now(), amount)
			}
			delete(o.holds, hold.ID)
			delete(live, hold.ID)
		case n == 6 && some:
			b.release(hold)
			delete(o.holds, hold.ID)
			delete(live, hold.ID)
		case n == 7 && some:
			renewed, err := b.ledger.Renew(ctx, hold.ID, hold.Token, time.Duration(random.Int64N(int64(2*time.Hour)))/1000*1000+time.Microsecond)
			if err != nil {
				t.Fatalf("step %d: renew: %v", step, err)
			}
			moved := o.holds[hold.ID]
			moved.deadline = renewed.Deadline
			o.holds[hold.ID], live[hold.ID] = moved, renewed
		default:
			b.advanceQuietly(time.Duration(random.Int64N(int64(3*time.Hour))) / 1000 * 1000)
		}
		o.expire(b.Now())
		for _, account := range accounts {
			oracleCompare(t, b, o, account, step)
		}
	}
	b.advanceQuietly(4*time.Hour + time.Microsecond) // the longest hold
	if err := Audit(ctx, b.ledger.Store(), nil, accounts...); err != nil {
		t.Errorf("the books at the end: %v", err)
	}
}

// advanceQuietly lets time pass, and the ledger see it in steps as it would of itself.
func (b *bench) advanceQuietly(d time.Duration) {
	b.Advance(d)
	b.touch()
}

func oracleAdmit(t *testing.T, b *bench, o *oracle, random *rand.Rand, accounts []ledger.Account, live map[uuid.UUID]ledger.Hold, step int) {
	a := ledger.Admission{
		Hold: newID(), Reserve: ledger.Reserve{Tokens: amount(random.Int64N(60))},
		TTL: time.Duration(1+random.Int64N(int64(4*time.Hour)/1000)*1000).Truncate(time.Microsecond) + time.Microsecond,
	}
	for _, account := range accounts[random.IntN(2):][:1+random.IntN(2)] {
		a.Claims = append(a.Claims, ledger.Claim{Account: account, Limits: []ledger.Limit{
			{Window: ledger.Fixed{Length: time.Hour}, Max: 100}, {Window: day, Max: 400},
		}})
	}
	hold, err := b.ledger.Admit(ctx, a)
	var denial *ledger.LimitError
	switch {
	case err == nil:
		if !o.fits(a, b.Now()) {
			t.Fatalf("step %d: admitted what does not fit", step)
		}
		o.admit(a, b.Now(), hold.Deadline)
		live[a.Hold] = hold
	case errors.As(err, &denial):
		if o.fits(a, b.Now()) {
			t.Fatalf("step %d: denied what fits: %v", step, err)
		}
		recoversAt := b.Now().Add(denial.RetryAfter)
		if denial.Structural || !o.fits(a, recoversAt) || o.fits(a, recoversAt.Add(-time.Microsecond)) {
			t.Fatalf("step %d: retry after %v (structural %v) is not when it fits", step, denial.RetryAfter, denial.Structural)
		}
	default:
		t.Fatalf("step %d: %v", step, err)
	}
}

func oracleCompare(t *testing.T, b *bench, o *oracle, account ledger.Account, step int) {
	t.Helper()
	limits := []ledger.Limit{{Window: ledger.Fixed{Length: time.Hour}, Max: 100}, {Window: day, Max: 400}}
	balances, err := b.ledger.Read(ctx, []ledger.Claim{{Account: account, Limits: limits}})
	if err != nil {
		t.Fatal(err)
	}
	for i, limit := range limits {
		used, held := o.used(window{account, limit.Window.Length}, b.Now()), o.held(account)
		if balances[i].Used != used || balances[i].Held != held {
			t.Fatalf("step %d: %s in %s: used %d, held %d; the log says %d and %d", step, account, limit.Window,
				balances[i].Used, balances[i].Held, used, held)
		}
	}
}

// anyOf picks the live hold with the smallest id, so that a history depends on its seed alone.
func anyOf(live map[uuid.UUID]ledger.Hold) (ledger.Hold, bool) {
	ids := slices.SortedFunc(maps.Keys(live), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	if len(ids) == 0 {
		return ledger.Hold{}, false
	}
	return live[ids[0]], true
}
