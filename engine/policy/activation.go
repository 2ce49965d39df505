// Package policy loads rules and lets them decide: which candidate may serve a call, in process and for every candidate; and, if policy
// has a selection, in which order candidates are tried.
//
// An Activation is a loaded policy: bundles, settings and compiled rules, immutable, under a digest. Loading looks at everything before
// anybody relies on it: signature, sizes, schemas, what would fail open, the bundles' own tests. Decisions are a pure function of the
// activation and the facts: no clock, no network, no balance. Whatever is not a clean answer is an error, so that nothing is ever allowed
// by accident. A decision on facts that no rule can tell from earlier ones is remembered.
//
// The package does not hold money, fetch bundles, or log decisions. A host that keeps the archives of its activations can evaluate each
// recorded decision again. Policy is pure if the program's time.Local is time.UTC, as `regent` has it.
package policy

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
)

// Activation is a loaded policy. It never changes, and any number of calls may use it at once.
type Activation struct {
	digest    string
	revisions map[string]string
	bundles   []*unpacked
	settings  Settings
	canonical []byte // the settings as the digest has them
	rules     []Rule
	declared  map[Denial]bool // the denials that rules may answer with
	timeLimit time.Duration
	compiler  *ast.Compiler
	store     storage.Store
	txn       storage.Transaction // of reading, for as long as the activation lives
	// decision decides upon any document, judgement upon those that are built here; judgementAt is the latter's path.
	decision, judgement rego.PreparedEvalQuery
	judgementAt         string
	memory              *memory // nil if nothing is remembered
	// selection is the package that ranks candidates, and rank its query; empty and nil if there is none.
	selection string
	rank      *rego.PreparedEvalQuery
}

// Digest identifies the activation: SHA-256, in hex, of the bundles' names, paths and contents, and of the settings in
// force. Equal digests decide equally; tests and the order of the bundles do not count.
func (a *Activation) Digest() string { return a.digest }

// Bundles returns the revision of each bundle by name: the manifest's, or else a digest of the bundle's files.
func (a *Activation) Bundles() map[string]string { return maps.Clone(a.revisions) }

// Settings returns the settings in force: the bundles' own, overlaid by the host's. What they point to must not be changed.
func (a *Activation) Settings() Settings { return a.settings }

// TimeLimit is what bounds each decision. One built-in that works on is not interrupted: a decision may return later than that, and is
// then ErrLate.
func (a *Activation) TimeLimit() time.Duration { return a.timeLimit }

// Rules lists every ground on which the activation may refuse, ordered by name and code, for documents and the console.
func (a *Activation) Rules() []Rule { return slices.Clone(a.rules) }

// Engine holds the activation in force. The zero value holds none. A call takes the activation once and keeps it, so that
// all candidates of a call are judged by the same one, and nobody waits for a lock.
type Engine struct {
	current atomic.Pointer[Activation]
}

// NewEngine loads a policy and puts it in force. It fails as [Load] does.
func NewEngine(ctx context.Context, source Source) (*Engine, error) {
	activation, err := Load(ctx, source)
	if err != nil {
		return nil, err
	}
	engine := &Engine{}
	engine.Activate(activation)
	return engine, nil
}

// Current returns the activation in force, nil before the first: whoever gets nil must refuse.
func (e *Engine) Current() *Activation { return e.current.Load() }

// Activate puts an activation in force for the calls that come, and returns the one it replaces, nil if it is the first.
func (e *Engine) Activate(a *Activation) (replaced *Activation) { return e.current.Swap(a) }
