package regent.rules.residency_test

import data.regent.fixture_test as fixture
import data.regent.rules.residency

_denied(document) := codes if {
	denials := residency.deny with input as document with data.regent.settings as fixture.settings
	codes := fixture.codes(denials)
}

test_allows_an_allowed_residency if {
	_denied(fixture.input_document) == set()
}

test_allows_a_candidate_that_declares_none if {
	_denied(fixture.with_field("/candidate/residency", null)) == set()
}

test_denies_a_residency_that_is_not_allowed if {
	document := json.patch(fixture.input_document, [
		{"op": "replace", "path": "/call/residency", "value": "us"},
		{"op": "replace", "path": "/candidate/residency", "value": "us"},
	])
	_denied(document) == {"RESIDENCY_NOT_ALLOWED"}
}

test_denies_a_call_that_asks_for_none if {
	"RESIDENCY_NOT_ALLOWED" in _denied(fixture.with_field("/call/residency", null))
}

test_denies_a_candidate_in_another_residency if {
	_denied(fixture.with_field("/candidate/residency", "ch")) == {"RESIDENCY_MISMATCH"}
}

test_denies_everything_by_an_empty_list if {
	denials := residency.deny with input as fixture.input_document with data.regent.settings.allowed_residencies as []
	fixture.codes(denials) == {"RESIDENCY_NOT_ALLOWED"}
}

test_denies_by_a_malformed_list if {
	every malformed in {"eu", 1, true, false, null} {
		denials := residency.deny with input as fixture.input_document
			with data.regent.settings.allowed_residencies as malformed
		fixture.codes(denials) == {"RESIDENCY_NOT_ALLOWED"}
	}
}

test_checks_nothing_unless_configured if {
	settings := json.remove(fixture.settings, ["/allowed_residencies"])
	residency.deny == set() with input as fixture.with_field("/call/residency", "us")
		with data.regent.settings as settings
}

test_is_refused_without_each_field_it_reads if {
	every field in {"/call/residency", "/candidate/residency"} {
		fixture.is_refused_without(field)
	}
}
