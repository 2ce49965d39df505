package clients

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/tidwall/gjson"
)

// sdk is the official Go SDK as a user of the gateway.
type sdk struct {
	openai.Client
	*gateway
	t *testing.T
	// tries counts the HTTP requests that have left the SDK.
	tries atomic.Int64
}

// RoundTrip counts a request on its way.
func (s *sdk) RoundTrip(r *http.Request) (*http.Response, error) {
	s.tries.Add(1)
	return http.DefaultTransport.RoundTrip(r)
}

// as makes a client with a token. Everything else is the SDK's default, retries included.
func (g *gateway) as(t *testing.T, token string) *sdk {
	s := &sdk{gateway: g, t: t}
	s.Client = openai.NewClient(option.WithBaseURL(g.base()), option.WithAPIKey(token), option.WithHTTPClient(&http.Client{Transport: s}))
	return s
}

// behave scripts a model of the provider and forgets what was counted.
func (s *sdk) behave(model, script string) {
	s.t.Helper()
	if err := s.script(model, []byte(script)); err != nil {
		s.t.Fatal(err)
	}
	s.tries.Store(0)
}

// counted asserts how many requests have left the SDK, and how many calls the provider has seen.
func (s *sdk) counted(model string, tries int64, calls int) {
	s.t.Helper()
	if got, seen := s.tries.Load(), s.upstream.Seen(model).Requests; got != tries || seen != calls {
		s.t.Errorf("%d requests left the SDK and the provider saw %d calls, want %d and %d", got, seen, tries, calls)
	}
}

// settled waits until a call has its last state, and returns it.
func (s *sdk) settled(requestID string) gjson.Result {
	s.t.Helper()
	var call gjson.Result
	eventually(s.t, "call "+requestID+" is settled", func() bool {
		var body []byte
		if err := s.Get(s.t.Context(), "requests/"+requestID, nil, &body); err != nil {
			s.t.Fatal(err)
		}
		call = gjson.ParseBytes(body)
		return call.Get("ended_at").Type == gjson.String
	})
	return call
}

func chat(model string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")}}
}

// streamed is what a stream has brought.
type streamed struct {
	texts    []string
	usage    []openai.CompletionUsage
	finish   string
	response *http.Response
	message  openai.ChatCompletionMessage // as the SDK puts the chunks together
}

// stream reads a stream to its end.
func (s *sdk) stream(params openai.ChatCompletionNewParams) (streamed, error) {
	var got streamed
	var all openai.ChatCompletionAccumulator
	stream := s.Chat.Completions.NewStreaming(s.t.Context(), params, option.WithResponseInto(&got.response))
	defer func() { _ = stream.Close() }() // Err has said what matters
	for stream.Next() {
		chunk := stream.Current()
		if !all.AddChunk(chunk) {
			s.t.Errorf("the SDK cannot add the chunk %s", chunk.RawJSON())
		}
		if chunk.JSON.Usage.Valid() {
			got.usage = append(got.usage, chunk.Usage)
		}
		for _, choice := range chunk.Choices {
			if choice.Delta.Content != "" {
				got.texts = append(got.texts, choice.Delta.Content)
			}
			got.finish += choice.FinishReason
		}
	}
	if len(all.Choices) > 0 {
		got.message = all.Choices[0].Message
	}
	return got, stream.Err()
}

// fail makes a call that is refused, as a stream or not, and returns the SDK's error.
func (s *sdk) fail(model string, streams bool) error {
	var err error
	if streams {
		_, err = s.stream(chat(model))
	} else {
		_, err = s.Chat.Completions.New(s.t.Context(), chat(model))
	}
	return err
}

// refused asserts an SDK's error, and returns it.
func refused(t *testing.T, err error, status int, kind, code string) *openai.Error {
	t.Helper()
	var refusal *openai.Error
	if !errors.As(err, &refusal) {
		t.Fatalf("got the error %v, want the SDK's own", err)
	}
	if refusal.StatusCode != status || refusal.Type != kind || refusal.Code != code {
		t.Errorf("got %d %s %s, want %d %s %s", refusal.StatusCode, refusal.Type, refusal.Code, status, kind, code)
	}
	return refusal
}

const requestID = "X-Regent-Request-Id"

