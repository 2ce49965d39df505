package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/julienschmidt/httprouter"

	"regent/adapters"
	"regent/engine"
	"regent/server/catalog"
	"regent/server/inference"
)

// What must be found nowhere. Quoting, escaping and encoding for a URL leave such words alone.
const (
	promptCanary   = "canaryOfAPrompt7QX"
	outputCanary   = "canaryOfAnOutput8QX"
	argumentCanary = "canaryOfAnArgument9QX"
	urlCanary      = "canary-of-a-url-5qx"
	headerCanary   = "canaryOfAHeader6QX"
)

// spellings are the ways in which a word may have been written.
func spellings(word string) [][]byte {
	inHex := hex.EncodeToString([]byte(word))
	ways := []string{word, strings.ToLower(word), strings.ToUpper(word), inHex, strings.ToUpper(inHex)}
	for before := range 3 { // which of a word's bytes share a character depends on where it begins
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			encoded := encoding.EncodeToString([]byte(strings.Repeat("-", before) + word))
			ways = append(ways, encoded[(before*8+5)/6:len(encoded)-1])
		}
	}
	var all [][]byte
	for _, way := range ways {
		all = append(all, []byte(way))
	}
	return all
}

func TestSpellings(t *testing.T) {
	text := `a "` + promptCanary + `" <ü>`
	for _, haystack := range []string{
		text, fmt.Sprintf("%q", fmt.Sprintf("%+q", text)), url.QueryEscape(text), hex.EncodeToString([]byte(text)), fmt.Sprintf("%X", text),
		base64.StdEncoding.EncodeToString([]byte(text)), base64.URLEncoding.EncodeToString([]byte("x" + text)), base64.StdEncoding.EncodeToString([]byte("xx" + text)),
		strings.ToUpper(text), strings.ToLower(text),
	} {
		if !tells([]byte(haystack), promptCanary) {
			t.Errorf("%q is not found in %q", promptCanary, haystack)
		}
	}
	if tells([]byte("canaryOfAPrompt"), promptCanary) {
		t.Error("half a word is found")
	}
}

func tells(haystack []byte, canary string) bool {
	for _, spelling := range spellings(canary) {
		if bytes.Contains(haystack, spelling) {
			return true
		}
	}
	return false
}

// canaries are all that is unique and secret: the tokens without what all tokens begin with.
func canaries() []string {
	return []string{
		promptCanary, outputCanary, argumentCanary, urlCanary, headerCanary, upstreamKey, token, strings.TrimPrefix(token, "gwi_"), tokenOfEve,
		bundleToken, hmacSecret,
	}
}

// wantSilent fails if a text that is to be found nowhere is in a place.
func wantSilent(t *testing.T, place string, content []byte) {
	t.Helper()
	for _, canary := range canaries() {
		if tells(content, canary) {
			t.Errorf("%q is in %s", canary, place)
		}
	}
}

// panicking is a provider whose calls panic with the prompt, where the prompt asks for it.
type panicking struct{ adapters.Provider }

func (p panicking) Send(ctx context.Context, request adapters.Request) (adapters.Answer, error) {
	if bytes.Contains(request.Body, []byte("panic in Send")) {
		panic(string(request.Body))
	}
	answer, err := p.Provider.Send(ctx, request)
	if err == nil && bytes.Contains(request.Body, []byte("panic in Next")) {
		return &panickingAnswer{Answer: answer, with: fmt.Errorf("%s", request.Body)}, nil
	}
	return answer, err
}

type panickingAnswer struct {
	adapters.Answer
	with error
	read int
}

func (a *panickingAnswer) Next() (adapters.Event, error) {
	if a.read++; a.read == 3 || !strings.Contains(a.with.Error(), `"stream":true`) {
		panic(a.with)
	}
	return a.Answer.Next()
}

