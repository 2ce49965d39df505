package ledger

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// lane orders what waits: what ends a hold goes before what renews one, and both before what makes a new one, so that an
// overload is worked off rather than added to.
type lane int

const (
	laneEnd lane = iota
	laneRenew
	laneAdmit
	lanes
)

const (
	// batchMax bounds a transaction: measured group commits gain little beyond 256 operations, and a failed one is redone.
	batchMax = 256
	// endingsMax bounds the lanes of ends and renewals: a live hold has at most one of each waiting, and more live holds
	// than this do not fit one process. What is charged or counted after the fact is little beside them.
	endingsMax = 1 << 16
)

// refusalsMax is how many operations of a batch the store may refuse one by one until it counts as one that takes nothing: a store that
// has no room refuses all, and somebody waits for each.
const refusalsMax = 8

// waiter is an operation in the queue.
type waiter struct {
	operation
	lane lane
	err  error
	done chan struct{}
}

// queue holds what waits to be written, a lane each.
type queue struct {
	mu        sync.Mutex
	waiting   [lanes][]*waiter
	admitsMax int
	closed    bool
	wake      chan struct{} // holds a token while the writer's goroutine has something to look at
}

func newQueue(admitsMax int) *queue {
	return &queue{admitsMax: admitsMax, wake: make(chan struct{}, 1)}
}

func (q *queue) put(w *waiter) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	limit := endingsMax
	if w.lane == laneAdmit {
		limit = q.admitsMax
	}
	switch {
	case q.closed:
		return ErrClosed
	case len(q.waiting[w.lane]) >= limit:
		return ErrBusy
	}
	q.waiting[w.lane] = append(q.waiting[w.lane], w)
	return nil
}

// take removes the next batch, in lane order.
func (q *queue) take() (batch []*waiter, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, waiting := range q.waiting {
		n := min(len(waiting), batchMax-len(batch))
		batch = append(batch, waiting[:n]...)
		q.waiting[i] = slices.Delete(waiting, 0, n)
		if len(q.waiting[i]) > 0 {
			q.signal()
		}
	}
	if q.closed {
		q.signal() // the writer looks again until there is nothing left, and then ends
	}
	return batch, q.closed && len(batch) == 0
}

