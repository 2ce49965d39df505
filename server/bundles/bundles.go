// Package bundles gets policy bundles from where the catalogue says they are: the one that is part of the program, folders and
// tarballs on disk, web servers, and registries of images.
//
// A [Set] follows the bundles of the catalogue that counts. It keeps the last good content of each in memory, looks for a new one by
// itself, and says when there is one. What it hands out is a snapshot that never changes: nobody can exchange a file while it is
// loaded. It verifies no signature, loads no policy and decides nothing; package engine/policy does.
//
// An error says where, what was wrong and what to do. It tells no credential and no query of an address, and of what another side has
// said nothing but paths within a bundle.
package bundles

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"regent/engine/policy"
	"regent/server/catalog"
)

// EmbeddedName is the bundle that is part of the program. A bundle of the catalogue that has its name takes its place.
const EmbeddedName = "regent"

// embeddedVersion is that of the program's own bundle, which is what it was for as long as the program runs.
const embeddedVersion = "embedded"

// Config configures a [Set].
type Config struct {
	// Embedded is the bundle that is part of the program. Required.
	Embedded fs.FS
	// Changed is told that a bundle has other content than before. It must not block. Required.
	Changed func()
	// Log takes what happens to the bundles' sources, once for each change. Required.
	Log *slog.Logger
}

// Set is all bundles that count. Any number of goroutines may use it.
type Set struct {
	config Config
	limits limits

	mu      sync.Mutex
	ctx     context.Context // in which sources are watched; nil while they are not
	running sync.WaitGroup  // of the watches
	watches map[string]*watch
}

// New makes a set that holds the embedded bundle alone.
func New(config Config) *Set {
	return &Set{config: config, limits: patience, watches: map[string]*watch{}}
}

// Follow makes the set hold the bundles of a catalogue, and watch their sources while it runs. A bundle that comes from where it came
// from before keeps what was fetched. It waits for nothing.
func (s *Set) Follow(bundles []catalog.Bundle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	followed := make(map[string]*watch, len(bundles))
	for _, bundle := range bundles {
		if known := s.watches[bundle.Name]; known != nil && known.place == bundle.BundleSource {
			known.setSigning(bundle.Signing)
			followed[bundle.Name] = known
			continue
		}
		followed[bundle.Name] = newWatch(bundle, s.limits, s.config)
		s.begin(followed[bundle.Name])
	}
	for name, known := range s.watches {
		if followed[name] != known {
			known.end()
		}
	}
	s.watches = followed
}

// begin has a source watched, if sources are. The set is locked.
func (s *Set) begin(w *watch) {
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(s.ctx)
	w.stop = stop
	s.running.Go(func() { defer stop(); w.run(ctx) })
}

// Run watches all sources, each for itself, until ctx ends, and returns when nothing runs any more.
func (s *Set) Run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	for _, w := range s.watches {
		s.begin(w)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock() // whoever follows from here on begins nothing
	s.ctx = nil
	s.mu.Unlock()
	s.running.Wait()
	return ctx.Err()
}

// Look has all sources looked at now, whenever they were looked at last, at the same time, and returns when that is done.
func (s *Set) Look(ctx context.Context) {
	var looking sync.WaitGroup
	for _, w := range s.all() {
		looking.Go(func() { w.look(ctx, true) })
	}
	looking.Wait()
}

// all are the watches in the order of their bundles' names.
func (s *Set) all() []*watch {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.watches), func(a, b *watch) int { return cmp.Compare(a.place.Name, b.place.Name) })
}

// Snapshot is the content of all bundles at one moment.
type Snapshot struct {
	// Bundles are what a policy is loaded from. Only the embedded one is said to be tested.
	Bundles []policy.Bundle
	// Versions identify the contents, by name: equal ones are the same files.
	Versions map[string]string
}

// Snapshot returns all bundles, or a [*MissingError].
func (s *Set) Snapshot() (Snapshot, error) {
	snapshot := Snapshot{Versions: map[string]string{}}
	var missing MissingError
	for _, w := range s.all() {
		state := w.read()
		if state.tree == nil {
			missing.Bundles = append(missing.Bundles, w.missing(state))
			continue
		}
		snapshot.Bundles = append(snapshot.Bundles, policy.Bundle{Name: w.place.Name, FS: state.tree, Signing: state.signing})
		snapshot.Versions[w.place.Name] = state.tree.Version()
	}
	if len(missing.Bundles) > 0 {
		return Snapshot{}, &missing
	}
	if _, replaced := snapshot.Versions[EmbeddedName]; !replaced {
		embedded := policy.Bundle{Name: EmbeddedName, FS: s.config.Embedded, Tested: true} // by the program's own tests
		snapshot.Bundles = append([]policy.Bundle{embedded}, snapshot.Bundles...)
		snapshot.Versions[EmbeddedName] = embeddedVersion
	}
	return snapshot, nil
}

// State is how the source of a bundle is.
type State struct {
	Name string
	// Err says why the last look has failed; nil if it has not, or if nobody has looked yet.
	Err error
	// There says that the bundle's content is known, from an earlier look if the last one has failed.
	There bool
	// Fetched is when the source was last found to hold what is known.
	Fetched time.Time
	// Errors counts the looks that have failed.
	Errors int64
}

// States tells how the source of each bundle is, but for the embedded one, which has none. They are ordered by name.
func (s *Set) States() []State {
	var states []State
	for _, w := range s.all() {
		state := w.read()
		states = append(states, State{
			Name: w.place.Name, Err: state.err, There: state.tree != nil, Fetched: state.fetched, Errors: state.errors,
		})
	}
	return states
}

// MissingError says which bundles have not arrived yet, and why.
type MissingError struct {
	// Bundles holds at least one, ordered by name.
	Bundles []Missing
}

// Missing is a bundle that has not arrived yet.
type Missing struct {
	Name string
	// Err is why; nil while it is being looked for.
	Err error
}

func (e *MissingError) Error() string {
	texts := make([]string, len(e.Bundles))
	for i, missing := range e.Bundles {
		texts[i] = fmt.Sprintf("bundle %s is missing: it is being looked for", missing.Name)
		if missing.Err != nil {
			texts[i] = fmt.Sprintf("bundle %s is missing: %v", missing.Name, missing.Err)
		}
	}
	return strings.Join(texts, "\n")
}

// Unwrap are the reasons.
func (e *MissingError) Unwrap() (reasons []error) {
	for _, missing := range e.Bundles {
		if missing.Err != nil {
			reasons = append(reasons, missing.Err)
		}
	}
	return reasons
}
