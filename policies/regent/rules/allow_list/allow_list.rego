# METADATA
# title: Allow-list
# description: >-
#   Restricts providers and models to those of the settings' allow_list. Where both lists are given both must pass. A list that
#   is absent does not restrict, an empty one denies everything, "*" means everything.
package regent.rules.allow_list

import data.regent.lib

# METADATA
# title: The provider is not on the allow-list
# description: The candidate's provider is none of allow_list.providers, which hold exact ids of providers.
# custom:
#   code: PROVIDER_NOT_ALLOWED
#   remedy: Choose a model of an allowed provider, or ask an administrator to add the provider to the allow-list.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	allowed := data.regent.settings.allow_list.providers
	not "*" in allowed
	not input.candidate.provider in allowed
}

# METADATA
# title: The model is not on the allow-list
# description: >-
#   None of allow_list.models is the provider's own name of the candidate's model, alone or as provider/model. An entry that
#   begins with the id of a configured provider and a slash means that provider's model, never a name of another's.
# custom:
#   code: MODEL_NOT_ALLOWED
#   remedy: Choose a model that is allowed, or ask an administrator to add this one to the allow-list.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	allowed := data.regent.settings.allow_list.models
	not "*" in allowed
	provider_and_model := concat("/", [input.candidate.provider, input.candidate.model])
	not provider_and_model in allowed
	not _is_allowed_alone(allowed)
}

# Without the ids of the configured providers nobody knows what an entry means: then it means nothing.
_is_allowed_alone(allowed) if {
	input.candidate.model in allowed
	every provider in data.regent.settings.providers {
		not startswith(input.candidate.model, concat("", [provider, "/"]))
	}
}
