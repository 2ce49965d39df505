package inference

import (
	"errors"
	"slices"
	"strings"
	"time"

	"regent/engine"
	"regent/engine/policy"
	"regent/server/catalog"
)

// modelView is a model as OpenAI's clients know it, with what they do not.
type modelView struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// ContextTokens and OutputTokensMax are null if unknown.
	ContextTokens   *int64 `json:"context_tokens"`
	OutputTokensMax *int64 `json:"output_tokens_max"`
}

// anthropicModelView is a model as Anthropic's clients know it.
type anthropicModelView struct {
	Type        string    `json:"type"`
	ID          string    `json:"id"`
	DisplayName string    `json:"display_name"`
	CreatedAt   time.Time `json:"created_at"`
	// MaxInputTokens and MaxTokens are null if unknown.
	MaxInputTokens *int64 `json:"max_input_tokens"`
	MaxTokens      *int64 `json:"max_tokens"`
}

// published is when a model was, which nobody has written down.
var published = time.Unix(0, 0).UTC()

func (x *exchange) viewModel(model *catalog.Model) any {
	if x.form == anthropicForm {
		return anthropicModelView{
			Type: "model", ID: model.ID, DisplayName: model.ID, CreatedAt: published,
			MaxInputTokens: model.ContextTokens, MaxTokens: model.OutputTokensMax,
		}
	}
	return modelView{
		ID: model.ID, Object: "model", OwnedBy: "regent", ContextTokens: model.ContextTokens, OutputTokensMax: model.OutputTokensMax,
	}
}

// speaks says whether a source of a model serves a protocol of the vendor whose client asks.
func (x *exchange) speaks(model *catalog.Model) bool {
	vendor := "openai."
	if x.form == anthropicForm {
		vendor = "anthropic."
	}
	return slices.ContainsFunc(model.Sources, func(s *catalog.Source) bool {
		return slices.ContainsFunc(s.Connection.Protocols, func(protocol string) bool { return strings.HasPrefix(protocol, vendor) })
	})
}

// models lists what the caller may use, in a protocol of its own.
func (i *Inference) models(x *exchange) {
	views, ids := []any{}, []string{}
	for _, id := range x.catalogue.ModelIDs {
		usable, err := i.mayUse(x, x.catalogue.Models[id])
		if err != nil {
			x.fail(describe(err, false))
			return
		}
		if usable && x.speaks(x.catalogue.Models[id]) {
			views, ids = append(views, x.viewModel(x.catalogue.Models[id])), append(ids, id)
		}
	}
	if x.form != anthropicForm {
		x.reply(map[string]any{"object": "list", "data": views})
		return
	}
	page := map[string]any{"data": views, "has_more": false, "first_id": nil, "last_id": nil}
	if len(ids) > 0 {
		page["first_id"], page["last_id"] = ids[0], ids[len(ids)-1]
	}
	x.reply(page)
}

// model shows one model that the caller may use; any other looks like none.
func (i *Inference) model(x *exchange) {
	model := x.catalogue.Models[strings.TrimPrefix(pathParameter(x.r, "id"), "/")]
	if model == nil {
		x.fail(modelNotFound)
		return
	}
	usable, err := i.mayUse(x, model)
	switch {
	case err != nil:
		x.fail(describe(err, false))
	case !usable:
		x.fail(modelNotFound)
	default:
		x.reply(x.viewModel(model))
	}
}

var errNoPolicy = answerError(storeDown)

// isOffered says whether a model of these candidates is there for anybody: switched on, with a connection that somebody has given a
// credential.
func isOffered(candidates []engine.Candidate) bool {
	return slices.ContainsFunc(candidates, func(c engine.Candidate) bool { return c.Enabled && c.Connection == catalog.Authorised })
}

// mayUse says whether a model is there for the caller: offered, and granted by the access rule, which decides as it does for a call.
func (i *Inference) mayUse(x *exchange, model *catalog.Model) (bool, error) {
	activation := i.Policy.Current()
	if activation == nil {
		return false, errNoPolicy
	}
	candidates := model.Candidates(i.Cooling, false, "")
	if !isOffered(candidates) {
		return false, nil
	}
	call := policy.Call{Model: model.ID, Kind: engine.Generation, Residency: x.token.User.Residency, Modalities: []string{}}
	decision, err := activation.Judge(i.Now(), call, x.identity()).Decide(x.r.Context(), candidates[0].Candidate, nil)
	if err != nil {
		return false, errors.Join(answerError(internal), err)
	}
	return !deniedBy(decision, "access"), nil
}

func deniedBy(decision policy.Decision, rule string) bool {
	for _, denial := range decision.Denials {
		if denial.Rule == rule || denial.Rule == "main" {
			return true
		}
	}
	return false
}
