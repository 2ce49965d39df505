package regent.rules.openrouter_test

import data.regent.fixture_test as fixture
import data.regent.rules.openrouter

_denied(document, setting) := codes if {
	denials := openrouter.deny with input as document with data.regent.settings.openrouter_routing as setting
	codes := fixture.codes(denials)
}

_routed := fixture.with_field("/candidate/openrouter_routing", true)

test_allows_where_it_is_stripped_or_honoured if {
	every setting in {"strip", "honour"} {
		_denied(_routed, setting) == set()
		_denied(fixture.input_document, setting) == set()
	}
}

test_denies_what_a_candidate_would_act_on_where_it_is_refused if {
	_denied(_routed, "refuse") == {"OPENROUTER_ROUTING_REFUSED"}
	_denied(fixture.input_document, "refuse") == set()
}

test_strips_by_default if {
	openrouter.deny == set() with input as _routed
	openrouter.honour == false with input as _routed
}

test_honours_only_if_the_setting_says_so if {
	openrouter.honour with data.regent.settings.openrouter_routing as "honour"
	every setting in {"strip", "refuse", "HONOUR", true, null} {
		openrouter.honour == false with data.regent.settings.openrouter_routing as setting
	}
}

test_denies_by_an_unknown_setting if {
	every setting in {"", "Honour", true, null} {
		_denied(fixture.input_document, setting) == {"OPENROUTER_SETTING_UNKNOWN"}
	}
}

test_denies_without_settings if {
	denials := openrouter.deny with input as fixture.input_document with data.regent.settings as "none"
	fixture.codes(denials) == {"OPENROUTER_SETTING_UNKNOWN"}
}

test_denies_without_the_field_where_it_is_refused if {
	_denied(fixture.without_field("/candidate/openrouter_routing"), "refuse") == {"OPENROUTER_ROUTING_REFUSED"}
}

test_is_refused_without_each_field_it_reads if {
	every field in {"/candidate/openrouter_routing"} {
		fixture.is_refused_without(field)
	}
}
