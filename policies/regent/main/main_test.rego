package regent.main_test

import data.regent.fixture_test as fixture
import data.regent.main

# Wherever a decision is looked at as a whole, rules of an organisation that may be loaded beside are put away.
test_allows_what_no_rule_denies if {
	decision := main.decision with input as fixture.input_document
		with data.regent.settings as fixture.settings
		with data.org.rules as {}
	decision == {"allow": true, "denials": set(), "honour_routing": false}
}

test_allows_by_the_default_settings if {
	main.decision.allow with input as fixture.input_document with data.org.rules as {}
}

test_denies_with_the_name_of_the_folder if {
	decision := main.decision with input as fixture.with_field("/candidate/enabled", false)
		with data.org.rules as {}
	decision.allow == false
	some denial in decision.denials
	denial == {
		"rule": "availability",
		"code": "SOURCE_DISABLED",
		"title": "The source is switched off",
		"remedy": "Choose another model, or ask an administrator to switch this one on.",
		"terminal": false,
	}
	count(decision.denials) == 1
}

test_collects_every_denial if {
	document := json.patch(fixture.input_document, [
		{"op": "replace", "path": "/candidate/enabled", "value": false},
		{"op": "replace", "path": "/candidate/priced", "value": false},
	])
	decision := main.decision with input as document with data.org.rules as {}
	{[denial.rule, denial.code] | some denial in decision.denials} == {
		["availability", "SOURCE_DISABLED"],
		["strict_budget", "SOURCE_UNPRICED"],
	}
}

test_collects_rules_of_the_organisation if {
	denial := {"code": "CLOSED", "title": "Closed", "remedy": "Come back on Monday.", "terminal": true}
	decision := main.decision with input as fixture.input_document
		with data.org.rules as {"weekdays": {"deny": {denial}}}
	decision.allow == false
	decision.denials == {object.union(denial, {"rule": "org/weekdays"})}
}

test_denies_by_a_rule_that_answers_with_anything_else if {
	decision := main.decision with input as fixture.input_document
		with data.org.rules as {"weekdays": {"deny": {"closed"}}}
	decision.allow == false
	decision.denials == {{"rule": "org/weekdays", "malformed": "closed"}}
}

test_honours_routing_only_if_the_settings_say_so if {
	every setting, honoured in {"honour": true, "strip": false, "refuse": false, "unknown": false} {
		decision := main.decision with input as fixture.input_document
			with data.regent.settings.openrouter_routing as setting
			with data.org.rules as {}
		decision.honour_routing == honoured
	}
}

test_denies_without_settings if {
	decision := main.decision with input as fixture.input_document with data.regent.settings as "none"
	decision.allow == false
}

test_denies_an_empty_input if {
	_incomplete(main.decision) with input as {}
}

test_denies_an_absent_input if {
	_incomplete(main.decision)
}

# The paths of all fields, so that a field that is added is tested too.
_fields contains concat("/", array.concat([""], path)) if {
	walk(fixture.input_document, [path, _])
	count(path) > 0
	every step in path {
		is_string(step)
	}
}

test_knows_every_field if {
	count(_fields) == 37
	{"/now", "/call", "/candidate/source", "/attempts"} & _fields == {"/now", "/call", "/candidate/source", "/attempts"}
}

test_denies_each_field_missing if {
	every field in _fields {
		_incomplete(main.decision) with input as fixture.without_field(field)
	}
}

# A set is the type that no field has.
test_denies_each_field_of_a_wrong_type if {
	every field in _fields {
		_incomplete(main.decision) with input as fixture.with_field(field, {"wrong"})
	}
}

_nullable := {
	"/call/residency",
	"/call/input_tokens",
	"/call/output_tokens_max",
	"/identity/user",
	"/identity/tenant",
	"/identity/principal",
	"/identity/principal_kind",
	"/candidate/residency",
	"/candidate/context_tokens",
	"/candidate/output_tokens_max",
	"/candidate/input_price",
	"/candidate/output_price",
}

test_denies_null_except_where_it_means_unknown if {
	every field in _fields - _nullable {
		_incomplete(main.decision) with input as fixture.with_field(field, null)
	}
	every field in _nullable {
		main.decision.allow with input as fixture.with_field(field, null) with data.org.rules as {}
	}
}

test_denies_lists_of_anything_but_strings if {
	lists := {"/call/modalities", "/identity/groups", "/candidate/protocols", "/candidate/modalities"}
	every list in lists {
		every element in {null, true, 1, ["text"], {"text": "text"}} {
			_incomplete(main.decision) with input as fixture.with_field(list, ["text", element])
		}
	}
}

test_allows_empty_lists if {
	document := json.patch(fixture.input_document, [
		{"op": "replace", "path": "/call/modalities", "value": []},
		{"op": "replace", "path": "/identity/groups", "value": []},
		{"op": "replace", "path": "/candidate/modalities", "value": []},
	])
	main.decision.allow with input as document with data.org.rules as {}
}

test_denies_incomplete_attempts if {
	attempt := {"source": "source-2", "provider": "openai", "reason": "timeout", "accounting": "api_key"}
	main.decision.allow with input as fixture.with_field("/attempts", [attempt]) with data.org.rules as {}
	every field in object.keys(attempt) {
		missing := json.remove(attempt, [field])
		_incomplete(main.decision) with input as fixture.with_field("/attempts", [missing])
		_incomplete(main.decision) with input as fixture.with_field("/attempts", [attempt, missing])
		wrong := object.union(attempt, {field: null})
		_incomplete(main.decision) with input as fixture.with_field("/attempts", [wrong])
	}
}

# An input that is incomplete is denied whatever the rules would say, and they are not asked.
test_denies_incomplete_input_without_asking_the_rules if {
	_incomplete(main.decision) with input as fixture.without_field("/now") with data.regent.rules as {}
	_incomplete(main.decision) with input as fixture.without_field("/now") with data.org.rules as {"closed": {"deny": {"closed"}}}
}

_incomplete(decision) if {
	decision.allow == false
	decision.honour_routing == false
	fixture.codes(decision.denials) == {"INCOMPLETE_INPUT"}
	every denial in decision.denials {
		denial.rule == "main"
		denial.terminal == true
	}
}

# The document that tests of selections start from is the one of a decision, but for its candidates.
test_the_fixture_of_selections_holds_two_candidates if {
	[candidate.source | some candidate in fixture.selection_document.candidates] == ["source-1", "source-2"]
	object.keys(fixture.selection_document) == {"now", "call", "identity", "candidates"}
}
