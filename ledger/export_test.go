package ledger

// VerifyIn verifies in passes over the journal for so many records each.
var VerifyIn = verifyIn

// ActivationOf is the activation that a record names.
var ActivationOf = activationOf
