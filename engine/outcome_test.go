package engine

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"regent/engine/policy"
	"regent/ledger"
)

// guarding has the router open a circuit after two failures, for half a minute.
func guarding(c *Config, _ *policy.Settings) { c.Circuit = &Circuit{Threshold: 2, CoolDown: coolDown} }

const coolDown = 30 * time.Second

// withCap is a host's call that holds some tokens; without it a call has no hold.
func withCap(request Request) Request {
	request.MaxTokens = number(10)
	return request
}

// resolve resolves a request that is allowed.
func (b *bench) resolve(request Request) *Resolution {
	b.t.Helper()
	resolution, err := b.router.Resolve(ctx, request)
	if err != nil {
		b.t.Fatal(err)
	}
	return resolution
}

// report tells how an attempt ended that a resolution let through.
func (b *bench) report(resolution *Resolution, success bool) {
	b.t.Helper()
	b.outcome(resolution.Candidate.Model, success, resolution.Probe())
}

func (b *bench) outcome(model string, success bool, probe uuid.UUID) {
	b.t.Helper()
	report := OutcomeReport{Identity: hosted().Identity, Provider: "fake", Model: model, Success: success, Probe: probe}
	if err := b.router.RecordOutcome(ctx, report); err != nil {
		b.t.Fatal(err)
	}
}

// trip opens the circuit of "one".
func (b *bench) trip() {
	b.t.Helper()
	for range 2 {
		b.outcome("one", false, uuid.Nil)
	}
}

// open checks that the circuit of a request's one candidate is open, for so long.
func (b *bench) open(request Request, retryAfter time.Duration) {
	b.t.Helper()
	_, err := b.router.Resolve(ctx, request)
	wantRefusal(b.t, err, CodeCircuit, ClassCapacity, ReasonCircuitOpen, retryAfter.Milliseconds())
}

// bothWays runs a test with calls that hold something and with calls that do not.
func bothWays(t *testing.T, test func(t *testing.T, request func(sources ...string) Request)) {
	t.Run("without a hold", func(t *testing.T) { test(t, hosted) })
	t.Run("with a hold", func(t *testing.T) {
		test(t, func(sources ...string) Request { return withCap(hosted(sources...)) })
	})
}

// TestAHostsReportsOpenACircuit: after as many failures as are bearable with no success between them.
func TestAHostsReportsOpenACircuit(t *testing.T) {
	bothWays(t, func(t *testing.T, request func(...string) Request) {
		b := newBench(t, guarding)
		for _, success := range []bool{false, true, false} {
			resolution := b.resolve(request("one"))
			if resolution.Probe() != uuid.Nil {
				t.Errorf("a closed circuit has probe %s", resolution.Probe())
			}
			b.report(resolution, success)
		}
		b.report(b.resolve(request("one")), false)
		b.open(request("one"), coolDown)
		b.Advance(time.Second)
		b.open(request("one"), coolDown-time.Second)
		resolution := b.resolve(request("one", "two"))
		if d := resolution.Diagnostics; resolution.Candidate.Source != "two" || d.Attempts[0].Outcome != CircuitOpen || d.Attempts[0].Reason != ReasonCircuitOpen {
			t.Errorf("diagnostics: %+v", d)
		}
		if b.resolved["one"] != 4 {
			t.Errorf("the resolver was asked for it %d times", b.resolved["one"])
		}
		// Another owner, and another model, have circuits of their own.
		other := request("one")
		other.Identity.Principal = text("other")
		b.resolve(other)
		b.resolve(request("three"))
	})
}

// TestAnOpenCircuitHearsItsProbeAlone: one goes after the cool-down, and nobody else is let through or listened to while it is out.
func TestAnOpenCircuitHearsItsProbeAlone(t *testing.T) {
	bothWays(t, func(t *testing.T, request func(...string) Request) {
		b := newBench(t, guarding)
		b.trip()
		b.outcome("one", true, uuid.Nil) // of a call that began before
		b.open(request("one"), coolDown)
		b.Advance(coolDown)
		probe := b.resolve(request("one"))
		if probe.Probe() == uuid.Nil || probe.Probe() != probe.Attempt() {
			t.Fatalf("the probe is %s, of attempt %s", probe.Probe(), probe.Attempt())
		}
		b.open(request("one"), 2*coolDown)
		for _, stranger := range []uuid.UUID{uuid.Nil, uuid.Must(uuid.NewV7())} {
			b.outcome("one", true, stranger)
			b.outcome("one", false, stranger)
			b.open(request("one"), 2*coolDown)
		}
		b.report(probe, true)
		b.resolve(request("one"))
		b.outcome("one", false, probe.Probe()) // is one failure of two
		b.resolve(request("one"))
	})
}

