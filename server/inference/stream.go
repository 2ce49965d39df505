package inference

import (
	"math"
	"net/http"
	"sync"
	"time"
)

const (
	// commitAfter is how long a provider may take before the stream's status is sent: until then a refusal keeps its own.
	commitAfter = time.Second
	// silenceMax is how long a stream may be silent before a comment is due: well below the idle time-outs of proxies.
	silenceMax = 15 * time.Second
	// givenFor is the part of a write's time for which it is not given anew, as that costs as much as a tenth of a short event.
	givenFor = 16
)

// keepalive is a comment: no output, no event, nothing that counts.
var keepalive = []byte(": keepalive\n\n")

// stream is a server-sent event stream to a client. Once committed, its status is sent and it is kept alive by comments
// between whole events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration // for one write, of which givenAt may take a part

	mu        sync.Mutex // held for the whole of a write, so that nothing comes between the bytes of an event
	committed bool
	unsent    bool      // something was written and not flushed
	givenAt   time.Time // when the client was last given its time
	closed    bool
	err       error // of the first failed write
	timer     *time.Timer
}

// newStream starts the clock of a stream whose request is being dispatched.
func newStream(w http.ResponseWriter, stall time.Duration) *stream {
	s := &stream{w: w, control: http.NewResponseController(w), stall: stall}
	s.timer = time.AfterFunc(math.MaxInt64, s.tick)
	s.timer.Reset(commitAfter) // only now: tick uses the timer, and a busy machine may have it run before the line above has ended
	return s
}

// tick commits the stream or keeps it alive. While a write is under way, the client takes data or cannot take any: either way
// no comment is due.
func (s *stream) tick() {
	if !s.mu.TryLock() {
		s.timer.Reset(silenceMax)
		return
	}
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if s.committed {
		s.put(keepalive)
	} else {
		s.commit()
	}
	s.flush()
}

// commit writes the status and the first comment. The mutex is held.
func (s *stream) commit() {
	if s.committed {
		return
	}
	s.committed = true
	header := s.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-cache")
	header.Set("X-Accel-Buffering", "no")
	s.w.WriteHeader(http.StatusOK)
	s.put(keepalive)
}

// put writes whole events. The mutex is held.
func (s *stream) put(events []byte) {
	if now := time.Now(); s.err == nil && now.Sub(s.givenAt) > s.stall/givenFor {
		s.givenAt, s.err = now, giveTime(s.control, s.stall)
	}
	if s.err == nil {
		_, s.err = s.w.Write(events)
		s.unsent = true
	}
}

// flush sends what was written. The mutex is held.
func (s *stream) flush() {
	if s.err == nil && s.unsent {
		s.err = s.control.Flush()
		s.unsent = false
		s.timer.Reset(silenceMax)
	}
}

// begin commits the stream, if it is not yet.
func (s *stream) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commit()
	s.flush()
	return s.err
}

// write sends whole events, together with the next ones if more follow at once.
func (s *stream) write(events []byte, more bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commit()
	if len(events) > 0 {
		s.put(events)
	}
	if !more {
		s.flush()
	}
	return s.err
}

// abandon keeps an uncommitted stream from being committed, so that the caller can answer otherwise. It returns false if it is
// committed already.
func (s *stream) abandon() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.committed {
		return false
	}
	s.closed = true
	s.timer.Stop()
	return true
}

// close ends the comments.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.timer.Stop()
}
