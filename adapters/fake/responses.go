package fake

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// responsesRequest is what the provider reads of a request of OpenAI's Responses.
type responsesRequest struct {
	Model  string          `json:"model"`
	Stream bool            `json:"stream"`
	Input  json.RawMessage `json:"input"`
	Tools  []struct {
		Type       string `json:"type"`
		Name       string `json:"name"`
		Parameters schema `json:"parameters"`
	} `json:"tools"`
}

// responses is a call of OpenAI's Responses.
type responses struct {
	*call
	request responsesRequest
	sent    int // events
}

func (s *Server) responses(w http.ResponseWriter, r *http.Request) {
	c := &responses{call: &call{w: w, r: r}}
	s.serve(c.call, c)
}

func (c *responses) parse(body []byte) (model string, stream bool, err error) {
	err = json.Unmarshal(body, &c.request)
	return c.request.Model, c.request.Stream, err
}

func (c *responses) refusal(message string) any { return openaiRefusal(c.step, message) }

// toolCall is the answer's tool call, if it has one: of a function, which not all tools are.
func (c *responses) toolCall() (name, arguments string, ok bool) {
	var tools []tool
	for _, offered := range c.request.Tools {
		if offered.Type == "function" {
			tools = append(tools, tool{offered.Name, offered.Parameters})
		}
	}
	return c.step.toolCall(tools, bytes.Contains(c.request.Input, []byte(`"function_call_output"`)))
}

// response is the answer without its output.
func (c *responses) response(status string) map[string]any {
	return map[string]any{
		"id": "resp_fake", "object": "response", "created_at": 1, "status": status, "model": c.request.Model, "output": []any{}, "usage": nil,
		"error": nil, "incomplete_details": nil, "service_tier": "auto",
	}
}

// complete is the whole answer.
func (c *responses) complete() map[string]any {
	item, deltas := c.answer()
	response := c.response("completed")
	response["output"] = []any{item.done}
	c.addUsage(response, len(deltas))
	return response
}

// addUsage adds what the call used: a token for four bytes of input, and one for each delta.
func (c *responses) addUsage(document map[string]any, deltas int) {
	input := (len(c.request.Input) + 3) / 4
	usage := map[string]any{
		"input_tokens": input, "input_tokens_details": map[string]any{"cached_tokens": 0}, "output_tokens": deltas,
		"output_tokens_details": map[string]any{"reasoning_tokens": 0}, "total_tokens": input + deltas,
	}
	switch {
	case c.step.OmitUsage:
		delete(document, "usage")
	case c.step.Usage != nil:
		document["usage"] = c.step.Usage
	default:
		document["usage"] = usage
	}
	document["service_tier"] = c.step.ServiceTier
}

func (c *responses) whole() any { return c.complete() }

// responsesItem is the answer's one item, when it is done, and the events that stand around its deltas.
type responsesItem struct {
	done           map[string]any
	before, behind []map[string]any
}

// answer is the answer's item and the deltas of it. A tool call's first delta is its name, which the protocol tells with the item itself.
func (c *responses) answer() (item responsesItem, deltas []map[string]any) {
	if name, arguments, ok := c.toolCall(); ok {
		return functionCall(name, arguments)
	}
	text := strings.Join(c.step.text(), "")
	item = responsesItem{
		done:   messageItem("completed", textPart(text)),
		before: []map[string]any{itemEvent("added", messageItem("in_progress")), partEvent("response.content_part.added", "part", textPart(""))},
		behind: []map[string]any{partEvent("response.output_text.done", "text", text), partEvent("response.content_part.done", "part", textPart(text))},
	}
	for _, piece := range c.step.text() {
		deltas = append(deltas, partEvent("response.output_text.delta", "delta", piece))
	}
	return item, deltas
}

func functionCall(name, arguments string) (item responsesItem, deltas []map[string]any) {
	item = responsesItem{done: callItem("completed", name, arguments), behind: []map[string]any{callEvent("done", "arguments", arguments)}}
	deltas = append(deltas, itemEvent("added", callItem("in_progress", name, "")))
	for piece := range slices.Chunk([]rune(arguments), argumentsPiece) {
		deltas = append(deltas, callEvent("delta", "delta", string(piece)))
	}
	return item, deltas
}

func messageItem(status string, content ...any) map[string]any {
	return map[string]any{"type": "message", "id": "msg_fake", "role": "assistant", "status": status, "content": append([]any{}, content...)}
}

func textPart(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}}
}

func callItem(status, name, arguments string) map[string]any {
	return map[string]any{"type": "function_call", "id": "fc_fake", "call_id": "call_fake", "name": name, "arguments": arguments, "status": status}
}

func itemEvent(what string, item map[string]any) map[string]any {
	return map[string]any{"type": "response.output_item." + what, "output_index": 0, "item": item}
}

func partEvent(kind, member string, value any) map[string]any {
	return map[string]any{"type": kind, "item_id": "msg_fake", "output_index": 0, "content_index": 0, member: value}
}

func callEvent(what, member, value string) map[string]any {
	return map[string]any{"type": "response.function_call_arguments." + what, "item_id": "fc_fake", "output_index": 0, member: value}
}

// stream sends an event a delta, between those that the protocol has around them.
func (c *responses) stream() error {
	item, deltas := c.answer()
	if err := c.events(c.about("created", c.response("in_progress")), c.about("in_progress", c.response("in_progress"))); err != nil {
		return err
	}
	if c.step.Break == BreakAfterOpening {
		return errBreak
	}
	if err := c.events(item.before...); err != nil {
		return err
	}
	if err := c.deltas(deltas, func(delta map[string]any) error { return c.events(delta) }, responsesFailure); err != nil {
		return err
	}
	if err := c.events(append(item.behind, itemEvent("done", item.done))...); err != nil || c.step.OmitDone {
		return err
	}
	if err := c.events(c.about("completed", c.complete())); err != nil {
		return err
	}
	if c.step.Break == BreakAfterUsage { // which the last event brings
		return errBreak
	}
	return nil
}

// responsesFailure is an error inside a stream.
const responsesFailure = "event: response.failed\n" +
	`data: {"type":"response.failed","response":{"id":"resp_fake","object":"response","status":"failed","output":[],"usage":null,` +
	`"error":{"code":"server_error","message":"scripted failure"}}}` + "\n\n"

// about is an event about the whole response.
func (c *responses) about(what string, response map[string]any) map[string]any {
	return map[string]any{"type": "response." + what, "response": response}
}

func (c *responses) events(events ...map[string]any) error {
	for _, event := range events {
		event["sequence_number"] = c.sent
		c.sent++
		if err := c.named(event); err != nil {
			return err
		}
	}
	return nil
}

// compaction is a call that makes the input of Responses smaller: to an item that nobody can read, of the script's text.
type compaction struct{ responses }

func (s *Server) compact(w http.ResponseWriter, r *http.Request) {
	c := &compaction{responses{call: &call{w: w, r: r}}}
	s.serve(c.call, c)
}

func (c *compaction) parse(body []byte) (model string, stream bool, err error) {
	model, _, err = c.responses.parse(body)
	return model, false, err
}

func (c *compaction) whole() any {
	item := map[string]any{"type": "compaction", "id": "cmp_fake", "encrypted_content": strings.Join(c.step.text(), "")}
	answer := map[string]any{"id": "resp_fake", "object": "response.compaction", "created_at": 1, "output": []any{item}}
	c.addUsage(answer, len(c.step.text()))
	return answer
}