// TestAProbeThatFailsReopens: at once, however many failures were bearable; and one that is not heard of does after its time.
func TestAProbeThatFailsReopens(t *testing.T) {
	bothWays(t, func(t *testing.T, request func(...string) Request) {
		b := newBench(t, guarding)
		b.trip()
		b.Advance(coolDown)
		failed := b.resolve(request("one"))
		b.report(failed, false)
		b.open(request("one"), coolDown)
		b.report(failed, true) // is too late
		b.open(request("one"), coolDown)
		b.Advance(coolDown)
		abandoned := b.resolve(request("one"))
		b.Advance(coolDown)
		b.open(request("one"), coolDown)
		b.report(abandoned, false) // is too late, and changes nothing
		b.open(request("one"), coolDown)
		b.Advance(coolDown - time.Microsecond)
		b.open(request("one"), time.Millisecond)
		b.Advance(time.Microsecond)
		next := b.resolve(request("one"))
		b.report(abandoned, true)
		b.open(request("one"), 2*coolDown)
		b.report(next, true)
		b.resolve(request("one"))
	})
}

// TestAProbeOutlivesItsHold: whatever becomes of the money, and when, the circuit waits for the report.
func TestAProbeOutlivesItsHold(t *testing.T) {
	ends := map[string]func(b *bench, probe *Resolution) error{
		"used": func(b *bench, probe *Resolution) error {
			reservation := probe.Reservation()
			_, err := b.router.RecordUsage(ctx, UsageReport{Budget: probe.Budget(), Reservation: &reservation, Usage: ledger.Usage{Output: 5}})
			return err
		},
		"used, by its attempt": func(b *bench, probe *Resolution) error {
			_, err := b.router.RecordUsage(ctx, UsageReport{Budget: probe.Budget(), Attempt: probe.Attempt(), Usage: ledger.Usage{Output: 5}})
			return err
		},
		"released": func(b *bench, probe *Resolution) error {
			return b.router.ReleaseBudget(ctx, probe.Budget(), probe.Reservation())
		},
		"renewed": func(b *bench, probe *Resolution) error {
			_, err := b.router.RenewBudget(ctx, probe.Budget(), probe.Reservation(), 0)
			return err
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			for _, success := range []bool{true, false} {
				b := newBench(t, func(c *Config, s *policy.Settings) { guarding(c, s); c.Budgets = &Budgets{} })
				want := func(closed bool) {
					t.Helper()
					if closed {
						b.resolve(withCap(hosted("one")))
					} else {
						b.open(withCap(hosted("one")), coolDown)
					}
				}
				for _, reportsFirst := range []bool{false, true} {
					b.trip()
					b.Advance(coolDown)
					probe := b.resolve(withCap(hosted("one")))
					if reportsFirst {
						b.report(probe, success)
						want(success)
					}
					if err := end(b, probe); err != nil {
						t.Fatal(err)
					}
					if !reportsFirst {
						b.open(withCap(hosted("one")), 2*coolDown)
						b.report(probe, success)
					}
					want(success)
					b.Advance(2 * coolDown)
				}
			}
		})
	}
}

// TestAMissGivesBackAtOnce: the rate that counted it, and the probe that it was; so that the next call finds both.
func TestAMissGivesBackAtOnce(t *testing.T) {
	bothWays(t, func(t *testing.T, request func(...string) Request) {
		b := newBench(t, func(c *Config, s *policy.Settings) {
			guarding(c, s)
			c.RateLimit, c.Budgets = &RateLimit{Max: 1, Window: time.Hour}, &Budgets{MaxTokens: number(20)}
		})
		b.unknown["one"] = true
		miss := func() {
			t.Helper()
			_, err := b.router.Resolve(ctx, request("one"))
			wantRefusal(t, err, CodeUnknownProvider, ClassCapacity, ReasonMiss, 0)
		}
		for range 3 {
			miss()
		}
		b.trip()
		b.Advance(coolDown)
		for range 3 { // each is the probe, and counts until it is given back
			miss()
		}
		key := modelKey(hosted().Identity, "fake", "one")
		b.wantBalance(ledger.ScopeModel, key, 0, 0)
		b.unknown["one"] = false
		probe := b.resolve(request("one"))
		if probe.Probe() == uuid.Nil {
			t.Error("it is no probe")
		}
		_, err := b.router.Resolve(ctx, request("one")) // the window is open since the first miss
		wantRefusal(t, err, CodeRateLimit, ClassCapacity, ReasonRateLimited, (time.Hour - coolDown).Milliseconds())
	})
}

