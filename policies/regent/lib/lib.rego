# METADATA
# title: Helpers that rules share
package regent.lib

# METADATA
# title: A denial
# description: >-
#   Built from the annotations of the rule that denies, handed over as rego.metadata.rule(). An annotation that is missing
#   leaves a gap in the text, never in the denial: undefined here would mean that the rule does not deny.
denial(annotations) := {
	"code": object.get(annotations, ["custom", "code"], "UNDOCUMENTED"),
	"title": object.get(annotations, "title", "A rule without a title"),
	"remedy": object.get(annotations, ["custom", "remedy"], "Ask the author of the rule."),
	"terminal": object.get(annotations, ["custom", "terminal"], true),
}
