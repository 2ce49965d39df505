# METADATA
# title: Rules of the gateway
# description: >-
#   Which candidate may serve a call, and who may call at all. Every package below inherits the schemas named here, so that
#   `opa check` finds a misspelt field of the input or of the settings.
# scope: subpackages
# schemas:
#   - input: schema.input.candidate
#   - data.regent.settings: schema.data.settings
package regent
