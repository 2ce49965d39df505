package policy_test

import (
	"fmt"
	"strings"
	"testing"
)

// What a bundle may try to take the gateway along with, or to be no rule in silence. Loading says what is wrong, and where.
func TestHostileBundlesAreRefused(t *testing.T) {
	nested := func(n int, open, inner, end string) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	schema := func(text string) map[string]string { // of data that a module names it for
		return map[string]string{
			closedFile:           strings.Replace(closed, "package", "# METADATA\n# schemas:\n#   - input: schema.input.candidate\n#   - data.org.x: schema.org.x\npackage", 1),
			"schemas/org/x.json": text, "org/data.json": `{"x": {"n": 1}}`,
		}
	}
	data := func(text string) map[string]string {
		return map[string]string{closedFile: closed, "org/data.json": text}
	}
	body := func(text string) map[string]string {
		return map[string]string{closedFile: ruleNamed("closed", "CLOSED", text)}
	}
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a schema of itself":             {schema(`{"properties": {"n": {"$ref": "#"}}}`), "bundle org: schemas/org/x.json: with what it refers to, it has more than 64 levels or 10000 parts, or refers to itself"},
		"a schema that is itself":        {schema(`{"$ref": "#"}`), "or refers to itself"},
		"a circle of schemas":            {schema(`{"definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"allOf": [{"$ref": "#/definitions/a"}]}}, "$ref": "#/definitions/a"}`), "or refers to itself"},
		"a schema that doubles":          {schema(`{"definitions": {"d0": {}` + doubling(30) + `}, "$ref": "#/definitions/d30"}`), "or refers to itself"},
		"a schema of the host's files":   {schema(`{"$ref": "file:///etc/passwd"}`), `it refers to "file:///etc/passwd": a schema refers to its own parts alone`},
		"a schema of elsewhere":          {schema(`{"properties": {"a": {"$ref": "http://127.0.0.1:1/x.json"}}}`), `it refers to "http://127.0.0.1:1/x.json"`},
		"a schema that has moved":        {schema(`{"$id": "file:///etc/", "properties": {"a": {"$ref": "#/x"}}}`), "it has the $id"},
		"a schema of nothing":            {schema(`{"$ref": "#/definitions/a"}`), `it refers to "#/definitions/a", which is not there`},
		"an inline schema of a file":     {map[string]string{closedFile: strings.Replace(closed, "package", "# METADATA\n# schemas:\n#   - input: schema.input.candidate\n#   - data.org.x: {$ref: \"file:///etc/passwd\"}\npackage", 1), "org/data.json": `{"x": {}}`}, `the schema of data.org.x: it refers to "file:///etc/passwd"`},
		"a schema of a file in a test":   {map[string]string{closedFile: closed, "org/rules/closed/closed_test.rego": "# METADATA\n# schemas:\n#   - input: {\"$ref\": \"file:///etc/passwd\"}\npackage org.rules.closed_test\n\ntest_1 if input.a == 1\n"}, `the schema of input: it refers to "file:///etc/passwd"`},
		"a schema of itself in a test":   {map[string]string{closedFile: closed, "org/rules/closed/closed_test.rego": "# METADATA\n# schemas:\n#   - input: {\"$ref\": \"#\"}\npackage org.rules.closed_test\n\ntest_1 if input.a == 1\n"}, "or refers to itself"},
		"an input of its own":            {map[string]string{closedFile: strings.Replace(closed, "# custom:", "# schemas:\n#   - input: {type: object}\n# custom:", 1)}, "the input of a rule is schema.input.candidate, and no other"},
		"a built-in in disguise":         {body("count(_h) > 5 with _s as sprintf"), "the built-in sprintf may not stand for something else"},
		"a format of its own in a test":  {map[string]string{closedFile: closed, "org/rules/closed/closed_test.rego": "package org.rules.closed_test\n\ntest_1 if count(sprintf(concat(\"\", [s | some i in numbers.range(1, 6000); s := \"%999999[1]d\"]), [1])) > 0\n"}, "a format has to be written out"},
		"a helper's negation":            {map[string]string{closedFile: ruleNamed("closed", "CLOSED", "data.org.shared.unlisted"), "org/shared/shared.rego": "package org.shared\n\nunlisted if not input.call.model in data.org.models\n"}, "org/shared/shared.rego:3: this negation is undefined"},
		"roots twice":                    {map[string]string{closedFile: closed, ".manifest": `{"roots": ["org"], "rego_version": 1, "roots": ["org", "more"]}`}, `bundle org: .manifest: the key "roots" is there twice`},
		"schemas that hide the fields":   {map[string]string{closedFile: ruleNamed("closed", "CLOSED", `input.call.modle == "x"`), "org/org.rego": "# METADATA\n# scope: subpackages\n# schemas:\n#   - data.org.l: schema.org.l\npackage org\n", "schemas/org/l.json": `{"type": "object"}`, "org/data.json": `{"l": {}}`}, "undefined ref: input.call.modle"},
		"an absurd number in data":       {data(`{"n": 1e30000000}`), "bundle org: the number 1e30000000 has more than 400 digits"},
		"an absurd number in a module":   {body("input.now > 1e30000000"), "closed.rego:12: number too big"},
		"a long number":                  {data(`{"n": ` + strings.Repeat("9", 1000) + `}`), "has more than 400 digits"},
		"a key twice":                    {data(`{"a": 1, "a": 2}`), `bundle org: org/data.json: the key "a" is there twice`},
		"a key twice in YAML":            {map[string]string{closedFile: closed, "org/data.yaml": "a: 1\na: 2\n"}, "bundle org: org/data.yaml: "},
		"two documents":                  {map[string]string{closedFile: closed, "org/data.yaml": "a: 1\n---\nb: 2\n"}, "bundle org: org/data.yaml: it holds more than one document"},
		"a module in capitals":           {map[string]string{closedFile: closed, "org/rules/late/late.REGO": ruleNamed("late", "LATE", "input.now > 0")}, "org/rules/late/late.REGO is no module for OPA: write its ending as .rego"},
		"a rule in a file of tests":      {map[string]string{closedFile: closed, "org/rules/load/load_test.rego": ruleNamed("load", "LOAD", "input.now > 0")}, "org/rules/load/load_test.rego:1: the package data.org.rules.load is in a file of tests"},
		"a rule that is called a test":   {map[string]string{closedFile: closed, "org/rules/load_test/load_test.rego": ruleNamed("load_test", "LOAD", "input.now > 0")}, "org/rules/load_test/load_test.rego:1: this file is one of tests, and nobody asks its `deny`"},
		"a shift by much":                {body("bits.lsh(1, input.call.input_tokens) > 0"), "bits.lsh may not be used in policy"},
		"a shift by much in a test":      {map[string]string{closedFile: closed, "org/rules/closed/closed_test.rego": "package org.rules.closed_test\n\ntest_x if bits.lsh(1, 9000000000000000) > 0\n"}, "bits.lsh may not be used in policy"},
		"all ways of a graph":            {body(`count(graph.reachable_paths({"a": ["b"]}, {"a"})) > 0`), "graph.reachable_paths may not be used in policy"},
		"a format that fills up":         {body(`sprintf("%999999d", [1]) == ""`), "closed.rego:12: a format has to be written out, and to name no width"},
		"a width of its own":             {body(`sprintf("%*d", [9, 1]) == ""`), "a format has to be written out, and to name no width"},
		"a format of data":               {body(`sprintf(input.call.model, [1]) == ""`), "a format has to be written out"},
		"a pattern of data":              {map[string]string{closedFile: ruleNamed("closed", "CLOSED", `regex.match(data.org.p, input.call.model)`), "org/data.json": `{"p": "a"}`}, "closed.rego:12: a regular expression has to be written out"},
		"comprehensions in each other":   {body("count(" + nested(20, "[1 | _ := ", "[]", "]") + ") > 0"), "the module nests more than 8 comprehensions or 64 calls and collections"},
		"calls in each other":            {body(nested(100, "abs(", "input.now", ")") + " > 0"), "the module nests more than 8 comprehensions or 64 calls and collections"},
		"a sum of very much":             {body(strings.Repeat("1 + ", 2000) + "1 > 0"), "the module nests more than"},
		"a body of very much":            {body("{\n" + strings.Repeat("\tinput.now > 0\n", 1001) + "}"), "this body has 1001 expressions, more than 1000"},
		"a title that hides the fields":  {map[string]string{closedFile: ruleNamed("closed", "CLOSED", `input.call.modle == "x"`), "org/org.rego": "# METADATA\n# title: Ours\npackage org\n"}, "undefined ref: input.call.modle"},
		"a selection that is data":       {map[string]string{closedFile: closed, "org/selection/data.json": `{"rank": ["a"]}`}, "data.org.selection is data: what ranks is a rule"},
		"a selection that does not rank": {map[string]string{closedFile: closed, "org/selection/selection.rego": "package org.selection\n\nranc := []\n"}, "org/selection/selection.rego:3: the package data.org.selection has no rule `rank`"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, loads(test.files), test.want) })
	}
}

