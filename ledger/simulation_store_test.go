package ledger_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
	"regent/ledger/memory"
)

var (
	errUnknown = fmt.Errorf("%w: simulated: whether the transaction was committed is not known", ledger.ErrUnknown)
	errAway    = fmt.Errorf("%w: simulated: the store is away", ledger.ErrUnavailable)
	errRefused = errors.New("simulated: the store refuses")
	errOver    = errors.New("simulated: the schedule is over")
	// errUnharmed is nobody's answer: a fault has left the transaction to be made.
	errUnharmed = errors.New("simulated: unharmed")
	// errRestart is nobody's answer, either: a transaction met one in flight, and is made again.
	errRestart = errors.New("simulated: restart")
)

// fault is what happens to one transaction.
type fault int

const (
	isUnharmed     fault = iota
	isRetried            // the COMMIT is thrown away, and the store decides again: a serialization failure
	isLost               // the COMMIT is thrown away, and the store does not know
	isForgotten          // committed, and the store does not know
	isReissued           // committed; the store does not know, and decides again itself
	isLostReissued       // the COMMIT is thrown away; the store does not know, and decides again itself
	isInFlight           // the store does not know; the COMMIT lands later, if it lands
	isRefused            // a plain error, nothing saved
	isSlow               // the transaction takes seconds
	faults
)

func (f fault) String() string {
	return [...]string{"unharmed", "retried", "lost", "forgotten", "reissued", "reissuedLost", "inFlight", "refused", "slow"}[f]
}

// plant is a fault of a store that breaks its contract, which a simulation has to find.
type plant int

const (
	soundStore   plant = iota // fails as it may
	calmStore                 // never fails
	losesCommit               // loses a COMMIT that it acknowledges
	chargesTwice              // applies the charges of a batch twice
	readsStale                // lets a transaction decide on rows that others have changed since
	dropsHold                 // acknowledges an admission and keeps no hold
)

// database is the one store of all replicas: the memory store, and the transactions whose COMMIT is under way.
type database struct {
	*memory.Store
	sim      *simulation
	inFlight []*commit
}

// commit is a transaction in flight: nobody is told whether it lands, and what it has locked waits for it.
type commit struct {
	changes *ledger.Changes
	locks   locks
	stream  uuid.UUID
	decided time.Time
	landsAt time.Time
	lands   bool
}

// locks name the rows that a transaction has read, by their kind and key, so that another knows whether it must wait.
type locks map[any]bool

type (
	callKey    uuid.UUID
	rateKey    string
	circuitKey string
	sweepKey   struct{}
)

// named are the rows that keys name, or that were found.
func named(keys ledger.Keys, rows *ledger.Rows) locks {
	l := locks{}
	addAll(l, keys.Accounts, func(account ledger.Account) any { return account })
	addAll(l, keys.Standing, func(account ledger.Account) any { return account })
	addAll(l, slices.Collect(maps.Keys(rows.Accounts)), func(account ledger.Account) any { return account })
	addAll(l, keys.Holds, func(id uuid.UUID) any { return id })
	addAll(l, keys.Ends, func(id uuid.UUID) any { return id })
	addAll(l, slices.Collect(maps.Keys(rows.Holds)), func(id uuid.UUID) any { return id })
	addAll(l, keys.Calls, func(id uuid.UUID) any { return callKey(id) })
	addAll(l, slices.Collect(maps.Keys(rows.Calls)), func(id uuid.UUID) any { return callKey(id) })
	addAll(l, keys.Idempotency, func(key ledger.IdempotencyKey) any { return key })
	addAll(l, keys.Rates, func(key string) any { return rateKey(key) })
	addAll(l, slices.Collect(maps.Keys(rows.Rates)), func(key string) any { return rateKey(key) })
	addAll(l, slices.Concat(keys.Circuits, keys.Counting, keys.Hearing), func(key string) any { return circuitKey(key) })
	addAll(l, slices.Collect(maps.Keys(rows.Circuits)), func(key string) any { return circuitKey(key) })
	if keys.Sweep {
		l[sweepKey{}] = true
	}
	return l
}

func addAll[K any](l locks, keys []K, row func(K) any) {
	for _, key := range keys {
		l[row(key)] = true
	}
}

// meets says whether a reader must wait for the commit.
func (c *commit) meets(reads locks) bool {
	for key := range reads {
		if c.locks[key] {
			return true
		}
	}
	return false
}

// land has the first commit in flight land, or vanish, for which it is time.
func (d *database) land(ctx context.Context, tx ledger.Tx, isTime func(*commit) bool) (landed *commit, err error) {
	i := slices.IndexFunc(d.inFlight, isTime)
	if i < 0 {
		return nil, nil
	}
	c := d.inFlight[i]
	d.inFlight = slices.Delete(d.inFlight, i, i+1)
	d.sim.tracef("a commit in flight ends, landing: %v", c.lands)
	if !c.lands {
		return c, nil
	}
	return c, d.save(ctx, tx, c.changes, c.decided, soundStore)
}

