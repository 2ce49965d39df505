package regent.rules.access_test

import data.regent.fixture_test as fixture
import data.regent.rules.access

_denied(document, grants) := codes if {
	settings := object.union(json.remove(fixture.settings, ["/access"]), {"access": grants})
	denials := access.deny with input as document with data.regent.settings as settings
	codes := fixture.codes(denials)
}

_everyone := {"acme/large": {"everyone": true}}

test_allows_by_groups if {
	_denied(fixture.input_document, fixture.settings.access) == set()
}

test_allows_by_the_user if {
	grants := {
		"users": {"ada": ["feat:ai:use"]},
		"groups": {},
		"models": {"acme/large": {"everyone": false, "users": ["ada"], "groups": []}},
	}
	_denied(fixture.input_document, grants) == set()
	_denied(fixture.with_field("/identity/groups", []), grants) == set()
	_denied(fixture.with_field("/identity/user", null), grants) == {"INFERENCE_NOT_GRANTED", "MODEL_NOT_GRANTED"}
}

test_allows_everyone_with_the_feature if {
	grants := {"users": {"ada": ["feat:ai:use"]}, "groups": {}, "models": _everyone}
	_denied(fixture.input_document, grants) == set()
	_denied(fixture.with_field("/identity/user", "bob"), grants) == {"INFERENCE_NOT_GRANTED"}
}

test_denies_without_the_feature if {
	grants := {"users": {"ada": ["feat:console:use"]}, "groups": {"staff": []}, "models": _everyone}
	_denied(fixture.input_document, grants) == {"INFERENCE_NOT_GRANTED"}
}

test_denies_a_model_that_is_published_to_others if {
	grants := {
		"users": {"ada": ["feat:ai:use"]},
		"groups": {},
		"models": {"acme/large": {"everyone": false, "users": ["bob"], "groups": ["sales"]}},
	}
	_denied(fixture.input_document, grants) == {"MODEL_NOT_GRANTED"}
}

test_denies_an_unknown_model if {
	grants := {"users": {"ada": ["feat:ai:use"]}, "groups": {}, "models": {}}
	_denied(fixture.input_document, grants) == {"MODEL_NOT_GRANTED"}
}

test_denies_by_malformed_grants if {
	every malformed in {"everyone", 1, true, false, null, {}} {
		_denied(fixture.input_document, malformed) == {"INFERENCE_NOT_GRANTED", "MODEL_NOT_GRANTED"}
	}
}

test_checks_nothing_unless_configured if {
	access.deny == set() with input as fixture.with_field("/call/model", "unknown")
}

test_denies_without_the_user if {
	grants := {"users": {"ada": ["feat:ai:use"]}, "groups": {}, "models": {"acme/large": {"users": ["ada"]}}}
	_denied(fixture.without_field("/identity/user"), grants) == {"INFERENCE_NOT_GRANTED", "MODEL_NOT_GRANTED"}
}

test_denies_without_the_groups if {
	_denied(fixture.without_field("/identity/groups"), fixture.settings.access) == {
		"INFERENCE_NOT_GRANTED",
		"MODEL_NOT_GRANTED",
	}
}

test_denies_without_the_model if {
	grants := {"users": {"ada": ["feat:ai:use"]}, "groups": {}, "models": _everyone}
	_denied(fixture.without_field("/call/model"), grants) == {"MODEL_NOT_GRANTED"}
}

test_is_refused_without_each_field_it_reads if {
	every field in {"/call/model", "/identity/user", "/identity/groups"} {
		fixture.is_refused_without(field)
	}
}
