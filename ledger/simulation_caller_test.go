package ledger_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"regent/ledger"
)

// caller is one call of the gateway on one replica, from its admission to its end. Until its replica crashes, it does what the
// gateway's engine does.
type caller struct {
	sim     *simulation
	number  int
	random  *rand.Rand
	replica *replica // guarded by the truth while it is chosen
	call    ledger.Call
	hold    *heldFor // the newest attempt's
	token   int64
	done    bool // guarded by the truth
}

// errCrashed ends a caller whose replica has crashed: it acts no more.
var errCrashed = errors.New("simulated: the replica has crashed")

func (c *caller) run() {
	c.sleep(c.sim.begins(c.random))
	if r := c.sim.choose(c.random); r != nil {
		c.sim.truth.mu.Lock()
		c.replica = r
		c.sim.truth.mu.Unlock()
		c.serve()
	}
	c.sim.truth.mu.Lock()
	defer c.sim.truth.mu.Unlock()
	c.done = true
}

func (c *caller) below(d time.Duration) time.Duration {
	return time.Duration(c.random.Int64N(int64(d)))
}

func (c *caller) sleep(d time.Duration) { c.sim.sleep(d, callerClass+c.number) }

func (c *caller) gone() bool { return c.replica.hasCrashed() }

func (c *caller) trace(format string, args ...any) {
	if c.sim.tracing {
		c.sim.tracef("caller %d on replica %d: %s", c.number, c.replica.number, fmt.Sprintf(format, args...))
	}
}

// serve tries up to three candidates and ends the call.
func (c *caller) serve() {
	c.call = ledger.Call{ID: c.newID(), Owner: c.sim.user(c.random), Model: "m"}
	if c.random.IntN(3) == 0 {
		c.call.IdempotencyKey = fmt.Sprintf("k%d", c.random.IntN(3))
	}
	c.sim.truth.mu.Lock()
	c.sim.truth.calls[c.call.ID] = &askedFor{}
	c.sim.truth.mu.Unlock()
	for attempt := 1; ; attempt++ {
		var err error
		if attempt == 1 {
			err = c.admit(nil)
		} else {
			err = c.admit(c.replace())
		}
		c.sleep(1) // others may have been answered together with this one
		switch {
		case err == errCrashed:
			return
		case err != nil && attempt == 1:
			c.refuse()
			return
		case err != nil:
			c.conclude(c.hold.end.consumption, ledger.Failed, false)
			return
		}
		if !c.work() {
			return
		}
		if attempt < 3 && c.random.IntN(4) == 0 {
			continue
		}
		c.conclude(c.consumption(), [...]ledger.State{ledger.Completed, ledger.Completed, ledger.Failed, ledger.Cancelled}[c.random.IntN(4)], false)
		return
	}
}

func (c *caller) newID() (id uuid.UUID) {
	for i := range id {
		id[i] = byte(c.random.Uint32())
	}
	id[6], id[8] = id[6]&0x0f|0x70, id[8]&0x3f|0x80
	return id
}

// consumption is what an attempt used: known, estimated or not known; nil gives everything back.
func (c *caller) consumption() *ledger.Consumption {
	used := c.random.Int64N(*c.hold.admission.Reserve.Tokens + 1)
	switch c.random.IntN(8) {
	case 0:
		return nil
	case 1:
		return &ledger.Consumption{}
	case 2:
		return &ledger.Consumption{Usage: &ledger.Usage{Output: used + c.random.Int64N(20)}, Estimated: true}
	case 3:
		return &ledger.Consumption{Usage: &ledger.Usage{Output: used + c.random.Int64N(20)}}
	}
	return &ledger.Consumption{Usage: &ledger.Usage{Output: used}}
}

