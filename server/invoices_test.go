package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"

	"regent/adapters"
	"regent/adapters/fake"
	"regent/ledger"
)

// invoice is what a provider reports, as the usage of an answer or as a whole stream, and the charge that was computed from it
// independently of this program.
type invoice struct {
	Name, Adapter string
	Protocol      adapters.Protocol
	Price         json.RawMessage
	Usage         json.RawMessage
	Stream        []json.RawMessage
	// Tier is the service tier that served the call, which had asked for another one; Searches are what the provider did for it.
	Tier     string
	Searches int
	Want     ledger.Usage
	USD      string
	// Multiplier and Credits are those of a subscription in place of the price; empty if there is no such case.
	Multiplier, Credits string
}

// asking is how a protocol's client asks for a model.
var asking = map[adapters.Protocol]struct{ path, more string }{
	adapters.OpenAIChat:        {"/chat/completions", `"messages":[{"role":"user","content":"Hello"}]`},
	adapters.OpenAIResponses:   {"/responses", `"input":"Hello"`},
	adapters.AnthropicMessages: {"/messages", `"max_tokens":100,"messages":[{"role":"user","content":"Hello"}]`},
}

func readInvoices(t *testing.T) (invoices []invoice) {
	t.Helper()
	text, err := os.ReadFile("testdata/invoices.json")
	if err == nil {
		err = json.Unmarshal(text, &invoices)
	}
	if err != nil {
		t.Fatal(err)
	}
	return invoices
}

// invoiceCatalogue has a model for each invoice, and one of a subscription where there is such a case.
func invoiceCatalogue(invoices []invoice) string {
	var connections, models strings.Builder
	seen := map[string]bool{}
	model := func(id, adapter, paid string) {
		fmt.Fprintf(&models, "  - {id: %s, output_tokens_max: 100, access: {everyone: true}, sources: [{id: %[1]s, connection: %[2]s, model: %[1]s, %[3]s}]}\n", id, adapter, paid)
	}
	for i, invoice := range invoices {
		if !seen[invoice.Adapter] {
			fmt.Fprintf(&connections, "  - {id: %s, provider: %[1]s, adapter: %[1]s, base_url: \"builtin:fake\", credential: none, allow_private: true}\n", invoice.Adapter)
			seen[invoice.Adapter] = true
		}
		model(fmt.Sprint("paid-", i), invoice.Adapter, "price: "+string(invoice.Price))
		if invoice.Multiplier != "" {
			model(fmt.Sprint("credited-", i), invoice.Adapter, `accounting: subscription, multiplier: "`+invoice.Multiplier+`"`)
		}
	}
	text := strings.Replace(catalogueText, "models:\n", connections.String()+"models:\n"+models.String(), 1)
	return strings.Replace(text, `limits:
  user: {tokens: {max: "100000000"}`, `limits:
  user: {credits: {max: "1000"}, tokens: {max: "100000000"}`, 1)
}

// TestInvoices sends each report through the whole gateway, in a whole answer and in a stream: what is recorded as used, and what is charged,
// are the invoice's.
func TestInvoices(t *testing.T) {
	invoices := readInvoices(t)
	g := startGatewayOn(t, memoryURL, invoiceCatalogue(invoices), nil)
	for i, invoice := range invoices {
		for _, stream := range []bool{false, true} {
			if !stream && invoice.Stream != nil {
				continue
			}
			name := map[bool]string{true: "stream", false: "whole"}[stream]
			t.Run(fmt.Sprintf("%s/%s", invoice.Name, name), func(t *testing.T) {
				g.wantInvoice(t, fmt.Sprint("paid-", i), stream, invoice, invoice.USD, "0")
				if invoice.Multiplier != "" {
					g.wantInvoice(t, fmt.Sprint("credited-", i), stream, invoice, "0", invoice.Credits)
				}
			})
		}
	}
	g.wantNothingHeld(t)
}

