package inference

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// form is how a protocol tells a failure: as the body of a response, and as the event that ends a stream which has begun.
type form struct {
	body  func(a answer, requestID string) []byte
	event func(a answer, requestID string) []byte
}

var (
	openAIForm = &form{body: openAIBody, event: func(a answer, requestID string) []byte { return event("", openAIBody(a, requestID)) }}
	// responsesForm ends a stream by response.failed: Codex does not hear an event that is called error.
	responsesForm = &form{body: openAIBody, event: func(a answer, requestID string) []byte { return event("response.failed", failedResponse(a, requestID)) }}
	// anthropicForm names each event: Anthropic's SDK skips those that have no name.
	anthropicForm = &form{body: anthropicBody, event: func(a answer, requestID string) []byte { return event("error", anthropicBody(a, requestID)) }}
)

// event is a server-sent event.
func event(name string, data []byte) []byte {
	var text []byte
	if name != "" {
		text = append(append(append(text, "event: "...), name...), '\n')
	}
	return append(append(append(text, "data: "...), data...), "\n\n"...)
}

func openAIBody(a answer, requestID string) []byte {
	return encode(map[string]any{"error": openAIError(a, requestID)})
}

func openAIError(a answer, requestID string) map[string]any {
	return a.members(map[string]any{"message": a.message, "type": a.kind, "param": nil, "code": a.code, "request_id": requestID})
}

func anthropicBody(a answer, requestID string) []byte {
	return encode(map[string]any{
		"type": "error", "request_id": requestID,
		"error": a.members(map[string]any{"type": a.anthropicType(), "message": a.message, "code": a.code}),
	})
}

// members adds the answer's details to those of the form.
func (a answer) members(form map[string]any) map[string]any {
	for name, value := range a.details {
		form[name] = value
	}
	return form
}

// anthropicTypes are Anthropic's names of classes of failure, by status.
var anthropicTypes = map[int]string{
	http.StatusBadRequest: "invalid_request_error", http.StatusUnauthorized: "authentication_error", http.StatusPaymentRequired: "billing_error",
	http.StatusForbidden: "permission_error", http.StatusNotFound: "not_found_error", http.StatusRequestTimeout: "timeout_error",
	http.StatusConflict: "conflict_error", http.StatusRequestEntityTooLarge: "request_too_large", http.StatusTooManyRequests: "rate_limit_error",
	http.StatusServiceUnavailable: "overloaded_error", http.StatusGatewayTimeout: "timeout_error",
}

func (a answer) anthropicType() string {
	switch named := anthropicTypes[a.status]; {
	case named != "":
		return named
	case a.status < http.StatusInternalServerError:
		return "invalid_request_error"
	}
	return "api_error"
}

// failedResponse is a response of the Responses protocol that has failed, as its stream tells it. To OpenAI's SDKs that is an event like
// any other, so that a client that only gathers texts would take the stream for finished: an error beside it has them fail.
func failedResponse(a answer, requestID string) []byte {
	return encode(map[string]any{"type": "response.failed", "sequence_number": 0, "error": openAIError(a, requestID), "response": map[string]any{
		"id": "resp_" + requestID, "object": "response", "created_at": time.Now().Unix(), "status": "failed", "model": "", "output": []any{},
		"error": a.members(map[string]any{"code": a.responsesCode(), "message": a.responsesMessage()}), "incomplete_details": nil, "instructions": nil,
		"metadata": map[string]any{}, "parallel_tool_calls": true, "temperature": nil, "tool_choice": "auto", "tools": []any{}, "top_p": nil,
		"usage": nil,
	}})
}

// responsesCodes are the codes by which Codex and the SDKs tell what is worth trying again. Codex gives up at server_is_overloaded, which
// is for a shortage that lasts.
var responsesCodes = map[string]string{
	"insufficient_quota": "insufficient_quota", "rate_limit_exceeded": "rate_limit_exceeded", "capacity_unavailable": "rate_limit_exceeded",
	contextExceeded: contextExceeded, "content_policy_violation": "invalid_prompt",
}

// responsesCode tells what is at fault: the request, which trying again would not change, or this server.
func (a answer) responsesCode() string {
	switch named := responsesCodes[a.code]; {
	case a.code == "capacity_unavailable" && a.retryAfter > patience:
		return "server_is_overloaded"
	case named != "":
		return named
	case a.status < http.StatusInternalServerError:
		return "invalid_prompt"
	}
	return "server_error"
}

// responsesMessage has what passes tell when to try again in words, which is where Codex looks for it.
func (a answer) responsesMessage() string {
	if a.responsesCode() != "rate_limit_exceeded" || a.retryAfter == 0 {
		return a.message
	}
	return fmt.Sprintf("%s. Please try again in %ds.", strings.TrimSuffix(a.message, "."), a.retryAfterSeconds())
}

// encode writes what always has a form in JSON: texts, numbers and plain structs.
func encode(document any) []byte {
	text, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	return text
}
