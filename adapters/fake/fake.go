// Package fake is a provider that exists: it listens on a loopback port and speaks OpenAI's chat completions, Responses and embeddings,
// and Anthropic's Messages, as it is told to by a script. The program's demo and the tests use it. It answers nothing of its own
// invention to do with the prompt.
package fake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// bodyMax bounds a request: more than the gateway lets through.
const bodyMax = 64 << 20

// Config configures a [Server].
type Config struct {
	// Addr is where to listen. Defaults to a free port of 127.0.0.1.
	Addr string
	// OnCall is told of each call before it is answered: the model and the request's body. Optional.
	OnCall func(model string, body []byte)
}

// Server is a fake provider.
type Server struct {
	listener net.Listener
	http     *http.Server
	onCall   func(model string, body []byte)

	mu      sync.Mutex // guards all below
	scripts map[string]Script
	models  map[string]*Model
	// released is closed to let held calls go on, and replaced.
	released chan struct{}
	// connections counts what was ever accepted.
	connections int
}

// Model is what was seen of one model.
type Model struct {
	// Requests counts the calls, Open those that are under way.
	Requests, Open int
	// Header, Query and Body are the last request's.
	Header http.Header
	Query  string
	Body   []byte
}

// Start starts a provider.
func Start(config Config) (*Server, error) {
	if config.Addr == "" {
		config.Addr = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", config.Addr)
	if err != nil {
		return nil, fmt.Errorf("fake: %w", err)
	}
	s := &Server{
		listener: listener, onCall: config.OnCall, scripts: map[string]Script{}, models: map[string]*Model{}, released: make(chan struct{}),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("POST /v1/responses", s.responses)
	mux.HandleFunc("POST /v1/responses/compact", s.compact)
	mux.HandleFunc("POST /v1/embeddings", s.embeddings)
	mux.HandleFunc("POST /v1/messages", s.messages)
	mux.HandleFunc("POST /v1/messages/count_tokens", s.countTokens)
	mux.HandleFunc("GET /v1/models", s.list)
	s.http = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.mu.Lock()
			s.connections++
			s.mu.Unlock()
		}
	}}
	go func() { _ = s.http.Serve(listener) }() // it returns when the server is closed
	return s, nil
}

// URL is the base below which clients find chat/completions and the others.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() + "/v1" }

// Close ends the provider and every call under way.
func (s *Server) Close() error {
	s.Release()
	return s.http.Close()
}

// SetScript sets how a model behaves from the next call on. An empty script takes the last one back.
func (s *Server) SetScript(model string, script Script) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts[model] = script
	s.model(model).Requests = 0
}

// Release lets all held calls go on.
func (s *Server) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.released)
	s.released = make(chan struct{})
}

// Seen is what was seen of a model so far.
func (s *Server) Seen(model string) Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.model(model)
}

// Connections is how many connections were ever accepted.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections
}

func (s *Server) model(name string) *Model {
	if s.models[name] == nil {
		s.models[name] = &Model{}
	}
	return s.models[name]
}

// list lists the demo's models, as the protocol of whoever asks does.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.Header.Get("Anthropic-Version") != "" {
		_, _ = io.WriteString(w, messagesModels)
		return
	}
	_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"steady","object":"model"},{"id":"flaky","object":"model"},{"id":"slow","object":"model"}]}`)
}

// chatRequest is what the provider reads of a request.
type chatRequest struct {
	Model         string `json:"model"`
	Stream        bool   `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Messages []message `json:"messages"`
	Tools    []struct {
		Function struct {
			Name       string `json:"name"`
			Parameters schema `json:"parameters"`
		} `json:"function"`
	} `json:"tools"`
}

// message is what is read of a message.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// promptTokens are a token for four bytes of messages.
func promptTokens(messages []message) int {
	tokens := 0
	for _, message := range messages {
		tokens += (len(message.Content) + 3) / 4
	}
	return tokens
}

// begin takes a call in and says how it goes.
func (s *Server) begin(r *http.Request, body []byte, model string) (step Step, released chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := s.model(model)
	script, at := s.scripts[model], seen.Requests
	if demo := demoScripts[model]; len(script) == 0 && len(demo) > 0 {
		script, at = demo, at%len(demo) // the demo's models go round
	}
	if len(script) == 0 {
		script = Script{{Status: http.StatusNotFound, Code: "model_not_found"}}
	}
	seen.Requests++
	seen.Open++
	seen.Header, seen.Query, seen.Body = r.Header.Clone(), r.URL.RawQuery, body
	return script[min(at, len(script)-1)], s.released
}

func (s *Server) end(model string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.model(model).Open--
}

func (s *Server) chat(w http.ResponseWriter, r *http.Request) {
	c := &chat{call: &call{w: w, r: r}}
	s.serve(c.call, c)
}

