package inference

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
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

// readTools counts the tools as they are written, and refuses those that cannot be governed.
func (e *envelope) readTools(tools gjson.Result) error {
	e.addValue(tools)
	return checkTools(tools)
}

func checkTools(tools gjson.Result) (err error) {
	eachPart(tools, func(tool gjson.Result) {
		if err == nil {
			err = checkTool(tool)
		}
		if nested := tool.Get("tools"); err == nil && nested.Type == gjson.JSON { // of a namespace
			err = checkTools(nested)
		}
	})
	return err
}

func checkTool(tool gjson.Result) error {
	kind := tool.Get("type").String()
	for begin, reason := range ungoverned {
		if strings.HasPrefix(kind, begin) {
			return fmt.Errorf("tools of type %s are not served: %s", clip(kind), reason)
		}
	}
	switch {
	case kind == "file_search", isSet(tool.Get("vector_store_ids")):
		return answerError(keptNotFound)
	case strings.HasPrefix(tool.Get("environment.type").String(), "container"):
		return errors.New("tools that run in a provider's container are not served: no usage tells what it costs")
	case isSet(tool.Get("model")):
		return errors.New("a tool must not name a model: policy has not judged it")
	}
	return nil
}

// isSet says whether a member is there and not null.
func isSet(value gjson.Result) bool { return value.Type != gjson.Null }

// isKept says whether a part stands for a file that a provider keeps.
func isKept(part gjson.Result) (kept bool) {
	if part.Get("type").String() == "container_upload" {
		return true
	}
	part.ForEach(func(key, value gjson.Result) bool {
		kept = key.String() == "file_id" && isSet(value) || value.Type == gjson.JSON && isKept(value)
		return !kept
	})
	return kept
}
