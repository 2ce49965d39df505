package clients

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/tidwall/gjson"
)

// runSchema is what the tool "run" takes.
var runSchema = map[string]any{
	"type": "object", "properties": runProperties, "required": []string{"command"}, "additionalProperties": false,
}

var runProperties = map[string]any{"command": map[string]string{"type": "string"}}

// openAI is what OpenAI's SDK for Go has in common for all protocols.
type openAI struct{ openai.Client }

func dialOpenAI(g *gateway, token string, client *http.Client) openAI {
	return openAI{openai.NewClient(option.WithBaseURL(g.openAI()), option.WithAPIKey(token), option.WithHTTPClient(client))}
}

func (o openAI) fault(err error) (fault, bool) {
	var refusal *openai.Error
	var broken *ssestream.StreamError
	switch {
	case errors.As(err, &refusal):
		return fault{
			refusal.StatusCode, refusal.Type, refusal.Code, refusal.Message, gjson.Get(refusal.RawJSON(), "request_id").Str, refusal.Response.Header,
		}, true
	case errors.As(err, &broken):
		told := gjson.GetBytes(broken.Event.Data, "error")
		return fault{kind: told.Get("type").Str, code: told.Get("code").Str, message: told.Get("message").Str, requestID: told.Get("request_id").Str}, true
	}
	return fault{}, false
}

func (o openAI) models(ctx context.Context) (ids []string, err error) {
	pages := o.Models.ListAutoPaging(ctx)
	for pages.Next() {
		ids = append(ids, pages.Current().ID)
	}
	return ids, pages.Err()
}

func (o openAI) model(ctx context.Context, id string) (string, error) {
	model, err := o.Models.Get(ctx, id)
	if err != nil {
		return "", err
	}
	return model.ID, nil
}

// chat speaks chat completions.
type chat struct{ openAI }

func dialChat(g *gateway, token string, client *http.Client) speaker {
	return chat{dialOpenAI(g, token, client)}
}

func (c chat) ask(ctx context.Context, q question) (got reply, err error) {
	params := openai.ChatCompletionNewParams{Model: q.model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")}}
	if q.tool {
		params.Tools = []openai.ChatCompletionToolUnionParam{
			openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "run", Parameters: runSchema}),
		}
	}
	if q.before != nil {
		message := q.before.message.(openai.ChatCompletionMessage)
		params.Messages = append(params.Messages, message.ToParam(), openai.ToolMessage("hello", q.before.tool.id))
	}
	into := option.WithResponseInto(&got.response)
	if !q.streams {
		answer, err := c.Chat.Completions.New(ctx, params, into)
		if err == nil {
			got.takeChat(*answer)
		}
		return got, err
	}
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	var all openai.ChatCompletionAccumulator
	stream := c.Chat.Completions.NewStreaming(ctx, params, into)
	defer func() { _ = stream.Close() }() // Err has said what matters
	for stream.Next() {
		chunk := stream.Current()
		if !all.AddChunk(chunk) {
			return got, errors.New("the SDK cannot add the chunk " + chunk.RawJSON())
		}
		for _, choice := range chunk.Choices {
			got.hear(q, choice.Delta.Content)
		}
	}
	got.takeChat(all.ChatCompletion)
	return got, stream.Err()
}

func (r *reply) takeChat(answer openai.ChatCompletion) {
	r.model, r.input, r.output = answer.Model, answer.Usage.PromptTokens, answer.Usage.CompletionTokens
	for _, choice := range answer.Choices {
		r.text, r.finish, r.message = choice.Message.Content, choice.FinishReason, choice.Message
		for _, call := range choice.Message.ToolCalls {
			r.tool = toolCall{call.ID, call.Function.Name, call.Function.Arguments}
		}
	}
}

// hear notes a text of a stream.
func (r *reply) hear(q question, text string) {
	if text == "" {
		return
	}
	r.texts = append(r.texts, text)
	if q.heard != nil {
		q.heard(text)
	}
}

// response speaks Responses.
type response struct{ openAI }

func dialResponses(g *gateway, token string, client *http.Client) speaker {
	return response{dialOpenAI(g, token, client)}
}