// tokens are a usage's counts.
func tokens(u openai.CompletionUsage) [3]int64 {
	return [3]int64{u.PromptTokens, u.CompletionTokens, u.TotalTokens}
}

// TestGo is the official Go SDK.
func TestGo(t *testing.T) {
	t.Parallel()
	g := start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *gateway)
	}{
		{"a turn", goTurn}, {"a stream", goStream}, {"a tool call", goToolCall}, {"the list of models", goModels},
		{"denied models", goDeniedModels}, {"a wrong token", goWrongToken}, {"an exhausted budget", goExhaustedBudget},
		{"a failure of capacity", goCapacity}, {"a long wait", goLongWait}, {"an error in mid-stream", goMidStream}, {"an aborted stream", goAborted},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, g) })
	}
}

func goTurn(t *testing.T, g *gateway) {
	client := g.as(t, richToken)
	client.behave("scripted", `{"text": ["Good", " day"]}`)
	var response *http.Response
	answer, err := client.Chat.Completions.New(t.Context(), chat("open/scripted"), option.WithResponseInto(&response))
	if err != nil {
		t.Fatal(err)
	}
	choice := answer.Choices[0]
	if answer.Model != "open/scripted" || choice.Message.Content != "Good day" || choice.Message.Role != "assistant" || choice.FinishReason != "stop" {
		t.Errorf("got %s", answer.RawJSON())
	}
	if got := tokens(answer.Usage); got != [3]int64{2, 2, 4} {
		t.Errorf("used %v", got)
	}
	client.counted("scripted", 1, 1)
	call := client.settled(response.Header.Get(requestID))
	if call.Get("id").Str != response.Header.Get(requestID) || call.Get("state").Str != "completed" || call.Get("charge.usd").Str != "0.000004" {
		t.Errorf("the call is %s", call)
	}
}

func goStream(t *testing.T, g *gateway) {
	client := g.as(t, richToken)
	for _, usage := range []bool{false, true} {
		client.behave("scripted", `{"text": ["Good", " day", "!"], "split": 7}`)
		params := chat("open/scripted")
		var want [][3]int64
		if usage {
			params.StreamOptions.IncludeUsage = openai.Bool(true)
			want = [][3]int64{{2, 3, 5}}
		}
		got, err := client.stream(params)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got.texts, []string{"Good", " day", "!"}) || got.finish != "stop" || got.message.Content != "Good day!" {
			t.Errorf("got %q, %s, %q", got.texts, got.finish, got.message.Content)
		}
		var used [][3]int64
		for _, u := range got.usage {
			used = append(used, tokens(u))
		}
		if !slices.Equal(used, want) {
			t.Errorf("asked for usage: %v; got %v, want %v", usage, used, want)
		}
		client.counted("scripted", 1, 1)
		call := client.settled(got.response.Header.Get(requestID))
		if call.Get("state").Str != "completed" || !call.Get("stream").Bool() || call.Get("charge.usd").Str != "0.000005" {
			t.Errorf("the call is %s", call)
		}
	}
}

// goToolCall holds a conversation of two turns: the provider calls a tool, is shown its result, and answers.
func goToolCall(t *testing.T, g *gateway) {
	client := g.as(t, richToken)
	for _, streams := range []bool{false, true} {
		client.behave("scripted", `{"text": ["It", " is", " hello"]}`)
		params := chat("open/scripted")
		params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
			Name: "run", Parameters: openai.FunctionParameters{
				"type": "object", "properties": map[string]any{"command": map[string]string{"type": "string"}}, "required": []string{"command"},
			},
		})}
		turn := func() (openai.ChatCompletionMessage, string) {
			if streams {
				got, err := client.stream(params)
				if err != nil {
					t.Fatal(err)
				}
				return got.message, got.finish
			}
			answer, err := client.Chat.Completions.New(t.Context(), params)
			if err != nil {
				t.Fatal(err)
			}
			return answer.Choices[0].Message, answer.Choices[0].FinishReason
		}
		message, finish := turn()
		if finish != "tool_calls" || message.Content != "" || len(message.ToolCalls) != 1 {
			t.Fatalf("streams %v: got %s, %+v", streams, finish, message)
		}
		call := message.ToolCalls[0]
		if call.ID != "call_1" || call.Type != "function" || call.Function.Name != "run" || call.Function.Arguments != `{"command":"echo hello"}` {
			t.Errorf("streams %v: the tool call is %+v", streams, call)
		}
		params.Messages = append(params.Messages, message.ToParam(), openai.ToolMessage("hello", call.ID))
		if message, finish = turn(); finish != "stop" || message.Content != "It is hello" || len(message.ToolCalls) != 0 {
			t.Errorf("streams %v: got %s, %+v", streams, finish, message)
		}
		shown := gjson.GetBytes(g.upstream.Seen("scripted").Body, "messages")
		if shown.Get("1.tool_calls.0.function.arguments").Str != `{"command":"echo hello"}` || shown.Get("2.tool_call_id").Str != "call_1" || shown.Get("2.content").Str != "hello" {
			t.Errorf("streams %v: the provider was shown %s", streams, shown)
		}
		client.counted("scripted", 2, 2)
	}
}