// canaryCatalogue also has a model for every protocol, models on providers that cannot be reached, and a user who may not call.
func canaryCatalogue(plainPort string) string {
	text := strings.Replace(catalogueText, "models:\n", `  - {id: refused, provider: p, adapter: openai, base_url: "http://127.0.0.1:1/`+urlCanary+`", credential: "env:KEY", allow_private: true}
  - {id: unknown, provider: p, adapter: openai, base_url: "http://`+urlCanary+`.invalid/v1", credential: "env:KEY", allow_private: true}
  - {id: not-tls, provider: p, adapter: openai, base_url: "https://127.0.0.1:`+plainPort+"/"+urlCanary+`", credential: "env:KEY", allow_private: true}
  - {id: private, provider: p, adapter: openai, base_url: "http://127.0.0.1:`+plainPort+"/"+urlCanary+`", credential: "env:KEY"}
models:
`, 1)
	text = strings.Replace(text, "models:\n", `  - {id: messages, provider: p, adapter: anthropic, base_url: "builtin:fake", credential: "env:KEY", allow_private: true}
models:
  - id: every
    output_tokens_max: 100
    access: {everyone: true}
    sources:
      - {id: of-openai, connection: fake, model: up, circuit: {enabled: false}, price: {input: "1", output: "1"}}
      - {id: of-anthropic, connection: messages, model: up, circuit: {enabled: false}, price: {input: "1", output: "1"}}
`, 1)
	for _, connection := range []string{"refused", "unknown", "not-tls", "private"} {
		text = strings.Replace(text, "users:\n", fmt.Sprintf(`  - {id: %s, output_tokens_max: 100, access: {everyone: true}, sources: [{id: %[1]s, connection: %[1]s, model: up, circuit: {enabled: false}, price: {input: "1", output: "1"}}]}
users:
  - {id: eve-%[1]s}
`, connection), 1)
	}
	text = strings.Replace(text, "limits:\n  user:", "  - {id: eve, tokens: [{name: t, token: \"env:TOKEN_OF_EVE\"}]}\nlimits:\n  user:", 1)
	return strings.Replace(text, "sinks: [", "sinks: [{name: file, file: decisions.jsonl}, ", 1)
}

// canaryBody is a request with every kind of text, and more members.
func canaryBody(members string) string {
	return `{"model":"m","messages":[{"role":"user","content":"a \"` + promptCanary + `\" <ü>"},{"role":"assistant","content":null,"tool_calls":[
		{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":\"` + argumentCanary + `\"}"}}]}],"user":"` + promptCanary + `"` + members + "}"
}

