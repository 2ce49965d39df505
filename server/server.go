// Package server is the gateway: it wires the rooms of the house together, listens, and keeps the background work running.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/thejerf/suture/v4"

	"regent/adapters/fake"
	"regent/engine"
	"regent/engine/decisions"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/memory"
	"regent/ledger/sqldb"
	"regent/server/bundles"
	"regent/server/catalog"
	"regent/server/inference"
	"regent/server/metrics"
)

// Server is a gateway. Use New, then Run.
type Server struct {
	config    Config
	listener  net.Listener
	ledger    *ledger.Ledger
	fake      *fake.Server
	policy    *policy.Engine
	catalogue *catalog.Live
	router    *engine.Router
	inference *inference.Inference
	metrics   *metrics.Metrics
	health    *health
	http      *http.Server
	labels    map[string]string
	bundles   *bundles.Set
	// activating is what is known of the policy's activations.
	activating activating
	// hurried is closed to end a drain early.
	hurried chan struct{}
	hurry   sync.Once
	// demoToken is the token of the demo's user, empty with another catalogue.
	demoToken string
}

// New opens everything that a gateway needs. What it has opened is closed again if something fails, and nothing is left half
// made: the address is taken first, and the data folder is only written to afterwards.
func New(config Config) (_ *Server, err error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	s := &Server{config: config, health: newHealth(), policy: &policy.Engine{}, hurried: make(chan struct{})}
	s.activating.asked = make(chan struct{}, 1)
	s.bundles = bundles.New(bundles.Config{Embedded: config.Policies, Changed: s.askForPolicy, Log: config.Log})
	s.labels = map[string]string{"id": uuid.NewString(), "service": "regent"}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.listener, err = net.Listen("tcp", config.Addr); err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w (set REGENT_ADDR to another address)", config.Addr, err)
	}
	if err := s.openCatalogue(); err != nil {
		return nil, err
	}
	if err := s.openLedger(); err != nil {
		return nil, err
	}
	s.activate(context.Background(), onlyIfChanged)
	if s.fake, err = fake.Start(fake.Config{}); err != nil {
		return nil, fmt.Errorf("the built-in provider: %w", err)
	}
	return s, s.wire(&catalog.Providers{Current: s.catalogue.Current, FakeURL: s.fake.URL()})
}

// openCatalogue reads the catalogue and prepares the data folder.
func (s *Server) openCatalogue() error {
	if s.config.Catalogue != "" {
		var err error
		if s.catalogue, err = catalog.Open(s.config.Catalogue, s.config.Env, s.catalogueChanged); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.config.Data, 0o700); err != nil {
		return fmt.Errorf("the data folder cannot be made: %w (set REGENT_DATA to another folder)", err)
	}
	return s.openDemo()
}

// openDemo reads the built-in catalogue, unless another is open.
func (s *Server) openDemo() (err error) {
	if s.catalogue != nil {
		return nil
	}
	if s.demoToken, err = demoToken(s.config.Data, s.config.Env); err != nil {
		return err
	}
	s.catalogue, err = catalog.Open("", func(name string) (string, bool) {
		if name == demoTokenVariable {
			return s.demoToken, true
		}
		return s.config.Env(name)
	}, s.catalogueChanged)
	return err
}

// logCatalogue logs that the catalogue's file is broken, or is right again.
func (s *Server) logCatalogue(err error) {
	if err != nil {
		s.config.Log.Error("the catalogue is refused; the last good one counts", "err", err)
		return
	}
	s.config.Log.Info("the catalogue's file counts again")
}

// openLedger opens the store and the ledger on it.
func (s *Server) openLedger() error {
	store, err := s.openStore()
	if err != nil {
		return err
	}
	s.ledger, err = ledger.Open(ledger.Config{
		Store: store, TTL: s.config.HoldTTL, LateRefund: lateRefund, QueueMax: s.config.QueueMax, Elapsed: s.config.Elapsed,
		OnStore: s.logStore(),
	})
	return err
}

// logStore logs when the ledger's store stops answering and when it answers again. The ledger calls it one at a time.
func (s *Server) logStore() func(error) {
	var since time.Time
	return func(err error) {
		if err != nil {
			since = time.Now()
			s.config.Log.Error("the ledger's store does not answer; calls are refused", "err", err)
			return
		}
		s.config.Log.Info("the ledger's store answers again", "after", time.Since(since).Truncate(time.Millisecond))
	}
}

