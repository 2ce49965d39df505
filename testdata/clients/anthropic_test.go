package clients

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/tidwall/gjson"
)

// messages speaks Messages by the second version of Anthropic's SDK for Go.
type messages struct{ anthropic.Client }

func dialMessages(g *gateway, token string, client *http.Client) speaker {
	return messages{anthropic.NewClient(option.WithBaseURL(g.anthropic()), option.WithAPIKey(token), option.WithHTTPClient(client))}
}

func (m messages) ask(ctx context.Context, q question) (got reply, err error) {
	params := anthropic.MessageNewParams{
		Model: anthropic.Model(q.model), MaxTokens: 100, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello"))},
	}
	if q.tool {
		schema := anthropic.ToolInputSchemaParam{Properties: runProperties, Required: []string{"command"}}
		params.Tools = []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(schema, "run")}
	}
	if q.before != nil {
		result := anthropic.NewUserMessage(anthropic.NewToolResultBlock(q.before.tool.id, "hello", false))
		params.Messages = append(params.Messages, q.before.message.(anthropic.Message).ToParam(), result)
	}
	into := option.WithResponseInto(&got.response)
	if !q.streams {
		answer, err := m.Messages.New(ctx, params, into)
		if err == nil {
			got.takeMessage(*answer)
		}
		return got, err
	}
	var all anthropic.Message
	stream := m.Messages.NewStreaming(ctx, params, into)
	defer func() { _ = stream.Close() }() // Err has said what matters
	for stream.Next() {
		event := stream.Current()
		if err := all.Accumulate(event); err != nil {
			return got, err
		}
		got.hear(q, event.Delta.Text)
	}
	got.takeMessage(all)
	return got, stream.Err()
}

func (r *reply) takeMessage(answer anthropic.Message) {
	r.model, r.finish, r.message = string(answer.Model), string(answer.StopReason), answer
	r.input, r.output = answer.Usage.InputTokens, answer.Usage.OutputTokens
	for _, block := range answer.Content {
		switch block := block.AsAny().(type) {
		case anthropic.TextBlock:
			r.text += block.Text
		case anthropic.ToolUseBlock:
			r.tool = toolCall{block.ID, block.Name, block.JSON.Input.Raw()}
		}
	}
}

func (m messages) fault(err error) (fault, bool) {
	var told *anthropic.Error
	if !errors.As(err, &told) {
		return fault{}, false
	}
	body := gjson.Parse(told.RawJSON())
	return fault{
		told.StatusCode, string(told.Type()), body.Get("error.code").Str, body.Get("error.message").Str, told.RequestID, told.Response.Header,
	}, true
}

func (m messages) models(ctx context.Context) (ids []string, err error) {
	pages := m.Models.ListAutoPaging(ctx, anthropic.ModelListParams{})
	for pages.Next() {
		ids = append(ids, pages.Current().ID)
	}
	return ids, pages.Err()
}

func (m messages) model(ctx context.Context, id string) (string, error) {
	model, err := m.Models.Get(ctx, id, anthropic.ModelGetParams{})
	if err != nil {
		return "", err
	}
	return model.ID, nil
}

// TestCountTokens: the provider's count, for nothing.
func TestCountTokens(t *testing.T) {
	t.Parallel()
	g := start(t)
	if err := g.script("scripted", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	client := dialMessages(g, richToken, http.DefaultClient).(messages)
	count := func(model string) (*anthropic.MessageTokensCount, error) {
		return client.Messages.CountTokens(t.Context(), anthropic.MessageCountTokensParams{
			Model: anthropic.Model(model), Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello"))},
		})
	}
	if got, err := count("open/scripted"); err != nil || got.InputTokens != 8 {
		t.Errorf("got %v, %v", got, err)
	}
	_, err := count("open/unknown")
	if told, ok := client.fault(err); !ok || told.status != http.StatusNotFound || told.kind != "not_found_error" {
		t.Errorf("got %+v, %v", told, err)
	}
	if calls := g.get(t, richToken, "/requests").Get("requests.#").Int(); calls != 0 {
		t.Errorf("%d calls are recorded", calls)
	}
}