// remove takes a waiter back, unless the writer has it already.
func (q *queue) remove(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.Index(q.waiting[w.lane], w)
	if i < 0 {
		return false
	}
	q.waiting[w.lane] = slices.Delete(q.waiting[w.lane], i, i+1)
	return true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

func (q *queue) len() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, waiting := range q.waiting {
		n += len(waiting)
	}
	return n
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// do queues an operation and waits for its answer. If nobody writes, the caller does, which spares a call that is alone two hand-overs
// between goroutines; else the writer's goroutine writes it with all others that wait by then. If ctx ends while the operation still
// waits, it is taken back; once it is being written, its answer is waited for, which the transaction's time-out bounds.
func (l *Ledger) do(ctx context.Context, lane lane, op operation) error {
	w := &waiter{operation: op, lane: lane, done: make(chan struct{})}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := l.queue.put(w); err != nil {
		return err
	}
	select {
	case l.turn <- struct{}{}:
		l.lead()
	default:
		l.queue.signal()
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		if l.queue.remove(w) {
			return context.Cause(ctx)
		}
		<-w.done
	}
	return w.err
}

// lead writes what waits, and passes on the turn. Nobody may recover from a panic meanwhile, as servers do in the goroutines of their
// requests: what the store has, and who waits for an answer, is unknown then.
func (l *Ledger) lead() {
	defer func() {
		if failure := recover(); failure != nil {
			text := fmt.Sprintf("ledger: %v\n\n%s", failure, debug.Stack())
			go panic(text)
			select {}
		}
		<-l.turn
	}()
	if waiting, _ := l.queue.take(); len(waiting) > 0 {
		l.commit(waiting)
	}
}

// write works off what waits until the queue is closed and empty, and sweeps from time to time. One at a time writes, this or a caller.
func (l *Ledger) write() {
	defer close(l.done)
	sweep := time.NewTicker(l.config.SweepEvery)
	defer sweep.Stop()
	for {
		sweeping := false
		select {
		case <-l.queue.wake:
			select { // both may be due, and neither makes the other wait
			case <-sweep.C:
				sweeping = true
			default:
			}
		case <-sweep.C:
			sweeping = true
		}
		l.turn <- struct{}{}
		waiting, closed := l.queue.take()
		if closed {
			if l.Sweeps() {
				_ = l.transact(nil, leaves) // else another waits for the end of its lease
			}
			return // with the turn: nothing is written any more
		}
		if len(waiting) > 0 {
			l.commit(waiting)
		}
		if sweeping {
			l.sweep()
		}
		<-l.turn
	}
}

// commit runs a batch in one transaction and answers it. If the store refuses what was to be written, each operation is tried alone,
// so that one takes no other with it; once refusalsMax have failed alone the store takes nothing, and the rest fail too. If it is not
// known what became of the batch, nothing is tried again here: each caller knows whether its operation may be.
func (l *Ledger) commit(waiting []*waiter) {
	err := l.transact(waiting, noSweep)
	if l.clock.isUntold() && !l.config.LeaveDue {
		l.sweep() // before anybody is answered: the others must not expire what this process does not
	}
	if err == nil || len(waiting) == 1 || !errors.Is(err, errRefused) {
		l.answer(waiting, err)
		return
	}
	for i, failures := 0, 0; i < len(waiting); i++ {
		if failures < refusalsMax {
			err = l.transact(waiting[i:i+1], noSweep)
		}
		switch {
		case errors.Is(err, errRefused):
			failures++
		case err != nil:
			failures = refusalsMax
		}
		l.answer(waiting[i:i+1], err)
	}
}

// sweep looks for what is due if nobody else does, and tells the others of a suspension. Status tells of a failure.
func (l *Ledger) sweep() {
	if err := l.transact(nil, sweeps); err == nil {
		l.clock.told = l.clock.suspendedUntil
	}
}

func (l *Ledger) answer(waiting []*waiter, err error) {
	for _, w := range waiting {
		if err != nil {
			w.err = err
		}
		close(w.done)
	}
}

// errRefused is the failure of a transaction that the store has refused: nothing was saved.
var errRefused = errors.New("the store refused the transaction")

// transact decides operations in order in one transaction: first what is due expires, then each decides on what the ones
// before it left.
func (l *Ledger) transact(waiting []*waiter, sweep sweep) error {
	ctx, cancel := context.WithTimeout(context.Background(), l.config.Timeout)
	defer cancel()
	l.mu.Lock()
	l.began = time.Now()
	l.mu.Unlock()
	var decided *batch // the last that was: the operations have its answers
	var expiries []Expiry
	committed := false // a batch before the last one
	err := l.store.Update(ctx, func(tx Tx) error {
		if decided != nil {
			l.unsure.mark(waiting)
		}
		b, err := l.begin(ctx, tx, waiting, sweep)
		if err != nil {
			return err
		}
		if !committed && decided != nil {
			if committed, err = b.has(ctx, decided); err != nil {
				return err
			}
			if committed {
				expiries = decided.expiries
			}
		}
		decided = b
		if err := l.decide(ctx, b, waiting, sweep, committed); err != nil || b.changes.Empty() {
			return err
		}
		return tx.Save(ctx, &b.changes)
	})
	err = l.transacted(decided, waiting, err)
	if err == nil && l.config.OnExpire != nil {
		for _, expiry := range append(expiries, decided.expiries...) {
			l.config.OnExpire(expiry)
		}
	}
	return err
}

// has says whether a batch of this process's was committed, of which nobody has said so: its last record is there. Another may stand
// under that number, of a batch before it that came to be committed after all; it may even be the same, if both found the same hold due.
func (b *batch) has(ctx context.Context, decided *batch) (bool, error) {
	if len(decided.changes.Records) == 0 {
		return false, nil
	}
	last := decided.changes.Records[len(decided.changes.Records)-1]
	if b.rows.Last < last.Number {
		return false, nil
	}
	rows, err := b.tx.Load(ctx, Keys{Page: Page{Writer: b.writer, After: last.Number - 1, Limit: 1}})
	if err != nil || len(rows.Page) == 0 {
		return false, err
	}
	found := rows.Page[0]
	return found.At.Equal(last.At) && found.Kind == last.Kind && found.Call == last.Call && bytes.Equal(found.Body, last.Body), nil
}

// decide works off a batch. If it was committed before, each operation finds itself done, and what bears no name to find it by is not
// done again.
func (l *Ledger) decide(ctx context.Context, b *batch, waiting []*waiter, sweep sweep, committed bool) error {
	if !l.config.LeaveDue && b.sweep(sweep, l.sweepFor) {
		if err := b.expireDue(); err != nil {
			return err
		}
	}
	for _, w := range waiting {
		if committed && isNameless(w.operation) {
			continue
		}
		if w.err = w.decide(ctx, b); w.err != nil && isStoreError(w.err) {
			return w.err
		}
	}
	return nil
}

// tellStore tells that the store has stopped answering, or answers again. That it refuses something is no such thing.
func (l *Ledger) tellStore(err error) {
	away := errors.Is(err, ErrUnavailable) && !errors.Is(err, errRefused)
	if away == l.away || l.config.OnStore == nil {
		return
	}
	l.away = away
	if !away {
		err = nil
	}
	l.config.OnStore(err)
}

// isNameless says whether an operation cannot be told from another like it. A record tells its batch; a report leaves none, and an
// admission without a hold no other than its decision: alone in their batch they are done again, and count twice.
func isNameless(op operation) bool {
	switch op := op.(type) {
	case *prune, *tell:
		return true
	case *post:
		return op.ID == uuid.Nil
	case *admit:
		return op.Unheld
	case *refuse:
		return op.call == nil
	}
	return false
}

// transacted notes how a transaction ended, and returns its error as callers get it.
func (l *Ledger) transacted(decided *batch, waiting []*waiter, err error) error {
	switch {
	case err == nil:
		l.unsure.settled(waiting)
	case errors.Is(err, ErrUnavailable):
	case errors.Is(err, context.DeadlineExceeded): // nobody has refused anything
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	default:
		err = fmt.Errorf("%w: %w: %w", ErrUnavailable, errRefused, err)
	}
	if errors.Is(err, ErrUnknown) && decided != nil {
		l.unsure.mark(waiting)
	}
	l.tellStore(err)
	l.clock.transacted(err, decided != nil && !decided.changes.Empty())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began = time.Time{}
	l.status = Status{Err: err, SuspendedUntil: l.clock.suspendedUntil}
	l.seen, l.seenAt = l.clock.lastNow, l.clock.lastElapsed
	if decided != nil {
		l.sweeps = decided.rows.Sweep.Sweeper == l.writer && decided.rows.Sweep.isLive(decided.rows.Now)
	}
	return err
}

// about is roughly the store's time.
func (l *Ledger) about() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen.Add(l.config.Elapsed() - l.seenAt)
}