func (s *Server) openStore() (ledger.Store, error) {
	switch {
	case s.config.Store != nil:
		return s.config.Store, nil
	case s.config.DatabaseURL == memoryURL:
		return memory.Open(memory.Config{Now: s.config.Now, Accounts: memory.AccountsMax, Rates: memory.RatesMax, Circuits: memory.CircuitsMax})
	}
	database, err := s.config.Database()
	if err != nil {
		return nil, err
	}
	if database.Path != "" {
		if err := makePrivate(database.Path); err != nil {
			return nil, err
		}
	}
	return OpenDatabase(context.Background(), database)
}

// OpenDatabase opens the database of a [Config]. An error says by which variable it was named.
func OpenDatabase(ctx context.Context, database sqldb.Config) (*sqldb.Store, error) {
	store, err := sqldb.Open(ctx, database)
	if err != nil && database.URL != "" {
		err = fmt.Errorf("REGENT_DATABASE_URL: %w", err)
	}
	return store, err
}

// makePrivate makes a file that nobody else can read, if there is none: it says who called what, and when.
func makePrivate(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("the database cannot be made: %w (set REGENT_DATA to a folder that can be written)", err)
	}
	return file.Close()
}

// lateRefund is how long after a hold's expiry its charge may be lowered to what was really used: a day, the longest window of
// the demo, after which nobody waits for it any more.
const lateRefund = 24 * time.Hour

// wire makes the rest of what is opened.
func (s *Server) wire(providers engine.Resolver) (err error) {
	s.metrics = metrics.New(inference.Code, s.ledger.Status)
	s.metrics.CountPolicy(s.policyCounters)
	if database, is := s.ledger.Store().(*sqldb.Store); is {
		s.metrics.CountDatabase(database.Counters)
	}
	s.router, err = engine.New(engine.Config{
		Policy: s.policy, Ledger: s.ledger, Resolver: providers, Selection: engine.Balanced{}, HoldTTL: s.config.HoldTTL,
		Meter: s.metrics, Now: s.config.Now, Labels: s.labels, Log: s.config.Log,
	})
	if err != nil {
		return err
	}
	s.inference = inference.New(inference.Config{
		Catalogue: s.catalogue.Current, Cooling: &catalog.Cooling{}, Router: s.router, Ledger: s.ledger, Policy: s.policy,
		CountError: s.metrics.Told, Now: s.config.Now, Log: s.config.Log,
	})
	s.http = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 10 * time.Second, // a client that trickles its header holds a connection, and nothing else
		ReadTimeout:       2 * time.Minute,  // a body of the largest size over a slow line
		WriteTimeout:      2 * time.Minute,  // a small answer that nobody takes; those of calls set their own for each write
		IdleTimeout:       2 * time.Minute,  // longer than clients' own pools keep a connection
		MaxHeaderBytes:    64 << 10,         // several times what real clients send
		ErrorLog:          slog.NewLogLogger(s.config.Log.Handler(), slog.LevelWarn),
	}
	return nil
}

// URL is where the server listens.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// DemoToken is the token of the demo's user; empty with another catalogue.
func (s *Server) DemoToken() string { return s.demoToken }

// Fake is the built-in provider, for tests to script.
func (s *Server) Fake() *fake.Server { return s.fake }

// Ledger is the gateway's ledger.
func (s *Server) Ledger() *ledger.Ledger { return s.ledger }

// Catalogue is the catalogue that counts now.
func (s *Server) Catalogue() *catalog.Catalogue { return s.catalogue.Current() }

// CatalogueErr says why the catalogue's file as it stands now does not count; nil if it does.
func (s *Server) CatalogueErr() error { return s.catalogue.Err() }

// Run serves until ctx ends. Then it is not ready at once, takes no new calls, lets those that run go on for a while, ends the
// rest by their protocol's own error, settles everything, and returns.
func (s *Server) Run(ctx context.Context) error {
	background, stopBackground := context.WithCancel(context.Background())
	supervisor := s.supervise(background)
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(s.listener) }()
	s.announce()
	var err error
	select {
	case <-ctx.Done():
		err = s.drain()
	case err = <-served:
	}
	stopBackground()
	if ended := <-supervisor; ended != nil && !errors.Is(ended, context.Canceled) {
		err = errors.Join(err, ended)
	}
	return errors.Join(err, s.close())
}

