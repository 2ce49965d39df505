# METADATA
# title: Availability
# description: What the candidate cannot do for this call, now. Another candidate may, so that no denial is terminal.
package regent.rules.availability

import data.regent.lib

# METADATA
# title: The source is switched off
# description: The model, the source or its connection is disabled.
# custom:
#   code: SOURCE_DISABLED
#   remedy: Choose another model, or ask an administrator to switch this one on.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if not input.candidate.enabled == true

# METADATA
# title: The connection is not authorised
# description: The provider has not accepted the credentials of the source's connection, or not yet.
# custom:
#   code: CONNECTION_NOT_AUTHORISED
#   remedy: Ask an administrator to authorise the connection again.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if not input.candidate.connection == "authorised"

# METADATA
# title: What is known of the source is stale
# description: Discovery has not confirmed the source for too long to rely on its capabilities and prices.
# custom:
#   code: SOURCE_STALE
#   remedy: Try again later, or ask an administrator to run discovery for the connection.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if not input.candidate.stale == false

# METADATA
# title: The source is cooling down
# description: The provider asked to be left alone for a while, and the while is not over.
# custom:
#   code: SOURCE_COOLING
#   remedy: Try again in a moment.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if not input.candidate.cooling_until <= input.now

# METADATA
# title: The source does not serve the protocol
# description: The client's protocol is none of those that the candidate serves.
# custom:
#   code: PROTOCOL_NOT_SERVED
#   remedy: Call the model by a protocol that it is published for.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if not input.call.protocol in input.candidate.protocols

# METADATA
# title: The source does not accept a modality
# description: The request contains images, audio or files that the candidate does not accept.
# custom:
#   code: MODALITY_NOT_ACCEPTED
#   remedy: Leave such content out, or choose a model that accepts it.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if {
	not input.call.modalities == []
	not _modalities_are_accepted
}

# METADATA
# title: The request does not fit the model's context
# description: >-
#   The estimate of the prompt is larger than the candidate's context. A size that is not known (null) is not held against it.
# custom:
#   code: CONTEXT_EXCEEDED
#   remedy: Shorten the request, or choose a model with a larger context.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if {
	not input.candidate.context_tokens == null
	not input.call.input_tokens <= input.candidate.context_tokens # null is less than every number
}

# METADATA
# title: The request asks for more output than the model gives
# description: The request's own bound of its output is larger than the candidate's. An unknown one is not held against it.
# custom:
#   code: OUTPUT_EXCEEDED
#   remedy: Ask for fewer output tokens, or choose a model that gives more.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if {
	not input.candidate.output_tokens_max == null
	not input.call.output_tokens_max <= input.candidate.output_tokens_max # null is less than every number
}

_modalities_are_accepted if {
	every modality in input.call.modalities {
		modality in input.candidate.modalities
	}
}
