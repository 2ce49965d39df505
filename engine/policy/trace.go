package policy

import (
	"context"

	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Trace has the entry point decide upon an input document, and tells a tracer every step: also of rules that OPA's index would pass
// over, so that each says for itself where it ends. The caller's context bounds it, not the time limit of decisions.
func (a *Activation) Trace(ctx context.Context, input Document, tracer topdown.QueryTracer) error {
	_, err := a.decision.Eval(ctx,
		rego.EvalParsedInput(input.value),
		rego.EvalTransaction(a.txn),
		rego.EvalMetrics(metrics.NoOp()),
		rego.EvalQueryTracer(tracer),
		rego.EvalRuleIndexing(false),
		rego.EvalEarlyExit(false),
	)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return evaluationError(err)
	}
	return nil
}
