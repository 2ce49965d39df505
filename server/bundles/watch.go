package bundles

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"regent/engine/policy"
	"regent/engine/tarball"
	"regent/server/catalog"
)

// retryFirst is how long a source is left alone after its first failure. It doubles with each, up to the time between looks.
const retryFirst = time.Second

// most is how large a bundle may be: as large as policy takes it.
var most = tarball.Limits{Bytes: policy.MaxBundleBytes, Files: policy.MaxBundleFiles, Depth: policy.MaxBundleDepth}

// source is a place that a bundle comes from. One goroutine at a time uses it.
type source interface {
	// fetch returns the bundle if it is not what was fetched last, and nil if it is. atOnce looks at the content, also where nothing
	// seems to have changed, and does not wait until it has settled.
	fetch(ctx context.Context, atOnce bool) (*tarball.Tree, error)
}

// watch keeps what a source was last found to hold.
type watch struct {
	place   catalog.BundleSource
	every   time.Duration
	log     *slog.Logger
	changed func()
	stop    context.CancelFunc // nil if it does not run

	looking sync.Mutex // lets one look at a time use the source
	source  source

	mu    sync.Mutex // guards state
	state state
}

// state is what is known of a bundle.
type state struct {
	signing *policy.Signing
	tree    *tarball.Tree // the last good content; nil before the first
	err     error         // of the last look
	fetched time.Time
	errors  int64
	// inARow are the looks that have failed since the last good one.
	inARow int
}

func newWatch(bundle catalog.Bundle, limits limits, config Config) *watch {
	w := &watch{
		place: bundle.BundleSource, every: bundle.Poll, log: config.Log.With("bundle", bundle.Name), changed: config.Changed,
		state: state{signing: bundle.Signing},
	}
	switch {
	case bundle.Folder != "":
		w.source, w.every = newFolder(bundle.Folder), localEvery
	case bundle.File != "":
		w.source, w.every = newFile(bundle.File), localEvery
	case bundle.URL != "":
		w.source = newAddress(bundle.URL, bundle.Credential, limits)
	default:
		w.source = newImage(bundle.BundleSource, limits)
	}
	return w
}

// end stops watching. A look that is under way ends without an effect.
func (w *watch) end() {
	if w.stop != nil {
		w.stop()
	}
}

func (w *watch) setSigning(signing *policy.Signing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state.signing = signing
}

func (w *watch) read() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

func (w *watch) missing(s state) Missing { return Missing{Name: w.place.Name, Err: s.err} }

// run looks again and again until ctx ends.
func (w *watch) run(ctx context.Context) {
	for {
		w.look(ctx, false)
		timer := time.NewTimer(delay(w.every, w.read().inARow))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// delay is how long to wait until the next look. After failures it is shorter at first and never the same for all who wait: a server
// that comes back is not asked by every gateway at once.
func delay(every time.Duration, failures int) time.Duration {
	if failures == 0 {
		return every
	}
	longest := min(every, retryFirst<<min(failures-1, 20)) // 20 doublings are twelve days
	return longest/2 + rand.N(longest/2+1)
}

// look looks at the source once, notes what came of it, and tells of new content.
func (w *watch) look(ctx context.Context, atOnce bool) {
	w.looking.Lock()
	defer w.looking.Unlock()
	found, err := w.source.fetch(ctx, atOnce)
	if ctx.Err() != nil {
		return // nobody waits for it any more
	}
	if w.note(found, err) {
		w.changed()
	}
}

// note keeps what a look has found, and says whether that is new content.
func (w *watch) note(found *tarball.Tree, err error) (isNew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.state
	if errors.Is(err, ErrUnsettled) { // no failure: the next look finds out
		if before.tree == nil {
			w.state.err = err
		}
		return false
	}
	if w.state.err = err; err != nil {
		w.state.errors++
		w.state.inARow++
		if before.err == nil || before.err.Error() != err.Error() {
			w.log.Warn("a policy bundle cannot be fetched", "err", err)
		}
		return false
	}
	w.state.inARow, w.state.fetched = 0, time.Now()
	if before.inARow > 0 {
		w.log.Info("a policy bundle can be fetched again")
	}
	if found == nil || before.tree != nil && before.tree.Version() == found.Version() {
		return false
	}
	w.state.tree = found
	w.log.Info("a policy bundle has new content", "version", found.Version())
	return true
}