// A prompt, an output, a tool's argument, the clients' tokens, the provider's key and address: each is found nowhere, in no
// spelling, whatever comes of the calls that hold them.
func TestNothingOfACallIsKept(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	publisher := newBundleServer(t)
	data := signed(t, map[string]string{".manifest": `{"roots": ["org"]}`, "org/lists/data.json": `{"a": 1}`}, "")
	publisher.answer(http.StatusOK, tarball(t, data))
	catalogue := withBundle(canaryCatalogue(plain.URL[strings.LastIndex(plain.URL, ":")+1:]),
		`    - {name: org, url: "`+publisher.URL+`/org.tar.gz?v=`+urlCanary+`", credential: "env:BUNDLE", signing: {key: shared}}`+"\n")
	g := startGatewayOn(t, "", catalogue, func(s *Server) {
		real := &catalog.Providers{Current: s.catalogue.Current, FakeURL: s.fake.URL()}
		quick := impatient(t, s.fake.URL(), 500*time.Millisecond)
		plant(t, s, func(candidate engine.Candidate) (adapters.Provider, error) {
			if candidate.Source == "s" {
				return panicking{quick}, nil
			}
			return real.Resolve(candidate)
		})
		s.http.Handler.(*httprouter.Router).GET("/panic", func(_ http.ResponseWriter, r *http.Request, _ httprouter.Params) {
			panic(r.Header.Get("Authorization") + promptCanary)
		})
	})
	wait(t, "the bundle", func() bool { return g.ready(t).status == http.StatusOK })
	stream, panicInSend, panicInNext := `,"stream":true`, `,"stop":"panic in Send"`, `,"stop":"panic in Next"`
	says := fmt.Sprintf(`{"text": [%q, "x"]`, outputCanary)
	output, err := json.Marshal(outputCanary)
	if err != nil {
		t.Fatal(err)
	}
	called := fmt.Sprintf(`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"1","function":{"name":"f","arguments":%q}}]}}]}`+"\n\n", argumentCanary)
	for _, test := range []struct {
		name, script, body string
		status             int
		end                string // how the call ended; empty if it is none
	}{
		{"a whole answer", says + "}", canaryBody(""), 200, "completed success"},
		{"a stream", says + "}", canaryBody(stream), 200, "completed success"},
		{"a tool's call", wired("", streamHead+called+finish+used+done), canaryBody(stream), 200, "completed success"},
		{"a refusal that echoes", `{"status": 400, "code": "x", "echo": true}`, canaryBody(""), 400, "failed error invalid_request"},
		{"an overload that echoes", `{"status": 503, "echo": true}`, canaryBody(stream), 503, "failed error overloaded"},
		{"a header that echoes", wired("", "HTTP/1.1 500 "+promptCanary+"\r\nX-A: "+promptCanary+"\r\n\r\n"), canaryBody(""), 502, "failed error upstream_error"},
		{"garbage in place of an answer", wired("", sized(promptCanary)), canaryBody(""), 502, "failed error upstream_error"},
		{"garbage in place of a stream", wired("", streamHead+"data: "+promptCanary+"\n\n"), canaryBody(stream), 502, "failed error stream_broken"},
		{"garbage in place of HTTP", wired("", promptCanary+"\r\n\r\n"), canaryBody(""), 502, "failed error connection"},
		{"a redirect", wired("", "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/"+urlCanary+"\r\n\r\n"), canaryBody(""), 502, "failed error upstream_error"},
		{"an error in a stream", wired("", streamHead+delta+`data: {"error":{"message":`+string(output)+`,"code":`+string(output)+"}}\n\n"), canaryBody(stream), 200, "failed error stream_broken"},
		{"a broken stream", says + `, "break": "after_first_delta"}`, canaryBody(stream), 200, "failed error stream_broken"},
		{"a silent provider", `{"hold": true}`, canaryBody(stream), 504, "failed error timeout"},
		{"a provider that refuses connections", "{}", strings.Replace(canaryBody(""), `"m"`, `"refused"`, 1), 502, "failed error connection"},
		{"a provider without an address", "{}", strings.Replace(canaryBody(""), `"m"`, `"unknown"`, 1), 502, "failed error connection"},
		{"a provider without TLS", "{}", strings.Replace(canaryBody(""), `"m"`, `"not-tls"`, 1), 502, "failed error connection"},
		{"a provider that may not be reached", "{}", strings.Replace(canaryBody(""), `"m"`, `"private"`, 1), 502, "failed error connection"},
		{"a panic before the answer", "{}", canaryBody(panicInSend), 500, "failed error internal"},
		{"a panic before the stream", "{}", canaryBody(stream + panicInSend), 500, "failed error internal"},
		{"a panic in the answer", "{}", canaryBody(panicInNext), 500, "failed error internal"},
		{"a panic in the stream", says + "}", canaryBody(stream + panicInNext), 200, "failed error internal"},
		{"half a body", "{}", canaryBody("")[:250], 400, ""},
		{"a body that is too deep", "{}", canaryBody(`,"x":` + strings.Repeat("[", 300)), 400, ""},
		{"a broken character", "{}", canaryBody(",\"x\":\"\xff\""), 400, ""},
		{"too many answers", "{}", canaryBody(`,"n":999`), 400, ""},
	} {
		g.script(t, test.script)
		a := g.post(t, test.body)
		id := a.header.Get("X-Regent-Request-Id")
		if a.status != test.status {
			t.Errorf("%s: got %d %s", test.name, a.status, a.body)
		}
		if test.end != "" {
			if got := g.ended(t, id); !strings.HasPrefix(got, test.end) {
				t.Errorf("%s: the call ended as %q", test.name, got)
			}
		}
		wantSilent(t, test.name+": the header", fmt.Append(nil, a.header))
		if a.status != http.StatusOK {
			wantSilent(t, test.name+": the error", []byte(a.body))
		}
	}
	g.canariesInProtocols(t)
	g.canariesInHeaders(t)
	g.canariesInBundles(t, publisher, data)
	g.wantNothingHeld(t)
	g.wantSilentEverywhere(t)
	if err := g.halt(); err != nil {
		t.Error(err)
	}
	wantSilent(t, "what was printed and logged", []byte(g.output.String()))
	if n := strings.Count(g.output.String(), "a handler panicked"); n != 5 {
		t.Errorf("%d panics were logged, want 5", n)
	}
	g.wantSilentFiles(t)
}