// TestARouterOwnRate: what is counted together, and for how long.
func TestARouterOwnRate(t *testing.T) {
	b := newBench(t, func(c *Config, _ *policy.Settings) { c.RateLimit = &RateLimit{Max: 2} })
	for range 2 {
		b.resolve(hosted("one"))
	}
	b.Advance(time.Second)
	_, err := b.router.Resolve(ctx, hosted("one"))
	refusal := wantRefusal(t, err, CodeRateLimit, ClassCapacity, ReasonRateLimited, 59_000)
	if refusal.Details.Rate == nil || refusal.Details.Rate.Max != "2" || refusal.Details.Rate.Window != "fixed/1m" {
		t.Errorf("the rate: %+v", refusal.Details.Rate)
	}
	if resolution := b.resolve(hosted("one", "two")); resolution.Candidate.Source != "two" {
		t.Errorf("resolved %s", resolution.Candidate.Source)
	}
	other := hosted("one")
	other.Identity.Principal = text("other")
	b.resolve(other)
	b.Advance(59 * time.Second)
	b.resolve(hosted("one"))

	none := newBench(t, func(c *Config, _ *policy.Settings) { c.RateLimit = &RateLimit{Max: 0} })
	_, err = none.router.Resolve(ctx, hosted("one"))
	wantRefusal(t, err, CodeRateLimit, ClassCapacity, ReasonRateLimited, 0)

	together := newBench(t, func(c *Config, _ *policy.Settings) {
		c.RateLimit = &RateLimit{Max: 1, Key: func(_ policy.Identity, provider, _ string) string { return provider }}
		c.Circuit = &Circuit{Threshold: 1, Key: func(policy.Identity, string, string) string { return "all" }}
	})
	together.resolve(hosted("one"))
	_, err = together.router.Resolve(ctx, other)
	wantRefusal(t, err, CodeRateLimit, ClassCapacity, ReasonRateLimited, 60_000)
	together.Advance(time.Minute)
	together.outcome("one", false, uuid.Nil)
	_, err = together.router.Resolve(ctx, hosted("two"))
	wantRefusal(t, err, CodeCircuit, ClassCapacity, ReasonCircuitOpen, 30_000)
}

func TestGatesThatCannotBe(t *testing.T) {
	b := newBench(t, nil)
	for name, change := range map[string]func(*Config){
		"a negative rate":      func(c *Config) { c.RateLimit = &RateLimit{Max: -1} },
		"a huge rate":          func(c *Config) { c.RateLimit = &RateLimit{Max: ledger.NanoUSDMax + 1} },
		"a negative window":    func(c *Config) { c.RateLimit = &RateLimit{Window: -1} },
		"a window of 32 days":  func(c *Config) { c.RateLimit = &RateLimit{Window: 32 * 24 * time.Hour} },
		"a negative threshold": func(c *Config) { c.Circuit = &Circuit{Threshold: -1} },
		"a negative cool-down": func(c *Config) { c.Circuit = &Circuit{CoolDown: -1} },
		"a month of cool-down": func(c *Config) { c.Circuit = &Circuit{CoolDown: 32 * 24 * time.Hour} },
	} {
		config := b.router.Config
		change(&config)
		if _, err := New(config); !isCode(err, CodeValidation) {
			t.Errorf("%s: got %v, want VALIDATION", name, err)
		}
	}
	config := b.router.Config
	config.RateLimit, config.Circuit = &RateLimit{}, &Circuit{}
	r, err := New(config)
	if err != nil || r.RateLimit.Window != time.Minute || r.Circuit.Threshold != 3 || r.Circuit.CoolDown != 30*time.Second {
		t.Errorf("defaults: %+v, %+v, %v", r.RateLimit, r.Circuit, err)
	}
}

// TestOneProbeOfManyCallers: however many ask at once.
func TestOneProbeOfManyCallers(t *testing.T) {
	bothWays(t, func(t *testing.T, request func(...string) Request) {
		b := newBench(t, guarding)
		b.trip()
		b.Advance(coolDown)
		var callers sync.WaitGroup
		var mu sync.Mutex
		admitted, denied := 0, 0
		for range 32 {
			callers.Go(func() {
				resolution, err := b.router.Resolve(ctx, request("one"))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil && resolution.Probe() != uuid.Nil:
					admitted++
				case isCode(err, CodeCircuit):
					denied++
				}
			})
		}
		callers.Wait()
		if admitted != 1 || denied != 31 {
			t.Errorf("%d probes, %d denied", admitted, denied)
		}
	})
}