// protocol is a call's language.
type protocol interface {
	// parse reads the request's body.
	parse(body []byte) (model string, stream bool, err error)
	// refusal is the document that refuses the call, as the step says, with a message.
	refusal(message string) any
	// whole is the document that answers the call.
	whole() any
	// stream answers the call with a stream.
	stream() error
}

// serve answers a call in its protocol.
func (s *Server) serve(c *call, p protocol) {
	var model string
	var err error
	if c.body, err = io.ReadAll(io.LimitReader(c.r.Body, bodyMax)); err == nil {
		model, c.streamed, err = p.parse(c.body)
	}
	if err != nil {
		c.step.Status = http.StatusBadRequest
		c.refuse(p)
		return
	}
	c.step, c.released = s.begin(c.r, c.body, model)
	defer s.end(model)
	if s.onCall != nil {
		s.onCall(model, c.body)
	}
	if err := c.run(p); err != nil {
		panic(http.ErrAbortHandler) // breaks the connection
	}
}

// call is one call under way.
type call struct {
	w        http.ResponseWriter
	r        *http.Request
	body     []byte
	streamed bool
	step     Step
	released chan struct{}
}

func (c *call) refuse(p protocol) {
	message := "scripted refusal"
	if c.step.Echo {
		message += ": " + string(c.body)
	}
	text, _ := json.Marshal(p.refusal(message)) // plain values always marshal
	c.w.Header().Set("Content-Type", "application/json")
	if c.step.RetryAfter > 0 {
		c.w.Header().Set("Retry-After", fmt.Sprint(c.step.RetryAfter))
	}
	c.w.WriteHeader(c.step.Status)
	_, _ = c.w.Write(text)
}

var errBreak = errors.New("fake: the script breaks the connection here")

func (c *call) run(p protocol) error {
	if err := c.pause(millis(c.step.DelayMillis)); err != nil {
		return err
	}
	if c.step.Hold {
		if err := c.held(); err != nil {
			return err
		}
	}
	switch {
	case c.step.Break == BreakBeforeHeader:
		return errBreak
	case len(c.step.Wire) > 0:
		return c.wire()
	case c.step.Status != 0:
		c.refuse(p)
		return nil
	case c.step.Raw != "":
		c.w.Header().Set("Content-Type", c.step.ContentType)
		return c.send([]byte(c.step.Raw))
	case !c.streamed:
		return c.document(p.whole())
	}
	c.w.Header().Set("Content-Type", "text/event-stream")
	if c.step.Break == BreakBeforeBody {
		return c.breakAfterHeader()
	}
	return p.stream()
}

// document sends a whole answer, or as much of it as the script wants.
func (c *call) document(answer any) error {
	text, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/json")
	switch c.step.Break {
	case "":
		return c.send(text)
	case BreakBeforeBody:
		return c.breakAfterHeader()
	}
	if err := c.send(text[:len(text)/2]); err != nil {
		return err
	}
	return errBreak
}

func (c *call) breakAfterHeader() error {
	c.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(c.w).Flush() // the connection is broken next
	return errBreak
}

func (c *call) held() error {
	select {
	case <-c.released:
		return nil
	case <-c.r.Context().Done():
		return c.r.Context().Err()
	}
}

func (c *call) pause(d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.r.Context().Done():
		return c.r.Context().Err()
	}
}

// chat is a call of OpenAI's chat completions.
type chat struct {
	*call
	request chatRequest
}

func (c *chat) parse(body []byte) (model string, stream bool, err error) {
	err = json.Unmarshal(body, &c.request)
	return c.request.Model, c.request.Stream, err
}

func (c *chat) refusal(message string) any { return openaiRefusal(c.step, message) }

// openaiRefusal is a refusal in all of OpenAI's protocols.
func openaiRefusal(step Step, message string) any {
	return map[string]any{"error": map[string]any{"message": message, "type": "scripted", "param": nil, "code": step.Code}}
}

// toolCall is the answer's tool call, if it has one.
func (c *chat) toolCall() (name, arguments string, ok bool) {
	var tools []tool
	for _, offered := range c.request.Tools {
		tools = append(tools, tool{offered.Function.Name, offered.Function.Parameters})
	}
	shown := slices.ContainsFunc(c.request.Messages, func(m message) bool { return m.Role == "tool" })
	return c.step.toolCall(tools, shown)
}

