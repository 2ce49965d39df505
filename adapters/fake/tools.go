package fake

import (
	"encoding/json"
	"slices"
)

// shells are the tools by which agents run a command: Codex has one of the first three, Claude Code the last.
var shells = []string{"exec_command", "shell_command", "shell", "Bash"}

// tool is what is read of a tool that a client offers.
type tool struct {
	Name   string
	Schema schema
}

// toolCall is the call by which a step answers a client that offers tools: of the first shell among them, which makes an agent run
// `echo hello`, or else of the first tool. There is none once a tool's result is shown, unless the script wants one.
func (s *Step) toolCall(tools []tool, shown bool) (name, arguments string, ok bool) {
	switch {
	case shown && !s.ToolCall:
		return "", "", false
	case len(tools) == 0:
		return "tool", "{}", s.ToolCall
	}
	shell := slices.IndexFunc(tools, func(t tool) bool { return slices.Contains(shells, t.Name) })
	called := tools[max(0, shell)]
	return called.Name, called.Schema.arguments(), true
}

// schema is what is read of a tool's JSON schema.
type schema struct {
	Properties map[string]struct {
		Type any `json:"type"` // a list of names, too
	} `json:"properties"`
	Required []string `json:"required"`
}

// arguments are some for each property that is required, or for each if none is.
func (s schema) arguments() string {
	values := map[string]any{}
	for property, schema := range s.Properties {
		if s.Required != nil && !slices.Contains(s.Required, property) {
			continue
		}
		switch schema.Type {
		case "number", "integer":
			values[property] = 1
		case "boolean":
			values[property] = true
		case "array":
			values[property] = []string{"echo", "hello"}
		default:
			values[property] = "echo hello"
		}
	}
	text, _ := json.Marshal(values) // plain values always marshal
	return string(text)
}

// argumentsPiece is how much of a tool call's arguments a delta brings: about a token, so that no delta is JSON by itself.
const argumentsPiece = 4
