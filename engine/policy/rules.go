package policy

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Rule is one ground on which policy may refuse: a `deny` with its METADATA.
type Rule struct {
	// Name is the rule's folder as denials name it, for example "allow_list" or "org/weekdays". A folder may hold several
	// grounds; "main" refuses incomplete input.
	Name string
	// Code is unique among all rules of an activation.
	Code        string
	Title       string
	Description string
	Remedy      string
	Terminal    bool
	// Bundle, File and Line say where it is written.
	Bundle string
	File   string
	Line   int
}

// denial is what policy must answer, word for word, where this rule refuses.
func (r Rule) denial() Denial {
	return Denial{Rule: r.Name, Code: r.Code, Title: r.Title, Remedy: r.Remedy, Terminal: r.Terminal}
}

// mainRule is the name under which the entry point refuses by itself. Its text is in its answer, not in METADATA.
const mainRule = "main"

// unionDeclared is how the entry point says in its METADATA, as custom.composition, that its denials are those of the rules and nothing
// else, so that some rules can be asked apart from others.
const unionDeclared = "union"

// entryPointAt returns the part of a Rule that can be read where the entry point's default is written, and whether the entry point
// declares that it is the union of the rules.
func entryPointAt(bundles []*unpacked) (found Rule, isUnion bool) {
	for _, u := range bundles {
		for _, file := range u.parsed.Modules {
			for _, rule := range file.Parsed.Rules {
				if !rule.Default || rule.Ref().String() != entryPoint {
					continue
				}
				place := problemAt(rule.Loc(), "")
				found = Rule{Bundle: place.Bundle, File: place.File, Line: place.Line}
				for _, annotations := range rule.Annotations {
					found.Description = annotations.Description
					isUnion = annotations.Custom["composition"] == unionDeclared
				}
			}
		}
	}
	return found, isUnion
}

func sortRules(rules []Rule) {
	slices.SortFunc(rules, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Code, b.Code))
	})
}

var ruleCode = regexp.MustCompile(`^[A-Z][A-Z0-9_]{1,62}$`)

// collectRules lists the rules of all bundles and refuses what the entry point would pass over in silence: a folder without
// a `deny`, a `deny` that is no set, or one whose denial would lack its text.
func collectRules(bundles []*unpacked, required []string) ([]Rule, []Problem) {
	c := collector{denies: map[string]bool{}, first: map[string]*ast.Location{}, codes: map[string]*ast.Location{}}
	for _, u := range bundles {
		for _, module := range u.parsed.Modules {
			c.module(module.Parsed)
		}
	}
	for name, location := range c.first {
		if !c.denies[name] {
			c.refuse(location, "the rule %s never denies: its package defines no `deny`. Is it misspelt?", name)
		}
	}
	for _, name := range required {
		if !c.denies[name] {
			c.problems = append(c.problems, Problem{Text: fmt.Sprintf("the required rule %s is absent: no bundle defines its `deny`", name)})
		}
	}
	return c.rules, c.problems
}

type collector struct {
	rules    []Rule
	problems []Problem
	first    map[string]*ast.Location // where a rule's folder was met first
	denies   map[string]bool          // the folders that define deny
	codes    map[string]*ast.Location
}

func (c *collector) refuse(location *ast.Location, format string, args ...any) {
	c.problems = append(c.problems, problemAt(location, fmt.Sprintf(format, args...)))
}

func (c *collector) module(module *ast.Module) {
	name, depth := ruleOf(module.Package.Path)
	switch {
	case depth == 1:
		if c.first[name] == nil {
			c.first[name] = module.Package.Loc()
		}
	case depth > 1:
		c.refuse(module.Package.Loc(), "package %s is deeper than a rule's folder, where nothing asks it: move it to one directly under rules/",
			module.Package.Path)
	}
	c.impure(module)
	if depth == 1 {
		c.inputSchemas(module)
	}
	for _, rule := range module.Rules {
		c.rule(module, rule, name, depth)
	}
}

func (c *collector) rule(module *ast.Module, rule *ast.Rule, name string, depth int) {
	ref := rule.Ref()
	if depth != 1 {
		switch _, inside := ruleOf(ref.GroundPrefix()); {
		case inside >= 0 && depth <= 0:
			c.refuse(rule.Loc(), "%s is outside of the package of its rule: write it in a package directly under rules/", ref)
		case depth < 0 && len(ref) > len(module.Package.Path) && ref[len(module.Package.Path)].Equal(denyTerm):
			c.refuse(rule.Loc(), "nobody asks the `deny` of package %s: rules are the packages directly under org.rules", module.Package.Path)
		}
		return
	}
	local := ref[len(module.Package.Path):]
	if !local[0].Equal(denyTerm) {
		return
	}
	if len(local) > 1 || rule.Default || rule.Head.RuleKind() != ast.MultiValue {
		c.denies[name] = true // it is there, and wrong: one problem is enough
		c.refuse(rule.Loc(), "`deny` of %s is not a set: write `deny contains … if { … }`", name)
		return
	}
	c.denies[name] = true
	c.deny(rule, name)
}

