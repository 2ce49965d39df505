// Package pgproxy stands between a client and PostgreSQL and has happen what otherwise happens once a month: serialization
// failures, ambiguous commits, connections that break beside a COMMIT. It counts round trips on its way. It knows nothing of
// what is tested.
//
// The proxy takes a client's messages up to a Sync or a simple query as one exchange, has the server answer it, and then takes
// the next. It knows a transaction's beginning and end by the texts of BEGIN, COMMIT and ROLLBACK, prepared or not; several
// statements in one simple query are one statement to it. It speaks neither TLS nor COPY.
package pgproxy

import (
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Counts are what clients did since the proxy started.
type Counts struct {
	// Connections are those that a server accepted.
	Connections int
	// Exchanges are round trips: Syncs and simple queries.
	Exchanges int
	// Preparations are those exchanges in which nothing was executed.
	Preparations int
	// Pings are those exchanges by which a client saw that an idle connection still works.
	Pings int
	// Commits are the COMMITs, sent and not necessarily successful, of transactions that may write.
	Commits int
	// Loads are the COMMITs of transactions that began as READ ONLY.
	Loads int
	// Rollbacks are the ROLLBACKs.
	Rollbacks int
}

// Sub is what happened between an earlier count and this one.
func (c Counts) Sub(earlier Counts) Counts {
	return Counts{
		Connections:  c.Connections - earlier.Connections,
		Exchanges:    c.Exchanges - earlier.Exchanges,
		Preparations: c.Preparations - earlier.Preparations,
		Pings:        c.Pings - earlier.Pings,
		Commits:      c.Commits - earlier.Commits,
		Loads:        c.Loads - earlier.Loads,
		Rollbacks:    c.Rollbacks - earlier.Rollbacks,
	}
}

// Proxy is a proxy in front of one database.
type Proxy struct {
	location        string
	network, server string
	listener        net.Listener
	connections     sync.WaitGroup

	mu     sync.Mutex
	open   map[*connection]struct{}
	closed bool
	armed  []shot
	fired  []Fault
	counts Counts
	delay  time.Duration
}

// shot is a fault that waits for its place.
type shot struct {
	fault Fault
	fired chan struct{}
}

// New starts a proxy in front of the database that has the URL location. It ends with the test.
func New(t testing.TB, location string) *Proxy {
	t.Helper()
	config, err := pgconn.ParseConfig(location)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: listener, open: map[*connection]struct{}{}}
	p.network, p.server = pgconn.NetworkAddress(config.Host, config.Port)
	if p.location, err = moved(location, listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	p.connections.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// moved is a database's URL at another address.
func moved(location, address string) (string, error) {
	parsed, err := url.Parse(location)
	if err != nil {
		return "", err
	}
	parsed.Host = address
	query := parsed.Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable")
	parsed.RawQuery = query.Encode()
	return parsed.String(), nil
}

// URL is the database's URL by way of the proxy.
func (p *Proxy) URL() string { return p.location }

// Arm has a fault happen once, at the next place that it fits. Several happen in the order in which they were armed: none
// happens before those ahead of it. The channel is closed when it has happened, just before the client hears of it.
func (p *Proxy) Arm(fault Fault) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	shot := shot{fault, make(chan struct{})}
	p.armed = append(p.armed, shot)
	return shot.fired
}

// Disarm drops the faults that have not happened, and returns them.
func (p *Proxy) Disarm() (left []Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, shot := range p.armed {
		left = append(left, shot.fault)
	}
	p.armed = nil
	return left
}

// Fired are the faults that happened, in their order.
func (p *Proxy) Fired() []Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.fired)
}

// Slow delays the answers to each exchange from now on. Zero ends it.
func (p *Proxy) Slow(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// KillAll cuts all connections now. Clients can connect again at once.
func (p *Proxy) KillAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.cut()
	}
}

// Counts are what clients did until now.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close() // accept ends by it
	p.KillAll()
	p.connections.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.connections.Go(func() { p.serve(client) })
	}
}

// take reserves the next fault if it fits.
func (p *Proxy) take(fits func(Fault) bool) (shot, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.armed) == 0 || !fits(p.armed[0].fault) {
		return shot{}, false
	}
	next := p.armed[0]
	p.armed = p.armed[1:]
	return next, true
}

// restore arms a fault again that did not come to happen.
func (p *Proxy) restore(s shot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = slices.Insert(p.armed, 0, s)
}

// report says that a fault happened.
func (p *Proxy) report(s shot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fired = append(p.fired, s.fault)
	close(s.fired)
}

// count counts an exchange of a transaction that is a load or not.
func (p *Proxy) count(x *exchange, load bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.Exchanges++
	if len(x.steps) == 0 {
		p.counts.Preparations++
	}
	for _, step := range x.steps {
		switch {
		case step.verb == commit && load:
			p.counts.Loads++
		case step.verb == commit:
			p.counts.Commits++
		case step.verb == rollback:
			p.counts.Rollbacks++
		case x.simple && strings.HasPrefix(step.text, "-- ping"):
			p.counts.Pings++
		}
	}
}
