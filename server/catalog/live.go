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

// Live holds the current catalogue and reads its file again when it changes, or when the file of a key does. A file that is broken
// changes nothing: the last good one stays, and Err says what is wrong.
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
	// keys are the files that the text names, as they were; nil if they could not be read.
	keys map[string][]byte
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

// Run watches the file until ctx ends. report is told what is wrong with it, once for each change, and nil when nothing is any more.
func (l *Live) Run(ctx context.Context, report func(error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-l.reload:
		}
		was := l.Err()
		l.look()
		if is := l.Err(); message(is) != message(was) {
			report(is)
		}
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// look reads the file, and parses it if it, or a key that it names, is not what was read last.
func (l *Live) look() {
	text, err := l.read()
	l.mu.Lock()
	if err != nil {
		l.err = fmt.Errorf("catalogue: %w", err)
		l.text = nil
		l.mu.Unlock()
		return
	}
	if l.text != nil && bytes.Equal(text, l.text) && l.sameKeys() {
		l.mu.Unlock()
		return
	}
	var next *Catalogue
	l.keys = map[string][]byte{}
	next, l.err = parse(l.name, text, l.env, l.readKey)
	l.text = text
	l.mu.Unlock()
	if next == nil {
		return
	}
	l.current.Store(next)
	l.onChange(next)
}

// readKey reads a key's file and remembers what it held, also that it could not be read.
func (l *Live) readKey(path string) ([]byte, error) {
	text, err := readKey(path)
	l.keys[path] = text
	if err != nil {
		l.keys[path] = nil
	}
	return text, err
}

// sameKeys says whether the keys' files hold what they did.
func (l *Live) sameKeys() bool {
	for path, was := range l.keys {
		text, err := readKey(path)
		if (err == nil) != (was != nil) || err == nil && !bytes.Equal(text, was) {
			return false
		}
	}
	return true
}
