package engine

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// desk runs policy evaluations on goroutines of its own, one a processor: an evaluation waits for nothing, so that more at a time
// would only take turns.
//
// An evaluation recurses deeply, and a goroutine keeps the stack that it once needed. A caller that evaluated on its own, and then
// relays a stream for minutes, would hold some 100 KB for nothing; and a new goroutine would spend more time on growing its stack
// than on the evaluation.
//
// One step of an evaluation cannot be interrupted. A task that works on for longer than anybody waits is left behind, and another
// goroutine takes its place, so that one rule that runs away does not stop everybody.
type desk struct {
	tasks   chan func()
	stopped chan struct{}
	opening sync.Once
	closing sync.Once
	// stuck is how many tasks are left behind and have not ended.
	stuck atomic.Int32
}

// stuckMax bounds the tasks that are left behind: each takes a processor. Beyond it nothing is evaluated until one has ended.
const stuckMax = 8

// errStuck: the task works on, and may do so for ever. What it has written is not for its caller any more.
var errStuck = errors.New("engine: an evaluation does not end")

func newDesk() *desk { return &desk{tasks: make(chan func()), stopped: make(chan struct{})} }

// run runs a task and waits for it, unless ctx ends before its turn, whose error it then returns. A panic of the task is the caller's.
// If the task is not done when patience is over, run returns errStuck and leaves it behind. Once the desk is closed, tasks run on their
// callers.
func (d *desk) run(ctx context.Context, patience time.Duration, task func()) error {
	d.opening.Do(func() {
		for range runtime.GOMAXPROCS(0) {
			go d.serve()
		}
	})
	if d.stuck.Load() >= stuckMax {
		return errStuck
	}
	var failure any
	done := make(chan struct{})
	guarded := func() {
		defer close(done)
		defer func() { failure = recover() }()
		task()
	}
	select {
	case d.tasks <- guarded:
		if !d.await(done, patience) {
			return errStuck
		}
	case <-d.stopped:
		guarded()
	case <-ctx.Done():
		return ctx.Err()
	}
	if failure != nil {
		panic(failure)
	}
	return nil
}

// await says whether a task was done in time. One that was not gets another goroutine in its place until it is.
func (d *desk) await(done <-chan struct{}, patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	}
	d.stuck.Add(1)
	ended := make(chan struct{})
	go func() { <-done; d.stuck.Add(-1); close(ended) }()
	go d.stand(ended)
	return false
}

// stand works at the desk until a task that was left behind has ended.
func (d *desk) stand(ended <-chan struct{}) {
	for {
		select {
		case task := <-d.tasks:
			task()
		case <-ended:
			return
		case <-d.stopped:
			return
		}
	}
}

func (d *desk) serve() {
	for {
		select {
		case task := <-d.tasks:
			task()
		case <-d.stopped:
			return
		}
	}
}

func (d *desk) close() { d.closing.Do(func() { close(d.stopped) }) }
