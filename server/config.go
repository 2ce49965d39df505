package server

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"regent/ledger"
	"regent/ledger/sqldb"
)

// Config configures a [Server].
type Config struct {
	// Addr is where to listen. Defaults to 127.0.0.1:8080.
	Addr string
	// Data is the folder of everything that is kept: the database, the demo's token, file sinks. It is created if missing.
	// Defaults to ./data.
	Data string
	// Catalogue is the catalogue's file. Empty is the demo's, which is built in.
	Catalogue string
	// DatabaseURL chooses the store: empty is SQLite in the data folder, "memory:" keeps nothing, postgres://… is a PostgreSQL or
	// CockroachDB server, which any number of gateways share.
	DatabaseURL string
	// Isolation is "serializable" for PostgreSQL at SERIALIZABLE. Empty is READ COMMITTED, where locks in one order do the same.
	Isolation string
	// Store keeps the ledger in place of what DatabaseURL names; Run closes it. Optional.
	Store ledger.Store
	// QueueMax bounds the calls that wait for the ledger. Defaults to the ledger's own bound.
	QueueMax int
	// Policies is the shipped policy bundle. Required.
	Policies fs.FS
	// HoldTTL is how long a hold lives unless it is renewed. Defaults to 5 min.
	HoldTTL time.Duration
	// DrainFor is how long running calls may go on after a stop was asked for. Defaults to 30 s.
	DrainFor time.Duration
	// Env looks up environment variables. Defaults to os.LookupEnv.
	Env func(string) (string, bool)
	// Stdout takes what a person is told at the start, and records where a sink is standard output. Defaults to os.Stdout.
	Stdout io.Writer
	// Log takes what goes wrong. Defaults to text on standard error.
	Log *slog.Logger
	// Now and Elapsed are the clock and the monotonic clock. They default to the system's; a test moves both.
	Now     func() time.Time
	Elapsed func() time.Duration
}

// FromEnv reads the configuration that the environment gives.
func FromEnv(env func(string) (string, bool)) (Config, error) {
	config := Config{Env: env}
	for _, variable := range []struct {
		name string
		to   *string
	}{
		{"REGENT_ADDR", &config.Addr}, {"REGENT_DATA", &config.Data},
		{"REGENT_CONFIG", &config.Catalogue}, {"REGENT_DATABASE_URL", &config.DatabaseURL},
		{"REGENT_DATABASE_ISOLATION", &config.Isolation},
	} {
		*variable.to, _ = env(variable.name)
	}
	for _, variable := range []struct {
		name string
		to   *time.Duration
	}{{"REGENT_HOLD_TTL", &config.HoldTTL}, {"REGENT_DRAIN_FOR", &config.DrainFor}} {
		text, given := env(variable.name)
		if !given || text == "" {
			continue
		}
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return config, fmt.Errorf("%s=%q: want a duration above 0, for example 5m", variable.name, text)
		}
		*variable.to = d
	}
	return config, nil
}

// complete fills in the defaults.
func (c *Config) complete() error {
	if c.Policies == nil {
		return errors.New("server: Config.Policies is required")
	}
	for _, text := range []struct {
		value    *string
		standard string
	}{{&c.Addr, "127.0.0.1:8080"}, {&c.Data, defaultData}} {
		if *text.value == "" {
			*text.value = text.standard
		}
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&c.HoldTTL, 5 * time.Minute}, {&c.DrainFor, 30 * time.Second}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if c.Env == nil {
		c.Env = os.LookupEnv
	}
	if c.Stdout == nil {
		c.Stdout = os.Stdout
	}
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.DatabaseURL == memoryURL {
		return c.checkIsolation()
	}
	_, err := c.Database()
	return err
}

// Database is where the ledger is kept, if that is a database. The clock of a server is its own, that of a file is the process's.
func (c *Config) Database() (sqldb.Config, error) {
	if err := c.checkIsolation(); err != nil {
		return sqldb.Config{}, err
	}
	scheme, _, _ := strings.Cut(c.DatabaseURL, ":")
	switch {
	case c.DatabaseURL == "":
		return sqldb.Config{Path: filepath.Join(cmp.Or(c.Data, defaultData), "regent.db"), Now: c.Now}, nil
	case c.DatabaseURL == memoryURL:
		return sqldb.Config{}, errors.New("REGENT_DATABASE_URL=memory: the ledger is in the gateway's memory, where there is nothing to migrate or to read")
	case scheme != "postgres" && scheme != "postgresql":
		return sqldb.Config{}, fmt.Errorf("REGENT_DATABASE_URL: %swant postgres://USER:PASSWORD@HOST:PORT/DATABASE "+
			"for PostgreSQL or CockroachDB, memory: for none, or nothing for SQLite in the data folder", unknownScheme(c.DatabaseURL))
	}
	return sqldb.Config{URL: c.DatabaseURL, Serializable: c.Isolation != ""}, nil
}

// checkIsolation refuses an isolation that is none, or that the store does not have: whoever asks for one relies on it.
func (c *Config) checkIsolation() error {
	switch {
	case c.Isolation == "":
		return nil
	case c.Isolation != "serializable":
		return fmt.Errorf("REGENT_DATABASE_ISOLATION=%q: want serializable, or nothing for READ COMMITTED", c.Isolation)
	case c.DatabaseURL == "" || c.DatabaseURL == memoryURL:
		return errors.New("REGENT_DATABASE_ISOLATION is for a database server, and REGENT_DATABASE_URL names none: leave it out")
	}
	return nil
}

// plainScheme is what a scheme may be made of.
var plainScheme = regexp.MustCompile(`^[A-Za-z0-9+.-]+$`)

// unknownScheme is the part of an error that tells which kind of database was asked for. Any text of a URL may be a password: only what
// is clearly a scheme is shown.
func unknownScheme(databaseURL string) string {
	scheme, rest, _ := strings.Cut(databaseURL, ":")
	if scheme == "memory" || plainScheme.MatchString(scheme) && strings.HasPrefix(rest, "//") {
		return strconv.Quote(scheme) + " is no kind of database that Regent knows: "
	}
	return ""
}

// defaultData is the data folder where none is named.
const defaultData = "data"

const memoryURL = "memory:"
