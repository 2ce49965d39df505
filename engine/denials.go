package engine

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"regent/engine/decisions"
	"regent/ledger"
)

const (
	// denialsPerSecond is how many equal denials of one caller are recorded one by one in a second; more are counted in one
	// record, so that a client in a loop cannot fill the journal.
	denialsPerSecond = 10
	// foldedMax bounds the kinds of denials that are counted at a time; beyond it each is recorded.
	foldedMax = 4096
)

// denialKey says which denials are equal. What a client may choose freely is no part of it.
type denialKey struct {
	caller, token, model, code, reason string
}

// denialFold counts equal denials.
type denialFold struct {
	write func(map[denialKey]*folded)

	mu     sync.Mutex // guards counts and timer
	counts map[denialKey]*folded
	timer  *time.Timer
	// writing counts the flushes under way.
	writing sync.WaitGroup
}

// folded is what was seen of one kind of denial in the running second.
type folded struct {
	seen int
	// extra is how many of them were not recorded, and event the last of those.
	extra int
	event decisions.Event
}

// admit says whether a denial is to be recorded by itself; if not, it has been counted.
func (f *denialFold) admit(key denialKey, event func() decisions.Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		f.counts = map[denialKey]*folded{}
		f.timer = time.AfterFunc(time.Second, f.flush)
	}
	count := f.counts[key]
	if count == nil {
		if len(f.counts) >= foldedMax {
			return true
		}
		count = &folded{}
		f.counts[key] = count
	}
	count.seen++
	if count.seen <= denialsPerSecond {
		return true
	}
	count.extra++
	count.event = event()
	return false
}

// flush writes what was counted and begins a new second.
func (f *denialFold) flush() {
	f.mu.Lock()
	counts := f.counts
	f.counts = nil
	if f.timer != nil {
		f.timer.Stop()
	}
	f.writing.Add(1)
	f.mu.Unlock()
	defer f.writing.Done()
	f.write(counts)
}

// recordDenial writes a refused call and its decision record, or counts it with its equals.
func (w *walk) recordDenial(ctx context.Context, refusal *Error) error {
	body := w.event(nil, refusal)
	alone := w.denials.admit(w.denialKey(refusal), func() (event decisions.Event) {
		var result decisions.Result
		event.Result = &result
		if err := json.Unmarshal(body, &event); err != nil {
			w.Log.Error("a denial cannot be counted", "call", w.request.ID, "err", err)
		}
		return event
	})
	if !alone {
		return nil
	}
	return w.Ledger.Refuse(ctx, w.request.Call, body)
}

// denialKey names what a denial is counted with. Models without candidates are one: their names are whatever a client makes up, and a
// new one each time would never be counted.
func (w *walk) denialKey(refusal *Error) denialKey {
	refs := identityRefs(w.request.Identity)
	key := denialKey{
		caller: refs.TenantID + "|" + refs.PrincipalKind + "|" + refs.PrincipalID, token: w.request.Token,
		code: string(refusal.Code), reason: refusal.Details.Reason,
	}
	if len(w.request.Candidates) > 0 {
		key.model = w.request.Facts.Model
	}
	return key
}

// recordDenials writes one record for each kind of denial that was counted.
func (r *Router) recordDenials(counts map[denialKey]*folded) {
	for _, count := range counts {
		if count.extra == 0 {
			continue
		}
		if result, ok := count.event.Result.(*decisions.Result); ok {
			result.Count = count.extra
		}
		body, err := count.event.Encode()
		if err == nil {
			err = r.Ledger.Refuse(context.Background(), nil, body)
		}
		if err != nil && !errors.Is(err, ledger.ErrClosed) {
			r.Log.Error("counted denials could not be recorded", "count", count.extra, "err", err)
		}
	}
}
