package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"regent/engine/policy"
	"regent/ledger"
	"regent/server/bundles"
	"regent/server/catalog"
	"regent/server/metrics"
)

// policyTimeLimit bounds one decision. It takes some 0.1 ms; the rest is for a machine that is busy with other programs. A rule that
// runs away is stopped.
const policyTimeLimit = 500 * time.Millisecond

// activating is how the policy in force came about.
type activating struct {
	// asked has an element while somebody wants the policy to be built again.
	asked chan struct{}
	// building lets one activation at a time be built, so that none counts that was made of older parts than the one before.
	building sync.Mutex
	// begun counts what was built, and of is what was built last: a catalogue and versions of bundles. building guards them.
	begun int64
	of    parts
	// tested are the versions of the bundles in force, whose tests have passed together. building guards it.
	tested map[string]string

	mu sync.Mutex // guards what is below
	// err is why what was built last does not count; nil if it does.
	err                error
	activated, refused int64
}

// parts are what a policy is built of.
type parts struct {
	catalogue *catalog.Catalogue
	versions  map[string]string
}

func (p parts) same(other parts) bool {
	return p.catalogue == other.catalogue && maps.Equal(p.versions, other.versions)
}

// mark says of bundles that are those in force that their tests have passed: other settings need no tests. With another one beside it
// no bundle is tested, since it may rely on that one. a.building is locked.
func (a *activating) mark(snapshot bundles.Snapshot) {
	if !maps.Equal(snapshot.Versions, a.tested) {
		return
	}
	for i := range snapshot.Bundles {
		snapshot.Bundles[i].Tested = true
	}
}

// askForPolicy has the policy built again, soon and elsewhere.
func (s *Server) askForPolicy() {
	select {
	case s.activating.asked <- struct{}{}:
	default: // it is going to be
	}
}

// catalogueChanged has the policy built of a new catalogue, whose tokens count already.
func (s *Server) catalogueChanged(*catalog.Catalogue) { s.askForPolicy() }

// keepPolicy builds the policy whenever it is asked for, until ctx ends.
func (s *Server) keepPolicy(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.activating.asked:
			s.activate(ctx, onlyIfChanged)
		}
	}
}

// Activate has all bundles looked at and the policy built again, also of what seems not to have changed. If it does not load, the last
// good one stays.
func (s *Server) Activate() {
	s.activating.building.Lock()
	s.bundles.Follow(s.catalogue.Current().Bundles)
	begun := s.activating.begun
	s.activating.building.Unlock()
	s.bundles.Look(context.Background()) // each look is bounded by itself
	s.activate(context.Background(), begun)
}

// Reload has the catalogue and all bundles read again, and the policy built again.
func (s *Server) Reload() {
	s.catalogue.Reload()
	s.Activate()
}

// onlyIfChanged is never how many policies were begun.
const onlyIfChanged = -1

// activate builds the policy of the catalogue that counts and makes it count, if it is another than the one in force. As long as a
// bundle is missing, and if what was built does not load, the last good one stays: never one of an old and a new catalogue. Health
// says what is wrong. What was built last is not built again, unless no policy was begun since so many were.
func (s *Server) activate(ctx context.Context, since int64) {
	s.activating.building.Lock()
	defer s.activating.building.Unlock()
	catalogue := s.catalogue.Current()
	s.bundles.Follow(catalogue.Bundles)
	snapshot, err := s.bundles.Snapshot()
	if err != nil {
		return // the set says itself which bundle is missing, and tells when it has come
	}
	of := parts{catalogue, snapshot.Versions}
	if of.same(s.activating.of) && s.activating.begun != since {
		return
	}
	s.activating.begun++
	s.activating.of = of
	s.activating.mark(snapshot)
	activation, err := policy.Load(ctx, policy.Source{
		Bundles: snapshot.Bundles, Settings: catalogue.Settings, Required: catalogue.RequiredRules, TimeLimit: policyTimeLimit,
	})
	if ctx.Err() != nil {
		return // the server stops
	}
	if err != nil {
		s.refusePolicy(err)
		return
	}
	s.activating.tested = snapshot.Versions
	if err := s.archive(ctx, activation); err != nil {
		s.activating.of = parts{}
		time.AfterFunc(archiveAgain, s.askForPolicy)
		s.refusePolicy(err)
		return
	}
	s.putInForce(activation)
}

