package regent.rules.allow_list_test

import data.regent.fixture_test as fixture
import data.regent.rules.allow_list

_denied(allow_list_setting, provider, model) := codes if {
	document := json.patch(fixture.input_document, [
		{"op": "replace", "path": "/candidate/provider", "value": provider},
		{"op": "replace", "path": "/candidate/model", "value": model},
	])
	settings := object.union(json.remove(fixture.settings, ["/allow_list"]), {"allow_list": allow_list_setting})
	denials := allow_list.deny with input as document with data.regent.settings as settings
	codes := fixture.codes(denials)
}

_neither := set()

test_allows_everything_without_lists if {
	settings := json.remove(fixture.settings, ["/allow_list"])
	allow_list.deny == set() with input as fixture.input_document with data.regent.settings as settings
	_denied({}, "openai", "gpt-large") == _neither
}

test_matches_providers_exactly if {
	_denied({"providers": ["openai"]}, "openai", "any") == _neither
	_denied({"providers": ["openai"]}, "openai-eu", "any") == {"PROVIDER_NOT_ALLOWED"}
	_denied({"providers": ["openai"]}, "OpenAI", "any") == {"PROVIDER_NOT_ALLOWED"}
}

test_matches_models_exactly if {
	_denied({"models": ["gpt-large"]}, "openai", "gpt-large") == _neither
	_denied({"models": ["gpt-large"]}, "openrouter", "gpt-large") == _neither
	_denied({"models": ["gpt-large"]}, "openai", "gpt-large-2") == {"MODEL_NOT_ALLOWED"}
}

test_matches_provider_and_model if {
	_denied({"models": ["openai/gpt-large"]}, "openai", "gpt-large") == _neither
	_denied({"models": ["openai/gpt-large"]}, "azure", "gpt-large") == {"MODEL_NOT_ALLOWED"}
}

# openrouter's own name of the model begins with the id of another configured provider.
test_an_entry_of_a_configured_provider_is_no_other_providers_model if {
	_denied({"models": ["openai/gpt-large"]}, "openrouter", "openai/gpt-large") == {"MODEL_NOT_ALLOWED"}
	_denied({"models": ["openrouter/openai/gpt-large"]}, "openrouter", "openai/gpt-large") == _neither
	_denied({"models": ["meta/llama"]}, "openrouter", "meta/llama") == _neither
}

test_denies_everything_by_an_empty_list if {
	_denied({"providers": []}, "openai", "gpt-large") == {"PROVIDER_NOT_ALLOWED"}
	_denied({"models": []}, "openai", "gpt-large") == {"MODEL_NOT_ALLOWED"}
}

test_allows_everything_by_a_star if {
	_denied({"providers": ["*"], "models": ["*"]}, "openai", "gpt-large") == _neither
}

test_asks_both_lists if {
	_denied({"providers": ["openai"], "models": ["gpt-small"]}, "openai", "gpt-large") == {"MODEL_NOT_ALLOWED"}
	_denied({"providers": ["azure"], "models": ["gpt-large"]}, "openai", "gpt-large") == {"PROVIDER_NOT_ALLOWED"}
	_denied({"providers": ["azure"], "models": []}, "openai", "gpt-large") == {"PROVIDER_NOT_ALLOWED", "MODEL_NOT_ALLOWED"}
}

test_denies_by_malformed_lists if {
	every malformed in {"*", 1, true, false, null} {
		_denied({"providers": malformed}, "openai", "gpt-large") == {"PROVIDER_NOT_ALLOWED"}
		_denied({"models": malformed}, "openai", "gpt-large") == {"MODEL_NOT_ALLOWED"}
	}
}

# Without the ids of the providers nobody knows whether an entry means a provider's model.
test_denies_a_bare_model_without_the_configured_providers if {
	settings := json.remove(fixture.settings, ["/providers"])
	denials := allow_list.deny with input as fixture.input_document with data.regent.settings as settings
	fixture.codes(denials) == {"MODEL_NOT_ALLOWED"}
}

test_is_refused_without_each_field_it_reads if {
	every field in {"/candidate/provider", "/candidate/model"} {
		fixture.is_refused_without(field)
	}
}