// replace decides that the attempt has failed and another is to follow.
func (c *caller) replace() *ledger.Replacement {
	consumption := c.consumption()
	c.decide(consumption, "", true)
	return &ledger.Replacement{
		Ending:      ledger.Ending{Hold: c.hold.admission.Hold, Token: c.token, Outcome: ledger.Outcome{Result: ledger.Errored, Status: 500}},
		Consumption: consumption,
	}
}

// decide notes how the attempt is to end.
func (c *caller) decide(consumption *ledger.Consumption, state ledger.State, replacing bool) {
	c.sim.truth.mu.Lock()
	defer c.sim.truth.mu.Unlock()
	c.hold.end = &decidedEnd{consumption, state}
	c.hold.replacing = c.hold.replacing || replacing
}

// admit asks for a hold, and asks again if it is not known whether there is one, until it gives up.
func (c *caller) admit(replaces *ledger.Replacement) error {
	id, tokens := c.newID(), 1+c.random.Int64N(60)
	usd := nanoUSDPerToken * tokens
	admission := ledger.Admission{
		Hold: id, Call: &c.call, Replaces: replaces, Source: "s", Provider: "p", Price: &simPrice,
		Reserve: ledger.Reserve{Tokens: &tokens, NanoUSD: &usd}, Claims: c.sim.claims(c.call.Owner, c.random),
		Decision: fmt.Appendf(nil, `{"hold":%q}`, id),
	}
	hold := &heldFor{admission: admission, replica: c.replica}
	c.sim.truth.mu.Lock()
	c.sim.truth.holds[id] = hold
	c.sim.truth.mu.Unlock()
	for {
		c.trace("admits %s", short(id))
		granted, err := c.replica.ledger.Admit(ctx, admission)
		if c.gone() {
			return errCrashed
		}
		c.trace("admits %s: %v", short(id), err)
		if again := c.admitted(hold, replaces, err); !again {
			if err == nil {
				c.hold, c.token = hold, granted.Token
			}
			return err
		}
		c.sleep(20*time.Millisecond + c.below(3*time.Second))
		if c.gone() {
			return errCrashed
		}
	}
}

// admitted notes the answer to an admission, and says whether to ask again.
func (c *caller) admitted(hold *heldFor, replaces *ledger.Replacement, err error) (again bool) {
	t := c.sim.truth
	t.mu.Lock()
	defer t.mu.Unlock()
	var limit *ledger.LimitError
	var duplicate *ledger.DuplicateError
	replacedLives := replaces != nil && t.holds[replaces.Hold].state == ledger.HoldLive
	switch {
	case err == nil:
		hold.admitted = true
		return false
	case errors.As(err, &limit) || errors.As(err, &duplicate):
		if hold.state != "" {
			t.find("denied and held", "hold %s: %v", hold.admission.Hold, err)
		}
		if replaces != nil {
			c.hold.replacing = false
		}
		return false
	case errors.Is(err, ledger.ErrUnavailable):
		if c.random.IntN(3) > 0 {
			return true
		}
	case errors.Is(err, ledger.ErrState):
		if hold.state == ledger.HoldLive || hold.state == "" && (replaces == nil || replacedLives) {
			t.find("admission refused", "hold %s: %v", hold.admission.Hold, err)
		}
	default:
		t.find("strange answer", "admitting %s: %v", hold.admission.Hold, err)
	}
	hold.forsaken = true
	return false
}

// refuse records the denial of the call, if the store is there.
func (c *caller) refuse() {
	for range 3 {
		err := c.replica.ledger.Refuse(ctx, &c.call, fmt.Appendf(nil, `{"refused":%q}`, c.call.ID))
		if c.gone() {
			return
		}
		c.trace("refuses: %v", err)
		t := c.sim.truth
		t.mu.Lock()
		call := t.calls[c.call.ID]
		switch {
		case err == nil:
			call.denied = true
		case errors.Is(err, ledger.ErrState) && (call.state == "" || call.state == ledger.Denied):
			t.find("denial refused", "call %s is %q", c.call.ID, call.state)
		case !errors.Is(err, ledger.ErrState) && !errors.Is(err, ledger.ErrUnavailable):
			t.find("strange answer", "refusing %s: %v", c.call.ID, err)
		}
		t.mu.Unlock()
		if !errors.Is(err, ledger.ErrUnavailable) {
			return
		}
		c.sleep(c.below(5 * time.Second))
	}
}

