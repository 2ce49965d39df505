package main

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// calls is what a load of calls that do not stream has come to.
type calls struct {
	latencies []time.Duration // of calls that were answered
	refused   int
	refusal   error // one of them
	failed    int
	err       error // the first failure
	took      time.Duration
}

func (c *calls) add(other *calls) {
	c.latencies = append(c.latencies, other.latencies...)
	c.refused += other.refused
	if other.refusal != nil {
		c.refusal = other.refusal
	}
}

// together runs one function for each of n clients with a connection of its own, and waits for all.
func together(t *target, n int, work func(i int, c *client) error) (errs []error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			c, err := dial(t)
			if err == nil {
				err = work(i, c)
				c.close()
			}
			if err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errs
}

// callFor has n clients call one after the other for a while.
func callFor(t *target, n int, dur time.Duration) *calls {
	request := wholeRequest(t)
	begin := time.Now()
	return callWhile(t, n, func(c *client, mine *calls) error {
		for now := begin; now.Sub(begin) < dur; {
			err := c.call(request)
			then := now
			now = time.Now()
			if err == nil {
				mine.latencies = append(mine.latencies, now.Sub(then))
			} else if err := mine.note(err); err != nil {
				return err
			}
		}
		return nil
	})
}

// callTimes makes a number of calls one after the other.
func callTimes(t *target, times int) *calls {
	request := wholeRequest(t)
	return callWhile(t, 1, func(c *client, mine *calls) error {
		for range times {
			if err := c.call(request); err != nil {
				return err
			}
		}
		return nil
	})
}

// note counts a failure. One that leaves the connection in an unknown state is returned.
func (c *calls) note(err error) error {
	if errors.Is(err, errRefused) {
		c.refused, c.refusal = c.refused+1, err
		return nil
	}
	return err
}

func callWhile(t *target, n int, work func(*client, *calls) error) *calls {
	var sum calls
	var mu sync.Mutex
	begin := time.Now()
	errs := together(t, n, func(_ int, c *client) error {
		mine := &calls{}
		err := work(c, mine)
		mu.Lock()
		defer mu.Unlock()
		sum.add(mine)
		return err
	})
	sum.took, sum.failed = time.Since(begin), len(errs)
	if len(errs) > 0 {
		sum.err = errs[0] // the others say the same
	}
	return &sum
}

// firstTokens reads one stream after the other for a while, and returns how long each took from the request to its first text,
// and how many broke off.
func firstTokens(t *target, s *speech, dur time.Duration) (firsts []time.Duration, lost int) {
	p := plan{chunks: 2, gap: 2 * time.Millisecond} // the pause sees that the first chunk arrives by itself
	request := streamRequest(t, s, p)
	for begin := time.Now(); time.Since(begin) < dur; {
		lost += len(together(t, 1, func(_ int, c *client) error {
			for time.Since(begin) < dur {
				sent := time.Now()
				err := c.stream(request, s, p, func(i int) {
					if i == 0 {
						firsts = append(firsts, time.Since(sent))
					}
				})
				if err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return firsts, lost
}

// held is many slow streams at the same time.
type held struct {
	n      int
	chunks atomic.Int64  // that have arrived
	begun  atomic.Int64  // streams that have had their first chunk
	ended  atomic.Int64  // those of them that have ended, or were lost
	done   chan struct{} // closed when all have ended
	errs   []error       // then: one for each stream that was lost
}

// holdApart is the time between the openings of two streams: every target can open more, so that none is behind.
const holdApart = 2500 * time.Microsecond

// hold opens streams, one after the other, for this is no test of opening them.
func hold(t *target, s *speech, n int, p plan) *held {
	h := &held{n: n, done: make(chan struct{})}
	request := streamRequest(t, s, p)
	go func() {
		defer close(h.done)
		h.errs = together(t, n, func(i int, c *client) error {
			time.Sleep(time.Duration(i) * holdApart)
			begun := false
			err := c.stream(request, s, p, func(i int) {
				if i == 0 {
					begun = true
					h.begun.Add(1)
				}
				h.chunks.Add(1)
			})
			if begun {
				h.ended.Add(1)
			}
			return err
		})
	}()
	return h
}

// open is how many streams are open. A target that loses some holds fewer.
func (h *held) open() float64 { return float64(max(1, h.begun.Load()-h.ended.Load())) }

// waitOpen waits until every stream has begun, and a second at most longer than opening them takes: those that have not begun by
// then are lost, and are counted at the end.
func (h *held) waitOpen() {
	late := time.After(time.Duration(h.n)*holdApart + time.Second)
	for h.begun.Load() < int64(h.n) {
		select {
		case <-h.done:
			return
		case <-late:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}
