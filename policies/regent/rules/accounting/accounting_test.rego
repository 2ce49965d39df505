package regent.rules.accounting_test

import data.regent.fixture_test as fixture
import data.regent.rules.accounting

_denied(document, allowed) := codes if {
	settings := object.union(fixture.settings, {"accounting": allowed})
	denials := accounting.deny with input as document with data.regent.settings as settings
	codes := fixture.codes(denials)
}

_nothing := {"unmetered": false, "money_after_subscription": false}

_attempt(kind) := {"source": "source-2", "provider": "openai", "reason": "timeout", "accounting": kind}

_after(kinds, candidate) := json.patch(fixture.input_document, [
	{"op": "replace", "path": "/attempts", "value": [_attempt(kind) | some kind in kinds]},
	{"op": "replace", "path": "/candidate/accounting", "value": candidate},
])

test_allows_what_is_paid if {
	every kind in {"api_key", "subscription"} {
		_denied(fixture.with_field("/candidate/accounting", kind), _nothing) == set()
	}
}

test_denies_what_nothing_is_charged_for_unless_it_is_allowed if {
	document := fixture.with_field("/candidate/accounting", "unmetered")
	_denied(document, _nothing) == {"SOURCE_UNMETERED"}
	_denied(document, {}) == {"SOURCE_UNMETERED"}
	_denied(document, {"unmetered": true}) == set()
}

test_denies_ways_of_paying_that_are_not_known if {
	every kind in {"", "barter", null, 5} {
		_denied(fixture.with_field("/candidate/accounting", kind), _nothing) == {"SOURCE_UNMETERED"}
	}
}

test_denies_money_after_a_subscription_unless_it_is_allowed if {
	every kinds in {["subscription"], ["api_key", "subscription"], ["subscription", "api_key"]} {
		_denied(_after(kinds, "api_key"), _nothing) == {"MONEY_AFTER_SUBSCRIPTION"}
		_denied(_after(kinds, "api_key"), {"money_after_subscription": true}) == set()
	}
}

test_allows_all_else_after_an_attempt if {
	_denied(_after(["api_key"], "api_key"), _nothing) == set()
	_denied(_after(["api_key"], "subscription"), _nothing) == set()
	_denied(_after(["subscription"], "subscription"), _nothing) == set()
	_denied(_after(["subscription"], "unmetered"), {"unmetered": true}) == set()
}

test_denies_by_the_default_settings if {
	unmetered := accounting.deny with input as fixture.with_field("/candidate/accounting", "unmetered")
	fixture.codes(unmetered) == {"SOURCE_UNMETERED"}
	money := accounting.deny with input as _after(["subscription"], "api_key")
	fixture.codes(money) == {"MONEY_AFTER_SUBSCRIPTION"}
}

test_denies_without_the_settings if {
	denials := accounting.deny with input as _after(["subscription"], "barter") with data.regent.settings as {}
	fixture.codes(denials) == {"SOURCE_UNMETERED", "MONEY_AFTER_SUBSCRIPTION"}
}

test_denies_if_a_field_is_missing if {
	_denied(fixture.without_field("/candidate/accounting"), _nothing) == {"SOURCE_UNMETERED"}
	_denied(json.remove(_after(["subscription"], "api_key"), ["/attempts/0/accounting"]), _nothing) == {"MONEY_AFTER_SUBSCRIPTION"}
	_denied(fixture.without_field("/attempts"), _nothing) == {"MONEY_AFTER_SUBSCRIPTION"}
}
