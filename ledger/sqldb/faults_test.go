package sqldb_test

import (
	"crypto/sha256"
	"errors"
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgproxy"
)

// faultCase is one operation that meets one fault, on an account of its own.
type faultCase struct {
	*bench
	t       *testing.T
	fault   pgproxy.Fault // 0 is none
	account ledger.Account

	last   int64 // the number of the last record when the fault was armed
	before sqldb.Counters
	fired  <-chan struct{}
}

// shape is what transactions an operation consists of, and so which faults it meets.
type shape struct {
	// writes is a transaction of several exchanges, cursor one of a single exchange, both with a commit; denies is the first without.
	writes, cursor, denies bool
	// loads is a reading transaction of one exchange, looks one of several.
	loads, looks bool
}

// verdicts are how a store counts a fault that a shape meets; nil if it does not meet it.
func (s shape) verdicts(fault pgproxy.Fault) *sqldb.Counters {
	conflict, unknown, lost := &sqldb.Counters{Conflicts: 1}, &sqldb.Counters{Unknown: 1}, &sqldb.Counters{Lost: 1}
	switch fault {
	case pgproxy.CutAtBegin:
		if s.cursor { // its COMMIT was handed over, too
			return unknown
		}
		if s.writes || s.denies {
			return lost
		}
	case pgproxy.CutAtReads:
		if s.writes || s.denies {
			return lost
		}
	case pgproxy.SerializationAtReads:
		if s.writes || s.denies {
			return conflict
		}
	case pgproxy.CutAtLoad:
		if s.loads || s.looks {
			return lost
		}
	case pgproxy.SerializationAtLoad:
		if s.loads || s.looks {
			return conflict
		}
	case pgproxy.SerializationAtStatement, pgproxy.SerializationAtCommit:
		if s.writes || s.cursor {
			return conflict
		}
	default:
		if s.writes || s.cursor {
			return unknown
		}
	}
	return nil
}

// meets runs a case of a test, and says whether it passed. If not, nothing is armed any more.
func (b *bench) meets(t *testing.T, fault pgproxy.Fault, name string, run func(c *faultCase)) bool {
	passed := t.Run(fault.String()+" "+name, func(t *testing.T) {
		b.t = t
		run(&faultCase{bench: b, t: t, fault: fault, account: user(newID().String())})
	})
	if !passed {
		b.proxy.Disarm()
	}
	return passed
}

// wantSound checks the books, and the numbers of their records, when cases of a test have run.
func (b *bench) wantSound(t *testing.T) {
	t.Helper()
	b.t = t
	b.audit()
	numbers(t, b.store)
}

// arm arms the fault: it happens in what comes next.
func (c *faultCase) arm() {
	c.t.Helper()
	c.last = c.number()
	c.before = c.store.Counters()
	if c.fault > 0 {
		c.fired = c.proxy.Arm(c.fault)
	}
}

// number is that of the ledger's last record.
func (c *faultCase) number() int64 {
	c.t.Helper()
	streams, err := c.store.Streams(ctx)
	c.must("streams", err)
	for _, stream := range streams {
		if stream.Writer == c.ledger.Writer() {
			return stream.Last
		}
	}
	return 0
}

// happened checks that the fault happened, that the store counted it, and that the operation left these records and totals.
func (c *faultCase) happened(shape shape, used, held int64, kinds ...ledger.Kind) {
	c.t.Helper()
	after := c.store.Counters()
	wantSame(c.t, "faults left", c.proxy.Disarm(), nil)
	if c.fault > 0 {
		<-c.fired
		verdicts := *shape.verdicts(c.fault)
		verdicts.Transactions = after.Transactions - c.before.Transactions
		wantEqual(c.t, "counted", sqldb.Counters{
			Transactions: after.Transactions - c.before.Transactions, Conflicts: after.Conflicts - c.before.Conflicts,
			Unknown: after.Unknown - c.before.Unknown, Lost: after.Lost - c.before.Lost,
		}, verdicts)
	}
	records, err := c.store.Records(ctx, c.ledger.Writer(), c.last, 100)
	c.must("records", err)
	wantSame(c.t, "records", kindsOf(records), kinds)
	for i, record := range records {
		wantEqual(c.t, "number", record.Number, c.last+int64(i)+1)
	}
	c.want(c.account, used, held)
	wantIdle(c.t, c.store)
}

