package clients

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/tidwall/gjson"
)

// beta speaks the beta of Messages by the SDK's first version: as with Claude Code, the query says so. It sends its token in a header of
// Anthropic's own.
type beta struct{ anthropic.Client }

func dialBeta(g *gateway, token string, client *http.Client) speaker {
	return beta{anthropic.NewClient(option.WithBaseURL(g.anthropic()), option.WithAPIKey(token), option.WithHTTPClient(client))}
}

func (b beta) ask(ctx context.Context, q question) (got reply, err error) {
	params := anthropic.BetaMessageNewParams{
		Model: anthropic.Model(q.model), MaxTokens: 100, Messages: []anthropic.BetaMessageParam{anthropic.NewBetaUserMessage(anthropic.NewBetaTextBlock("Hello"))},
	}
	if q.tool {
		schema := anthropic.BetaToolInputSchemaParam{Properties: runProperties, Required: []string{"command"}}
		params.Tools = []anthropic.BetaToolUnionParam{anthropic.BetaToolUnionParamOfTool(schema, "run")}
	}
	if q.before != nil {
		result := anthropic.NewBetaUserMessage(anthropic.NewBetaToolResultBlock(q.before.tool.id, "hello", false))
		params.Messages = append(params.Messages, q.before.message.(anthropic.BetaMessage).ToParam(), result)
	}
	into := option.WithResponseInto(&got.response)
	if !q.streams {
		answer, err := b.Beta.Messages.New(ctx, params, into)
		if err == nil {
			got.takeBeta(*answer)
		}
		return got, err
	}
	var all anthropic.BetaMessage
	stream := b.Beta.Messages.NewStreaming(ctx, params, into)
	defer func() { _ = stream.Close() }() // Err has said what matters
	for stream.Next() {
		event := stream.Current()
		if err := all.Accumulate(event); err != nil {
			return got, err
		}
		got.hear(q, event.Delta.Text)
	}
	got.takeBeta(all)
	return got, stream.Err()
}

func (r *reply) takeBeta(answer anthropic.BetaMessage) {
	r.model, r.finish, r.message = string(answer.Model), string(answer.StopReason), answer
	r.input, r.output = answer.Usage.InputTokens, answer.Usage.OutputTokens
	for _, block := range answer.Content {
		switch block := block.AsAny().(type) {
		case anthropic.BetaTextBlock:
			r.text += block.Text
		case anthropic.BetaToolUseBlock:
			r.tool = toolCall{block.ID, block.Name, block.JSON.Input.Raw()}
		}
	}
}

func (b beta) fault(err error) (fault, bool) {
	var told *anthropic.Error
	if !errors.As(err, &told) {
		return fault{}, false
	}
	body := gjson.Parse(told.RawJSON())
	return fault{
		told.StatusCode, string(told.Type()), body.Get("error.code").Str, body.Get("error.message").Str, told.RequestID, told.Response.Header,
	}, true
}

func (b beta) models(ctx context.Context) (ids []string, err error) {
	pages := b.Beta.Models.ListAutoPaging(ctx, anthropic.BetaModelListParams{})
	for pages.Next() {
		ids = append(ids, pages.Current().ID)
	}
	return ids, pages.Err()
}

func (b beta) model(ctx context.Context, id string) (string, error) {
	model, err := b.Beta.Models.Get(ctx, id, anthropic.BetaModelGetParams{})
	if err != nil {
		return "", err
	}
	return model.ID, nil
}

// TestBetaReachesTheProvider: which of its betas a client wants is between it and the provider.
func TestBetaReachesTheProvider(t *testing.T) {
	t.Parallel()
	g := start(t)
	if err := g.script("scripted", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	client := dialBeta(g, richToken, http.DefaultClient).(beta)
	_, err := client.Beta.Messages.New(t.Context(), anthropic.BetaMessageNewParams{
		Model: "open/scripted", MaxTokens: 100, Betas: []anthropic.AnthropicBeta{"one-2026-01-01", "two-2026-01-01"},
		Messages: []anthropic.BetaMessageParam{anthropic.NewBetaUserMessage(anthropic.NewBetaTextBlock("Hello"))},
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := g.upstream.Seen("scripted")
	if seen.Query != "beta=true" || seen.Header.Get("Anthropic-Beta") != "one-2026-01-01,two-2026-01-01" || seen.Header.Get("X-Api-Key") != "" {
		t.Errorf("the provider was sent %q and %v", seen.Query, seen.Header)
	}
}
