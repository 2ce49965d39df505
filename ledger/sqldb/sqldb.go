// Package sqldb is a ledger store on an SQL database: SQLite, for one machine; PostgreSQL or CockroachDB, for many replicas.
//
// It keeps rows and decides nothing. All statements are in this package, in one source that is rendered for each database; they use
// neither sequences nor triggers, savepoints or advisory locks, nor anything of the database's own arithmetic.
//
// At a server a transaction is two round trips: one begins it, makes and locks the rows that were asked for in the order of their keys,
// and reads them with the server's clock; the other writes and commits. What is not clearly committed or refused is done again in a
// new transaction.
package sqldb

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"regent/ledger"
)

// Config configures a [Store]. It names the database in one of three ways.
type Config struct {
	// Path is an SQLite file. It is created if it is missing; its folder must exist.
	Path string
	// URL is a PostgreSQL or CockroachDB server's, as libpq and pgx read it. Which of the two, the server says.
	URL string
	// DB is a host's own pool of connections to such a server, of pgx's stdlib driver. Close leaves it open.
	DB *sql.DB

	// Namespace begins the names of the tables: lower-case letters, digits and underscores. Defaults to "ledger".
	Namespace string
	// ReadOnly opens an existing database for looking only; Update then fails.
	ReadOnly bool
	// Serializable runs PostgreSQL at SERIALIZABLE instead of READ COMMITTED, where locks in one order do the same for less.
	Serializable bool
	// Connections bounds those of the pool that URL opens which read. Defaults to 10. Two more write, and never wait for them.
	Connections int
	// Now replaces the database's clock, for tests. SQLite has none that is fine enough: there it defaults to time.Now.
	Now func() time.Time
}

const (
	connectionsDefault = 10
	// idleMax is how long a connection may lie idle: less than the shortest after which a network's middle forgets one in silence.
	idleMax = time.Minute
	// writersMax is for the ledger's one writer, and for the cursors of sinks and the activations.
	writersMax = 2
	// patience is how long a server is tried that cannot be reached or gives no clear answer: a restart or a failover mostly takes no
	// longer, and whoever waits for an answer would not wait much longer, either.
	patience = 2 * time.Second
	// openTimeout bounds the first look at a server.
	openTimeout = 10 * time.Second
)

// Store is a [ledger.Store]. Use Open.
type Store struct {
	source
	database database
	dialect  dialect
	now      func() time.Time // nil for the database's own clock
	patience time.Duration
	lost     absence
	counters counters
	seen     seen
}

var _ ledger.Store = (*Store)(nil)

// Open opens a database. A file's tables are brought up to date; those of a server must be, see [Migrate].
func Open(ctx context.Context, config Config) (*Store, error) {
	s, db, err := open(ctx, config)
	if err != nil {
		return nil, err
	}
	if config.Path != "" && !config.ReadOnly {
		err = s.migrate(ctx, db)
	}
	if err == nil {
		err = s.checkVersion(ctx, db)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqldb: open %s: %w", s.dialect.name, err), s.Close())
	}
	return s, nil
}