// inputSchemas refuses a rule that says otherwise of the input than the gateway does: a misspelt field would pass.
func (c *collector) inputSchemas(module *ast.Module) {
	for _, annotations := range module.Annotations {
		for _, schema := range annotations.Schemas {
			if schema.Path[0].Equal(ast.InputRootDocument) && (schema.Definition != nil || !schema.Schema.Equal(schemaRef("input/candidate"))) {
				c.refuse(annotations.Loc(), "the input of a rule is schema.input.candidate, and no other: name that one, or none")
			}
		}
	}
}

var denyTerm = ast.StringTerm("deny")

// deny takes the rule's text from its METADATA.
func (c *collector) deny(rule *ast.Rule, name string) {
	found := Rule{Name: name}
	terminal := any(nil)
	for _, annotations := range rule.Annotations {
		if annotations.Scope == "rule" {
			found.Title, found.Description = annotations.Title, annotations.Description
			found.Code, _ = annotations.Custom["code"].(string)
			found.Remedy, _ = annotations.Custom["remedy"].(string)
			terminal = annotations.Custom["terminal"]
		}
	}
	isTerminal, isBoolean := terminal.(bool)
	var missing []string
	for _, field := range []struct {
		name    string
		present bool
	}{
		{"title", found.Title != ""},
		{"custom.code as a text in capitals", ruleCode.MatchString(found.Code)},
		{"custom.remedy", found.Remedy != ""},
		{"custom.terminal as true or false", isBoolean},
	} {
		if !field.present {
			missing = append(missing, field.name)
		}
	}
	if len(missing) > 0 {
		c.refuse(rule.Loc(), "the METADATA of this `deny` lacks %s", strings.Join(missing, ", "))
		return
	}
	if other := c.codes[found.Code]; other != nil {
		place := problemAt(other, "")
		c.refuse(rule.Loc(), "the code %s is that of the `deny` at %s:%d of bundle %s already: a code names one ground",
			found.Code, place.File, place.Line, place.Bundle)
		return
	}
	c.codes[found.Code] = rule.Loc()
	found.Terminal = isTerminal
	place := problemAt(rule.Loc(), "")
	found.Bundle, found.File, found.Line = place.Bundle, place.File, place.Line
	c.rules = append(c.rules, found)
}

// impure refuses what the compiler would let pass: print, which it erases, and the machine's own time zone.
func (c *collector) impure(module *ast.Module) {
	walkCalls(module, func(operator *ast.Term, operands []*ast.Term) {
		switch name := operator.String(); {
		case name == ast.Print.Name:
			c.refuse(operator.Loc(), "print may not be used in policy: records go elsewhere. Use it in tests only")
		case strings.HasPrefix(name, "time."):
			for _, operand := range operands {
				c.zone(operand)
			}
		}
	})
}

// zone refuses a time zone that is another one elsewhere, or none.
func (c *collector) zone(operand *ast.Term) {
	if holdsLocal(operand) {
		c.refuse(operand.Loc(), `the time zone "Local" is another one on every machine: name the zone, for example "Europe/Zurich"`)
		return
	}
	pair, isArray := operand.Value.(*ast.Array)
	if !isArray || pair.Len() < 2 {
		return
	}
	if name, isText := pair.Elem(1).Value.(ast.String); isText {
		if _, err := time.LoadLocation(string(name)); err != nil {
			c.refuse(operand.Loc(), `there is no time zone %s: name one as in "Europe/Zurich"`, name)
		}
	}
}

func holdsLocal(operand *ast.Term) bool {
	found := false
	ast.WalkTerms(operand, func(t *ast.Term) bool {
		found = found || t.Value.Compare(ast.String("Local")) == 0
		return found
	})
	return found
}

// ruleOf tells which rule a path below data belongs to, and how deep below rules/ it lies: 1 is the rule's own package, 0
// rules itself, -1 elsewhere.
func ruleOf(ref ast.Ref) (name string, depth int) {
	if len(ref) < 3 {
		return "", -1
	}
	root, isString := ref[1].Value.(ast.String)
	if !isString || (root != "regent" && root != "org") || !ref[2].Equal(rulesTerm) {
		return "", -1
	}
	if len(ref) == 3 {
		return "", 0
	}
	folder, isString := ref[3].Value.(ast.String)
	if !isString {
		return "", 0
	}
	if root == "org" {
		return "org/" + string(folder), len(ref) - 3
	}
	return string(folder), len(ref) - 3
}

var rulesTerm = ast.StringTerm("rules")
