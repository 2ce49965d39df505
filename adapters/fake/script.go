package fake

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// Script says how a model behaves: a step a call, in order; the last one repeats.
type Script []Step

// Step is one call's behaviour. The zero value answers with a short text and true usage.
type Step struct {
	// Text is the answer, a delta each.
	Text []string `json:"text,omitempty"`
	// ToolCall answers with a tool call in place of the text also where a tool's result is shown already, and with one of a tool named
	// "tool" where the client offers none. Without it, a client that offers tools gets a call until it shows a result.
	ToolCall bool `json:"tool_call,omitempty"`
	// Status refuses the call with this status, Code and RetryAfter (seconds).
	Status     int    `json:"status,omitempty"`
	Code       string `json:"code,omitempty"`
	RetryAfter int    `json:"retry_after,omitempty"`
	// Break ends the connection at one of the places below.
	Break string `json:"break,omitempty"`
	// DelayMillis passes before the header, ChunkMillis before each delta.
	DelayMillis int `json:"delay_ms,omitempty"`
	ChunkMillis int `json:"chunk_ms,omitempty"`
	// Split cuts the stream into writes of so many bytes.
	Split int `json:"split,omitempty"`
	// OmitUsage and OmitDone leave out what a good provider sends.
	OmitUsage bool `json:"omit_usage,omitempty"`
	OmitDone  bool `json:"omit_done,omitempty"`
	// Usage is sent in place of the true one, whatever it is.
	Usage json.RawMessage `json:"usage,omitempty"`
	// ServiceTier is sent as the service tier that served the call, whatever it is.
	ServiceTier json.RawMessage `json:"service_tier,omitempty"`
	// ErrorAfter sends an error inside the stream after so many deltas, if above 0.
	ErrorAfter int `json:"error_after,omitempty"`
	// Raw is sent as the body, with ContentType, in place of everything else.
	Raw         string `json:"raw,omitempty"`
	ContentType string `json:"content_type,omitempty"`
	// Hold keeps the call open before its header until Release, or after its first delta if HoldAfterDelta.
	Hold           bool `json:"hold,omitempty"`
	HoldAfterDelta bool `json:"hold_after_delta,omitempty"`
	// Wire is sent byte for byte in place of a whole response, its header included. Then the connection ends as WireEnd says.
	Wire    []Piece `json:"wire,omitempty"`
	WireEnd string  `json:"wire_end,omitempty"`
	// Echo repeats the whole request in the refusal's message, as some providers do.
	Echo bool `json:"echo,omitempty"`
}

// Piece is a text on the wire, sent so many times (once if that is 0), with a pause before each.
type Piece struct {
	Text        string `json:"text"`
	Times       int    `json:"times,omitempty"`
	PauseMillis int    `json:"pause_ms,omitempty"`
}

// How a connection can end whose bytes are scripted. Without a word it is closed.
const (
	WireReset = "reset" // as a program does that has crashed
	WireHold  = "hold"  // not before Release, or the other side
)

// Places at which a connection can be made to break.
const (
	BreakBeforeHeader = "before_header"
	BreakBeforeBody   = "before_first_byte"
	BreakAfterOpening = "after_opening"
	BreakAfterDelta   = "after_first_delta"
	BreakAfterUsage   = "after_usage"
)

// ErrScript is returned for a text that is no script.
var ErrScript = errors.New("not a script of the fake provider")

// ParseScript reads a script: one step, or a list of them, as JSON. What a step does not know, or cannot do, is refused.
func ParseScript(text []byte) (Script, error) {
	steps := []json.RawMessage{text}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
		if err := json.Unmarshal(text, &steps); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrScript, err)
		}
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("%w: it has no step", ErrScript)
	}
	script := make(Script, len(steps))
	for i, step := range steps {
		if err := parseStep(step, &script[i]); err != nil {
			return nil, fmt.Errorf("%w: step %d: %w", ErrScript, i+1, err)
		}
	}
	return script, nil
}

func parseStep(text []byte, step *Step) error {
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return errors.New("a step is an object")
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(step); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more after its end")
	}
	return step.check()
}

func (s *Step) check() error {
	places := []string{"", BreakBeforeHeader, BreakBeforeBody, BreakAfterOpening, BreakAfterDelta, BreakAfterUsage}
	switch {
	case !slices.Contains(places, s.Break):
		return fmt.Errorf("break is one of %q", places[1:])
	case !slices.Contains([]string{"", WireReset, WireHold}, s.WireEnd):
		return fmt.Errorf("wire_end is %q or %q", WireReset, WireHold)
	case slices.ContainsFunc(s.Wire, func(p Piece) bool { return p.Text == "" || p.Times < 0 || p.PauseMillis < 0 }):
		return errors.New("a piece of the wire has a text, and no number below 0")
	case s.Status != 0 && (s.Status < 300 || s.Status > 599):
		return errors.New("status is one that refuses, 300 to 599")
	case min(s.RetryAfter, s.DelayMillis, s.ChunkMillis, s.Split, s.ErrorAfter) < 0:
		return errors.New("a number is below 0")
	case s.ErrorAfter > len(s.text()):
		return fmt.Errorf("error_after is beyond the %d deltas of the text", len(s.text()))
	}
	return nil
}

func (s *Step) text() []string {
	if s.Text == nil {
		return []string{"This", " is", " the", " built-in", " provider."}
	}
	return s.Text
}

func millis(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// demoScripts are the models that the program's demo publishes.
var demoScripts = map[string]Script{
	"steady": {{}},
	"flaky":  {{Status: 503}, {}, {Status: 503}, {}},
	"slow":   {{ChunkMillis: 100, Text: slices.Repeat([]string{"tick "}, 20)}},
}
