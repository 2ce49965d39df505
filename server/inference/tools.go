package inference

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
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

// servedTools are the tools that a request may offer in a protocol, by their types, which a version may follow: those that the client runs,
// those that find other tools, and those whose use is told, priced and bounded. What else a provider's tool does, or costs, nobody here
// knows.
var servedTools = map[adapters.Protocol][]string{
	adapters.OpenAIChat: {"function", "custom"},
	adapters.OpenAIResponses: {
		"function", "custom", "namespace", "tool_search", "shell", "local_shell", "apply_patch", "computer", webSearch,
	},
	adapters.AnthropicMessages: {"custom", "bash", "text_editor", "computer", "browser_toolset", "memory", "tool_search_tool", webSearch, webFetch},
}

// Tools by which a provider reads the web: their types begin with these. webSearch is also the unit in which adapters report, and prices
// charge, searches.
const (
	webSearch = "web_search"
	webFetch  = "web_fetch"
)

// ungoverned says of tools, by how their type begins, why they are not served.
var ungoverned = map[string]string{
	"mcp":              "its provider would contact servers of its own choice: let the client call them",
	"image_generation": "no usage tells what it costs",
	"code_interpreter": "no usage tells what it costs: let the client run code",
	"code_execution":   "no usage tells what it costs: let the client run code",
	"advisor":          "it asks a model that policy has not judged",
}

const (
	// searchesMax is how many web searches a call may make whose request does not say: what Claude Code allows itself.
	searchesMax = 8
	// searchTokens is what a search is taken to add to the prompt: the block of tokens that OpenAI charges for one where it charges a fixed
	// number. What is beyond it is charged all the same, as overage.
	searchTokens = 8_000
	// insideMax is how deeply parts and tools are looked into: no protocol has anything as deep, and each level costs another look at all
	// that it holds.
	insideMax = 8
	// addedInputMax bounds what tools may add to a prompt: many times what any context holds.
	addedInputMax = 1 << 32
)

// readTools counts the tools as they are written, and refuses those that cannot be governed.
func (e *envelope) readTools(tools gjson.Result) error {
	e.addValue(tools)
	return e.checkTools(tools, insideMax)
}

func (e *envelope) checkTools(tools gjson.Result, levels int) (err error) {
	if levels == 0 && tools.Type == gjson.JSON {
		return fmt.Errorf("tools are nested more than %d deep", insideMax)
	}
	eachPart(tools, func(tool gjson.Result) {
		if err == nil {
			err = e.checkTool(tool, levels)
		}
	})
	return err
}

// tool is what is read of a tool.
type tool struct {
	kind string
	// uses and content bound how often it may be used, and what it may bring each time; absent where it does not say.
	uses, content gjson.Result
	isLocal       bool // it runs where the client does
}

// checkTool goes through a tool once, as it may be large, and hold others: a namespace does.
func (e *envelope) checkTool(written gjson.Result, levels int) (err error) {
	var t tool
	written.ForEach(func(key, value gjson.Result) bool {
		switch key.String() {
		case "type":
			t.kind = value.String()
			err = e.checkToolType(t.kind)
		case "max_uses":
			t.uses = value
		case "max_content_tokens":
			t.content = value
		case "environment":
			t.isLocal = value.Get("type").String() == "local"
		case "vector_store_ids":
			if isSet(value) {
				err = answerError(keptNotFound)
			}
		case "model":
			if isSet(value) {
				err = errors.New("a tool must not name a model: policy has not judged it")
			}
		case "tools":
			err = e.checkTools(value, levels-1)
		}
		return err == nil
	})
	if err == nil {
		err = e.addTool(t)
	}
	return err
}

// checkToolType refuses a tool that is not served.
func (e *envelope) checkToolType(kind string) error {
	if kind == "file_search" { // in a provider's store
		return answerError(keptNotFound)
	}
	for begin, reason := range ungoverned {
		if strings.HasPrefix(kind, begin) {
			return fmt.Errorf("tools of type %s are not served: %s", clip(kind), reason)
		}
	}
	protocol := e.protocol.name
	if protocol == adapters.OpenAICompact {
		protocol = adapters.OpenAIResponses
	}
	isServed := kind == "" || slices.ContainsFunc(servedTools[protocol], func(served string) bool { return isOfType(kind, served) })
	if !isServed {
		return fmt.Errorf("tools of type %s are not served: nothing says what they do, or cost", clip(kind))
	}
	return nil
}

