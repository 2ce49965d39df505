# METADATA
# title: Fallback
# description: Whether another candidate may be tried after one has failed. The first candidate of a call is never denied.
package regent.rules.fallback

import data.regent.lib

# METADATA
# title: The source was tried already
# description: A source is contacted at most once for a call.
# custom:
#   code: SOURCE_ATTEMPTED
#   remedy: Try again later.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if {
	not input.attempts == []
	not _is_untried
}

# METADATA
# title: Another source would not help
# description: >-
#   The last attempt failed for a reason that is not among fallback.on, for example an invalid request, which fails everywhere.
# custom:
#   code: FALLBACK_NOT_ALLOWED
#   remedy: Read the error of the last attempt, and correct what it complains of.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	not input.attempts == []
	not _reason_allows
}

_is_untried if {
	every attempt in input.attempts {
		attempt.source != input.candidate.source
	}
}

_reason_allows if {
	input.attempts[count(input.attempts) - 1].reason in data.regent.settings.fallback.on
}
