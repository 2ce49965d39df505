package server

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// growth is how many bytes of heap something takes at most, as seen every few milliseconds.
func growth(do func()) uint64 {
	debug.FreeOSMemory() // collects
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	before := stats.HeapAlloc
	var most atomic.Uint64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			most.Store(max(most.Load(), now.HeapAlloc))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	do()
	close(stop)
	<-stopped
	return max(most.Load(), before) - before
}
