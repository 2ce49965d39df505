package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// target is something that calls can be sent to.
type target struct {
	name    string
	base    string // of all paths
	process *process
	data    string // a gateway's data folder
}

// The targets of a run.
const (
	direct = "direct" // the mock itself
	bare   = "proxy"  // the bare reverse proxy
	regent = "regent" // on the ledger in memory
	sqlite = "sqlite" // Regent on SQLite
)

const (
	plainBase  = "/v1"
	regentBase = "/api/inference/v1"
)

// benchToken is the token of the benchmark's user: it is known to everybody, and good for nothing else.
var benchToken = "gwi_" + strings.Repeat("be", 32)

//go:embed catalogue.yaml
var catalogueText string

// bench is one run of the benchmark.
type bench struct {
	ctx     context.Context
	rounds  int
	dur     time.Duration // of a sample
	folder  string        // for everything that the run writes
	self    string        // this program
	regent  string        // the gateway's program
	mock    *process
	running []*process // in the order in which they were started
	opened  int        // gateways, each of which has a data folder of its own
	samples []sample
	remarks []string
	// repeats is how many disturbed samples may still be taken again: on a machine that is always busy, that is no help.
	repeats int
}

// newBench builds the gateway and starts the mock.
func newBench(ctx context.Context, rounds int, dur time.Duration) (*bench, error) {
	folder, err := os.MkdirTemp("", "regent-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{ctx: ctx, rounds: rounds, dur: dur, folder: folder, regent: filepath.Join(folder, "regent"), repeats: 3 * rounds}
	if b.self, err = os.Executable(); err != nil {
		return b, err
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", b.regent, "regent/server/cmd/regent")
	if text, err := build.CombinedOutput(); err != nil {
		return b, fmt.Errorf("the gateway does not build: %w: %s", err, text)
	}
	b.mock, err = b.start("mock", nil, b.self, mockProgram)
	return b, err
}

// close stops everything and removes what was written.
func (b *bench) close() {
	for _, p := range slices.Backward(b.running) {
		p.stop()
	}
	_ = os.RemoveAll(b.folder) // a temporary folder
}

func (b *bench) start(name string, env []string, program string, args ...string) (*process, error) {
	p, err := start(b.ctx, b.folder, name, env, program, args...)
	if err == nil {
		b.running = append(b.running, p)
	}
	return p, err
}

// stop ends a target before the run does.
func (b *bench) stop(t *target) {
	t.process.stop()
	b.running = slices.DeleteFunc(b.running, func(p *process) bool { return p == t.process })
}

// open starts a target of a name.
func (b *bench) open(name string) (*target, error) {
	switch name {
	case direct:
		return &target{name: name, base: plainBase, process: b.mock}, nil
	case bare:
		p, err := b.start(name, nil, b.self, proxyProgram, b.mock.url)
		return &target{name: name, base: plainBase, process: p}, err
	}
	return b.openRegent(name, catalogueText, b.regent)
}

// openRegent starts a gateway in a data folder of its own.
func (b *bench) openRegent(name, catalogue, program string, args ...string) (*target, error) {
	b.opened++
	data := filepath.Join(b.folder, fmt.Sprintf("%s-%d", name, b.opened))
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(data, "catalogue.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(catalogue, "UPSTREAM", b.mock.url)), 0o600); err != nil {
		return nil, err
	}
	env := []string{
		"REGENT_ADDR=127.0.0.1:0", "REGENT_DATA=" + data, "REGENT_CONFIG=" + file, "REGENT_DRAIN_FOR=1s",
		"BENCH_TOKEN=" + benchToken, "BENCH_KEY=sk-of-the-mock",
	}
	if name != sqlite {
		env = append(env, "REGENT_DATABASE_URL=memory:")
	}
	p, err := b.start(name, env, program, args...)
	return &target{name: name, base: regentBase, process: p, data: data}, err
}

// values are what one sample has shown, by name.
type values map[string]float64

// sample is one measurement of one target.
type sample struct {
	Stage  string `json:"stage"`
	Target string `json:"target"`
	Round  int    `json:"round"`
	Values values `json:"values"`
	// Foreign is how many processors the rest of the machine kept busy meanwhile.
	Foreign float64 `json:"foreign"`
}

// disturbed is how many busy processors of others make a sample worth taking again.
const disturbed = 0.25

// take measures a target, once more if that was disturbed; the less disturbed sample counts. What must be fresh is taken once.
func (b *bench) take(s stage, round int, t *target) error {
	best, err := b.takeOnce(s, round, t)
	if err == nil && !s.fresh && best.Foreign > disturbed && b.repeats > 0 {
		b.repeats--
		var again sample
		if again, err = b.takeOnce(s, round, t); again.Foreign < best.Foreign {
			best = again
		}
	}
	if err != nil {
		return fmt.Errorf("%s of %s: %w", s.name, t.name, err)
	}
	b.samples = append(b.samples, best)
	return nil
}

func (b *bench) takeOnce(s stage, round int, t *target) (sample, error) {
	ours := func() time.Duration { return t.process.cpu() + b.mock.cpu() + ownCPU() }
	if t.process == b.mock {
		ours = func() time.Duration { return b.mock.cpu() + ownCPU() }
	}
	begin, busy, used := time.Now(), machineBusy(), ours()
	v, err := s.measure(b, t)
	foreign := (machineBusy() - busy - (ours() - used)).Seconds() / time.Since(begin).Seconds()
	t.process.settle()
	return sample{s.name, t.name, round, v, max(0, foreign)}, err
}

// quantile gives the q-quantile of some durations in microseconds.
func quantile(d []time.Duration, q float64) float64 {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return float64(d[min(int(q*float64(len(d))), len(d)-1)].Nanoseconds()) / 1e3
}

// median gives the middle of some values.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