var (
	writes = shape{writes: true}
	loads  = shape{loads: true}
	looks  = shape{looks: true}
)

// operations are every kind of operation. Each leaves no hold behind.
var operations = []struct {
	name  string
	shape shape
	run   func(c *faultCase, s shape)
}{
	{"admit", writes, func(c *faultCase, s shape) {
		a := admission(c.account, 100, 150)
		a.Decision = []byte(`{"source":"one"}`)
		c.arm()
		hold := c.admit(a)
		c.happened(s, 0, 100, ledger.DecisionRecord)
		wantEqual(c.t, "token", hold.Token, 1)
		wantEqual(c.t, "deadline", hold.Deadline, c.Now().Add(ttl))
		wantEqual(c.t, "the same again", c.admit(a), hold)
		c.denied(admission(c.account, 51, 150))
		c.settle(hold, 30)
	}},
	{"admit for a call", writes, func(c *faultCase, s shape) {
		a := forCall(admission(c.account, 100, 150))
		c.arm()
		hold := c.admit(a)
		c.happened(s, 0, 100, ledger.DecisionRecord)
		again := forCall(admission(c.account, 1, 150))
		again.Call.IdempotencyKey = a.Call.IdempotencyKey
		_, err := c.ledger.Admit(ctx, again)
		var duplicate *ledger.DuplicateError
		if !errors.As(err, &duplicate) || duplicate.Call != a.Call.ID {
			c.t.Fatalf("the key again: %v", err)
		}
		c.settle(hold, 30)
		c.wantCall(a.Call, ledger.Completed, 1)
	}},
	{"admit in place of another", writes, func(c *faultCase, s shape) {
		a := forCall(admission(c.account, 100, 150))
		first := c.admit(a)
		a.Hold, a.Source = newID(), "two"
		a.Replaces = &ledger.Replacement{Ending: ending(first), Consumption: &ledger.Consumption{Usage: &ledger.Usage{Output: 7}}}
		a.Replaces.State, a.Replaces.Outcome = "", ledger.Outcome{Result: ledger.Errored, Status: 503}
		c.arm()
		hold := c.admit(a)
		c.happened(s, 7, 100, ledger.ChargeRecord, ledger.OutcomeRecord, ledger.DecisionRecord)
		wantEqual(c.t, "replaced", hold.Replaced, ledger.Charge{Tokens: 7})
		_, err := c.ledger.Settle(ctx, ending(first), output(1))
		wantError(c.t, "settle the first", err, ledger.ErrState)
		c.settle(hold, 30)
		c.wantCall(a.Call, ledger.Completed, 2)
	}},
	{"renew", writes, func(c *faultCase, s shape) {
		hold := c.admit(admission(c.account, 100, 150))
		c.Advance(ttl / 2)
		c.arm()
		renewed := c.renew(hold)
		c.happened(s, 0, 100)
		wantEqual(c.t, "deadline", renewed.Deadline, c.Now().Add(ttl))
		if renewed.Token <= hold.Token {
			c.t.Fatalf("token %d after %d", renewed.Token, hold.Token)
		}
		_, err := c.ledger.Renew(ctx, hold.ID, hold.Token, 0)
		wantError(c.t, "renew by the old token", err, ledger.ErrState)
		c.Advance(ttl - time.Microsecond)
		c.settle(c.renew(renewed), 30)
	}},
	{"settle", writes, func(c *faultCase, s shape) {
		a := forCall(admission(c.account, 100, 150))
		hold := c.admit(a)
		c.arm()
		c.settle(hold, 30)
		c.happened(s, 30, 0, ledger.ChargeRecord, ledger.OutcomeRecord)
		c.settle(hold, 30) // the same answer
		_, err := c.ledger.Settle(ctx, ending(hold), output(31))
		wantError(c.t, "settle otherwise", err, ledger.ErrState)
		c.wantCall(a.Call, ledger.Completed, 1)
	}},
	{"release", writes, func(c *faultCase, s shape) {
		a := forCall(admission(c.account, 100, 100))
		hold := c.admit(a)
		end := ending(hold)
		end.State, end.Decision = ledger.Failed, []byte(`{"nothing":"left"}`)
		c.arm()
		c.must("release", c.ledger.Release(ctx, end))
		c.happened(s, 0, 0, ledger.DecisionRecord, ledger.OutcomeRecord)
		c.must("the same again", c.ledger.Release(ctx, end))
		c.wantCall(a.Call, ledger.Failed, 1)
	}},
	{"settle late", writes, func(c *faultCase, s shape) {
		hold := c.admit(admission(c.account, 100, 150))
		c.Advance(ttl)
		c.touch()
		c.want(c.account, 100, 0)
		late := func() {
			c.t.Helper()
			charge, err := c.ledger.Settle(ctx, ending(hold), output(30))
			c.must("settle", err)
			wantEqual(c.t, "charge", charge, ledger.Charge{Tokens: 30, UnknownUsage: true})
		}
		c.arm()
		late()
		c.happened(s, 30, 0, ledger.ChargeRecord)
		late()
		c.want(c.account, 30, 0)
	}},
	{"post", writes, func(c *faultCase, s shape) {
		c.arm()
		c.must("post", c.ledger.Post(ctx, ledger.Posting{Accounts: []ledger.Account{c.account}, Usage: ledger.Usage{Output: 30}}))
		c.happened(s, 30, 0, ledger.ChargeRecord)
	}},
	{"refuse", writes, func(c *faultCase, s shape) {
		call := newCall()
		c.arm()
		c.must("refuse", c.ledger.Refuse(ctx, call, []byte(`{"denied":true}`)))
		c.happened(s, 0, 0, ledger.DecisionRecord)
		c.must("the same again", c.ledger.Refuse(ctx, call, []byte(`{"denied":true}`)))
		c.wantCall(call, ledger.Denied, 0)
	}},
	{"record a decision", writes, func(c *faultCase, s shape) {
		c.arm()
		c.touch()
		c.happened(s, 0, 0, ledger.DecisionRecord)
	}},
	{"correct further", writes, func(c *faultCase, s shape) {
		correction := ledger.Correction{Amendment: amendment(), Tokens: 30, Accounts: []ledger.Account{c.account}}
		c.arm()
		c.must("correct", c.ledger.Correct(ctx, correction))
		c.happened(s, 30, 0, ledger.CorrectionRecord)
		c.must("the same again", c.ledger.Correct(ctx, correction))
		c.want(c.account, 30, 0)
	}},
	{"take back", writes, func(c *faultCase, s shape) {
		hold := c.admit(admission(c.account, 100, 150))
		c.settle(hold, 50)
		correction := ledger.Correction{Amendment: amendment(), Tokens: -20, Hold: hold.ID}
		c.arm()
		c.must("correct", c.ledger.Correct(ctx, correction))
		c.happened(s, 30, 0, ledger.CorrectionRecord)
		c.must("the same again", c.ledger.Correct(ctx, correction))
		c.want(c.account, 30, 0)
	}},
	{"reset", writes, func(c *faultCase, s shape) {
		c.settle(c.admit(admission(c.account, 100, 100)), 100)
		c.arm()
		c.must("reset", c.ledger.Reset(ctx, amendment(), []ledger.Account{c.account}))
		c.happened(s, 100, 0, ledger.ResetRecord)
		c.settle(c.admit(admission(c.account, 100, 100)), 1)
	}},
	{"expire by a batch", writes, func(c *faultCase, s shape) {
		a := forCall(admission(c.account, 100, 150))
		hold := c.admit(a)
		c.Advance(ttl)
		c.arm()
		c.touch()
		c.happened(s, 100, 0, ledger.ChargeRecord, ledger.OutcomeRecord, ledger.DecisionRecord)
		_, err := c.ledger.Renew(ctx, hold.ID, hold.Token, 0)
		wantError(c.t, "renew", err, ledger.ErrExpired)
		c.wantCall(a.Call, ledger.Failed, 1)
	}},
	{"move a cursor", shape{cursor: true}, func(c *faultCase, s shape) {
		sink := c.account.ID
		c.must("at first", c.store.SetCursor(ctx, sink, c.ledger.Writer(), 0, 3))
		c.arm()
		c.must("move", c.store.SetCursor(ctx, sink, c.ledger.Writer(), 3, 7))
		c.happened(s, 0, 0)
		number, err := c.store.Cursor(ctx, sink, c.ledger.Writer())
		c.must("cursor", err)
		wantEqual(c.t, "cursor", number, 7)
		wantError(c.t, "another", c.store.SetCursor(ctx, sink, c.ledger.Writer(), 3, 8), ledger.ErrState)
	}},
	{"keep an activation", writes, func(c *faultCase, s shape) {
		digest, content := activation(c.account.ID)
		c.arm()
		c.must("keep", c.store.KeepActivation(ctx, digest, content))
		c.happened(s, 0, 0)
		kept, err := c.store.Activation(ctx, digest)
		c.must("activation", err)
		wantEqual(c.t, "content", string(kept), string(content))
		c.Advance(time.Microsecond)
		c.must("keep again", c.store.KeepActivation(ctx, digest, nil))
		old, err := c.store.OldActivations(ctx, c.Now())
		c.must("old activations", err)
		wantEqual(c.t, "old activations", len(old), 0)
		c.Advance(time.Microsecond)
		_, err = c.store.DropActivations(ctx, c.Now())
		c.must("drop", err)
	}},
	{"drop activations", shape{cursor: true}, func(c *faultCase, s shape) {
		digest, content := activation(c.account.ID)
		c.must("keep", c.store.KeepActivation(ctx, digest, content))
		c.Advance(time.Microsecond)
		c.arm()
		n, err := c.store.DropActivations(ctx, c.Now())
		c.must("drop", err)
		c.happened(s, 0, 0)
		if n != 1 && !(n == 0 && c.fault.Commits()) { // what went in silence is not counted
			c.t.Errorf("%d were dropped", n)
		}
		_, err = c.store.Activation(ctx, digest)
		wantError(c.t, "one that was dropped", err, ledger.ErrNotFound)
	}},
	{"read an activation", loads, func(c *faultCase, s shape) {
		digest, content := activation(c.account.ID)
		c.must("keep", c.store.KeepActivation(ctx, digest, content))
		c.arm()
		kept, err := c.store.Activation(ctx, digest)
		c.must("activation", err)
		c.happened(s, 0, 0)
		wantEqual(c.t, "content", string(kept), string(content))
		c.Advance(time.Microsecond)
		_, err = c.store.DropActivations(ctx, c.Now())
		c.must("drop", err)
	}},
	{"deny", shape{denies: true, loads: true}, func(c *faultCase, s shape) {
		c.settle(c.admit(admission(c.account, 100, 100)), 100)
		c.Advance(time.Hour)
		c.arm()
		denial := c.denied(admission(c.account, 1, 100))
		c.happened(s, 100, 0)
		wantEqual(c.t, "used", denial.Used, 100)
		wantEqual(c.t, "retry after", denial.RetryAfter, day-time.Hour)
	}},
	{"read balances", loads, func(c *faultCase, s shape) {
		c.settle(c.admit(admission(c.account, 100, 100)), 30)
		c.arm()
		balances, err := c.ledger.Read(ctx, admission(c.account, 1, 100).Claims)
		c.must("read", err)
		c.happened(s, 30, 0)
		wantEqual(c.t, "balances", len(balances), 1)
		wantEqual(c.t, "left", balances[0].Left, 70)
	}},
	{"read the journal", loads, func(c *faultCase, s shape) {
		c.touch()
		c.arm()
		tail, err := c.store.Tail(ctx, 1)
		c.must("tail", err)
		c.happened(s, 0, 0)
		wantEqual(c.t, "records", len(tail), 1)
		wantEqual(c.t, "number", tail[0].Number, c.last)
	}},
	{"read a call", looks, func(c *faultCase, s shape) {
		a := forCall(admission(c.account, 100, 100))
		c.settle(c.admit(a), 30)
		c.arm()
		c.wantCall(a.Call, ledger.Completed, 1)
		c.happened(s, 30, 0)
	}},
	{"verify", looks, func(c *faultCase, s shape) {
		c.settle(c.admit(admission(c.account, 100, 100)), 30)
		c.arm()
		c.audit()
		c.happened(s, 30, 0)
	}},
}

