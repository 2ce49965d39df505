package policy

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
)

// memory holds decisions of one activation. Decisions are remembered by all that their rules can observe of the facts. Rules that observe
// what differs from call to call, such as the time, are asked each time; what the others deny is remembered. Errors are not.
type memory struct {
	// ofCall and ofCandidate are what the remembered rules observe.
	ofCall, ofCandidate []observation
	// volatile are the rules that are asked each time, by name, and ask is the query that asks them: an object of their denials.
	volatile map[string]bool
	ask      *rego.PreparedEvalQuery // nil if there are none

	decisions *lru.Cache[string, Decision]
}

// Bounds of a memory.
const (
	DefaultRemembered = 16_384  // decisions: users, times the models of each and their sources; some 10 MB
	maxKey            = 4 << 10 // bytes of what is observed: facts of the largest size would fill 8 GB
)

// remember gives the activation a memory, unless its decisions cannot be remembered: its entry point observes by itself what differs
// from call to call, or has rules that do, and does not declare itself their union.
func (a *Activation) remember(ctx context.Context, observed map[*ast.Rule]observations, size int) error {
	_, isUnion := entryPointAt(a.bundles)
	r := readers{graph: a.compiler.Graph, observed: observed, reached: map[*ast.Rule]bool{}}
	m := &memory{}
	var query string
	m.volatile, query = r.volatileRules(a)
	stable := make(observations)
	known := r.collect(stable, a.compiler.GetRulesExact(ast.MustParseRef(a.judgementAt)))
	if !known || stable.volatile() || len(m.volatile) > 0 && !isUnion {
		return nil
	}
	for _, observed := range slices.SortedFunc(maps.Keys(stable), compareObservations) {
		if stable.imply(observed) {
			continue
		}
		if observed.ofCandidate() {
			m.ofCandidate = append(m.ofCandidate, observed)
		} else {
			m.ofCall = append(m.ofCall, observed)
		}
	}
	if len(m.volatile) > 0 {
		ask, err := a.prepared(ctx, query)
		if err != nil {
			return err
		}
		m.ask = &ask
	}
	var err error
	m.decisions, err = lru.New[string, Decision](size)
	a.memory = m
	return err
}

// stableOf is what of a decision is remembered.
func (m *memory) stableOf(decision Decision) Decision {
	decision.Denials = slices.DeleteFunc(slices.Clone(decision.Denials), func(d Denial) bool { return m.volatile[d.Rule] })
	decision.Allow = len(decision.Denials) == 0
	return decision
}

// readers tells what rules can observe together with all that they refer to.
type readers struct {
	graph    *ast.Graph
	observed map[*ast.Rule]observations // of each rule by itself
	reached  map[*ast.Rule]bool         // by the last collect, and what it must not go into
}

// volatileRules are the rules that are asked each time, and the query that asks them.
func (r *readers) volatileRules(a *Activation) (volatile map[string]bool, query string) {
	volatile = make(map[string]bool)
	apart := make(map[*ast.Rule]bool)
	asked := ast.NewObject()
	for _, rule := range a.rules {
		ref := denyOf(rule.Name)
		clear(r.reached)
		found := make(observations)
		if volatile[rule.Name] || r.collect(found, a.compiler.GetRulesExact(ref)) && !found.volatile() {
			continue
		}
		volatile[rule.Name] = true
		asked.Insert(ast.StringTerm(rule.Name), ast.NewTerm(ref))
		for _, deny := range a.compiler.GetRulesExact(ref) {
			apart[deny] = true
		}
	}
	r.reached = apart
	return volatile, asked.String()
}

// denyOf is where a rule of this name denies.
func denyOf(name string) ast.Ref {
	root, folder := "regent", name
	if below, isOrg := strings.CutPrefix(name, "org/"); isOrg {
		root, folder = "org", below
	}
	return ast.Ref{ast.DefaultRootDocument, ast.StringTerm(root), rulesTerm, ast.StringTerm(folder), denyTerm}
}

