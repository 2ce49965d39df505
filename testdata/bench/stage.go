package main

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// stage is one kind of measurement, taken of each of its targets one after the other.
type stage struct {
	name    string
	targets []string
	// every says in which rounds: 1 is in all.
	every int
	// fresh gives each sample processes of its own, which nothing has used before.
	fresh   bool
	measure func(*bench, *target) (values, error)
}

// spoken is a stage in a protocol other than chat's, whose stages have no more to their names.
func spoken(stage string, s *speech) string {
	if s == chat {
		return stage
	}
	return stage + "-" + s.name
}

// Names of stages that are read by name.
const (
	oneClient  = "c1"
	firstStage = "first"
	holdStage  = "hold"
	countStage = "counts"
)

// stages are all kinds that are sampled, in the order in which a round takes them.
var stages = []stage{
	{name: oneClient, targets: []string{direct, bare, regent, sqlite}, every: 1, measure: load(1)},
	{name: "c16", targets: []string{bare, regent, sqlite}, every: 1, measure: load(16)},
	{name: "c64", targets: []string{bare, regent, sqlite}, every: 1, measure: load(64)},
	{name: firstStage, targets: []string{direct, bare, regent}, every: 1, measure: firstToken(chat)},
	{name: spoken(firstStage, responses), targets: []string{direct, bare, regent}, every: 1, measure: firstToken(responses)},
	{name: spoken(firstStage, messages), targets: []string{direct, bare, regent}, every: 1, measure: firstToken(messages)},
	{name: "c512", targets: []string{bare, regent, sqlite}, every: 2, measure: load(512)},
	{name: holdStage, targets: []string{bare, regent}, every: 2, fresh: true, measure: holdStreams(chat)},
	{name: spoken(holdStage, responses), targets: []string{bare, regent}, every: 2, fresh: true, measure: holdStreams(responses)},
	{name: spoken(holdStage, messages), targets: []string{bare, regent}, every: 2, fresh: true, measure: holdStreams(messages)},
}

// load measures calls that do not stream, from a number of clients.
func load(clients int) func(*bench, *target) (values, error) {
	return func(b *bench, t *target) (values, error) {
		before := t.process.cpu()
		c := callFor(t, clients, b.dur)
		cpu := t.process.cpu() - before
		n := float64(len(c.latencies))
		if c.failed > 0 || n == 0 {
			return nil, fmt.Errorf("%d clients got no answer: %w", c.failed, c.err)
		}
		if c.refused > 0 {
			b.remarks = append(b.remarks, fmt.Sprintf("%s, %d clients: %d calls were %v", t.name, clients, c.refused, c.refusal))
		}
		return values{
			"per_s": n / c.took.Seconds(), "cpu_us": float64(cpu.Microseconds()) / n,
			"p50": quantile(c.latencies, .5), "p99": quantile(c.latencies, .99),
			"refused": float64(c.refused) / (n + float64(c.refused)), "rss": float64(t.process.rss()),
		}, nil
	}
}

// firstToken measures single streams.
func firstToken(s *speech) func(*bench, *target) (values, error) {
	return func(b *bench, t *target) (values, error) {
		firsts, lost := firstTokens(t, s, b.dur)
		if len(firsts) == 0 {
			return nil, errors.New("no stream came through")
		}
		if lost > 0 {
			b.remarks = append(b.remarks, fmt.Sprintf("%s, %s: %d of %d single streams did not come through whole", t.name, s.name, lost, len(firsts)))
		}
		return values{"p50": quantile(firsts, .5), "p99": quantile(firsts, .99)}, nil
	}
}

// heldStreams are the slow streams, each of the pace of an answer that comes in words.
const heldStreams = 1000

var slow = plan{chunks: 16, gap: 400 * time.Millisecond}

// holdStreams measures what slow streams take of memory and time, and whether each comes through whole.
func holdStreams(s *speech) func(*bench, *target) (values, error) {
	return func(b *bench, t *target) (values, error) { return b.hold(t, s) }
}

func (b *bench) hold(t *target, s *speech) (values, error) {
	if err := callTimes(t, 200).err; err != nil { // so that what is made once has been made
		return nil, err
	}
	t.process.settle()
	rss := t.process.rss()
	h := hold(t, s, heldStreams, slow)
	h.waitOpen()
	cpu, chunks := t.process.cpu(), h.chunks.Load()
	time.Sleep(time.Duration(slow.chunks/2) * slow.gap) // the first to open goes on for longer than opening all takes, and this
	cpu, chunks = t.process.cpu()-cpu, h.chunks.Load()-chunks
	grown, open := t.process.rss()-rss, h.open()
	<-h.done
	if len(h.errs) > 0 {
		b.remarks = append(b.remarks, fmt.Sprintf("%s: %d streams did not come through whole, the first of them: %v", t.name, len(h.errs), h.errs[0]))
	}
	return values{
		"lost": float64(len(h.errs)), "kib": float64(grown) / 1024 / open, "rss": float64(rss + grown),
		"cpu_us": float64(cpu.Microseconds()) / float64(max(1, chunks)),
	}, nil
}

// run takes every stage that is wanted, in interleaved rounds: a round begins with another target each time, so that what the
// machine does meanwhile falls on all of them.
func (b *bench) run(wanted func(stage string) bool) error {
	var open map[string]*target
	if slices.ContainsFunc(stages, func(s stage) bool { return wanted(s.name) }) {
		var err error
		if open, err = b.openAll(); err != nil {
			return err
		}
	}
	for round := range b.rounds {
		for _, s := range stages {
			if !wanted(s.name) || round%s.every != 0 {
				continue
			}
			for i := range s.targets {
				name := s.targets[(i+round)%len(s.targets)]
				if err := b.takeNamed(s, round, name, open); err != nil {
					return err
				}
			}
		}
	}
	if wanted(countStage) {
		if err := b.counts(); err != nil {
			return err
		}
	}
	if wanted(policyStage) {
		if err := b.policies(); err != nil {
			return err
		}
	}
	if wanted(libraryStage) {
		if err := b.library(); err != nil {
			return err
		}
	}
	if wanted(windowStage) {
		if err := b.windows(); err != nil {
			return err
		}
	}
	if wanted(ledgerStage) {
		return b.ledgers()
	}
	return nil
}

// openAll starts every target and warms it up.
func (b *bench) openAll() (map[string]*target, error) {
	open := map[string]*target{}
	for _, name := range []string{direct, bare, regent, sqlite} {
		t, err := b.open(name)
		if err != nil {
			return nil, err
		}
		open[name] = t
		if err := callFor(t, 16, time.Second).err; err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		t.process.settle()
	}
	return open, nil
}

func (b *bench) takeNamed(s stage, round int, name string, open map[string]*target) error {
	if err := b.ctx.Err(); err != nil {
		return err
	}
	t := open[name]
	if s.fresh {
		var err error
		if t, err = b.open(name); err != nil {
			return err
		}
		defer b.stop(t)
	}
	return b.take(s, round, t)
}