// Hurry ends the time that running calls are given once the server stops: they are ended and settled now.
func (s *Server) Hurry() { s.hurry.Do(func() { close(s.hurried) }) }

// drain lets running calls end.
func (s *Server) drain() error {
	s.health.set(drainComponent, errors.New("the server is stopping"))
	s.inference.Drain()
	ended := make(chan struct{})
	go func() { s.inference.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(s.config.DrainFor):
		s.inference.Stop()
	case <-s.hurried:
		s.inference.Stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	if s.http.Shutdown(ctx) != nil { // somebody is still sending a request, which is no call yet, or takes no answer
		_ = s.http.Close()
	}
	ctx, cancel = context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	select {
	case <-ended: // only then is every settlement under way
	case <-ctx.Done():
	}
	return s.router.Close(ctx)
}

const (
	goodbye       = 2 * time.Second  // for the last bytes of answers that are complete
	settleTimeout = 15 * time.Second // for the settlements of all calls: some transactions
)

// close frees what New opened.
func (s *Server) close() error {
	var errs []error
	if s.listener != nil {
		if err := s.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if s.ledger != nil {
		errs = append(errs, s.ledger.Close())
	}
	if s.fake != nil {
		errs = append(errs, s.fake.Close())
	}
	return errors.Join(errs...)
}

// supervise starts the background work, each part restarted if it fails.
func (s *Server) supervise(ctx context.Context) <-chan error {
	supervisor := suture.New("regent", suture.Spec{EventHook: func(event suture.Event) {
		s.config.Log.Warn("background work", "event", event.String())
	}})
	supervisor.Add(service{"catalogue", func(ctx context.Context) error { return s.catalogue.Run(ctx, s.logCatalogue) }})
	supervisor.Add(service{"policy", s.keepPolicy})
	supervisor.Add(service{"archive", s.keepArchive})
	supervisor.Add(service{"bundles", s.bundles.Run})
	for _, sink := range s.catalogue.Current().Sinks {
		supervisor.Add(service{"decisions/" + sink.Name, func(ctx context.Context) error { return s.ship(ctx, sink) }})
	}
	return supervisor.ServeBackground(ctx)
}

// service is one part of the background work.
type service struct {
	name string
	run  func(context.Context) error
}

func (s service) Serve(ctx context.Context) error { return s.run(ctx) }
func (s service) String() string                  { return s.name }

var errOpening = errors.New("the sink is being opened")

// ship copies decision records to a sink until ctx ends.
func (s *Server) ship(ctx context.Context, sink catalog.Sink) (err error) {
	component := "decisions/" + sink.Name
	s.health.set(component, errOpening) // a pipe that nobody reads keeps us here
	defer func() { s.health.set(component, err) }()
	out := s.config.Stdout
	if sink.File != "" {
		path := sink.File
		if !filepath.IsAbs(path) {
			path = filepath.Join(s.config.Data, path)
		}
		file, err := openSink(path)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // each page's write was checked
		out = file
	}
	s.health.set(component, nil)
	shipper := decisions.Shipper{
		Store: s.ledger.Store(), Name: sink.Name, Sink: out, Labels: s.labels, Own: s.ledger.Writer(), Leads: s.ledger.Sweeps,
		Report: func(err error) { s.health.set(component, err) },
	}
	return shipper.Run(ctx)
}

// announce tells a person how to begin.
func (s *Server) announce() {
	say := func(name, value string) { _, _ = fmt.Fprintf(s.config.Stdout, "%-8s %s\n", name, value) }
	say("listen", s.URL())
	if s.demoToken == "" {
		return
	}
	say("token", s.demoToken)
	say("try", fmt.Sprintf(`curl -sS %s%s/chat/completions -H "Authorization: Bearer %s" -H "Content-Type: application/json" -d '{"model":"demo/steady","messages":[{"role":"user","content":"Hello"}]}'`,
		s.URL(), inference.Base, s.demoToken))
}