// collect adds what rules and all that they refer to can observe. It returns false if it does not know.
func (r *readers) collect(into observations, rules []*ast.Rule) (known bool) {
	known = true
	for _, rule := range rules {
		for node := rule; node != nil; node = node.Else {
			if r.reached[node] {
				continue
			}
			r.reached[node] = true
			found, seen := r.observed[node]
			known = known && seen
			maps.Copy(into, found)
			for next := range r.graph.Dependencies(node) {
				known = r.collect(into, []*ast.Rule{next.(*ast.Rule)}) && known
			}
		}
	}
	return known
}

// observedBy tells what each rule of all modules observes by itself.
func observedBy(modules map[string]*ast.Module) map[*ast.Rule]observations {
	all := make(map[*ast.Rule]observations)
	for _, module := range modules {
		ast.WalkRules(module, func(rule *ast.Rule) bool {
			all[rule] = observed(rule)
			return false
		})
	}
	return all
}

func compareObservations(a, b observation) int {
	return cmp.Or(cmp.Compare(a.field, b.field), cmp.Compare(a.kind, b.kind), cmp.Compare(a.other, b.other), cmp.Compare(a.number, b.number))
}

// remembered is the decision that is remembered under a key, completed by the rules that are asked each time.
func (j *Judge) remembered(ctx context.Context, key string, candidate Candidate, attempts []Attempt) (decision Decision, found bool, err error) {
	m := j.activation.memory
	decision, found = m.decisions.Get(key)
	if !found {
		return decision, false, nil
	}
	decision.Denials = slices.Clone(decision.Denials)
	if m.ask != nil {
		decision, err = j.activation.askVolatile(ctx, decision, j.document(candidate, attempts))
	}
	decision.Remembered = true
	return decision, true, err
}

// askVolatile adds what the volatile rules deny.
func (a *Activation) askVolatile(ctx context.Context, decision Decision, input ast.Object) (Decision, error) {
	answer, err := a.ask(ctx, a.memory.ask, input)
	if err != nil {
		return Decision{}, err
	}
	denials, err := decodeDenialsByRule(answer)
	if err != nil {
		return Decision{}, err
	}
	decision.Denials = append(decision.Denials, denials...)
	decision.Allow = len(decision.Denials) == 0
	sortDenials(decision.Denials)
	return decision, a.checkDeclared(decision)
}

// key is all that the remembered rules observe. ok is false if nothing is remembered under it.
func (j *Judge) key(candidate Candidate, attempts []Attempt) (key string, ok bool) {
	m := j.activation.memory
	if m == nil {
		return "", false
	}
	if j.keyOfCall == nil {
		j.keyOfCall = make([]byte, 0, 256)
		for _, observed := range m.ofCall {
			j.keyOfCall = observed.write(j.keyOfCall, &j.facts)
		}
	}
	j.facts.Candidate, j.facts.Attempts = candidate, attempts
	written := append(j.keyBuffer[:0], j.keyOfCall...)
	for _, observed := range m.ofCandidate {
		written = observed.write(written, &j.facts)
	}
	j.keyBuffer = written
	return string(written), len(written) <= maxKey
}

// Recall is the decision if it is remembered whole, as [Judge.Decide] would return it, without waiting for anything.
func (j *Judge) Recall(candidate Candidate, attempts []Attempt) (Decision, bool) {
	if j.err != nil || j.activation.memory == nil || j.activation.memory.ask != nil {
		return Decision{}, false
	}
	if cmp.Or(checkCandidate(candidate), checkAttempts(attempts)) != nil {
		return Decision{}, false
	}
	key, ok := j.key(candidate, attempts)
	if !ok {
		return Decision{}, false
	}
	decision, found, _ := j.remembered(context.Background(), key, candidate, attempts)
	return decision, found
}
