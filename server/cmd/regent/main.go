// Command regent is the gateway and its tools.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"regent/engine/policy"
	"regent/engine/workshop"
	"regent/policies"
	"regent/server"
)

// Exit codes.
const (
	exitFailed      = 1 // what was asked is not so, or could not be done
	exitUsage       = 2 // the command line
	exitNotLoaded   = 3 // a policy does not load
	exitTestsFailed = 4 // its tests have not passed, or reach too little of it
)

// cli is the command line.
type cli struct {
	Serve     serveCmd     `cmd:"" default:"1" help:"Run the gateway."`
	Decisions decisionsCmd `cmd:"" help:"Read the decision log."`
	Ledger    ledgerCmd    `cmd:"" help:"Read the ledger, verify it, and do to it what persons do."`
	Migrate   migrateCmd   `cmd:"" help:"Bring the tables of the database up to date, or tell where they are."`
	Policy    policyCmd    `cmd:"" help:"Write policy: check, test, format, evaluate, explain, compare and build bundles."`
	Prices    pricesCmd    `cmd:"" help:"Show the published prices that a source of the catalogue can name."`
}

func main() {
	time.Local = time.UTC // policy decides alike on every machine, whatever its zone; and logs are in UTC
	os.Exit(run(os.Args[1:], os.LookupEnv, time.Now, os.Stdout, os.Stderr))
}

var errInterrupted = errors.New("interrupted before the end")

// run runs one command and returns its exit code.
func run(args []string, env func(string) (string, bool), now func() time.Time, stdout, stderr io.Writer) int {
	return (&environment{env: env, now: now, stdout: stdout}).run(args, stderr)
}

// run runs one command in the environment.
func (e *environment) run(args []string, stderr io.Writer) int {
	var commands cli
	exited := -1
	parser, err := kong.New(&commands,
		kong.Name("regent"),
		kong.Description("A governed gateway for AI models whose rules are Rego."),
		kong.Writers(e.stdout, stderr),
		kong.Exit(func(code int) { exited = code }),
	)
	if err != nil {
		return complain(stderr, err, exitFailed)
	}
	command, err := parser.Parse(args)
	if exited >= 0 { // help was asked for
		return exited
	}
	if err != nil {
		return complain(stderr, err, exitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command.BindTo(ctx, (*context.Context)(nil))
	return exitCode(stderr, command.Run(e))
}

// exitCode says how a command ended. One that was interrupted has answered nothing: whoever verifies the ledger must not take it for
// a yes.
func exitCode(stderr io.Writer, err error) int {
	var said answered
	var usage usageError
	var input *workshop.InputError
	var refused *policy.LoadError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, context.Canceled):
		return complain(stderr, errInterrupted, exitFailed)
	case errors.As(err, &said):
		return int(said)
	case errors.As(err, &usage), errors.As(err, &input) && !input.Recorded:
		return complain(stderr, err, exitUsage)
	case errors.As(err, &refused) && refused.Tests:
		return complain(stderr, err, exitTestsFailed)
	case errors.As(err, &refused):
		return complain(stderr, err, exitNotLoaded)
	}
	return complain(stderr, err, exitFailed)
}

// answered is how a command ends whose answer, on its output, is a no.
type answered int

func (a answered) Error() string { return fmt.Sprintf("exit code %d", int(a)) }

// usageError is an error of what was given to a command.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// complain writes an error as one line.
func complain(stderr io.Writer, err error, code int) int {
	_, _ = fmt.Fprintln(stderr, "regent:", strings.ReplaceAll(strings.ReplaceAll(err.Error(), "\t", ""), "\n", "; "))
	return code
}

// environment is what commands get of the process.
type environment struct {
	env    func(string) (string, bool)
	now    func() time.Time
	stdout io.Writer
	// serverNow replaces the clock of a database server, for tests whose clock stands still. nil is the server's own.
	serverNow func() time.Time
}

// collectAt is how much the heap grows, in percent of what lives, until garbage is collected; Go's own is 100. A call leaves little
// behind: at 200 the benchmark's calls took a fifth less processor time, and streams that are held no more memory.
const collectAt = 200

// collectLess has garbage collected less often, unless GOGC says how often.
func collectLess(env func(string) (string, bool)) {
	if text, given := env("GOGC"); !given || text == "" {
		debug.SetGCPercent(collectAt)
	}
}

type serveCmd struct{}

// Run serves until the process is asked to stop. Asked again while it lets running calls end, it ends them; the third time, the
// system kills it, and their holds are left to expire. SIGHUP has the catalogue read again.
func (serveCmd) Run(ctx context.Context, e *environment) error {
	collectLess(e.env)
	log.SetOutput(io.Discard) // net/http's client prints there what a provider sends unasked; the program has a log of its own
	config, err := server.FromEnv(e.env)
	if err != nil {
		return err
	}
	config.Policies, config.Stdout, config.Now = policies.Files(), e.stdout, e.now
	stops := make(chan os.Signal, 2)
	signal.Notify(stops, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(stops)
	s, err := server.New(config)
	if err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	go func() {
		for range hangup {
			s.Reload()
		}
	}()
	go func() {
		<-stops // ends ctx, too
		<-stops
		signal.Reset(os.Interrupt, syscall.SIGTERM)
		s.Hurry()
	}()
	return s.Run(ctx)
}
