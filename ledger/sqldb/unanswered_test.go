package sqldb_test

import (
	"testing"
	"time"

	"regent/ledger"
	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgproxy"
)

// unanswered has an operation's transaction meet a fault and the server stay away, so that the caller is not told what became of it.
func (c *faultCase) unanswered(operation func() error) {
	c.t.Helper()
	fired := c.proxy.Arm(c.fault)
	for range 1000 {
		c.proxy.Arm(pgproxy.CutAtBegin)
	}
	wantError(c.t, "unanswered", operation(), ledger.ErrUnavailable)
	<-fired
	c.proxy.Disarm()
}

// repeatedly does an operation of which its caller is not told what became, and then twice more.
func (c *faultCase) repeatedly(operation func() error) {
	c.t.Helper()
	c.unanswered(operation)
	c.must("repeated", operation())
	c.must("once more", operation())
}

// TestWhatWasNotAnsweredIsDoneOnce: a caller that was told nothing repeats its operation under the same ids, whether it was committed
// or not. A hold's owner goes on by the token that it has.
func TestWhatWasNotAnsweredIsDoneOnce(t *testing.T) {
	unknown := func(c *faultCase) ledger.Hold { // a hold of 100 tokens whose renewal was not answered
		hold := c.admit(forCall(admission(c.account, 100, 100)))
		c.Advance(ttl / 2)
		c.unanswered(func() error { _, err := c.ledger.Renew(ctx, hold.ID, hold.Token, 0); return err })
		return hold
	}
	tests := []struct {
		name string
		used int64
		run  func(c *faultCase)
	}{
		{"admit", 30, func(c *faultCase) {
			a := forCall(admission(c.account, 100, 100))
			c.repeatedly(func() error { _, err := c.ledger.Admit(ctx, a); return err })
			c.want(c.account, 0, 100)
			c.settle(c.admit(a), 30)
		}},
		{"admit in place of another", 37, func(c *faultCase) {
			a := forCall(admission(c.account, 100, 107))
			first := c.admit(a)
			a.Hold = newID()
			a.Replaces = &ledger.Replacement{Ending: ending(first), Consumption: &ledger.Consumption{Usage: &ledger.Usage{Output: 7}}}
			a.Replaces.State = ""
			c.repeatedly(func() error { _, err := c.ledger.Admit(ctx, a); return err })
			c.want(c.account, 7, 100)
			c.settle(c.admit(a), 30)
		}},
		{"renew, then renew", 30, func(c *faultCase) {
			hold := c.renew(unknown(c))
			wantEqual(c.t, "deadline", hold.Deadline, c.Now().Add(ttl))
			c.settle(hold, 30)
		}},
		{"renew, then settle", 30, func(c *faultCase) { c.settle(unknown(c), 30) }},
		{"renew, then release", 0, func(c *faultCase) { c.must("release", c.ledger.Release(ctx, ending(unknown(c)))) }},
		{"renew, then admit in its place", 30, func(c *faultCase) {
			a := forCall(admission(c.account, 100, 100))
			first := c.admit(a)
			c.unanswered(func() error { _, err := c.ledger.Renew(ctx, first.ID, first.Token, 0); return err })
			a.Hold, a.Replaces = newID(), &ledger.Replacement{Ending: ending(first)}
			a.Replaces.State = ""
			c.settle(c.admit(a), 30)
		}},
		{"renew, then expire, then settle late", 30, func(c *faultCase) {
			hold := unknown(c)
			c.Advance(2 * ttl)
			c.touch() // what kept the owner from renewing may go on for the others
			c.Advance(ttl)
			c.touch()
			c.want(c.account, 100, 0)
			_, err := c.ledger.Settle(ctx, ending(hold), output(30))
			c.must("settle", err)
		}},
		{"settle", 30, func(c *faultCase) {
			hold := c.admit(forCall(admission(c.account, 100, 100)))
			c.repeatedly(func() error { _, err := c.ledger.Settle(ctx, ending(hold), output(30)); return err })
		}},
		{"release", 0, func(c *faultCase) {
			hold := c.admit(forCall(admission(c.account, 100, 100)))
			c.repeatedly(func() error { return c.ledger.Release(ctx, ending(hold)) })
		}},
		{"refuse", 0, func(c *faultCase) {
			call := newCall()
			c.repeatedly(func() error { return c.ledger.Refuse(ctx, call, []byte(`{}`)) })
			c.wantCall(call, ledger.Denied, 0)
		}},
		{"correct further", 30, func(c *faultCase) {
			correction := ledger.Correction{Amendment: amendment(), Tokens: 30, Accounts: []ledger.Account{c.account}}
			c.repeatedly(func() error { return c.ledger.Correct(ctx, correction) })
		}},
		{"take back", 20, func(c *faultCase) {
			hold := c.admit(forCall(admission(c.account, 100, 100)))
			c.settle(hold, 30)
			correction := ledger.Correction{Amendment: amendment(), Tokens: -10, Hold: hold.ID}
			c.repeatedly(func() error { return c.ledger.Correct(ctx, correction) })
		}},
		{"reset", 30, func(c *faultCase) {
			c.settle(c.admit(forCall(admission(c.account, 100, 100))), 30)
			by := amendment()
			c.repeatedly(func() error { return c.ledger.Reset(ctx, by, []ledger.Account{c.account}) })
		}},
		{"keep an activation", 0, func(c *faultCase) {
			digest, content := activation(c.account.ID)
			c.repeatedly(func() error { return c.store.KeepActivation(ctx, digest, content) })
			kept, err := c.store.Activation(ctx, digest)
			c.must("activation", err)
			wantEqual(c.t, "content", string(kept), string(content))
		}},
		{"move a cursor", 0, func(c *faultCase) {
			c.repeatedly(func() error { return c.store.SetCursor(ctx, c.account.ID, c.ledger.Writer(), 0, 7) })
		}},
	}
	onPostgres(t, func(t *testing.T, config sqldb.Config) {
		b := newBench(t, config)
		b.store.SetPatience(10 * time.Millisecond)
		for _, fault := range []pgproxy.Fault{pgproxy.CutBeforeCommit, pgproxy.CutAfterCommit, pgproxy.AmbiguousCommitted} {
			for _, test := range tests {
				passed := b.meets(t, fault, test.name, func(c *faultCase) {
					test.run(c)
					c.want(c.account, test.used, 0)
					wantIdle(c.t, b.store)
				})
				if !passed {
					return
				}
			}
			b.wantSound(t)
		}
	})
}
