package regent.rules.availability_test

import data.regent.fixture_test as fixture
import data.regent.rules.availability

_denied(document) := codes if {
	denials := availability.deny with input as document
	codes := fixture.codes(denials)
}

test_allows_a_candidate_that_can_serve_the_call if {
	_denied(fixture.input_document) == set()
}

test_denies_a_source_that_is_switched_off if {
	_denied(fixture.with_field("/candidate/enabled", false)) == {"SOURCE_DISABLED"}
}

test_denies_a_connection_that_is_not_authorised if {
	every state in {"pending", "needs_reauthorisation", "", "AUTHORISED"} {
		_denied(fixture.with_field("/candidate/connection", state)) == {"CONNECTION_NOT_AUTHORISED"}
	}
}

test_denies_a_stale_source if {
	_denied(fixture.with_field("/candidate/stale", true)) == {"SOURCE_STALE"}
}

test_denies_a_source_until_it_has_cooled_down if {
	now := fixture.input_document.now
	_denied(fixture.with_field("/candidate/cooling_until", now + 1000)) == {"SOURCE_COOLING"}
	_denied(fixture.with_field("/candidate/cooling_until", now)) == set()
}

test_denies_a_protocol_that_is_not_served if {
	_denied(fixture.with_field("/call/protocol", "anthropic.messages")) == {"PROTOCOL_NOT_SERVED"}
	_denied(fixture.with_field("/candidate/protocols", [])) == {"PROTOCOL_NOT_SERVED"}
}

test_denies_a_modality_that_is_not_accepted if {
	_denied(fixture.with_field("/call/modalities", ["image", "audio"])) == {"MODALITY_NOT_ACCEPTED"}
	_denied(fixture.with_field("/candidate/modalities", [])) == {"MODALITY_NOT_ACCEPTED"}
	_denied(fixture.with_field("/call/modalities", ["file", "image"])) == set()
	_denied(fixture.with_field("/call/modalities", [])) == set()
}

test_denies_a_request_that_is_larger_than_the_context if {
	_denied(fixture.with_field("/call/input_tokens", 100001)) == {"CONTEXT_EXCEEDED"}
	_denied(fixture.with_field("/call/input_tokens", 100000)) == set()
}

test_denies_a_request_for_more_output_than_the_model_gives if {
	_denied(fixture.with_field("/call/output_tokens_max", 4001)) == {"OUTPUT_EXCEEDED"}
	_denied(fixture.with_field("/call/output_tokens_max", 4000)) == set()
}

test_does_not_hold_an_unknown_size_against_a_candidate if {
	sizes := {"/call/input_tokens", "/call/output_tokens_max", "/candidate/context_tokens", "/candidate/output_tokens_max"}
	every size in sizes {
		_denied(fixture.with_field(size, null)) == set()
	}
}

test_is_refused_without_each_field_it_reads if {
	fields := {
		"/now",
		"/call/protocol",
		"/call/modalities",
		"/call/input_tokens",
		"/call/output_tokens_max",
		"/candidate/enabled",
		"/candidate/connection",
		"/candidate/stale",
		"/candidate/cooling_until",
		"/candidate/protocols",
		"/candidate/modalities",
		"/candidate/context_tokens",
		"/candidate/output_tokens_max",
	}
	every field in fields {
		fixture.is_refused_without(field)
	}
}