// open opens a database without a look at its tables.
func open(ctx context.Context, config Config) (*Store, *sql.DB, error) {
	if config.Namespace == "" {
		config.Namespace = "ledger"
	}
	named := 0
	for _, there := range []bool{config.Path != "", config.URL != "", config.DB != nil} {
		if there {
			named++
		}
	}
	switch {
	case named != 1:
		return nil, nil, errors.New("sqldb: Config names a database by one of Path, URL and DB")
	case !namespaces.MatchString(config.Namespace):
		return nil, nil, fmt.Errorf("sqldb: the namespace %q must match %s", config.Namespace, namespaces)
	}
	s := &Store{now: config.Now, patience: patience}
	db, err := s.connect(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	if config.Serializable && s.dialect.rows {
		s.dialect = s.dialect.serializable()
	}
	if server, is := s.database.(*server); is {
		server.dialect = s.dialect
	}
	s.words = s.dialect.renderer(config.Namespace)
	return s, db, nil
}

// connect opens the database, and returns the pool that can change its tables.
func (s *Store) connect(ctx context.Context, config Config) (*sql.DB, error) {
	if config.Path != "" {
		opened, err := openFile(config.Path, config.ReadOnly)
		if err != nil {
			return nil, fmt.Errorf("sqldb: open %s: %w", config.Path, err)
		}
		if s.now == nil {
			s.now = time.Now
		}
		s.database, s.dialect = opened, sqlite
		if config.ReadOnly {
			return opened.readers.db, nil
		}
		return opened.writer.db, nil
	}
	server := &server{writer: config.DB, readers: config.DB}
	if config.DB == nil {
		var err error
		if server.writer, server.readers, err = openServer(config); err != nil {
			return nil, err
		}
		server.owned = true
	}
	s.database = server
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	err := checkDriver(ctx, server.writer)
	if err == nil {
		s.dialect, err = dialectOf(ctx, server.writer)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sqldb: open the database: %w", err), s.Close())
	}
	return server.writer, nil
}

// idleInTransaction is when a server ends a transaction of a process that it hears nothing of, in milliseconds: many times
// what a decision takes, and half of a ledger transaction's own time-out. It holds locks that others wait for.
const idleInTransaction = "5000"

// openServer opens pools. Nothing is sent yet.
func openServer(config Config) (writer, readers *sql.DB, err error) {
	parsed, err := pgx.ParseConfig(config.URL)
	if err != nil { // it would repeat what it could not read, and with it a password
		return nil, nil, errors.New("sqldb: the database's URL cannot be read: want postgres://USER:PASSWORD@HOST:PORT/DATABASE")
	}
	if parsed.RuntimeParams["application_name"] == "" {
		parsed.RuntimeParams["application_name"] = "regent"
	}
	parsed.RuntimeParams["idle_in_transaction_session_timeout"] = idleInTransaction
	if parsed.ConnectTimeout == 0 || parsed.ConnectTimeout > openTimeout {
		parsed.ConnectTimeout = openTimeout / 2
	}
	return openConnections(parsed, writersMax), openConnections(parsed, cmp.Or(config.Connections, connectionsDefault)), nil
}

// openConnections opens one pool. A connection that has died is found by the first exchange, which is done again: a ping before each
// would cost a round trip.
func openConnections(config *pgx.ConnConfig, most int) *sql.DB {
	db := stdlib.OpenDB(*config, stdlib.OptionShouldPing(func(context.Context, stdlib.ShouldPingParams) bool { return false }))
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	db.SetConnMaxIdleTime(idleMax)
	return db
}

// Update runs decide in one transaction, in which rows are locked as they are read.
func (s *Store) Update(ctx context.Context, decide func(ledger.Tx) error) error {
	return s.inTx(ctx, writing, func(session session) error {
		return decide(&tx{Store: s, session: session, access: writing, clock: s.clock()})
	})
}

// Load reads rows in one snapshot, and at a server in one round trip.
func (s *Store) Load(ctx context.Context, keys ledger.Keys) (rows *ledger.Rows, err error) {
	err = s.inTx(ctx, reading, func(session session) error {
		l, err := s.load(keys, reading, s.clock(), func(queries []query) error { return session.commit(ctx, queries) })
		if err == nil {
			rows = l.rows
		}
		return err
	})
	return rows, err
}

// clock reads what replaces the database's clock.
func (s *Store) clock() any {
	if s.now == nil {
		return nil
	}
	return s.now().UnixMicro()
}

// Durable is true: a database outlives the processes that use it.
func (s *Store) Durable() bool { return true }

// Close closes the database, unless it is a host's.
func (s *Store) Close() error { return s.database.close() }

// tx is a transaction.
type tx struct {
	*Store
	session session
	access  access
	// clock is its one reading of a clock that replaces the database's, in microseconds; nil if none does.
	clock any
	// untouched are accounts that were locked: they go again unless they are saved.
	untouched []string
}

func (t *tx) Load(ctx context.Context, keys ledger.Keys) (*ledger.Rows, error) {
	l, err := t.load(keys, t.access, t.clock, func(queries []query) error { return t.session.exchange(ctx, queries) })
	if err != nil {
		return nil, err
	}
	t.untouched = append(t.untouched, l.untouched...)
	return l.rows, nil
}

func (t *tx) Save(ctx context.Context, changes *ledger.Changes) error {
	queries, err := t.changes(changes, t.clock)
	if err != nil {
		return err
	}
	queries = append(queries, t.write(deleteUntouched, ofOne(t.untouched, func(key string) any { return key }))...)
	return t.session.commit(ctx, queries)
}