// wantInvoice makes the invoice's call of a model, and checks what is recorded of it.
func (g *gateway) wantInvoice(t *testing.T, model string, stream bool, invoice invoice, usd, credits string) {
	t.Helper()
	g.Fake().SetScript(model, fake.Script{invoice.step(stream)})
	ask := asking[invoice.Protocol]
	body := fmt.Sprintf(`{"model":%q,"stream":%t,%s}`, model, stream, ask.more)
	if invoice.Tier != "" {
		body = strings.Replace(body, "{", `{"service_tier":"priority",`, 1)
	}
	a := g.do(t, g.request(t, http.MethodPost, ask.path, strings.NewReader(body)))
	if a.status != http.StatusOK || a.broken {
		t.Fatalf("%d %s", a.status, a.body)
	}
	id := a.header.Get("X-Regent-Request-Id")
	if got := g.ended(t, id); !strings.HasPrefix(got, "completed success ") || strings.Contains(got, "estimated") || strings.Contains(got, "unknown") {
		t.Errorf("the call ended as %s", got)
	}
	var call struct {
		Usage  ledger.Usage
		Charge struct{ USD, Credits string }
	}
	if err := json.Unmarshal([]byte(g.do(t, g.request(t, http.MethodGet, "/requests/"+id, nil)).body), &call); err != nil {
		t.Fatal(err)
	}
	call.Usage.Tier = "" // which the charge tells
	if len(call.Usage.Units) == 0 {
		call.Usage.Units = nil
	}
	if !reflect.DeepEqual(call.Usage, invoice.Want) {
		t.Errorf("used %+v, want %+v", call.Usage, invoice.Want)
	}
	if call.Charge.USD != usd || call.Charge.Credits != credits {
		t.Errorf("charged %s dollars and %s credits, want %s and %s", call.Charge.USD, call.Charge.Credits, usd, credits)
	}
}

// step is how the provider answers with the invoice's report.
func (i invoice) step(stream bool) fake.Step {
	switch {
	case i.Stream != nil:
		return fake.Step{Raw: i.wire(i.Stream), ContentType: "text/event-stream"}
	case i.Searches > 0:
		response := fmt.Sprintf(`{"object":"response","status":"completed","output":[],"usage":%s,"tool_usage":{"web_search":{"num_requests":%d}}}`, i.Usage, i.Searches)
		if !stream {
			return fake.Step{Raw: response, ContentType: "application/json"}
		}
		event := json.RawMessage(`{"type":"response.completed","response":` + response + `}`)
		return fake.Step{Raw: i.wire([]json.RawMessage{event}), ContentType: "text/event-stream"}
	}
	step := fake.Step{Usage: i.Usage}
	if i.Tier != "" {
		step.ServiceTier = json.RawMessage(fmt.Sprintf("%q", i.Tier))
	}
	return step
}

// wire is a stream of documents.
func (i invoice) wire(documents []json.RawMessage) string {
	var stream strings.Builder
	for _, document := range documents {
		fmt.Fprintf(&stream, "data: %s\n\n", document)
	}
	if i.Protocol == adapters.OpenAIChat {
		stream.WriteString(done)
	}
	return stream.String()
}

// TestInvoicesAreOfEveryKind: no adapter that reports usage in a way of its own goes without one.
func TestInvoicesAreOfEveryKind(t *testing.T) {
	missing := map[string]bool{
		"openai": true, "anthropic": true, "gemini": true, "deepseek": true, "openrouter": true, "vllm": true,
		string(adapters.OpenAIChat): true, string(adapters.OpenAIResponses): true, string(adapters.AnthropicMessages): true,
	}
	for _, invoice := range readInvoices(t) {
		delete(missing, invoice.Adapter)
		delete(missing, string(invoice.Protocol))
	}
	if len(missing) > 0 {
		t.Errorf("there is no invoice of %v", missing)
	}
}