// isStoreError tells an operation's own answer, which leaves the batch as it was, from a failure to read.
func isStoreError(err error) bool {
	var limit *LimitError
	var duplicate *DuplicateError
	return !errors.As(err, &limit) && !errors.As(err, &duplicate) && !isGateError(err) &&
		!errors.Is(err, ErrState) && !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrOverflow) && !errors.Is(err, ErrUsage) &&
		!errors.Is(err, ErrPrice) && !errors.Is(err, ErrUnpriced) && !errors.Is(err, ErrNotFound)
}

// begin reads every row that the operations name.
func (l *Ledger) begin(ctx context.Context, tx Tx, waiting []*waiter, sweep sweep) (*batch, error) {
	keys := Keys{Due: !l.config.LeaveDue, Sweep: sweep != noSweep, Stream: l.writer}
	about := l.about()
	for _, w := range waiting {
		w.keys(&keys, about)
	}
	rows, err := tx.Load(ctx, keys)
	if err != nil {
		return nil, err
	}
	b := newBatch(tx, rows)
	b.writer, b.lateRefund, b.unsure, b.proves = l.writer, l.config.LateRefund, l.unsure, l.clock.failing
	b.suspendedUntil = l.clock.observe(rows.Now, rows.Sweep)
	return b, nil
}

// stepDetector suspends expiry when the store's clock has stepped, or after an outage: a hold whose owner could not renew it
// must not be charged for that. A step is a change of the store's clock that the process's monotonic clock did not make. An
// outage is a time in which transactions failed, or one in which none was answered: the store hung, or the process stood still.
type stepDetector struct {
	ttl time.Duration
	// idle is the longest pause between the transactions of a writer that nothing keeps from writing: the sweep's.
	idle    time.Duration
	elapsed func() time.Duration

	lastNow      time.Time
	lastElapsed  time.Duration
	failing      bool
	failingSince time.Duration
	// lookedAt is when the running transaction read the store's clock, and wroteAt when the last one that succeeded did: what it took
	// from then on, nobody else could write. Both are by the system's own clock: where a test's clock moves, time has passed and
	// nobody was kept from writing.
	lookedAt, wroteAt time.Time
	suspendedUntil    time.Time
	// told is the suspension that the others know of.
	told time.Time
}

// isUntold says whether only this process knows of a suspension.
func (d *stepDetector) isUntold() bool { return d.suspendedUntil.After(d.told) }

// observe takes a reading of the store's clock and returns until when expiry is suspended, as far as this process knows or another
// has told.
func (d *stepDetector) observe(now time.Time, sweep SweepRow) time.Time {
	d.suspendedUntil = later(d.suspendedUntil, sweep.SuspendedUntil)
	if most := now.Add(d.ttl); d.suspendedUntil.After(most) { // the clock was put back since
		d.suspendedUntil = most
	}
	elapsed := d.elapsed()
	var step time.Duration
	switch {
	case d.lastNow.IsZero() && !sweep.SweptAt.IsZero():
		// If nobody has swept for long, the store was away, its clock has stepped, or nobody ran. A process that has just begun cannot
		// tell which; in the last case it only waits.
		step = now.Sub(sweep.SweptAt)
	case !d.lastNow.IsZero():
		step = (now.Sub(d.lastNow) - (elapsed - d.lastElapsed)).Abs()
	}
	if d.failing {
		step = max(step, elapsed-d.failingSince)
	}
	if !d.wroteAt.IsZero() {
		step = max(step, time.Since(d.wroteAt)-d.idle)
	}
	if step > d.ttl/2 {
		d.suspendedUntil = now.Add(d.ttl)
	}
	d.lastNow, d.lastElapsed, d.lookedAt = now, elapsed, time.Now()
	return d.suspendedUntil
}

// transacted notes whether a transaction succeeded: an outage lasts from the last success, or by a test's clock from the first
// failure, to the next success. After a failure only one that wrote is a success: a disk may be full, and still be read.
func (d *stepDetector) transacted(err error, wrote bool) {
	switch {
	case err != nil && !d.failing:
		d.failing, d.failingSince = true, d.elapsed()
	case err == nil && (wrote || !d.failing):
		d.failing, d.wroteAt = false, d.lookedAt
	}
}
