package memory

import (
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/golang-lru/v2/simplelru"

	"regent/ledger"
)

const (
	ratesDefault    = 4_096
	circuitsDefault = 1_024
	// RatesMax and CircuitsMax are the most rates and circuits that a store can be told to keep: a few megabytes.
	RatesMax    = 65_536
	CircuitsMax = 16_384
)

// gates are the rates and the circuits, the one that changed longest ago first. They forget nothing by themselves.
type gates struct {
	rates                 *simplelru.LRU[string, ledger.RateRow]
	circuits              *simplelru.LRU[string, ledger.CircuitRow]
	ratesMax, circuitsMax int
	// open counts the open circuits.
	open int
}

func newGates() gates {
	return gates{
		rates: unbounded[string, ledger.RateRow](), circuits: unbounded[string, ledger.CircuitRow](),
		ratesMax: ratesDefault, circuitsMax: circuitsDefault,
	}
}

// unbounded keeps keys in the order of their last use.
func unbounded[K comparable, V any]() *simplelru.LRU[K, V] {
	recent, err := simplelru.NewLRU[K, V](math.MaxInt, nil)
	if err != nil { // only a size below 1 fails
		panic(err)
	}
	return recent
}

// bound checks a bound of a [Config]; 0 is the default.
func bound(name string, n, standard, most int) (int, error) {
	if n == 0 {
		return standard, nil
	}
	if n < 0 || n > most {
		return 0, fmt.Errorf("%w: memory.Config.%s must be within 1 and %d, not %d", ledger.ErrInvalid, name, most, n)
	}
	return n, nil
}

// loadGates reads rates and circuits, those of holds that are about to end too.
func (s *Store) loadGates(keys ledger.Keys, rows *ledger.Rows) {
	for _, key := range keys.Rates {
		s.gates.loadRate(key, rows)
	}
	for _, circuits := range [][]string{keys.Circuits, keys.Counting, keys.Hearing} {
		for _, key := range circuits {
			s.gates.loadCircuit(key, rows)
		}
	}
	for _, ids := range [][]uuid.UUID{keys.Ends, rows.Due} {
		for _, id := range ids {
			s.gates.loadEnd(s.holds[id], rows)
		}
	}
	rows.CircuitsFull = s.gates.open >= s.gates.circuitsMax
}

func (g *gates) loadEnd(hold ledger.HoldRow, rows *ledger.Rows) {
	for _, key := range hold.Rates {
		g.loadRate(key, rows)
	}
	if hold.Circuit != nil {
		g.loadCircuit(hold.Circuit.Key, rows)
	}
}

func (g *gates) loadRate(key string, rows *ledger.Rows) {
	if row, known := g.rates.Peek(key); known {
		put(&rows.Rates, key, row)
	}
}

func (g *gates) loadCircuit(key string, rows *ledger.Rows) {
	if row, known := g.circuits.Peek(key); known {
		put(&rows.Circuits, key, row)
	}
}

// save writes what has changed, and forgets what is beyond the bounds.
func (g *gates) save(changes *ledger.Changes, now time.Time) {
	for key, row := range changes.Rates {
		g.rates.Add(key, row)
	}
	for key, row := range changes.Circuits {
		g.removeCircuit(key)
		if row == (ledger.CircuitRow{}) { // as if it had never been heard of
			continue
		}
		g.circuits.Add(key, row)
		if isOpen(row) {
			g.open++
		}
	}
	g.evictRates(now)
	g.evictCircuits()
}

func (g *gates) removeCircuit(key string) {
	if row, known := g.circuits.Peek(key); known && isOpen(row) {
		g.open--
	}
	g.circuits.Remove(key)
}

// isOpen says whether a circuit is open or has a probe out.
func isOpen(row ledger.CircuitRow) bool { return !row.RetryAt.IsZero() }

// evictRates forgets rates beyond the bound: those whose window has closed first, then those that counted longest ago.
func (g *gates) evictRates(now time.Time) {
	if g.rates.Len() <= g.ratesMax {
		return
	}
	most := g.ratesMax - g.ratesMax/evictedPart
	for _, key := range g.rates.Keys() {
		if row, _ := g.rates.Peek(key); g.rates.Len() > most && !now.Before(row.ClosesAt) {
			g.rates.Remove(key)
		}
	}
	for g.rates.Len() > most {
		g.rates.RemoveOldest()
	}
}

// evictCircuits forgets closed circuits beyond the bound. Open ones are never forgotten: they stand above the bound where holds that
// were admitted in time open more of them.
func (g *gates) evictCircuits() {
	if g.circuits.Len() <= g.circuitsMax || g.circuits.Len() == g.open {
		return
	}
	most := g.circuitsMax - g.circuitsMax/evictedPart
	for _, key := range g.circuits.Keys() {
		if row, _ := g.circuits.Peek(key); g.circuits.Len() > most && !isOpen(row) {
			g.circuits.Remove(key)
		}
	}
}

// copy is the same gates, which nobody changes.
func (g *gates) copy() gates {
	c := newGates()
	c.open, c.ratesMax, c.circuitsMax = g.open, g.ratesMax, g.circuitsMax
	for _, key := range g.rates.Keys() {
		row, _ := g.rates.Peek(key)
		c.rates.Add(key, row)
	}
	for _, key := range g.circuits.Keys() {
		row, _ := g.circuits.Peek(key)
		c.circuits.Add(key, row)
	}
	return c
}