const (
	archiveWithin = 10 * time.Second // some thousand times what it takes, so that a database that hangs is told from a slow one
	archiveAgain  = time.Second      // until a policy that could not be archived is tried again
	archiveTouch  = time.Hour        // between two notes that the policy in force is: an archive is pruned a day after the last at the earliest
)

// archive keeps an activation in the ledger's store, before the first record can name it.
func (s *Server) archive(ctx context.Context, activation *policy.Activation) error {
	content, err := activation.Archive()
	if err != nil {
		return err
	}
	return s.keepActivation(ctx, activation, content)
}

// keepActivation keeps what an activation is restored from; nil notes that one that is kept is in use.
func (s *Server) keepActivation(ctx context.Context, activation *policy.Activation, content []byte) error {
	digest, err := policy.ParseDigest(activation.Digest())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, archiveWithin)
	defer cancel()
	if err := s.ledger.Store().KeepActivation(ctx, digest, content); err != nil {
		return fmt.Errorf("the policy %.12s cannot be archived, so that no record may name it: %w", activation.Digest(), err)
	}
	return nil
}

// keepArchive notes from time to time that the policy in force is in use, until ctx ends.
func (s *Server) keepArchive(ctx context.Context) error {
	tick := time.NewTicker(archiveTouch)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		if inForce := s.policy.Current(); inForce != nil {
			if err := s.touchArchive(ctx, inForce); err != nil && ctx.Err() == nil {
				s.config.Log.Error("the policy in force is not noted in its archive", "err", err)
			}
		}
	}
}

// touchArchive notes that an activation is in use, and keeps it again if it is gone.
func (s *Server) touchArchive(ctx context.Context, inForce *policy.Activation) error {
	err := s.keepActivation(ctx, inForce, nil)
	if errors.Is(err, ledger.ErrNotFound) {
		return s.archive(ctx, inForce)
	}
	return err
}

// putInForce makes an activation count, unless it is the one that does.
func (s *Server) putInForce(activation *policy.Activation) {
	inForce := s.policy.Current()
	isNew := inForce == nil || inForce.Digest() != activation.Digest()
	if isNew {
		s.policy.Activate(activation)
	}
	s.activating.mu.Lock()
	defer s.activating.mu.Unlock()
	if isNew {
		s.activating.activated++
		s.config.Log.Info("a policy is in force", "digest", activation.Digest(), "bundles", activation.Bundles())
	} else if s.activating.err != nil {
		s.config.Log.Info("what the policy is made of is again what is in force", "digest", activation.Digest())
	}
	s.activating.err = nil
}

// refusePolicy notes why what was built does not count, and logs it unless it was said before.
func (s *Server) refusePolicy(err error) {
	s.activating.mu.Lock()
	defer s.activating.mu.Unlock()
	s.activating.refused++
	if was := s.activating.err; was == nil || was.Error() != err.Error() {
		s.config.Log.Error("the policy does not load", "err", err)
	}
	s.activating.err = err
}

var (
	errLoading = errors.New("the policy is being loaded")
	errLooking = errors.New("the bundle is being looked for")
)

// policyErr says why the policy of the catalogue and the bundles as they are now does not count; nil if it does.
func (s *Server) policyErr() error {
	if _, err := s.bundles.Snapshot(); err != nil {
		if s.policy.Current() != nil {
			err = fmt.Errorf("%w; the last good policy decides", err)
		}
		return err
	}
	s.activating.mu.Lock()
	defer s.activating.mu.Unlock()
	switch stuck := s.router.Stuck(); {
	case s.activating.err != nil:
		return s.activating.err
	case s.policy.Current() == nil:
		return errLoading
	case stuck > 0:
		return fmt.Errorf("%d evaluations of policy do not end, and their calls were refused: one step of a rule runs away; put another policy in its place", stuck)
	}
	return nil
}

// policyCounters are what metrics tell of the policy.
func (s *Server) policyCounters() metrics.Policy {
	s.activating.mu.Lock()
	counters := metrics.Policy{Activated: s.activating.activated, Refused: s.activating.refused}
	s.activating.mu.Unlock()
	if inForce := s.policy.Current(); inForce != nil {
		counters.Digest, counters.Revisions = inForce.Digest(), inForce.Bundles()
	}
	for _, bundle := range s.bundles.States() {
		counters.Sources = append(counters.Sources, metrics.BundleSource{Bundle: bundle.Name, Errors: bundle.Errors, Fetched: bundle.Fetched})
	}
	return counters
}