// landAll ends all commits in flight.
func (d *database) landAll() error {
	return d.Update(ctx, func(tx ledger.Tx) error {
		for {
			if landed, err := d.land(ctx, tx, func(*commit) bool { return true }); landed == nil || err != nil {
				return err
			}
		}
	})
}

// save is a COMMIT: the rows are written, unless a planted fault has it otherwise, and the truth hears what should be there.
func (d *database) save(ctx context.Context, tx ledger.Tx, changes *ledger.Changes, decided time.Time, broken plant) error {
	d.sim.truth.committed(changes, decided)
	return d.sim.write(ctx, tx, changes, broken)
}

// link is a replica's way to the store, on which transactions fail.
type link struct {
	ledger.Store
	db       *database
	sim      *simulation
	replica  *replica
	random   *rand.Rand
	returned time.Time
}

// Update is a transaction on a store that keeps the contract, and fails in every way that the contract allows.
func (l *link) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	if l.isDead() {
		return errOver
	}
	err := l.update(ctx, decide)
	if l.isDead() {
		return errOver
	}
	l.returned = time.Now()
	return err
}

// Load reads at a moment at which nobody writes: a caller that is answered reads when the next transaction is made, and chance would choose
// which comes first.
func (l *link) Load(ctx context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	l.sim.sleep(1, readClass)
	return l.Store.Load(ctx, keys)
}

// Close leaves the store to the others.
func (l *link) Close() error { return nil }

// isDead says that the schedule is over. What a replica that crashed is about to do waits until then, and never happens.
func (l *link) isDead() bool {
	if l.replica.hasCrashed() {
		<-l.sim.over
	}
	select {
	case <-l.sim.over:
		return true
	default:
		return false
	}
}

func (l *link) update(ctx context.Context, decide func(ledger.Tx) error) error {
	again := time.Now().Equal(l.returned)
	if l.sim.isAway(l.replica) {
		if !again && l.random.IntN(4) == 0 {
			l.sleep(1 + l.below(9*time.Second))
		}
		return errAway
	}
	if again {
		// A writer that comes back at once may only have found its ticker and its queue ready together, and chooses by chance. Unless
		// it saves something this transaction takes no time and no random number, so that the choice makes no difference.
		if saved, err := l.attempt(ctx, decide, nil); !saved || err != nil {
			return err
		}
	}
	if err := l.suffer(ctx, decide, l.draw()); err != errUnharmed {
		return err
	}
	if l.replica.hasCrashed() || l.sim.isAway(l.replica) {
		return errAway
	}
	return l.finish(ctx, decide)
}

// draw chooses a fault, unless the time for faults is over.
func (l *link) draw() fault {
	if n := l.random.Float64(); n >= l.sim.faultRate || l.sim.isCalm() {
		return isUnharmed
	}
	return 1 + fault(l.random.IntN(int(faults-1)))
}

// suffer is what a fault makes of a transaction. It returns [errUnharmed] if the transaction is still to be made.
func (l *link) suffer(ctx context.Context, decide func(ledger.Tx) error, what fault) error {
	var save saver
	switch what {
	case isUnharmed:
		return errUnharmed
	case isRefused:
		l.trace(what)
		return errRefused
	case isSlow:
		l.sleep(l.below(8 * time.Second))
		return errUnharmed
	case isRetried, isLost, isLostReissued:
		save = discard
	case isForgotten, isReissued:
		save = l.commit(soundStore)
	case isInFlight:
		save = l.depart
	}
	if saved, err := l.attempt(ctx, decide, save); !saved || err != nil {
		return err
	}
	l.trace(what)
	l.sleep(l.below(20 * time.Millisecond))
	if what == isLost || what == isForgotten || what == isInFlight {
		return errUnknown
	}
	return errUnharmed
}

// finish is a transaction that is acknowledged, unless the store goes away before it can be. A planted fault strikes some.
func (l *link) finish(ctx context.Context, decide func(ledger.Tx) error) error {
	broken := soundStore
	if l.sim.plant > calmStore && l.random.IntN(4) == 0 {
		broken = l.sim.plant
	}
	if broken == readsStale {
		stale, err := l.lookAndWait(ctx)
		if err != nil {
			return err
		}
		sound := decide
		decide = func(tx ledger.Tx) error { return sound(staleTx{tx, stale}) }
	}
	saved, err := l.attempt(ctx, decide, l.commit(broken))
	if !saved || err != nil {
		return err
	}
	l.sleep(l.below(20 * time.Millisecond))
	if l.sim.isAway(l.replica) {
		return errUnknown
	}
	return nil
}

func (l *link) trace(what fault) { l.sim.tracef("replica %d: %s", l.replica.number, what) }

func (l *link) below(d time.Duration) time.Duration { return time.Duration(l.random.Int64N(int64(d))) }

func (l *link) sleep(d time.Duration) { l.sim.sleep(d, linkClass+l.replica.number) }

