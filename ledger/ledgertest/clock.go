package ledgertest

import (
	"sync"
	"time"
)

// Clock is a store's clock and a process's monotonic clock that a test moves by hand.
type Clock struct {
	mu      sync.Mutex
	now     time.Time
	elapsed time.Duration
}

// NewClock starts at noon, UTC, of a day without anything special.
func NewClock() *Clock {
	return &Clock{now: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)}
}

// Now is the store's clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Elapsed is the process's monotonic clock.
func (c *Clock) Elapsed() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.elapsed
}

// Advance lets time pass: both clocks move.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.elapsed += d
}

// Step moves the store's clock alone, as an operator or a bad time server does.
func (c *Clock) Step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
