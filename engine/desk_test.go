package engine

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Each task runs once, and has run when run returns, also while and after the desk is closed.
func TestDeskRunsEachTaskOnce(t *testing.T) {
	d := newDesk()
	var callers sync.WaitGroup
	var ran atomic.Int64
	for range 50 {
		callers.Go(func() {
			for i := range 20 {
				mine := false
				err := d.run(ctx, time.Minute, func() {
					mine = true
					ran.Add(1)
				})
				if err != nil || !mine {
					t.Error("run returned before its task had run")
				}
				if i == 10 {
					d.close()
				}
			}
		})
	}
	callers.Wait()
	if got := ran.Load(); got != 1000 {
		t.Errorf("%d tasks ran, want 1000", got)
	}
}

func TestDeskPassesAPanicOn(t *testing.T) {
	for _, closed := range []bool{false, true} {
		d := newDesk()
		if closed {
			d.close()
		}
		func() {
			defer func() {
				if failure := recover(); failure != "no good" {
					t.Errorf("closed %v: recovered %v, want the task's panic", closed, failure)
				}
			}()
			_ = d.run(ctx, time.Minute, func() { panic("no good") })
		}()
		again := false
		if err := d.run(ctx, time.Minute, func() { again = true }); err != nil || !again {
			t.Errorf("closed %v: the desk serves no more", closed)
		}
		d.close()
	}
}

// Whoever has gone does not wait for a turn.
func TestDeskDoesNotKeepWhoHasGone(t *testing.T) {
	d := newDesk()
	busy, done := make(chan bool), make(chan bool)
	for range runtime.GOMAXPROCS(0) {
		go func() { _ = d.run(ctx, time.Minute, func() { busy <- true; <-done }) }()
		<-busy
	}
	gone, leave := context.WithCancel(ctx)
	leave()
	if err := d.run(gone, time.Minute, func() { t.Error("it ran") }); err != context.Canceled {
		t.Errorf("got %v", err)
	}
	close(done)
	d.close()
}

// A task that does not end is left behind, and the desk serves on; as many as it may leave behind, and no more.
func TestDeskLeavesBehindWhatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk()
		release := make(chan bool)
		for range stuckMax {
			if err := d.run(t.Context(), time.Second, func() { <-release }); err != errStuck {
				t.Errorf("got %v", err)
			}
			served := false
			if d.stuck.Load() < stuckMax {
				if err := d.run(t.Context(), time.Second, func() { served = true }); err != nil || !served {
					t.Errorf("the desk serves no more: %v", err)
				}
			}
		}
		if err := d.run(t.Context(), time.Second, func() { t.Error("it ran") }); err != errStuck {
			t.Errorf("with %d left behind: got %v", stuckMax, err)
		}
		close(release)
		synctest.Wait()
		served := false
		if err := d.run(t.Context(), time.Second, func() { served = true }); err != nil || !served || d.stuck.Load() != 0 {
			t.Errorf("after they have ended: %v, %d stuck", err, d.stuck.Load())
		}
		d.close()
	})
}