// canariesInProtocols sends what is secret in every place that the other protocols have for a prompt, compressed, and in headers and the query
// that they take.
func (g *gateway) canariesInProtocols(t *testing.T) {
	t.Helper()
	places := strings.NewReplacer("PROMPT", promptCanary, "ARGUMENT", argumentCanary)
	const echo, overload = `{"status": 400, "code": "x", "echo": true}`, `{"status": 503, "echo": true}`
	says := fmt.Sprintf(`{"text": [%q, "x"]`, outputCanary)
	for path, body := range map[string]string{
		"/messages": `{"model":"every","max_tokens":9,"metadata":{"user_id":"PROMPT"},"system":[{"type":"text","text":"PROMPT"}],"messages":[
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"ARGUMENT"}]}]}]`,
		"/responses": `{"model":"every","instructions":"PROMPT","prompt_cache_key":"PROMPT","input":[{"role":"user","content":[{"type":"input_text","text":"PROMPT"}]},
			{"type":"function_call_output","call_id":"1","output":"ARGUMENT"}]`,
		"/responses/compact":     `{"model":"every","instructions":"PROMPT","input":"ARGUMENT"`,
		"/embeddings":            `{"model":"every","input":["PROMPT","ARGUMENT"],"user":"PROMPT"`,
		"/messages/count_tokens": `{"model":"every","system":"PROMPT","messages":[{"role":"user","content":"ARGUMENT"}]`,
	} {
		g.script(t, says+"}")
		if a := g.wantSilentCall(t, path, places.Replace(body)+"}"); a.status != http.StatusOK {
			t.Errorf("%s: got %d %s", path, a.status, a.body)
		}
		for _, script := range []string{says + "}", echo, overload, `{"break": "before_first_byte"}`, wired("", sized(promptCanary)), wired("", promptCanary+"\r\n\r\n")} {
			for _, more := range []string{"}", `,"stream":true}`, `,"previous_response_id":"` + promptCanary + `"}`, "", `,"x":"` + "\xff" + `"}`} {
				g.script(t, script)
				g.wantSilentCall(t, path, places.Replace(body)+more)
			}
		}
		g.script(t, says+`, "error_after": 1}`)
		g.wantSilentCall(t, path, places.Replace(body)+`,"stream":true}`)
	}
}

// wantSilentCall makes a call, and sees that nothing but an answer tells what is secret.
func (g *gateway) wantSilentCall(t *testing.T, path, body string) answered {
	t.Helper()
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	_, err := w.Write([]byte(body))
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	r := g.request(t, http.MethodPost, path+"?beta="+headerCanary, &compressed)
	r.Header.Set("Content-Encoding", "gzip")
	r.Header.Del("Authorization")
	r.Header.Set("X-Api-Key", token)
	for _, name := range []string{"X-Session-Affinity", "X-Claude-Code-Session-Id", "Anthropic-Beta", "Anthropic-Version", "X-Stainless-Arch"} {
		r.Header.Set(name, "<"+headerCanary+">")
	}
	a := g.do(t, r)
	place := fmt.Sprintf("%s of %.40s: the answer's", path, body)
	wantSilent(t, place+" header", fmt.Append(nil, a.header))
	if a.status != http.StatusOK {
		wantSilent(t, place+" error", []byte(a.body))
	}
	seen := g.Fake().Seen("up")
	for _, secret := range []string{headerCanary, token} {
		if tells(fmt.Append(nil, seen.Header, seen.Query), secret) {
			t.Errorf("%s: the provider is told %q in %v %s", place, secret, seen.Header, seen.Query)
		}
	}
	return a
}

