# METADATA
# title: Strict budget
# description: >-
#   In force unless the settings say "strict": false. Denies what cannot be bounded or priced before it is spent. What is left
#   of a limit is no matter of policy: the ledger decides that, in the transaction that holds the money.
package regent.rules.strict_budget

import data.regent.lib

# METADATA
# title: The call is not bounded
# description: Neither a limit nor the request bounds the tokens or the cost of the call.
# custom:
#   code: CALL_UNBOUNDED
#   remedy: Ask an administrator to set a limit for you, or bound the tokens or the cost of the request.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	not data.regent.settings.strict == false
	not input.call.tokens_bounded == true
	not input.call.cost_bounded == true
}

# METADATA
# title: The source has no price
# description: The price of the candidate is not known, or not for the service tier that the call asks for.
# custom:
#   code: SOURCE_UNPRICED
#   remedy: >-
#     Choose a model with a price, or ask an administrator to give this one a price; if the request names a service tier, leave
#     that out, or ask for its price.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	not data.regent.settings.strict == false
	not input.candidate.priced == true
}

# METADATA
# title: The output is not bounded
# description: Neither the request nor the candidate bounds the output.
# custom:
#   code: OUTPUT_UNBOUNDED
#   remedy: Bound the output tokens of the request.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	not data.regent.settings.strict == false
	not is_number(input.call.output_tokens_max)
	not is_number(input.candidate.output_tokens_max)
}
