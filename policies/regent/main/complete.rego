package regent.main

# Every field of the input, with its type. Rego orders values of different types instead of refusing to compare them
# ("5" > 100, null <= 0), so that a wrong type is as dangerous as a missing field. One flat list, since every call pays for it.
_input_is_complete if {
	is_number(input.now)

	is_string(input.call.model)
	is_string(input.call.protocol)
	is_string(input.call.kind)
	is_boolean(input.call.stream)
	type_name(input.call.residency) in {"null", "string"}
	is_array(input.call.modalities)
	type_name(input.call.input_tokens) in {"null", "number"}
	type_name(input.call.output_tokens_max) in {"null", "number"}
	is_boolean(input.call.tokens_bounded)
	is_boolean(input.call.cost_bounded)

	type_name(input.identity.user) in {"null", "string"}
	is_array(input.identity.groups)
	type_name(input.identity.tenant) in {"null", "string"}
	type_name(input.identity.principal) in {"null", "string"}
	type_name(input.identity.principal_kind) in {"null", "string"}

	is_string(input.candidate.source)
	is_string(input.candidate.provider)
	is_string(input.candidate.model)
	type_name(input.candidate.residency) in {"null", "string"}
	is_boolean(input.candidate.enabled)
	is_string(input.candidate.connection)
	is_boolean(input.candidate.stale)
	is_number(input.candidate.cooling_until)
	is_array(input.candidate.protocols)
	is_array(input.candidate.modalities)
	type_name(input.candidate.context_tokens) in {"null", "number"}
	type_name(input.candidate.output_tokens_max) in {"null", "number"}
	is_boolean(input.candidate.priced)
	type_name(input.candidate.input_price) in {"null", "number"}
	type_name(input.candidate.output_price) in {"null", "number"}
	is_boolean(input.candidate.openrouter_routing)
	is_string(input.candidate.accounting)

	is_array(input.attempts)
	every attempt in input.attempts {
		is_string(attempt.source)
		is_string(attempt.provider)
		is_string(attempt.reason)
		is_string(attempt.accounting)
	}

	# Between two strings everything is a string, so that the least and the greatest element speak for all. The empty string is
	# there because lists that are all empty have neither.
	elements := array.flatten([
		"",
		input.call.modalities,
		input.identity.groups,
		input.candidate.protocols,
		input.candidate.modalities,
	])
	is_string(min(elements))
	is_string(max(elements))
}
