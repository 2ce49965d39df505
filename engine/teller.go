package engine

import (
	"fmt"
	"log/slog"
	"sync"
)

// tellMax bounds what waits to be told: seconds of calls, and some megabytes.
const tellMax = 4096

// teller tells a host what has happened, in order, on a goroutine that runs while there is something to tell. Who tells never waits for
// who is told. The zero value is ready but for its log.
type teller struct {
	log *slog.Logger

	mu      sync.Mutex // guards all below
	waiting []func()
	dropped int
	told    chan struct{} // closed once all is told; nil while there is nothing
}

// tell has a callback called, after those before it.
func (t *teller) tell(callback func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) >= tellMax {
		t.dropped++
		return
	}
	t.waiting = append(t.waiting, callback)
	if t.told == nil {
		t.told = make(chan struct{})
		go t.run()
	}
}

// run tells what waits. A callback that ends its goroutine ends that of the teller, in whose place another goes on.
func (t *teller) run() {
	over := false
	defer func() {
		if !over {
			go t.run()
		}
	}()
	for callback := t.take(); callback != nil; callback = t.take() {
		t.call(callback)
	}
	over = true
}

// take returns what has waited longest, nil once all is told. What was dropped meanwhile is logged once, while nobody waits for the log.
func (t *teller) take() func() {
	next, dropped := t.pop()
	if dropped > 0 {
		t.log.Error("a callback of the host is too slow: some of what it is told of was dropped", "dropped", dropped)
	}
	return next
}

func (t *teller) pop() (next func(), dropped int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	dropped, t.dropped = t.dropped, 0
	if len(t.waiting) == 0 {
		t.waiting = nil
		close(t.told)
		t.told = nil
		return nil, dropped
	}
	next, t.waiting[0] = t.waiting[0], nil
	t.waiting = t.waiting[1:]
	return next, dropped
}

// call survives a panic of the host's.
func (t *teller) call(callback func()) {
	defer func() {
		if failure := recover(); failure != nil { // its value may hold anything, so that its type alone is logged
			t.log.Error("a callback of the host panicked", "type", fmt.Sprintf("%T", failure))
		}
	}()
	callback()
}

// wait returns when everything has been told.
func (t *teller) wait() {
	for {
		t.mu.Lock()
		told := t.told
		t.mu.Unlock()
		if told == nil {
			return
		}
		<-told
	}
}

// diagnose tells the host of a call's way over its candidates.
func (r *Router) diagnose(d Diagnostics) {
	if r.OnDiagnostics == nil {
		return
	}
	told := d // which alone is kept
	r.teller.tell(func() { r.OnDiagnostics(told) })
}