// canariesInHeaders sends what is secret in every place but a body's.
func (g *gateway) canariesInHeaders(t *testing.T) {
	t.Helper()
	g.script(t, "{}")
	for name, test := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"a user who may not call":    {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+tokenOfEve) }, 404},
		"two tokens":                 {func(r *http.Request) { r.Header.Set("X-Api-Key", tokenOfEve) }, 401},
		"a token that is none":       {func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+headerCanary) }, 401},
		"another kind of credential": {func(r *http.Request) { r.Header.Set("Authorization", "Basic "+headerCanary) }, 401},
		"an id that is none":         {func(r *http.Request) { r.Header.Set("X-Client-Request-Id", "<"+headerCanary+">") }, 400},
		"an id that is too long":     {func(r *http.Request) { r.Header.Set("Idempotency-Key", strings.Repeat(headerCanary, 20)) }, 400},
		"a header that is too long":  {func(r *http.Request) { r.Header.Set("X-A", strings.Repeat(headerCanary, 10_000)) }, 431},
		"a header that is unknown":   {func(r *http.Request) { r.Header.Set("X-A", headerCanary) }, 200},
		"a coding that is unknown":   {func(r *http.Request) { r.Header.Set("Content-Encoding", headerCanary) }, 415},
		"a path that is none":        {func(r *http.Request) { r.URL.Path = "/" + urlCanary }, 404},
		"a panic":                    {func(r *http.Request) { r.Method, r.URL.Path = http.MethodGet, "/panic" }, 500},
	} {
		r := g.request(t, http.MethodPost, "/chat/completions", strings.NewReader(canaryBody("")))
		test.change(r)
		a := g.do(t, r)
		if a.status != test.status {
			t.Errorf("%s: got %d %s", name, a.status, a.body)
		}
		wantSilent(t, name+": the answer", fmt.Append(nil, a.header, a.body))
	}
	for _, status := range []int{200, 409} {
		r := g.request(t, http.MethodPost, "/chat/completions", strings.NewReader(canaryBody(fmt.Sprintf(`,"seed":%d`, status))))
		r.Header.Set("Idempotency-Key", "one")
		if a := g.do(t, r); a.status != status {
			t.Errorf("with one key: got %d %s", a.status, a.body)
		} else {
			wantSilent(t, "the answer to a repeated key", fmt.Append(nil, a.header, a.body))
		}
	}
}

// canariesInBundles has the server of a bundle answer with what it was shown, and with what was not signed by the secret.
func (g *gateway) canariesInBundles(t *testing.T, publisher *bundleServer, data map[string]string) {
	t.Helper()
	echo := []byte("Bearer " + bundleToken)
	for name, test := range map[string]struct {
		status int
		body   []byte
		want   string
	}{
		"an error that echoes":    {http.StatusInternalServerError, nil, "the answer is 500"},
		"a refusal that echoes":   {http.StatusUnauthorized, nil, "the answer is 401"},
		"a redirect that echoes":  {http.StatusFound, nil, "more than 5 times"},
		"garbage that echoes":     {http.StatusOK, echo, "it is not compressed by gzip"},
		"an entry that echoes":    {http.StatusOK, tarball(t, map[string]string{"org/x.rego": string(echo)}), "the bundle has to be signed"},
		"a tampered bundle":       {http.StatusOK, tarball(t, but(data, "org/lists/data.json", "1", "2")), "the signature is not good"},
		"a signature that echoes": {http.StatusOK, tarball(t, but(data, ".signatures.json", `["`, `["`+bundleToken)), "the signature is not good"},
	} {
		publisher.answer(test.status, test.body)
		g.Activate()
		p := g.ready(t)
		said := p.Components["bundle/org"].Message + p.Components["policy"].Message
		if p.status != http.StatusOK || p.Status != degraded || !strings.Contains(said, test.want) {
			t.Errorf("%s: %+v", name, p)
		}
		wantSilent(t, name, []byte(said))
	}
}

// wantSilentEverywhere looks at all that a gateway shows, to anybody, and at its files as they are while it runs.
func (g *gateway) wantSilentEverywhere(t *testing.T) {
	t.Helper()
	for _, path := range []string{inference.Base + "/requests?limit=100", inference.Base + "/usage", inference.Base + "/models", "/metrics", "/readyz", "/healthz"} {
		r := g.request(t, http.MethodGet, "", nil)
		var err error
		if r.URL, err = url.Parse(g.URL() + path); err != nil {
			t.Fatal(err)
		}
		a := g.do(t, r)
		if a.status != http.StatusOK {
			t.Errorf("%s: got %d %s", path, a.status, a.body)
		}
		wantSilent(t, path, fmt.Append(nil, a.header, a.body))
	}
	g.wantSilentFiles(t)
}

func (g *gateway) wantSilentFiles(t *testing.T) {
	t.Helper()
	files := 0
	if err := filepath.WalkDir(g.config.Data, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		content, err := os.ReadFile(path)
		wantSilent(t, path, content)
		return err
	}); err != nil {
		t.Error(err)
	}
	if files < 2 {
		t.Errorf("only %d files were looked at", files)
	}
}
