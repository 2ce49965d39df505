package regent.rules.fallback_test

import data.regent.fixture_test as fixture
import data.regent.rules.fallback

_denied(attempts) := _codes(fixture.with_field("/attempts", attempts))

_codes(document) := codes if {
	denials := fallback.deny with input as document with data.regent.settings as fixture.settings
	codes := fixture.codes(denials)
}

_attempt(source, reason) := {"source": source, "provider": "openai", "reason": reason, "accounting": "api_key"}

test_allows_the_first_candidate if {
	_denied([]) == set()
}

test_allows_another_candidate_after_a_reason_of_the_settings if {
	_denied([_attempt("source-2", "rate_limited")]) == set()
	_denied([_attempt("source-2", "invalid_request"), _attempt("source-3", "timeout")]) == set()
}

test_denies_after_any_other_reason if {
	every reason in {"invalid_request", "content_policy", "context_length", "unheard_of", ""} {
		_denied([_attempt("source-2", "timeout"), _attempt("source-3", reason)]) == {"FALLBACK_NOT_ALLOWED"}
	}
}

test_denies_a_source_that_was_tried if {
	_denied([_attempt("source-1", "timeout")]) == {"SOURCE_ATTEMPTED"}
	_denied([_attempt("source-1", "timeout"), _attempt("source-2", "timeout")]) == {"SOURCE_ATTEMPTED"}
}

test_allows_the_same_provider_by_another_source if {
	_denied([_attempt("source-2", "timeout")]) == set()
}

test_the_default_settings_name_what_another_source_may_mend if {
	reasons := {
		"credential": true,
		"model_missing": true,
		"rate_limited": true,
		"overloaded": true,
		"upstream_error": true,
		"connection": true,
		"timeout": true,
		"stream_broken": true,
		"invalid_request": false,
		"context_length": false,
		"content_policy": false,
	}
	every reason, mends in reasons {
		denials := fallback.deny with input as fixture.with_field("/attempts", [_attempt("source-2", reason)])
		count(denials) == 0 == mends
	}
}

test_denies_without_the_settings if {
	document := fixture.with_field("/attempts", [_attempt("source-2", "timeout")])
	every settings in {"none", {}, {"fallback": {}}, {"fallback": {"on": "timeout"}}} {
		denials := fallback.deny with input as document with data.regent.settings as settings
		fixture.codes(denials) == {"FALLBACK_NOT_ALLOWED"}
	}
}

test_denies_without_the_attempts if {
	_codes(fixture.without_field("/attempts")) == {"SOURCE_ATTEMPTED", "FALLBACK_NOT_ALLOWED"}
}

test_denies_without_the_source_of_the_candidate if {
	document := json.remove(fixture.with_field("/attempts", [_attempt("source-2", "timeout")]), ["/candidate/source"])
	_codes(document) == {"SOURCE_ATTEMPTED"}
}

test_denies_without_the_source_of_an_attempt if {
	_denied([json.remove(_attempt("source-2", "timeout"), ["/source"])]) == {"SOURCE_ATTEMPTED"}
}

test_denies_without_the_reason_of_an_attempt if {
	_denied([json.remove(_attempt("source-2", "timeout"), ["/reason"])]) == {"FALLBACK_NOT_ALLOWED"}
}

test_is_refused_without_each_field_it_reads if {
	every field in {"/attempts", "/candidate/source"} {
		fixture.is_refused_without(field)
	}
}