// usage is what the call used: the prompt's tokens, and one for each delta.
func (c *chat) usage() json.RawMessage {
	if c.step.Usage != nil {
		return c.step.Usage
	}
	prompt := promptTokens(c.request.Messages)
	deltas, _ := c.answer()
	completion := len(deltas)
	return json.RawMessage(fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}`,
		prompt, completion, prompt+completion))
}

func (c *chat) whole() any {
	message := map[string]any{"role": "assistant", "content": strings.Join(c.step.text(), "")}
	finish := "stop"
	if name, arguments, ok := c.toolCall(); ok {
		message["content"], finish = nil, "tool_calls"
		message["tool_calls"] = []any{map[string]any{"id": "call_1", "type": "function", "function": map[string]any{"name": name, "arguments": arguments}}}
	}
	answer := map[string]any{
		"id": "chatcmpl-fake", "object": "chat.completion", "created": 1, "model": c.request.Model,
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": finish, "logprobs": nil}},
	}
	if !c.step.OmitUsage {
		answer["usage"] = c.usage()
	}
	c.addTier(answer)
	return answer
}

// addTier adds the scripted service tier to a document.
func (c *chat) addTier(document map[string]any) {
	if c.step.ServiceTier != nil {
		document["service_tier"] = c.step.ServiceTier
	}
}

// stream sends a chunk a delta.
func (c *chat) stream() error {
	if err := c.chunk(map[string]any{"role": "assistant", "content": ""}, nil); err != nil {
		return err
	}
	if c.step.Break == BreakAfterOpening {
		return errBreak
	}
	deltas, finish := c.answer()
	if err := c.deltas(deltas, func(delta map[string]any) error { return c.chunk(delta, nil) }, chatFailure); err != nil {
		return err
	}
	if err := c.chunk(map[string]any{}, finish); err != nil {
		return err
	}
	if !c.step.OmitUsage && c.request.StreamOptions != nil && c.request.StreamOptions.IncludeUsage {
		text := fmt.Sprintf(`{"id":"chatcmpl-fake","object":"chat.completion.chunk","created":1,"model":%q,"choices":[],"usage":%s}`, c.request.Model, c.usage())
		if err := c.event(text); err != nil {
			return err
		}
	}
	if c.step.Break == BreakAfterUsage {
		return errBreak
	}
	if c.step.OmitDone {
		return nil
	}
	return c.event("[DONE]")
}

// answer is the answer's text, or its tool call: first its name, then its arguments in pieces.
func (c *chat) answer() (deltas []map[string]any, finish string) {
	if name, arguments, ok := c.toolCall(); ok {
		first := map[string]any{"index": 0, "id": "call_1", "type": "function", "function": map[string]any{"name": name, "arguments": ""}}
		deltas = append(deltas, map[string]any{"tool_calls": []any{first}})
		for piece := range slices.Chunk([]rune(arguments), argumentsPiece) {
			next := map[string]any{"index": 0, "function": map[string]any{"arguments": string(piece)}}
			deltas = append(deltas, map[string]any{"tool_calls": []any{next}})
		}
		return deltas, "tool_calls"
	}
	for _, text := range c.step.text() {
		deltas = append(deltas, map[string]any{"content": text})
	}
	return deltas, "stop"
}

// chatFailure is an error inside a stream.
const chatFailure = `data: {"error":{"message":"scripted failure","type":"server_error","code":"server_error"}}` + "\n\n"

// deltas sends an answer's deltas, and does what the script wants after them. failure is an error inside a stream of the protocol.
func (c *call) deltas(deltas []map[string]any, send func(delta map[string]any) error, failure string) error {
	for i, delta := range deltas {
		if err := c.pause(millis(c.step.ChunkMillis)); err != nil {
			return err
		}
		if err := send(delta); err != nil {
			return err
		}
		if err := c.afterDelta(i+1, failure); err != nil {
			return err
		}
	}
	return nil
}

// afterDelta does what the script wants when so many deltas were sent.
func (c *call) afterDelta(sent int, failure string) error {
	switch {
	case c.step.Break == BreakAfterDelta:
		return errBreak
	case c.step.ErrorAfter == sent:
		if err := c.send([]byte(failure)); err != nil {
			return err
		}
		return errBreak
	case c.step.HoldAfterDelta && sent == 1:
		return c.held()
	}
	return nil
}

// chunk sends one chunk; finish is nil or the reason of the end.
func (c *chat) chunk(delta map[string]any, finish any) error {
	choice := map[string]any{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": nil}
	chunk := map[string]any{"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1, "model": c.request.Model, "choices": []any{choice}}
	if c.request.StreamOptions != nil && c.request.StreamOptions.IncludeUsage {
		chunk["usage"] = nil
	}
	c.addTier(chunk)
	text, err := json.Marshal(chunk)
	if err != nil {
		return err
	}
	return c.event(string(text))
}

func (c *chat) event(data string) error { return c.send([]byte("data: " + data + "\n\n")) }

// named sends an event under the name of its type.
func (c *call) named(event map[string]any) error {
	text, err := json.Marshal(event)
	if err != nil {
		return err
	}
	return c.send(fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event["type"], text))
}

// send writes and flushes, in pieces if the script says so.
func (c *call) send(text []byte) error {
	size := c.step.Split
	if size <= 0 {
		size = len(text)
	}
	control := http.NewResponseController(c.w)
	for len(text) > 0 {
		n := min(size, len(text))
		if _, err := c.w.Write(text[:n]); err != nil {
			return err
		}
		if err := control.Flush(); err != nil {
			return err
		}
		text = text[n:]
	}
	return context.Cause(c.r.Context())
}
