# METADATA
# title: The decision
# description: >-
#   Collects the `deny` of every folder under regent/rules and org/rules: a new folder is a new rule, and nothing is edited
#   here.
package regent.main

# METADATA
# title: May this candidate serve this call?
# description: >-
#   Only if the input is complete and no rule denies. The default answers for an incomplete input, and for missing settings,
#   whatever the rules would say: a rule that reads a missing field is undefined, and undefined denies nothing. The denials are
#   the union of what the rules deny, so that the engine may remember what some deny and ask others anew.
# entrypoint: true
# custom:
#   composition: union
default decision := {
	"allow": false,
	"denials": [{
		"rule": "main",
		"code": "INCOMPLETE_INPUT",
		"title": "The facts of the call are incomplete",
		"remedy": "The request is not at fault, the program that asked is. Report the id of the request to its operator.",
		"terminal": true,
	}],
	"honour_routing": false,
}

decision := judgement if {
	_input_is_complete
	is_object(data.regent.settings)
}

# METADATA
# title: What the rules say of a complete input
# description: >-
#   The engine asks for this where it has built the input itself, out of types that are complete, and has seen while loading that
#   the decision finds them complete. Everybody else asks for the decision.
judgement := {
	"allow": count(_denials) == 0,
	"denials": _denials,
	"honour_routing": data.regent.rules.openrouter.honour,
}

_denials contains _named(name, denial) if {
	some name
	some denial in data.regent.rules[name].deny
}

_denials contains _named(concat("/", ["org", name]), denial) if {
	some name
	some denial in data.org.rules[name].deny
}

_named(name, denial) := object.union(denial, {"rule": name}) if is_object(denial)

# Anything else still counts as a denial; whoever decodes the answer refuses it as malformed.
_named(name, denial) := {"rule": name, "malformed": denial} if not is_object(denial)