// attempt runs decide in one transaction and hands what it saves to save, with all that it has read. Without a save it only looks
// whether there is anything to save.
func (l *link) attempt(ctx context.Context, decide func(ledger.Tx) error, save saver) (saved bool, err error) {
	for restart := true; restart; restart = errors.Is(err, errRestart) {
		err = l.db.Update(ctx, func(tx ledger.Tx) error {
			t := &simTx{Tx: tx, db: l.db, locks: locks{}, save: save, peeks: save == nil}
			defer func() { saved = t.saved }()
			return decide(t)
		})
	}
	return saved, err
}

// saver is what becomes of what a transaction saves.
type saver func(ctx context.Context, tx *simTx, changes *ledger.Changes) error

func discard(context.Context, *simTx, *ledger.Changes) error { return nil }

func (l *link) commit(broken plant) saver {
	return func(ctx context.Context, tx *simTx, changes *ledger.Changes) error {
		return l.db.save(ctx, tx.Tx, changes, time.Now(), broken)
	}
}

// depart leaves the COMMIT in flight.
func (l *link) depart(_ context.Context, tx *simTx, changes *ledger.Changes) error {
	now := time.Now()
	l.db.inFlight = append(l.db.inFlight, &commit{
		changes: changes, locks: tx.locks, stream: tx.stream, decided: now, landsAt: now.Add(l.below(30 * time.Second)), lands: l.random.IntN(3) > 0,
	})
	return nil
}

// simTx is a transaction that waits for what is in flight where both touch the same rows.
type simTx struct {
	ledger.Tx
	db    *database
	locks locks
	save  saver
	saved bool
	// peeks says that the transaction only looks, at what is there without what is in flight.
	peeks bool
	// stream is the writer's: nobody waits for its numbers before they are written again.
	stream uuid.UUID
}

func (t *simTx) Load(ctx context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	for {
		rows, err := t.Tx.Load(ctx, keys)
		if err != nil {
			return nil, err
		}
		if len(t.db.inFlight) > 0 && !t.peeks {
			now, reads := time.Now(), named(keys, rows)
			landed, err := t.db.land(ctx, t.Tx, func(c *commit) bool { return now.After(c.landsAt) || c.meets(reads) })
			if err != nil {
				return nil, err
			}
			switch {
			case landed != nil && landed.stream == t.stream: // the numbers that were read before are no longer the last
				return nil, errRestart
			case landed != nil:
				continue
			}
		}
		maps.Copy(t.locks, named(keys, rows))
		if keys.Stream != uuid.Nil {
			t.stream = keys.Stream
		}
		return rows, nil
	}
}

func (t *simTx) Save(ctx context.Context, changes *ledger.Changes) error {
	if t.peeks {
		t.saved = true
		return nil
	}
	meets := func(c *commit) bool {
		return c.stream == t.stream || c.changes.Sweep != nil && changes.Sweep != nil // which may be read without a lock
	}
	if landed, err := t.db.land(ctx, t.Tx, meets); landed != nil || err != nil {
		return cmp.Or(err, errRestart)
	}
	t.saved = true
	return t.save(ctx, t, changes)
}

// staleTx reads what was true before.
type staleTx struct {
	ledger.Tx
	view ledger.View
}

func (t staleTx) Load(ctx context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	return t.view.Load(ctx, keys)
}

// lookAndWait takes what a transaction will read if the store does not keep replicas apart, and waits while others write.
func (l *link) lookAndWait(ctx context.Context) (stale ledger.View, err error) {
	// The memory store's view is a copy: it outlives the call.
	err = l.db.View(ctx, func(view ledger.View) error { stale = view; return nil })
	l.sleep(l.below(8 * time.Second))
	return stale, err
}

// write writes changes, as a planted fault has it.
func (s *simulation) write(ctx context.Context, tx ledger.Tx, changes *ledger.Changes, broken plant) error {
	switch broken {
	case losesCommit:
		s.tracef("planted: the commit is lost")
		return nil
	case dropsHold:
		kept := *changes
		kept.Holds = maps.Clone(changes.Holds)
		maps.DeleteFunc(kept.Holds, func(_ uuid.UUID, row ledger.HoldRow) bool { return row.State == ledger.HoldLive && row.Token == 1 })
		if len(kept.Holds) < len(changes.Holds) {
			s.tracef("planted: a hold is dropped")
		}
		return tx.Save(ctx, &kept)
	case chargesTwice:
		if err := tx.Save(ctx, changes); err != nil || len(changes.Charges) == 0 {
			return err
		}
		s.tracef("planted: charges are applied twice")
		return tx.Save(ctx, chargedAgain(changes))
	}
	return tx.Save(ctx, changes)
}

// chargedAgain are the charges of a batch, made once more on top of it.
func chargedAgain(changes *ledger.Changes) *ledger.Changes {
	again := &ledger.Changes{Accounts: map[ledger.Account]ledger.AccountRow{}}
	for _, charge := range changes.Charges {
		row, ok := again.Accounts[charge.Account]
		if !ok {
			row = changes.Accounts[charge.Account]
		}
		row.Used += charge.Amount
		charge.Total = row.Used
		again.Accounts[charge.Account] = row
		again.Charges = append(again.Charges, charge)
	}
	return again
}
