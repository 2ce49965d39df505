package pgtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// Options configure a cluster. The zero value is a server as it is in use.
type Options struct {
	// NoSync turns fsync off. What was committed still survives a crash of the server, and no longer one of the machine, which
	// no test has.
	NoSync bool
	// Settings are further settings of the server, by name.
	Settings map[string]string
}

// Cluster is a PostgreSQL server with its data. Everybody may connect to it as anybody, from this machine.
type Cluster struct {
	bin    string
	folder *folder
	port   int

	settings []string

	mu     sync.Mutex
	server *process // nil while it is stopped
}

const (
	// startTimeout bounds a start, recovery from a crash included, on a busy machine.
	startTimeout = time.Minute
	// stopTimeout is when a server that does not stop is killed.
	stopTimeout = 30 * time.Second
	// portTries is how many ports are tried before it is not the port's fault.
	portTries = 3
	// The ports lie below those that systems give to outgoing connections, so that none of these takes a stopped server's.
	portMin, portMax = 15000, 32000
)

// New makes a cluster and starts its server, for a program that is no test: it ends with [Cluster.Remove], or with the process.
func New(options Options) (*Cluster, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	folder, err := newFolder()
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	c := &Cluster{bin: bin, folder: folder, settings: options.settings()}
	if err := c.create(); err != nil {
		return nil, errors.Join(fmt.Errorf("pgtest: %w", err), c.Remove())
	}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, c.Remove())
	}
	return c, nil
}

func (o Options) settings() []string {
	settings := map[string]string{
		"listen_addresses": "127.0.0.1",
		"max_connections":  "200",
		"log_min_messages": "warning",
		"timezone":         "UTC",
	}
	if o.NoSync {
		settings["fsync"], settings["full_page_writes"] = "off", "off"
	}
	for name, value := range o.Settings {
		settings[name] = value
	}
	args := make([]string, 0, 2*len(settings))
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	return args
}

// create makes the cluster's files. Text is ordered by its bytes in them; see NewDatabase.
func (c *Cluster) create() error {
	p, err := c.run("initdb", "-D", c.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
	if err != nil {
		return err
	}
	<-p.done
	if p.err != nil {
		return fmt.Errorf("initdb: %w\n%s", p.err, c.folder.tail())
	}
	return nil
}

// open starts the server for the first time, on a port that nobody uses.
func (c *Cluster) open() (err error) {
	for range portTries {
		if c.port, err = freePort(); err != nil {
			return fmt.Errorf("pgtest: %w", err)
		}
		if err = c.Resume(); err == nil {
			return nil
		}
	}
	return err
}

func freePort() (port int, err error) {
	for range 100 {
		port = portMin + rand.IntN(portMax-portMin)
		var listener net.Listener
		if listener, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, listener.Close()
		}
	}
	return 0, err
}

func (c *Cluster) data() string { return filepath.Join(c.folder.path, "data") }

// URL is a database's URL on the server's unix socket.
func (c *Cluster) URL(database string) string {
	query := url.Values{"host": {c.folder.path}, "port": {strconv.Itoa(c.port)}, "sslmode": {"disable"}}
	return (&url.URL{Scheme: "postgres", User: url.User("postgres"), Path: "/" + database, RawQuery: query.Encode()}).String()
}

// TCP is the URL on TCP of a database that has the URL location.
func (c *Cluster) TCP(location string) string {
	parsed, err := url.Parse(location)
	if err != nil {
		return location // who connects by it will see why
	}
	parsed.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port))
	parsed.RawQuery = url.Values{"sslmode": {"disable"}}.Encode()
	return parsed.String()
}

// Stop stops the server in order: transactions are rolled back, connections ended. Its data and its port stay.
func (c *Cluster) Stop() error { return c.stop(syscall.SIGINT) }

// Crash stops the server at once; the next start recovers. Its data and its port stay.
func (c *Cluster) Crash() error { return c.stop(syscall.SIGQUIT) }

func (c *Cluster) stop(signal syscall.Signal) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server == nil {
		return nil
	}
	if err := c.server.stop(signal); err != nil {
		return fmt.Errorf("pgtest: stop PostgreSQL: %w", err)
	}
	c.server = nil
	return nil
}

// Resume starts a server that was stopped or crashed, and returns when it serves.
func (c *Cluster) Resume() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server != nil {
		return nil
	}
	args := append([]string{"-D", c.data(), "-k", c.folder.path, "-p", strconv.Itoa(c.port)}, c.settings...)
	server, err := c.run("postgres", args...)
	if err != nil {
		return fmt.Errorf("pgtest: start PostgreSQL: %w", err)
	}
	if err := c.ready(server); err != nil {
		return fmt.Errorf("pgtest: start PostgreSQL: %w\n%s", errors.Join(err, server.stop(syscall.SIGQUIT)), c.folder.tail())
	}
	c.server = server
	return nil
}

// Restart stops the server, or crashes it, and starts it again.
func (c *Cluster) Restart(crash bool) error {
	stop := c.Stop
	if crash {
		stop = c.Crash
	}
	if err := stop(); err != nil {
		return err
	}
	return c.Resume()
}

// ready waits until the server serves.
func (c *Cluster) ready(server *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, c.URL("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-server.done:
			return errors.New("it ended")
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Remove ends the server and removes everything.
func (c *Cluster) Remove() error {
	return errors.Join(c.Crash(), c.folder.remove())
}

// run starts one of PostgreSQL's programs.
func (c *Cluster) run(program string, args ...string) (*process, error) {
	log, err := os.OpenFile(c.folder.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own
	return run(filepath.Join(c.bin, program), args, c.folder, log)
}
