package engine

import (
	"context"
	"runtime"
	"sync"
)

// desk runs policy evaluations on goroutines of its own, one a processor: an evaluation waits for nothing, so that more at a time
// would only take turns.
//
// An evaluation recurses deeply, and a goroutine keeps the stack that it once needed. A caller that evaluated on its own, and then
// relays a stream for minutes, would hold some 100 KB for nothing; and a new goroutine would spend more time on growing its stack
// than on the evaluation.
type desk struct {
	tasks   chan func()
	stopped chan struct{}
	opening sync.Once
	closing sync.Once
}

func newDesk() *desk { return &desk{tasks: make(chan func()), stopped: make(chan struct{})} }

// run runs a task and waits for it, unless ctx ends before its turn, whose error it then returns. A panic of the task is the caller's.
// Once the desk is closed, tasks run on their callers.
func (d *desk) run(ctx context.Context, task func()) error {
	d.opening.Do(func() {
		for range runtime.GOMAXPROCS(0) {
			go d.serve()
		}
	})
	var failure any
	done := make(chan struct{})
	guarded := func() {
		defer close(done)
		defer func() { failure = recover() }()
		task()
	}
	select {
	case d.tasks <- guarded:
		<-done
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
