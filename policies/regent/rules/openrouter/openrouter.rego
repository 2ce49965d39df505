# METADATA
# title: OpenRouter routing
# description: >-
#   What becomes of OpenRouter routing metadata in a request, by the setting openrouter_routing: "strip" it, "honour" it, or
#   "refuse" a candidate that would act on it.
package regent.rules.openrouter

import data.regent.lib

# METADATA
# title: OpenRouter routing is refused
# description: The request carries routing metadata that the candidate would act on.
# custom:
#   code: OPENROUTER_ROUTING_REFUSED
#   remedy: Leave the routing metadata out of the request.
#   terminal: false
deny contains lib.denial(rego.metadata.rule()) if {
	data.regent.settings.openrouter_routing == "refuse"
	not input.candidate.openrouter_routing == false
}

# METADATA
# title: The setting openrouter_routing is unknown
# description: It is missing, or none of "strip", "honour" and "refuse".
# custom:
#   code: OPENROUTER_SETTING_UNKNOWN
#   remedy: Ask an administrator to correct the setting openrouter_routing.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if {
	not data.regent.settings.openrouter_routing == "strip"
	not data.regent.settings.openrouter_routing == "honour"
	not data.regent.settings.openrouter_routing == "refuse"
}

# METADATA
# title: Routing metadata may be passed on
# description: Stripped unless the settings say so.
# scope: document
default honour := false

honour if data.regent.settings.openrouter_routing == "honour"
