package inference

import (
	"cmp"
	"errors"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/engine"
	"regent/ledger"
)

// messagesProtocol is Anthropic's Messages.
var messagesProtocol = &protocol{
	name: adapters.AnthropicMessages, kind: engine.Generation, form: anthropicForm, streams: true, needs: []string{"messages", "max_tokens"},
	read: readAnthropic,
}

// countProtocol asks how many tokens a request of the same language would take.
var countProtocol = &protocol{
	name: adapters.AnthropicMessages, kind: engine.Generation, form: anthropicForm, needs: []string{"messages"}, read: readAnthropic,
}

func readAnthropic(e *envelope, name string, value gjson.Result) error {
	switch name {
	case "messages":
		return e.readMessages(value, e.readTurn)
	case "system":
		e.readBlocks(value, insideMax)
	case "tools":
		return e.readTools(value)
	case "context_management":
		e.addOther(value)
		e.readEdits(value.Get("edits"))
	case "compaction":
		e.addOther(value)
		e.compacts = e.compacts || isSet(value)
	case "thread":
		if value.Get("type").Str == "continue" {
			return answerError(continuationNotFound)
		}
		if isSet(value) {
			return errors.New("thread must be left out: send the whole conversation")
		}
	case "diagnostics":
		if isSet(value.Get("previous_message_id")) {
			return answerError(continuationNotFound)
		}
	case "inference_geo":
		if isSet(value) {
			return errors.New("inference_geo must be left out: the residency of a model's sources says where a call is served")
		}
	case "fallbacks":
		if isSet(value) {
			return errors.New("fallbacks must be left out: the sources of a model are what follows each other")
		}
	case "mcp_servers":
		if isSet(value.Get("0")) || value.IsObject() {
			return errors.New("mcp_servers must be empty: " + ungoverned["mcp"])
		}
	case "container":
		if isSet(value) {
			return answerError(keptNotFound)
		}
	case "speed":
		return e.readSpeed(value)
	case "max_tokens":
		return e.readMaxTokens(value)
	case "metadata":
		e.noteSession(value.Get("user_id"))
	case "temperature", "top_p":
		return checkNumber(name, value)
	default:
		e.addOther(value)
	}
	return nil
}

// readEdits looks for one by which the provider makes the conversation shorter.
func (e *envelope) readEdits(edits gjson.Result) {
	eachPart(edits, func(edit gjson.Result) {
		e.compacts = e.compacts || strings.HasPrefix(edit.Get("type").Str, "compact")
	})
}

// readMaxTokens reads the bound of the output, which no request may leave open.
func (e *envelope) readMaxTokens(value gjson.Result) error {
	if value.Type == gjson.Null {
		return errors.New("max_tokens must be a whole number: 0 only fills the cache")
	}
	return e.readBound("max_tokens", value)
}

// readSpeed reads how fast the answer is to come. Another speed than the ordinary one has a price of its own, as a service tier has, and is
// reported as one.
func (e *envelope) readSpeed(value gjson.Result) error {
	switch {
	case value.Type == gjson.Null || value.Type == gjson.String && value.Str == ordinarySpeed:
		return nil
	case value.Type != gjson.String || !ledger.ValidName(value.Str):
		return errors.New("speed must be the name of a speed")
	}
	e.speed = strings.Clone(value.Str)
	return nil
}

// ordinarySpeed is the one that has no price of its own.
const ordinarySpeed = "standard"

// readTurn gathers the texts of a turn and counts the blocks that are not text.
func (e *envelope) readTurn(message gjson.Result) {
	e.refusal = cmp.Or(e.refusal, checkSpelling(message, "content"))
	e.readBlocks(message.Get("content"), insideMax)
}

// readBlocks reads a content: a text, or blocks, of which some have a content of their own.
func (e *envelope) readBlocks(content gjson.Result, levels int) {
	if content.Type == gjson.String || levels == 0 {
		e.addValue(content)
		return
	}
	eachPart(content, func(block gjson.Result) {
		kind := block.Get("type").String()
		modality, known := blockModality[kind]
		switch {
		case known && modality == nested:
			e.readBlocks(block.Get("content"), levels-1)
		case known && modality == asWritten:
			e.addText(block.Raw)
		case known && modality == asRead:
			if e.addWritten(block) {
				e.modalities["file"]++
			}
		case block.Get("source.type").Str == "content": // a document that is made of blocks
			e.modalities[modality]++
			e.keptFiles = e.keptFiles || isKept(block, insideMax)
			e.addValue(block.Get("title"))
			e.addValue(block.Get("context"))
			e.readBlocks(block.Get("source.content"), levels-1)
		default:
			e.addPart(block, modality, known, "text", "thinking")
		}
		if !known || kind == "compaction" || kind == "tool_addition" {
			e.refusal = cmp.Or(e.refusal, e.checkAdded(block))
		}
	})
}

// Blocks that are neither a text nor a modality.
const (
	nested    = "nested"     // it has a content
	asWritten = "as written" // it is counted as it is written
	asRead    = "as read"    // it is counted without what is no text, or sealed
)

// blockModality says what a block of a type is.
var blockModality = map[string]string{
	"text": "", "thinking": "", "image": "image", "document": "file",
	"tool_result": nested, "tool_use": asWritten, "tool_reference": asWritten, "server_tool_use": asWritten, "search_result": asWritten,
	"code_execution_tool_result": asWritten, "bash_code_execution_tool_result": asWritten, "text_editor_code_execution_tool_result": asWritten,
	"tool_search_tool_result": asWritten, "mcp_tool_use": asWritten, "mcp_tool_result": asWritten, "tool_addition": asWritten,
	"tool_removal": asWritten, "fallback": asWritten, "mcp_tool_listing": asWritten, "advisor_tool_result": asWritten,
	"redacted_thinking": asRead, "web_search_tool_result": asRead, "web_fetch_tool_result": asRead, "compaction": asRead,
}
