package catalog

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// pollEvery is how often the file is looked at. A token that was taken out of it must be refused within a second.
const pollEvery = 250 * time.Millisecond

// Live holds the current catalogue and reads its file again when it changes. A file that is broken changes nothing: the last
// good one stays, and Err says what is wrong.
type Live struct {
	name string
	read func() ([]byte, error)
	env  func(string) (string, bool)
	// onChange is told of each new catalogue, after it is current.
	onChange func(*Catalogue)
	reload   chan struct{}
	current  atomic.Pointer[Catalogue]

	mu   sync.Mutex // guards what was read last
	text []byte
	err  error
}

// Open reads a catalogue for the first time: an error then is the caller's to report. An empty path is the demo's catalogue,
// which is part of the program.
func Open(path string, env func(string) (string, bool), onChange func(*Catalogue)) (*Live, error) {
	l := &Live{name: path, env: env, onChange: onChange, reload: make(chan struct{}, 1)}
	l.read = func() ([]byte, error) { return os.ReadFile(path) }
	if path == "" {
		l.name, l.read = "demo.yaml (built in)", func() ([]byte, error) { return demo, nil }
	}
	l.look()
	if l.err != nil {
		return nil, l.err
	}
	return l, nil
}

// Current is the catalogue that counts now.
func (l *Live) Current() *Catalogue { return l.current.Load() }

// Err says why the file as it stands now is not the current catalogue; nil if it is.
func (l *Live) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Reload has the file read again at once.
func (l *Live) Reload() {
	select {
	case l.reload <- struct{}{}:
	default: // it is about to be
	}
}

// Run watches the file until ctx ends.
func (l *Live) Run(ctx context.Context) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-l.reload:
		}
		l.look()
	}
}

// look reads the file, and parses it if it is not what was read last.
func (l *Live) look() {
	text, err := l.read()
	l.mu.Lock()
	if err != nil {
		l.err = fmt.Errorf("catalogue: %w", err)
		l.text = nil
		l.mu.Unlock()
		return
	}
	if l.text != nil && bytes.Equal(text, l.text) {
		l.mu.Unlock()
		return
	}
	var next *Catalogue
	next, l.err = Parse(l.name, text, l.env)
	l.text = text
	l.mu.Unlock()
	if next == nil {
		return
	}
	l.current.Store(next)
	l.onChange(next)
}