// isOfType says whether a type is the one given, in whichever version.
func isOfType(kind, begin string) bool {
	version, is := strings.CutPrefix(kind, begin)
	return is && (version == "" || version[0] == '_')
}

// addTool counts what a tool lets the provider do.
func (e *envelope) addTool(t tool) error {
	switch {
	case t.kind == "shell" && !t.isLocal:
		return errors.New("a tool of type shell must have a local environment: no usage tells what a provider's container costs")
	case isOfType(t.kind, webSearch):
		uses, err := e.usesOf(t)
		e.searches = min(e.searches+uses, ledger.TokensMax)
		e.openSearches = e.openSearches || !e.bindsUses(t)
		return err
	case isOfType(t.kind, webFetch):
		return e.addFetches(t)
	}
	return nil
}

// bindsUses says whether a tool says itself how often it may be used, as Anthropic's can.
func (e *envelope) bindsUses(t tool) bool {
	return e.protocol.name == adapters.AnthropicMessages && isSet(t.uses)
}

// usesOf is how often a tool may be used.
func (e *envelope) usesOf(t tool) (int64, error) {
	if !e.bindsUses(t) {
		return searchesMax, nil
	}
	n, ok := wholeNumber(t.uses)
	if !ok || n < 0 {
		return 0, errors.New("max_uses must be a whole number")
	}
	return n, nil
}

// addFetches counts what a tool may fetch into the prompt, which only the request can bound.
func (e *envelope) addFetches(t tool) error {
	uses, err := e.usesOf(t)
	tokens, ok := wholeNumber(t.content)
	switch {
	case err != nil:
		return err
	case !ok || tokens < 0 || !isSet(t.uses):
		return errors.New("a tool of type web_fetch needs max_uses and max_content_tokens: what it may fetch is held with the call")
	case uses > 0 && tokens > addedInputMax/uses:
		return fmt.Errorf("a tool of type web_fetch may fetch at most %d tokens in all", addedInputMax)
	}
	e.fetched = min(e.fetched+uses*tokens, addedInputMax)
	return nil
}

// addedInput is the most that the provider is taken to read besides a prompt of so many tokens: what its tools bring, and the prompt again
// where it makes that shorter.
func (e *envelope) addedInput(tokens int64, contextTokens *int64) int64 {
	added := e.fetched + min(e.searches, addedInputMax/searchTokens)*searchTokens
	if contextTokens != nil {
		added = min(added, max(0, *contextTokens-tokens))
	}
	if e.compacts {
		added += min(tokens, addedInputMax)
	}
	return added
}

// checkAdded refuses tools that a block of a conversation adds on its way. A search among them has to say how often it may be used, since
// providers are told that of the tools of the request alone.
func (e *envelope) checkAdded(block gjson.Result) error {
	before := e.openSearches
	e.openSearches = false
	if err := e.checkInside(block, insideMax); err != nil {
		return err
	}
	if e.openSearches {
		return errors.New("a tool of type web_search that a conversation adds needs max_uses")
	}
	e.openSearches = before
	return nil
}

// checkInside refuses tools that are defined inside a part.
func (e *envelope) checkInside(part gjson.Result, levels int) (err error) {
	part.ForEach(func(key, value gjson.Result) bool {
		switch {
		case value.Type != gjson.JSON || levels == 0:
		case key.Str == "tools":
			err = e.checkTools(value, levels)
		case key.Str == "definition":
			err = e.checkTool(value, levels)
		default:
			err = e.checkInside(value, levels-1)
		}
		return err == nil
	})
	return err
}

// isSet says whether a member is there and not null.
func isSet(value gjson.Result) bool { return value.Type != gjson.Null }

// isKept says whether a part stands for a file that a provider keeps.
func isKept(part gjson.Result, levels int) (kept bool) {
	part.ForEach(func(key, value gjson.Result) bool {
		switch {
		case value.Type == gjson.JSON && levels > 0:
			kept = isKept(value, levels-1)
		case key.String() == "file_id":
			kept = isSet(value)
		case key.String() == "type":
			kept = value.Str == "container_upload"
		}
		return !kept
	})
	return kept
}
