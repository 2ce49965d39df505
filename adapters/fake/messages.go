package fake

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// messagesRequest is what the provider reads of a request of Anthropic's Messages.
type messagesRequest struct {
	Model    string    `json:"model"`
	Stream   bool      `json:"stream"`
	Messages []message `json:"messages"`
	Tools    []struct {
		Name        string `json:"name"`
		InputSchema schema `json:"input_schema"`
	} `json:"tools"`
}

// messages is a call of Anthropic's Messages.
type messages struct {
	*call
	request messagesRequest
}

func (s *Server) messages(w http.ResponseWriter, r *http.Request) {
	c := &messages{call: &call{w: w, r: r}}
	s.serve(c.call, c)
}

func (c *messages) parse(body []byte) (model string, stream bool, err error) {
	err = json.Unmarshal(body, &c.request)
	return c.request.Model, c.request.Stream, err
}

// messagesErrors are the types of an error by its status. Others are the request's fault, or the provider's.
var messagesErrors = map[int]string{
	http.StatusUnauthorized: "authentication_error", http.StatusPaymentRequired: "billing_error", http.StatusForbidden: "permission_error",
	http.StatusNotFound: "not_found_error", http.StatusRequestTimeout: "timeout_error", http.StatusConflict: "conflict_error",
	http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: "rate_limit_error",
	http.StatusGatewayTimeout: "timeout_error", 529: "overloaded_error",
}

// refusal has words where a script has a code, as the protocol knows no codes; a code that is an error's type is that.
func (c *messages) refusal(message string) any {
	kind := messagesErrors[c.step.Status]
	switch {
	case kind == "" && c.step.Status >= 500:
		kind = "api_error"
	case kind == "":
		kind = "invalid_request_error"
	}
	switch code := c.step.Code; {
	case strings.HasSuffix(code, "_error"):
		kind = code
	case code == "context_length_exceeded":
		message = "prompt is too long: 200001 tokens > 200000 maximum; " + message
	case code == "content_filter", code == "content_policy_violation":
		message = "Output blocked by content filtering policy; " + message
	}
	return map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": message}, "request_id": "req_fake"}
}

// toolCall is the answer's tool call, if it has one.
func (c *messages) toolCall() (name, arguments string, ok bool) {
	var tools []tool
	for _, offered := range c.request.Tools {
		tools = append(tools, tool{offered.Name, offered.InputSchema})
	}
	shown := slices.ContainsFunc(c.request.Messages, func(m message) bool { return bytes.Contains(m.Content, []byte(`"tool_result"`)) })
	return c.step.toolCall(tools, shown)
}

// message is the answer without its content.
func (c *messages) message(stopReason any) map[string]any {
	return map[string]any{
		"id": "msg_fake", "type": "message", "role": "assistant", "model": c.request.Model, "content": []any{},
		"stop_reason": stopReason, "stop_sequence": nil,
	}
}

// usage is what the call used: the prompt's tokens, and so many of output. The service tier is told where the whole usage is.
func (c *messages) usage(output int) map[string]any {
	usage := map[string]any{
		"input_tokens": promptTokens(c.request.Messages), "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": output,
	}
	if c.step.ServiceTier != nil {
		usage["service_tier"] = c.step.ServiceTier
	}
	return usage
}

// finalUsage is what the script says that the call used, or else the truth: a token for each delta.
func (c *messages) finalUsage() any {
	if c.step.Usage != nil {
		return c.step.Usage
	}
	_, deltas, _ := c.answer()
	return c.usage(len(deltas))
}

func (c *messages) whole() any {
	block := map[string]any{"type": "text", "text": strings.Join(c.step.text(), "")}
	_, _, stopReason := c.answer()
	if name, arguments, ok := c.toolCall(); ok {
		block = map[string]any{"type": "tool_use", "id": "toolu_fake", "name": name, "input": json.RawMessage(arguments)}
	}
	answer := c.message(stopReason)
	answer["content"] = []any{block}
	if !c.step.OmitUsage {
		answer["usage"] = c.finalUsage()
	}
	return answer
}

