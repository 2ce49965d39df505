package inference

import (
	"cmp"
	"errors"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/engine"
)

// responsesProtocol is OpenAI's Responses. compactProtocol is its operation that makes a conversation shorter: only it makes a call one of
// compaction.
var (
	responsesProtocol = &protocol{
		name: adapters.OpenAIResponses, kind: engine.Generation, form: responsesForm, streams: true, boundMin: 1, read: readResponses,
	}
	compactProtocol = &protocol{
		name: adapters.OpenAICompact, kind: engine.Compaction, form: openAIForm, boundMin: 1, needs: []string{"input"}, read: readResponses,
	}
)

// continuationNotFound is the answer for a response that this gateway has not kept: unknown and foreign ones look the same.
var continuationNotFound = answer{
	status: http.StatusNotFound, kind: "invalid_request_error", code: "previous_response_not_found", noRetry: true,
	message: "The response that the request continues does not exist. Send the whole conversation as input.",
}

func readResponses(e *envelope, name string, value gjson.Result) error {
	switch name {
	case "input":
		return e.readInput(value)
	case "max_output_tokens":
		return e.readBound(name, value)
	case "previous_response_id", "conversation":
		if value.Type != gjson.Null {
			return answerError(continuationNotFound)
		}
	case "prompt":
		if value.Type != gjson.Null {
			return errors.New("prompt must be written out: stored ones belong to the provider's account")
		}
	case "background":
		if !isBoolOrNull(value) || value.Bool() {
			return errors.New("background must be false: a call is answered while its client waits")
		}
	case "tools":
		return e.readTools(value)
	case "max_tool_calls":
		return e.readToolCalls(value)
	case "instructions":
		e.addValue(value)
	case "temperature", "top_p":
		return checkNumber(name, value)
	case "metadata", "client_metadata": // which no model reads
	default:
		e.addOther(value)
	}
	return nil
}

// readInput gathers the texts of the input's items and counts the parts that are not text.
func (e *envelope) readInput(input gjson.Result) (err error) {
	switch {
	case input.Type == gjson.String:
		e.addText(input.String())
		return nil
	case !input.IsArray():
		return errors.New("input must be a text or a list of items")
	}
	input.ForEach(func(_, item gjson.Result) bool {
		switch kind := item.Get("type").String(); {
		case !item.IsObject():
			err = errors.New("each item of input must be an object")
		case isReference(item):
			err = answerError(continuationNotFound)
		case responsesParts[kind] != "": // what a tool has made, or what some server may take for a message of one part
			e.addPart(item, responsesParts[kind], true)
		default:
			e.readItem(item)
			err = e.checkTools(item.Get("tools"), insideMax)
		}
		return err == nil
	})
	return err
}

// readToolCalls reads the bound of all that the provider's tools do.
func (e *envelope) readToolCalls(value gjson.Result) error {
	if !isSet(value) {
		return nil
	}
	n, ok := wholeNumber(value)
	if !ok || n < 0 {
		return errors.New("max_tool_calls must be a whole number")
	}
	e.toolCalls = &n
	return nil
}

// isReference says whether an item stands for one that a provider keeps, for whichever user of its account: it has an id, and not what it
// is the id of. Its type may be left out.
func isReference(item gjson.Result) bool {
	kind := item.Get("type").String()
	switch {
	case kind == "item_reference":
		return true
	case !isSet(item.Get("id")):
		return false
	case kind == "reasoning":
		return !isSome(item.Get("encrypted_content")) && !isSome(item.Get("content"))
	}
	brings := false
	item.ForEach(func(key, value gjson.Result) bool {
		switch key.Str {
		case "id", "type", "status", "role", "phase":
			return true
		}
		brings = isSome(value) || value.Type == gjson.Number || value.IsArray() // of which there may be none
		return !brings
	})
	return !brings
}

// isSome says whether a member is neither empty nor absent.
func isSome(value gjson.Result) bool {
	return value.Str != "" || value.Type == gjson.JSON && strings.Trim(value.Raw, "[]{} \t\r\n") != ""
}

func (e *envelope) readItem(item gjson.Result) {
	e.formatTokens += perMessage
	e.refusal = cmp.Or(e.refusal, checkSpelling(item, "content"))
	kind := item.Get("type").Str
	item.ForEach(func(key, value gjson.Result) bool {
		switch name := key.String(); {
		case (name == "content" || name == "output") && value.Type == gjson.JSON && kind != "shell_call_output": // whose parts are texts
			eachPart(value, func(part gjson.Result) {
				modality, known := responsesParts[part.Get("type").String()]
				e.addPart(part, modality, known, "text", "refusal")
			})
		case name == "encrypted_content":
			e.addSealed(int64(len(value.Str)))
		case name != "id" && name != "type" && name != "role" && name != "status":
			e.addValue(value)
		}
		return true
	})
}

// responsesParts says which modality a part of a type is. Some are items of their own.
var responsesParts = map[string]string{
	"input_text": "", "output_text": "", "text": "", "summary_text": "", "reasoning_text": "", "refusal": "",
	"input_image": "image", "computer_screenshot": "image", "image_generation_call": "image", "input_audio": "audio", "input_file": "file",
}
