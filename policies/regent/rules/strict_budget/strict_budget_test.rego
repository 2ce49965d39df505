package regent.rules.strict_budget_test

import data.regent.fixture_test as fixture
import data.regent.rules.strict_budget

_denied(document) := codes if {
	denials := strict_budget.deny with input as document
	codes := fixture.codes(denials)
}

_with(changes) := json.patch(fixture.input_document, [{"op": "replace", "path": path, "value": value} |
	some path, value in changes
])

test_allows_what_is_bounded_and_priced if {
	_denied(fixture.input_document) == set()
}

test_one_bounded_dimension_is_enough if {
	_denied(_with({"/call/tokens_bounded": false})) == set()
	_denied(_with({"/call/cost_bounded": false})) == set()
}

test_denies_a_call_that_nothing_bounds if {
	_denied(_with({"/call/tokens_bounded": false, "/call/cost_bounded": false})) == {"CALL_UNBOUNDED"}
}

test_denies_a_source_without_a_price if {
	_denied(_with({"/candidate/priced": false})) == {"SOURCE_UNPRICED"}
}

test_one_bound_of_the_output_is_enough if {
	_denied(_with({"/call/output_tokens_max": null})) == set()
	_denied(_with({"/candidate/output_tokens_max": null})) == set()
}

test_denies_an_output_that_nothing_bounds if {
	_denied(_with({"/call/output_tokens_max": null, "/candidate/output_tokens_max": null})) == {"OUTPUT_UNBOUNDED"}
}

_worst := _with({
	"/call/tokens_bounded": false,
	"/call/cost_bounded": false,
	"/call/output_tokens_max": null,
	"/candidate/output_tokens_max": null,
	"/candidate/priced": false,
})

test_denies_nothing_if_not_strict if {
	strict_budget.deny == set() with input as _worst with data.regent.settings.strict as false
}

test_is_strict_unless_the_setting_is_false if {
	all_of_them := {"CALL_UNBOUNDED", "SOURCE_UNPRICED", "OUTPUT_UNBOUNDED"}
	every setting in {true, null, 0, "false"} {
		denials := strict_budget.deny with input as _worst with data.regent.settings.strict as setting
		fixture.codes(denials) == all_of_them
	}
	denials := strict_budget.deny with input as _worst with data.regent.settings as "none"
	fixture.codes(denials) == all_of_them
}

test_is_refused_without_each_field_it_reads if {
	fields := {
		"/call/tokens_bounded",
		"/call/cost_bounded",
		"/call/output_tokens_max",
		"/candidate/output_tokens_max",
		"/candidate/priced",
	}
	every field in fields {
		fixture.is_refused_without(field)
	}
}
