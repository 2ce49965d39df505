package engine

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"regent/adapters"
	"regent/engine/policy"
)

// producers is how each code comes about, the simplest way.
var producers = map[Code]func(t *testing.T) error{
	CodeAllowList: func(t *testing.T) error {
		return resolved(t, hosted("one"), func(_ *Config, s *policy.Settings) { s.AllowList = &policy.AllowList{Models: &[]string{}} })
	},
	CodeResidency: func(t *testing.T) error {
		return resolved(t, hosted("one"), func(_ *Config, s *policy.Settings) { s.AllowedResidencies = &[]string{"eu"} })
	},
	CodeBudget: func(t *testing.T) error { return resolved(t, hosted("one"), withBudget(0)) },
	CodeRateLimit: func(t *testing.T) error {
		return resolved(t, hosted("one"), func(c *Config, _ *policy.Settings) { c.RateLimit = &RateLimit{Max: 0} })
	},
	CodeCircuit: func(t *testing.T) error {
		b := newBench(t, guarding)
		b.trip()
		return second(b.router.Resolve(ctx, hosted("one")))
	},
	CodeIdentity: func(t *testing.T) error {
		return second(newDurableBench(t, nil).router.Resolve(ctx, hosted("one")))
	},
	CodeState: func(t *testing.T) error {
		return newBench(t, nil).router.ReleaseBudget(ctx, Budget{}, Reservation{})
	},
	CodeAsyncState: func(t *testing.T) error {
		return second(newDurableBench(t, nil).router.ProviderSource(modelOf("m", nil)))
	},
	CodeAsyncRequired: func(t *testing.T) error {
		return second(newBench(t, withBudget(1000)).router.ProviderSource(modelOf("m", nil)))
	},
	CodePolicy: func(t *testing.T) error { return resolved(t, hosted("one"), selecting(ranking{rank: as()})) },
	CodeValidation: func(t *testing.T) error {
		request := hosted("one")
		request.MaxTokens = number(-1)
		return resolved(t, request, nil)
	},
	CodeLimits: func(t *testing.T) error {
		return second(New(capsOf(t, func(c *Config) { c.Attempts = attemptsMax + 1 })))
	},
	CodeAttempts: func(t *testing.T) error {
		request := hosted("one")
		for _, source := range []string{"two", "three", "four"} {
			request.Attempts = append(request.Attempts, policy.Attempt{Source: source, Provider: "fake", Reason: string(adapters.Overloaded), Accounting: policy.ByAPIKey})
		}
		return resolved(t, request, nil)
	},
	CodeUnknownProvider: func(t *testing.T) error { return resolved(t, hosted(), nil) },
}

// resolved is what becomes of a request that nobody may serve.
func resolved(t *testing.T, request Request, change func(*Config, *policy.Settings)) error {
	t.Helper()
	b := newBench(t, change)
	_, err := b.router.Resolve(ctx, request)
	if len(b.resolved) > 0 {
		t.Errorf("the resolver was asked: %v", b.resolved)
	}
	return err
}

// TestEachCodeComesAbout: as a refusal that says what to do, in words of its own.
func TestEachCodeComesAbout(t *testing.T) {
	for code, produce := range producers {
		t.Run(strings.TrimPrefix(string(code), codePrefix), func(t *testing.T) {
			var refusal *Error
			if err := produce(t); !errors.As(err, &refusal) || refusal.Code != code {
				t.Fatalf("got %v", err)
			}
			if refusal.Message == "" || !strings.HasPrefix(refusal.Error(), "ERR_PRISM_MODEL_ROUTER_") || !strings.HasSuffix(refusal.Error(), ": "+refusal.Message) {
				t.Errorf("it says %q", refusal.Error())
			}
		})
	}
}

// TestNoCodeIsForgotten: a code that the source has, the table of its producers has.
func TestNoCodeIsForgotten(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[Code]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, is := node.(*ast.ValueSpec)
		if !is {
			return true
		}
		if typed, is := spec.Type.(*ast.Ident); !is || typed.Name != "Code" {
			return true
		}
		for i, name := range spec.Names {
			sum, is := spec.Values[i].(*ast.BinaryExpr)
			if !is {
				t.Fatalf("%s is no sum of codePrefix and a text", name.Name)
			}
			code := codePrefix + Code(strings.Trim(sum.Y.(*ast.BasicLit).Value, `"`))
			if declared[code] {
				t.Errorf("%s is declared twice", code)
			}
			declared[code] = true
			if producers[code] == nil {
				t.Errorf("nothing shows how %s (%s) comes about", name.Name, code)
			}
		}
		return true
	})
	if len(declared) != len(producers) || len(declared) != 14 {
		t.Errorf("%d codes are declared, and %d produced", len(declared), len(producers))
	}
}

// TestAttemptsCountTowardsTheCap: what was contacted already counts, is not tried again, and may be reported as its resolution says.
func TestAttemptsCountTowardsTheCap(t *testing.T) {
	b := newBench(t, nil)
	request := hosted("one", "two", "three", "four")
	for _, source := range []string{"one", "two", "three"} {
		resolution, err := b.router.Resolve(ctx, request)
		if err != nil || resolution.Candidate.Source != source {
			t.Fatalf("got %+v, %v, want %s", resolution, err, source)
		}
		request.Attempts = append(request.Attempts, resolution.Failed(adapters.Overloaded))
	}
	_, err := b.router.Resolve(ctx, request)
	wantRefusal(t, err, CodeAttempts, ClassCapacity, ReasonAttempts, 0)
	if b.resolved["four"] != 0 {
		t.Error("the resolver was asked for a fourth")
	}
}
