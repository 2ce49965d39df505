# METADATA
# title: Residency
# description: >-
#   In force where the settings hold allowed_residencies: a call must ask for one of them, and is served only by candidates
#   that do not declare another one.
package regent.rules.residency

import data.regent.lib

# METADATA
# title: The call's residency is not allowed
# description: The call asks for no residency, or for one that is none of allowed_residencies.
# custom:
#   code: RESIDENCY_NOT_ALLOWED
#   remedy: Ask for one of the residencies that your organisation allows.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	allowed := data.regent.settings.allowed_residencies
	not input.call.residency in allowed
}

# METADATA
# title: The source is in another residency
# description: The candidate declares a residency that is not the one that the call asks for.
# custom:
#   code: RESIDENCY_MISMATCH
#   remedy: Choose a model that is served in the residency you ask for.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	data.regent.settings.allowed_residencies
	not input.candidate.residency in {null, input.call.residency}
}