// work is the time of an attempt, in which its hold is renewed. It says whether the replica still runs.
func (c *caller) work() bool {
	until := time.Now().Add(c.below(c.sim.workMax))
	next, live := simTTL/3, true
	for {
		left := time.Until(until)
		if !live || left <= next {
			c.sleep(max(left, time.Microsecond))
			return !c.gone()
		}
		c.sleep(next)
		if c.gone() {
			return false
		}
		if next, live = c.renew(); c.gone() {
			return false
		}
	}
}

// renew renews the hold once, and says when to do so next, unless it has ended.
func (c *caller) renew() (next time.Duration, live bool) {
	id := c.hold.admission.Hold
	renewed, err := c.replica.ledger.Renew(ctx, id, c.token, simTTL)
	if c.gone() {
		return 0, false
	}
	c.trace("renews %s with token %d: %v", short(id), c.token, err)
	switch {
	case err == nil:
		c.token = renewed.Token
		return simTTL / 3, true
	case errors.Is(err, ledger.ErrState):
		if c.sim.truth.lives(id) {
			c.sim.truth.report("renewal refused", "hold %s lives, and its caller is told: %v", id, err)
		}
		return 0, false
	case !errors.Is(err, ledger.ErrUnavailable):
		c.sim.truth.report("strange answer", "renewing %s: %v", id, err)
	}
	return simTTL / 30, true
}

const (
	concludePause    = 20 * time.Millisecond
	concludePauseMax = 5 * time.Second
)

// conclude ends the attempt and the call, and tries until the ledger has it or says that the hold has ended already.
func (c *caller) conclude(consumption *ledger.Consumption, state ledger.State, replacing bool) {
	c.decide(consumption, state, replacing)
	id := c.hold.admission.Hold
	ending := ledger.Ending{Hold: id, Token: c.token, State: state, Outcome: ledger.Outcome{Result: ledger.Success, Status: 200}}
	for pause := concludePause; !c.gone(); pause = min(2*pause, concludePauseMax) {
		charge, err := c.end(ending, consumption)
		if c.gone() {
			return
		}
		c.trace("ends %s with token %d: %+v, %v", short(id), c.token, charge, err)
		switch {
		case err == nil:
			c.told(charge)
			return
		case errors.Is(err, ledger.ErrExpired) && consumption == nil:
			consumption = &ledger.Consumption{}
			c.sleep(1)
		case errors.Is(err, ledger.ErrState):
			c.endRefused(err)
			return
		default:
			if !errors.Is(err, ledger.ErrUnavailable) {
				c.sim.truth.report("strange answer", "ending %s: %v", id, err)
			}
			c.sleep(pause)
		}
	}
}

func (c *caller) end(ending ledger.Ending, consumption *ledger.Consumption) (ledger.Charge, error) {
	if consumption == nil {
		return ledger.Charge{}, c.replica.ledger.Release(ctx, ending)
	}
	return c.replica.ledger.Settle(ctx, ending, *consumption)
}

func (c *caller) told(charge ledger.Charge) {
	c.sim.truth.mu.Lock()
	defer c.sim.truth.mu.Unlock()
	c.hold.told = &charge
}

// endRefused sees that an end is refused only to a hold that has expired, or that a further attempt may have replaced.
func (c *caller) endRefused(err error) {
	t := c.sim.truth
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.hold.state != ledger.HoldExpired && !(c.hold.replacing && c.hold.state != ledger.HoldLive) {
		t.find("end refused", "hold %s is %q, and its caller is told: %v", c.hold.admission.Hold, c.hold.state, err)
	}
}
