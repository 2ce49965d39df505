package inference

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/ledger"
)

// keptNotFound is the answer for a file, a store or a container that a provider keeps for an account, which many users share.
var keptNotFound = answer{
	status: http.StatusNotFound, kind: "invalid_request_error", code: "file_not_found", noRetry: true,
	message: "A file, a store or a container that the request names does not exist. Send what is in it with the request.",
}

// ungoverned are tools, by how their type begins, by which a provider does what policy has not judged, or what no report of usage tells
// and no price covers.
var ungoverned = map[string]string{
	"mcp":              "its provider would contact servers of its own choice: let the client call them",
	"image_generation": "no usage tells what it costs",
	"code_interpreter": "no usage tells what it costs: let the client run code",
	"code_execution":   "no usage tells what it costs: let the client run code",
	"advisor":          "it asks a model that policy has not judged",
}

// searchesMax is how many web searches a call may make whose request does not say: what Claude Code allows itself.
const searchesMax = 8

// readTools counts the tools as they are written, and refuses those that cannot be governed.
func (e *envelope) readTools(tools gjson.Result) error {
	e.addValue(tools)
	return e.checkTools(tools)
}

func (e *envelope) checkTools(tools gjson.Result) (err error) {
	eachPart(tools, func(tool gjson.Result) {
		if err == nil {
			err = e.checkTool(tool)
		}
	})
	return err
}

// checkTool goes through a tool once, as it may be large, and hold others: a namespace does.
func (e *envelope) checkTool(tool gjson.Result) (err error) {
	kind, uses := "", int64(searchesMax)
	tool.ForEach(func(key, value gjson.Result) bool {
		switch key.String() {
		case "type":
			kind = value.String()
			err = e.checkToolType(kind)
		case "max_uses":
			uses, err = e.readUses(value)
		case "vector_store_ids":
			if isSet(value) {
				err = answerError(keptNotFound)
			}
		case "environment":
			if strings.HasPrefix(value.Get("type").String(), "container") {
				err = errors.New("tools that run in a provider's container are not served: no usage tells what it costs")
			}
		case "model":
			if isSet(value) {
				err = errors.New("a tool must not name a model: policy has not judged it")
			}
		case "tools":
			err = e.checkTools(value)
		}
		return err == nil
	})
	if strings.HasPrefix(kind, "web_search") {
		e.searches = min(e.searches+uses, ledger.TokensMax)
	}
	return err
}

// readUses reads how often a tool of Anthropic's may be used. Other protocols do not have it.
func (e *envelope) readUses(value gjson.Result) (int64, error) {
	if e.protocol.name != adapters.AnthropicMessages || !isSet(value) {
		return searchesMax, nil
	}
	n, ok := wholeNumber(value)
	if !ok || n < 0 {
		return 0, errors.New("max_uses must be a whole number")
	}
	return n, nil
}

func (e *envelope) checkToolType(kind string) error {
	if kind == "file_search" { // in a provider's store
		return answerError(keptNotFound)
	}
	for begin, reason := range ungoverned {
		if strings.HasPrefix(kind, begin) {
			return fmt.Errorf("tools of type %s are not served: %s", clip(kind), reason)
		}
	}
	if e.protocol.name == adapters.OpenAIChat && kind != "" && kind != "function" && kind != "custom" {
		return fmt.Errorf("tools of type %s are not served in chat completions: no usage tells what they cost", clip(kind))
	}
	return nil
}

// isSet says whether a member is there and not null.
func isSet(value gjson.Result) bool { return value.Type != gjson.Null }

// isKept says whether a part stands for a file that a provider keeps.
func isKept(part gjson.Result) (kept bool) {
	part.ForEach(func(key, value gjson.Result) bool {
		switch {
		case value.Type == gjson.JSON:
			kept = isKept(value)
		case key.String() == "file_id":
			kept = isSet(value)
		case key.String() == "type":
			kept = value.Str == "container_upload"
		}
		return !kept
	})
	return kept
}