// answer is the stream's one block: the events that open it, and the deltas of its text. A tool call's first delta is its name, which
// the protocol tells with the opening.
func (c *messages) answer() (opening, deltas []map[string]any, stopReason string) {
	if name, arguments, ok := c.toolCall(); ok {
		deltas = append(deltas, blockStart(map[string]any{"type": "tool_use", "id": "toolu_fake", "name": name, "input": map[string]any{}}))
		for piece := range slices.Chunk([]rune(arguments), argumentsPiece) {
			deltas = append(deltas, blockDelta(map[string]any{"type": "input_json_delta", "partial_json": string(piece)}))
		}
		return nil, deltas, "tool_use"
	}
	for _, text := range c.step.text() {
		deltas = append(deltas, blockDelta(map[string]any{"type": "text_delta", "text": text}))
	}
	return []map[string]any{blockStart(map[string]any{"type": "text", "text": ""})}, deltas, "end_turn"
}

func blockStart(block map[string]any) map[string]any {
	return map[string]any{"type": "content_block_start", "index": 0, "content_block": block}
}

func blockDelta(delta map[string]any) map[string]any {
	return map[string]any{"type": "content_block_delta", "index": 0, "delta": delta}
}

// stream sends an event a delta, between those that the protocol has around them.
func (c *messages) stream() error {
	opening, deltas, stopReason := c.answer()
	start := c.message(nil)
	end := map[string]any{"type": "message_delta", "delta": map[string]any{"stop_reason": stopReason, "stop_sequence": nil}}
	if !c.step.OmitUsage {
		start["usage"], end["usage"] = c.usage(1), c.finalUsage()
	}
	if err := c.named(map[string]any{"type": "message_start", "message": start}); err != nil {
		return err
	}
	if c.step.Break == BreakAfterOpening {
		return errBreak
	}
	if err := c.events(append(opening, map[string]any{"type": "ping"})...); err != nil {
		return err
	}
	if err := c.deltas(deltas, c.named, messagesFailure); err != nil {
		return err
	}
	if err := c.events(map[string]any{"type": "content_block_stop", "index": 0}, end); err != nil {
		return err
	}
	if c.step.Break == BreakAfterUsage {
		return errBreak
	}
	if c.step.OmitDone {
		return nil
	}
	return c.named(map[string]any{"type": "message_stop"})
}

// messagesFailure is an error inside a stream.
const messagesFailure = "event: error\n" + `data: {"type":"error","error":{"type":"api_error","message":"scripted failure"}}` + "\n\n"

func (c *messages) events(events ...map[string]any) error {
	for _, event := range events {
		if err := c.named(event); err != nil {
			return err
		}
	}
	return nil
}

// counting is a call that asks how many tokens a request takes.
type counting struct{ messages }

func (s *Server) countTokens(w http.ResponseWriter, r *http.Request) {
	c := &counting{messages{call: &call{w: w, r: r}}}
	s.serve(c.call, c)
}

func (c *counting) parse(body []byte) (model string, stream bool, err error) {
	model, _, err = c.messages.parse(body)
	return model, false, err
}

func (c *counting) whole() any {
	return map[string]any{"input_tokens": promptTokens(c.request.Messages)}
}

// messagesModels are the demo's models as Anthropic lists them.
const messagesModels = `{"data":[` +
	`{"type":"model","id":"steady","display_name":"Steady","created_at":"2025-01-01T00:00:00Z"},` +
	`{"type":"model","id":"flaky","display_name":"Flaky","created_at":"2025-01-01T00:00:00Z"},` +
	`{"type":"model","id":"slow","display_name":"Slow","created_at":"2025-01-01T00:00:00Z"}],` +
	`"has_more":false,"first_id":"steady","last_id":"slow"}`