func goModels(t *testing.T, g *gateway) {
	client := g.as(t, richToken)
	var response *http.Response
	page, err := client.Models.List(t.Context(), option.WithResponseInto(&response))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, model := range page.Data {
		ids = append(ids, fmt.Sprint(model.ID, " ", model.Object))
	}
	if want := []string{"open/scripted model", "open/busy model"}; !slices.Equal(ids, want) {
		t.Errorf("got %q, want %q", ids, want)
	}
	if !uuid.MatchString(response.Header.Get(requestID)) {
		t.Errorf("the answer's id is %q", response.Header.Get(requestID))
	}
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// goDeniedModels: a model that is not there and one that the caller may not use look the same.
func goDeniedModels(t *testing.T, g *gateway) {
	client := g.as(t, richToken)
	var told []string
	for _, model := range []string{"closed/scripted", "open/unknown"} {
		for _, streams := range []bool{false, true} {
			client.behave("scripted", `{}`)
			refusal := refused(t, client.fail(model, streams), http.StatusNotFound, "invalid_request_error", "model_not_found")
			client.counted("scripted", 1, 0)
			id := refusal.Response.Header.Get(requestID)
			if !uuid.MatchString(id) || !strings.Contains(refusal.RawJSON(), id) {
				t.Errorf("the answer's id is %q, its error %s", id, refusal.RawJSON())
			}
			told = append(told, strings.ReplaceAll(refusal.RawJSON(), id, "ID"))
		}
	}
	if told = slices.Compact(told); len(told) != 1 {
		t.Errorf("the refusals differ: %q", told)
	}
}

func goWrongToken(t *testing.T, g *gateway) {
	for _, token := range []string{"gwi_" + strings.Repeat("3", 64), "sk-of-another-vendor"} {
		client := g.as(t, token)
		for _, streams := range []bool{false, true} {
			client.behave("scripted", `{}`)
			refusal := refused(t, client.fail("open/scripted", streams), http.StatusUnauthorized, "invalid_request_error", "invalid_api_key")
			if strings.Contains(refusal.RawJSON(), token) {
				t.Errorf("the refusal repeats the token: %s", refusal.RawJSON())
			}
			client.counted("scripted", 1, 0)
		}
	}
}

var exhausted = regexp.MustCompile(`^the limit of 110 tokens for user/poor/tokens is reached: used 7, held by running calls 0; ` +
	`there is room again within (1h0m0s|59m\d+s)$`)

func goExhaustedBudget(t *testing.T, g *gateway) {
	client := g.as(t, poorToken)
	client.behave("scripted", `{}`)
	var response *http.Response
	if _, err := client.Chat.Completions.New(t.Context(), chat("open/scripted"), option.WithResponseInto(&response)); err != nil {
		t.Fatal(err)
	}
	client.settled(response.Header.Get(requestID))
	for _, streams := range []bool{false, true} {
		client.behave("scripted", `{}`)
		refusal := refused(t, client.fail("open/scripted", streams), http.StatusTooManyRequests, "insufficient_quota", "insufficient_quota")
		if !exhausted.MatchString(refusal.Message) {
			t.Errorf("the refusal says %q", refusal.Message)
		}
		wait, err := strconv.Atoi(refusal.Response.Header.Get("Retry-After"))
		if err != nil || wait < 3500 || wait > 3600 || refusal.Response.Header.Get("X-Should-Retry") != "false" {
			t.Errorf("the refusal's header is %v", refusal.Response.Header)
		}
		client.counted("scripted", 1, 0)
	}
}

// goCapacity: the SDK waits as long as it is told to, tries again, and gets its answer.
func goCapacity(t *testing.T, g *gateway) {
	client := g.as(t, richToken)
	for _, status := range []int{429, 503, 529} {
		client.behave("scripted", fmt.Sprintf(`[{"status": %d, "retry_after": 1}, {"text": ["again"]}]`, status))
		answer, err := client.Chat.Completions.New(t.Context(), chat("open/scripted"))
		if err != nil || answer.Choices[0].Message.Content != "again" {
			t.Fatalf("%d: got %v, %v", status, answer, err)
		}
		client.counted("scripted", 2, 2)
	}
	client.behave("scripted", `[{"status": 503, "retry_after": 1}, {"text": ["a", "b"]}]`)
	if got, err := client.stream(chat("open/scripted")); err != nil || !slices.Equal(got.texts, []string{"a", "b"}) {
		t.Errorf("a stream: got %q, %v", got.texts, err)
	}
	client.counted("scripted", 2, 2)
}

// goLongWait: a provider that wants to be left alone for an hour does not make the SDK wait for an hour.
func goLongWait(t *testing.T, g *gateway) {
	client := g.as(t, richToken)
	client.behave("busy", `{"status": 429, "retry_after": 3600}`)
	for range 2 { // the second time the source is not even asked
		refused(t, client.fail("open/busy", false), http.StatusServiceUnavailable, "server_error", "capacity_unavailable")
	}
	client.counted("busy", 2, 1)
}

// goMidStream: what came before the error was delivered, and the error is not the stream's end.
func goMidStream(t *testing.T, g *gateway) {
	client := g.as(t, richToken)
	for _, script := range []string{
		`{"text": ["a", "b", "c"], "error_after": 2}`, `{"text": ["a", "b"], "omit_done": true}`, `{"text": ["a", "b", "c"], "chunk_ms": 5, "break": "after_first_delta"}`,
	} {
		client.behave("scripted", script)
		got, err := client.stream(chat("open/scripted"))
		want := []string{"a", "b"}
		if strings.Contains(script, "break") {
			want = want[:1]
		}
		if !slices.Equal(got.texts, want) {
			t.Errorf("%s: got %q", script, got.texts)
		}
		var failure *ssestream.StreamError
		if !errors.As(err, &failure) {
			t.Fatalf("%s: got the error %v", script, err)
		}
		told := map[string]string{}
		for name, value := range gjson.GetBytes(failure.Event.Data, "error").Map() {
			told[name] = value.String()
		}
		id := got.response.Header.Get(requestID)
		if want := map[string]string{
			"message": "The provider's answer broke off.", "type": "server_error", "code": "upstream_error", "param": "",
			"reason": "stream_broken", "request_id": id,
		}; !reflect.DeepEqual(told, want) {
			t.Errorf("%s: got %v, want %v", script, told, want)
		}
		client.counted("scripted", 1, 1)
		if call := client.settled(id); call.Get("state").Str != "failed" {
			t.Errorf("%s: the call is %s", script, call)
		}
	}
}

func goAborted(t *testing.T, g *gateway) {
	client := g.as(t, richToken)
	client.behave("scripted", `{"text": ["a", "b"], "hold_after_delta": true}`)
	ctx, abort := context.WithCancel(t.Context())
	defer abort()
	var response *http.Response
	stream := client.Chat.Completions.NewStreaming(ctx, chat("open/scripted"), option.WithResponseInto(&response))
	text := ""
	for text == "" && stream.Next() {
		text = stream.Current().Choices[0].Delta.Content
	}
	if text != "a" {
		t.Fatalf("got %q, %v", text, stream.Err())
	}
	abort()
	if stream.Next() || !errors.Is(stream.Err(), context.Canceled) {
		t.Errorf("an aborted stream goes on, %v", stream.Err())
	}
	client.counted("scripted", 1, 1)
	call := client.settled(response.Header.Get(requestID))
	if call.Get("state").Str != "cancelled" || call.Get("attempts.0.reason").Str != "client_gone" {
		t.Errorf("the call is %s", call)
	}
	eventually(t, "the provider's call is ended", func() bool { return g.upstream.Seen("scripted").Open == 0 })
}
