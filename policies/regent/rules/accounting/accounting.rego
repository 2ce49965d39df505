# METADATA
# title: Accounting
# description: Which ways of paying a call may take. Limits are the ledger's; this rule says which of them may be used up at all.
package regent.rules.accounting

import data.regent.lib

# METADATA
# title: Nothing is charged for the source
# description: >-
#   A source that is neither paid by money nor by credits is in nobody's limits, so that it has to be allowed in writing.
# custom:
#   code: SOURCE_UNMETERED
#   remedy: Ask an administrator to allow unmetered sources, or choose another model.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if {
	not _is_metered
	not data.regent.settings.accounting.unmetered == true
}

# METADATA
# title: The source would cost money
# description: >-
#   A source of a subscription has failed, and this one is paid by money: who counts on a subscription is not to be billed because
#   it is down, unless that is allowed in writing.
# custom:
#   code: MONEY_AFTER_SUBSCRIPTION
#   remedy: Try again later, or ask an administrator to allow sources that cost money in place of a subscription.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if {
	not input.attempts == []
	not input.candidate.accounting in {"subscription", "unmetered"}
	not _no_subscription_has_failed
	not data.regent.settings.accounting.money_after_subscription == true
}

_is_metered if input.candidate.accounting in {"api_key", "subscription"}

_no_subscription_has_failed if {
	every attempt in input.attempts {
		attempt.accounting != "subscription"
	}
}