// activation is one of a name.
func activation(name string) (digest [32]byte, content []byte) {
	content = []byte("the policy of " + name)
	return sha256.Sum256(content), content
}

func amendment() ledger.Amendment {
	return ledger.Amendment{ID: newID(), Reason: "a test", Actor: "root"}
}

func (b *bench) denied(a ledger.Admission) *ledger.LimitError {
	b.t.Helper()
	_, err := b.ledger.Admit(ctx, a)
	var denial *ledger.LimitError
	if !errors.As(err, &denial) {
		b.t.Fatalf("admit: got %v, want a denial by a limit", err)
	}
	return denial
}

func (b *bench) wantCall(call *ledger.Call, state ledger.State, attempts int) {
	b.t.Helper()
	report, err := b.store.Call(ctx, call.ID)
	b.must("call", err)
	wantEqual(b.t, "state", report.State, state)
	wantEqual(b.t, "attempts", len(report.Attempts), attempts)
}

// TestFaults: whatever goes wrong in an operation's transaction, its caller gets the right answer, it was done once, and the books are
// right.
func TestFaults(t *testing.T) {
	onPostgres(t, func(t *testing.T, config sqldb.Config) {
		b := newBench(t, config)
		for _, fault := range append([]pgproxy.Fault{0}, pgproxy.Faults()...) {
			for _, op := range operations {
				if fault > 0 && op.shape.verdicts(fault) == nil {
					continue
				}
				if !b.meets(t, fault, op.name, func(c *faultCase) { op.run(c, op.shape) }) {
					return
				}
			}
			b.wantSound(t)
		}
	})
}

// TestPruningMeetsFaults: what a transaction prunes is pruned once, and closed once.
func TestPruningMeetsFaults(t *testing.T) {
	onPostgres(t, func(t *testing.T, config sqldb.Config) {
		b := newBench(t, config)
		for _, fault := range pgproxy.Faults() {
			if writes.verdicts(fault) == nil {
				continue
			}
			t.Run(fault.String(), func(t *testing.T) {
				b.t = t
				account := user(fault.String())
				b.settle(b.admit(admission(account, 100, 100)), 30)
				b.Advance(2 * ledger.PruneAgeMin)
				b.touch()
				there := int64(len(numbers(t, b.store)))
				fired := b.proxy.Arm(fault)
				report, err := b.ledger.Prune(ctx, ledger.Pruning{Reason: "old", Actor: "root", OlderThan: ledger.PruneAgeMin})
				b.must("prune", err)
				<-fired
				wantEqual(t, "pruned", report.Records, there-1)
				wantEqual(t, "records left", len(numbers(t, b.store)), 2) // and the closing one
				b.want(account, 30, 0)
				b.settle(b.admit(admission(account, 100, 100)), 5)
				b.audit()
			})
		}
	})
}
