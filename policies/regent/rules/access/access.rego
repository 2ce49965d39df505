# METADATA
# title: Access
# description: >-
#   In force where the settings hold access: who may use inference at all, and which of the published models. A host that
#   decides this itself leaves access out.
package regent.rules.access

import data.regent.lib

# METADATA
# title: The caller may not use inference
# description: Neither the user nor one of the user's groups is granted the feature feat:ai:use.
# custom:
#   code: INFERENCE_NOT_GRANTED
#   remedy: Ask an administrator to grant feat:ai:use to you or to one of your groups.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	grants := data.regent.settings.access
	not _inference_is_granted(grants)
}

# METADATA
# title: The caller may not use this model
# description: The model is not published, or is published to other users and groups only.
# custom:
#   code: MODEL_NOT_GRANTED
#   remedy: Choose a model that is published to you, or ask an administrator to publish this one to one of your groups.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	grants := data.regent.settings.access
	not _model_is_granted(grants)
}

_inference_is_granted(grants) if "feat:ai:use" in grants.users[input.identity.user]

_inference_is_granted(grants) if {
	some group in input.identity.groups
	"feat:ai:use" in grants.groups[group]
}

_model_is_granted(grants) if grants.models[input.call.model].everyone == true

_model_is_granted(grants) if input.identity.user in grants.models[input.call.model].users

_model_is_granted(grants) if {
	some group in input.identity.groups
	group in grants.models[input.call.model].groups
}