func (r response) ask(ctx context.Context, q question) (got reply, err error) {
	input := responses.ResponseInputParam{responses.ResponseInputItemParamOfMessage("Hello", responses.EasyInputMessageRoleUser)}
	params := responses.ResponseNewParams{Model: q.model, Store: openai.Bool(false)}
	if q.tool {
		params.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("run", runSchema, true)}
	}
	if q.before != nil {
		called := q.before.message.(responses.ResponseFunctionToolCall).ToParam()
		result := responses.ResponseInputItemParamOfFunctionCallOutput("hello")
		result.OfFunctionCallOutput.CallID = param.NewOpt(q.before.tool.id)
		input = append(input, responses.ResponseInputItemUnionParam{OfFunctionCall: &called}, result)
	}
	params.Input.OfInputItemList = input
	into := option.WithResponseInto(&got.response)
	if !q.streams {
		answer, err := r.Responses.New(ctx, params, into)
		if err == nil {
			got.takeResponse(*answer)
		}
		return got, err
	}
	stream := r.Responses.NewStreaming(ctx, params, into)
	defer func() { _ = stream.Close() }() // Err has said what matters
	for stream.Next() {
		switch event := stream.Current().AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			got.hear(q, event.Delta)
		case responses.ResponseCompletedEvent:
			got.takeResponse(event.Response)
		}
	}
	return got, stream.Err()
}

func (r *reply) takeResponse(answer responses.Response) {
	r.model, r.finish, r.text = answer.Model, string(answer.Status), answer.OutputText()
	r.input, r.output = answer.Usage.InputTokens, answer.Usage.OutputTokens
	for _, item := range answer.Output {
		if call, ok := item.AsAny().(responses.ResponseFunctionToolCall); ok {
			r.tool, r.message = toolCall{call.CallID, call.Name, call.Arguments}, call
		}
	}
}

// TestUsageIsStreamedToWhoAsks: the last chunk of a stream has the usage only if the client wants it, though the gateway always does.
func TestUsageIsStreamedToWhoAsks(t *testing.T) {
	t.Parallel()
	g := start(t)
	client := dialOpenAI(g, richToken, http.DefaultClient)
	for _, wanted := range []bool{false, true} {
		if err := g.script("scripted", []byte(`{"text": ["Good", " day", "!"]}`)); err != nil {
			t.Fatal(err)
		}
		params := openai.ChatCompletionNewParams{Model: "open/scripted", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")}}
		var want []int64
		if wanted {
			params.StreamOptions.IncludeUsage = openai.Bool(true)
			want = []int64{5}
		}
		var totals []int64
		stream := client.Chat.Completions.NewStreaming(t.Context(), params)
		for stream.Next() {
			if usage := stream.Current(); usage.JSON.Usage.Valid() {
				totals = append(totals, usage.Usage.TotalTokens)
			}
		}
		if stream.Err() != nil || !slices.Equal(totals, want) {
			t.Errorf("wanted %v: got %v, %v", wanted, totals, stream.Err())
		}
	}
}

// TestEmbeddings: numbers, of which the provider takes none as output.
func TestEmbeddings(t *testing.T) {
	t.Parallel()
	g := start(t)
	if err := g.script("scripted", []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	client := dialOpenAI(g, richToken, http.DefaultClient)
	var response *http.Response
	got, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: "open/scripted", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"Good", "day"}},
	}, option.WithResponseInto(&response))
	if err != nil {
		t.Fatal(err)
	}
	if got.Model != "open/scripted" || len(got.Data) != 2 || !slices.Equal(got.Data[1].Embedding, []float64{0.25, -0.5, 1}) || got.Usage.TotalTokens != 4 {
		t.Errorf("got %s", got.RawJSON())
	}
	call := g.settled(t, richToken, response.Header.Get(requestID))
	if call.Get("state").Str != "completed" || call.Get("charge.usd").Str != "0.000004" || call.Get("usage.output").Int() != 0 {
		t.Errorf("the call is %s", call)
	}
	_, err = client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: "open/unknown", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("Good")},
	})
	if told, ok := client.fault(err); !ok || told.status != http.StatusNotFound || told.code != "model_not_found" {
		t.Errorf("got %+v, %v", told, err)
	}
}