// doubling are definitions each of which is twice the one before.
func doubling(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, `, "d%d": {"allOf": [{"$ref": "#/definitions/d%d"}, {"$ref": "#/definitions/d%d"}]}`, i+1, i, i)
	}
	return text.String()
}

// Two packages that expect different things of the same data are both heard.
func TestEverySchemaOfDataCounts(t *testing.T) {
	rule := func(name, code, schema string) string {
		return strings.Replace(ruleNamed(name, code, "data.org.l.n > 5"), "package", "# METADATA\n# schemas:\n#   - input: schema.input.candidate\n#   - data.org.l: "+schema+"\npackage", 1)
	}
	refused(t, loads(map[string]string{
		"org/rules/a/a.rego": rule("a", "A1", "{type: object}"),
		"org/rules/b/b.rego": rule("b", "B1", "{type: object, properties: {n: {type: integer}}}"),
		"org/data.json":      `{"l": {"n": "5"}}`,
	}), "data.org.l is not as its schema says: n: Invalid type. Expected: integer, given: string")
}

// References within a schema are read as they are written, and what is a value in it refers to nothing.
func TestSchemasMayReferToTheirParts(t *testing.T) {
	err := loads(map[string]string{
		closedFile: strings.Replace(closed, "package", "# METADATA\n# schemas:\n#   - input: schema.input.candidate\n#   - data.org.x: schema.org.x\npackage", 1),
		"schemas/org/x.json": `{"definitions": {"a/b": {"type": "integer"}}, "properties": {"id": {"type": "string"}, "n": {"anyOf": [{"$ref": "#/definitions/a~1b"}]},
			"m": {"$ref": "#/properties/n/anyOf/0"}, "d": {"default": {"id": "x"}}}}`,
		"org/data.json": `{"x": {"id": "x", "n": 1, "m": 2}}`,
	})
	if err != nil {
		t.Error(err)
	}
}
