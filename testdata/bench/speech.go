package main

import (
	"bytes"
	"strings"
)

// speech is a protocol in which streams are asked for and answered.
type speech struct {
	name string
	path string // below /v1
	// members are those of a request that asks for a stream, but for its prompt, which stands between before and after.
	members, before, after string
	// opening comes before the texts of an answer, closing after them.
	opening, text, closing string
	mark                   []byte // in the data of each text, and in no other
	last                   string // begins the last data line
}

// The protocols. Their events have the members that real ones have, and no more texts than are read here.
var (
	chat = &speech{
		name: "chat", path: "/chat/completions",
		members: `"stream":true,"stream_options":{"include_usage":true},"max_tokens":1024,`, before: `"messages":[{"role":"system","content":"` + instructions + `"},{"role":"user","content":"`, after: `"}]`,
		opening: roleChunk, text: textChunk, closing: stopChunk + usageChunk + doneChunk,
		mark: []byte(`"delta":{"content":"a token`), last: "data: [DONE]",
	}
	responses = &speech{
		name: "responses", path: "/responses",
		members: `"stream":true,"store":false,"max_output_tokens":1024,"instructions":"` + instructions + `",`, before: `"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"`, after: `"}]}]`,
		opening: named("response.created", `"response":`+responseHead+`"in_progress","output":[],"usage":null}`) +
			named("response.output_item.added", `"output_index":0,"item":{"id":"msg_mock","type":"message","status":"in_progress","role":"assistant","content":[]}`),
		text: named("response.output_text.delta", `"item_id":"msg_mock","output_index":0,"content_index":0,"delta":"a token of text ","logprobs":[]`),
		closing: named("response.output_item.done", `"output_index":0,"item":{"id":"msg_mock","type":"message","status":"completed","role":"assistant","content":[]}`) +
			named("response.completed", `"response":`+responseHead+`"completed","output":[],"usage":{"input_tokens":120,"output_tokens":90,"total_tokens":210}}`),
		mark: []byte(`"delta":"a token`), last: `data: {"type":"response.completed"`,
	}
	messages = &speech{
		name: "messages", path: "/messages",
		members: `"stream":true,"max_tokens":1024,"system":"` + instructions + `",`, before: `"messages":[{"role":"user","content":"`, after: `"}]`,
		opening: named("message_start", `"message":{"id":"msg_mock","type":"message","role":"assistant","model":"gpt-4o-mini","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":120,"output_tokens":1}}`) +
			named("content_block_start", `"index":0,"content_block":{"type":"text","text":""}`),
		text: named("content_block_delta", `"index":0,"delta":{"type":"text_delta","text":"a token of text "}`),
		closing: named("content_block_stop", `"index":0`) +
			named("message_delta", `"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":120,"output_tokens":90}`) + named("message_stop", ""),
		mark: []byte(`"text":"a token`), last: `data: {"type":"message_stop"`,
	}
	speeches = []*speech{chat, responses, messages}
)

const responseHead = `{"id":"resp_mock","object":"response","created_at":1700000000,"model":"gpt-4o-mini","status":`

// named is a server-sent event with its name, in its data, too.
func named(event, members string) string {
	if members != "" {
		members = "," + members
	}
	return "event: " + event + "\ndata: {\"type\":\"" + event + "\"" + members + "}\n\n"
}

// body asks for a stream of a plan.
func (s *speech) body(p plan) string {
	return `{"model":"gpt-4o-mini",` + s.members + s.before + question + p.String() + s.after + "}"
}

// dataBytes is how many bytes the data lines of a whole answer have, without their line ends.
func (s *speech) dataBytes(p plan) int {
	count := func(events string) (total int) {
		for line := range strings.Lines(events) {
			if bytes.HasPrefix([]byte(line), dataLine) {
				total += len(strings.TrimRight(line, "\n"))
			}
		}
		return total
	}
	return count(s.opening) + p.chunks*count(s.text) + count(s.closing)
}