// gateModel is one circuit and one rate as their documentation has them.
type gateModel struct {
	now time.Duration
	// The rate's window: how many it counted, and when it closes.
	count  int
	closes time.Duration
	// The circuit: how many failures it counted; and, if it is open, when somebody is let through again.
	failures int
	isOpen   bool
	retryAt  time.Duration
	// The probe that is out, and until when it is heard of.
	probe uuid.UUID
	until time.Duration
}

const (
	modelRate   = 6
	modelWindow = 40 * time.Second
)

// denial is how a call is refused at this moment, if it is.
func (m *gateModel) denial() (code Code, retryAfter time.Duration) {
	switch {
	case m.now < m.closes && m.count >= modelRate:
		return CodeRateLimit, m.closes - m.now
	case m.isOpen && m.now < m.retryAt:
		return CodeCircuit, m.retryAt - m.now
	}
	return "", 0
}

// admit lets a call through; a miss is as if it had never been, but that its window has opened, and that an open circuit may be probed at once.
func (m *gateModel) admit(id uuid.UUID, miss bool) {
	if m.now >= m.closes {
		m.count, m.closes = 0, m.now+modelWindow
	}
	switch {
	case miss && m.isOpen:
		m.retryAt, m.probe, m.until = m.now, uuid.Nil, 0
	case miss:
	case m.isOpen:
		m.probe, m.until, m.retryAt = id, m.now+coolDown, m.now+2*coolDown
	}
	if !miss {
		m.count++
	}
}

// hear is told of an outcome.
func (m *gateModel) hear(id uuid.UUID, success bool) {
	isProbe := id != uuid.Nil && id == m.probe && (m.now < m.until || success)
	switch {
	case m.isOpen && !isProbe:
	case success:
		m.isOpen, m.failures, m.probe = false, 0, uuid.Nil
	default:
		if m.failures++; m.failures >= 2 || isProbe {
			m.isOpen, m.retryAt = true, m.now+coolDown
		}
		m.probe = uuid.Nil
	}
}

// TestGatesAgreeWithAModel: whatever is asked, reported and waited for.
func TestGatesAgreeWithAModel(t *testing.T) {
	bothWays(t, func(t *testing.T, request func(...string) Request) {
		b := newBench(t, func(c *Config, s *policy.Settings) {
			guarding(c, s)
			c.RateLimit = &RateLimit{Max: modelRate, Window: modelWindow}
		})
		runs := 0
		rapid.Check(t, func(t *rapid.T) {
			runs++ // each has a model of its own, whose rate and circuit are new
			source := fmt.Sprint("model-", runs)
			model := &gateModel{}
			ids := []uuid.UUID{uuid.Nil}
			resolve := func(t *rapid.T, miss bool) {
				b.unknown[source] = miss
				resolution, err := b.router.Resolve(ctx, request(source))
				code, retryAfter := model.denial()
				var refusal *Error
				switch errors.As(err, &refusal); {
				case code == "" && miss:
					if refusal == nil || refusal.Code != CodeUnknownProvider {
						t.Fatalf("got %v, want a miss", err)
					}
					model.admit(uuid.Nil, true)
				case code == "":
					if err != nil {
						t.Fatal(err)
					}
					if (resolution.Probe() != uuid.Nil) != model.isOpen {
						t.Fatalf("the probe is %s, and the circuit open: %v", resolution.Probe(), model.isOpen)
					}
					model.admit(resolution.Attempt(), false)
					ids = append(ids, resolution.Probe())
				case refusal == nil || refusal.Code != code || value(refusal.Details.RetryAfterMs) != retryAfter.Milliseconds():
					t.Fatalf("got %v, want %s after %v", err, code, retryAfter)
				}
			}
			t.Repeat(map[string]func(*rapid.T){
				"resolve": func(t *rapid.T) { resolve(t, false) },
				"miss":    func(t *rapid.T) { resolve(t, true) },
				"report": func(t *rapid.T) {
					id, success := rapid.SampledFrom(ids[max(0, len(ids)-4):]).Draw(t, "of"), rapid.Bool().Draw(t, "success")
					report := OutcomeReport{Identity: hosted().Identity, Provider: "fake", Model: source, Success: success, Probe: id}
					if err := b.router.RecordOutcome(ctx, report); err != nil {
						t.Fatal(err)
					}
					model.hear(id, success)
				},
				"wait": func(t *rapid.T) {
					d := time.Duration(rapid.IntRange(1, 7).Draw(t, "times 5 s")) * 5 * time.Second
					b.Advance(d)
					model.now += d
				},
			})
		})
	})
}
