package server

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"
	"go.uber.org/goleak"
)

const (
	bundleToken  = "canary-token-of-a-bundle-4qx"
	hmacSecret   = "canary-secret-of-hmac-3qx"
	signatureKey = "shared"
)

// rule is a bundle org with one rule, which denies streams under a code and with a test of it that passes.
func rule(code string) map[string]string {
	return map[string]string{
		".manifest": `{"revision": "` + code + `", "roots": ["org"], "rego_version": 1}`,
		"org/rules/streams/streams.rego": `# METADATA
# title: Streams
package org.rules.streams

import data.regent.lib

# METADATA
# title: Streams are closed
# description: For a test.
# custom:
#   code: ` + code + `
#   remedy: Ask without stream.
#   terminal: true
deny contains lib.denial(rego.metadata.rule()) if input.call.stream
`,
		"org/rules/streams/streams_test.rego": `package org.rules.streams_test

import data.org.rules.streams

test_stream if {
	some denial in streams.deny with input as {"call": {"stream": true}}
	denial.code == "` + code + `"
}

test_whole if count(streams.deny) == 0 with input as {"call": {"stream": false}}
`,
	}
}

// but is a bundle with a file exchanged.
func but(files map[string]string, name, from, to string) map[string]string {
	changed := maps.Clone(files)
	changed[name] = strings.Replace(changed[name], from, to, 1)
	return changed
}

// signed adds a signature, as opa sign does.
func signed(t *testing.T, files map[string]string, scope string) map[string]string {
	t.Helper()
	var infos []bundle.FileInfo
	for _, name := range slices.Sorted(maps.Keys(files)) {
		var content any = []byte(files[name])
		if bundle.IsStructuredDoc(name) {
			if err := util.Unmarshal([]byte(files[name]), &content); err != nil {
				t.Fatal(err)
			}
		}
		hasher, err := bundle.NewSignatureHasher(bundle.SHA256)
		if err != nil {
			t.Fatal(err)
		}
		sum, err := hasher.HashFile(content)
		if err != nil {
			t.Fatal(err)
		}
		infos = append(infos, bundle.NewFile(name, hex.EncodeToString(sum), string(bundle.SHA256)))
	}
	config := bundle.NewSigningConfig(hmacSecret, "HS256", "")
	if scope != "" {
		claims := filepath.Join(t.TempDir(), "claims.json")
		if err := os.WriteFile(claims, []byte(`{"scope": "`+scope+`"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		config.ClaimsPath = claims
	}
	token, err := bundle.GenerateSignedToken(infos, config, signatureKey)
	if err != nil {
		t.Fatal(err)
	}
	with := maps.Clone(files)
	text, err := json.Marshal(map[string]any{"signatures": []string{token}})
	if err != nil {
		t.Fatal(err)
	}
	with[".signatures.json"] = string(text)
	return with
}

// tarball packs files as opa build does.
func tarball(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := archive.WriteHeader(&tar.Header{Name: "/" + name, Mode: 0o600, Size: int64(len(files[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// bundleServer is where a bundle is got from. It shows whatever it was sent in answers that are no bundle.
type bundleServer struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	body   []byte
	asked  atomic.Int64
}

func newBundleServer(t *testing.T) *bundleServer {
	t.Helper()
	b := &bundleServer{status: http.StatusServiceUnavailable}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.asked.Add(1)
		if b.status != http.StatusOK || r.Header.Get("Authorization") != "Bearer "+bundleToken {
			w.Header().Set("Location", "/moved?"+url.QueryEscape(r.Header.Get("Authorization")))
			w.WriteHeader(b.status)
			_, _ = fmt.Fprint(w, r.Header)
			return
		}
		etag := fmt.Sprintf(`"%x"`, sha256.Sum256(b.body))
		w.Header().Set("ETag", etag)
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = w.Write(b.body)
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *bundleServer) answer(status int, body []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.body = status, body
}

// withBundle is the catalogue with bundles, and keys by which they may be signed.
func withBundle(catalogue, bundles string) string {
	return strings.Replace(catalogue, "policy:\n", `policy:
  keys: [{id: `+signatureKey+`, algorithm: HS256, key: "env:HMAC"}]
  bundles:
`+bundles, 1)
}

// probe is what a readiness report says.
type probe struct {
	status     int
	Status     string
	Components map[string]componentReport
}

// ready asks /readyz.
func (g *gateway) ready(t *testing.T) (p probe) {
	t.Helper()
	r := g.request(t, http.MethodGet, "", nil)
	var err error
	if r.URL, err = url.Parse(g.URL() + "/readyz"); err != nil {
		t.Fatal(err)
	}
	a := g.do(t, r)
	p.status = a.status
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// metricLines are the lines of /metrics that begin with a text.
func (g *gateway) metricLines(t *testing.T, prefix string) (lines []string) {
	t.Helper()
	response, err := g.client.Get(g.URL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// streamed sends a stream and tells the code of its refusal; empty if it was served.
func (g *gateway) streamed(t *testing.T) string {
	t.Helper()
	return g.post(t, streamBody).code()
}

// TestABundleOfAServer goes through a bundle's life: it is not there, arrives, changes, is broken in every way, and is good again.
func TestABundleOfAServer(t *testing.T) {
	server := newBundleServer(t)
	g := startGatewayOn(t, memoryURL, withBundle(catalogueText, `    - {name: org, url: "`+server.URL+`/org.tar.gz?v=`+urlCanary+`", credential: "env:BUNDLE", poll: 1s, signing: {key: shared, scope: write}}
`), nil)
	g.script(t, `{"text": ["Hello"]}`)
	where := server.URL + "/org.tar.gz: "

	wait(t, "the bundle to be missed", func() bool { return strings.Contains(g.ready(t).Components["bundle/org"].Message, "503") })
	p := g.ready(t)
	unavailable := where + "the answer is 503 Service Unavailable: the other side is at fault; it is asked again"
	if p.status != 503 || p.Status != failed || p.Components["policy"] != (componentReport{failed, "bundle org is missing: " + unavailable}) ||
		p.Components["bundle/org"] != (componentReport{degraded, unavailable}) {
		t.Errorf("without the bundle: %+v", p)
	}
	if a := g.post(t, wholeBody); a.status != 503 {
		t.Errorf("a call without the bundle: %d %s", a.status, a.body)
	}
	if lines := g.metricLines(t, "regent_policy_info"); len(lines) != 0 {
		t.Errorf("a policy is in force: %v", lines)
	}

	look := func(files map[string]string) {
		t.Helper()
		server.answer(200, tarball(t, files))
		g.Activate()
	}
	first := signed(t, rule("FIRST"), "write")
	look(first)
	p = g.ready(t)
	if p.status != 200 || p.Status != ok || p.Components["policy"].Status != ok || p.Components["bundle/org"].Status != ok {
		t.Errorf("with the bundle: %+v", p)
	}
	if code := g.streamed(t); code != "FIRST" {
		t.Errorf("a stream ended with %q", code)
	}
	if a := g.post(t, wholeBody); a.status != 200 {
		t.Errorf("a call: %d %s", a.status, a.body)
	}
	inForce := g.policy.Current()
	if lines := g.metricLines(t, "regent_policy_info"); len(lines) != 1 || lines[0] != `regent_policy_info{digest="`+inForce.Digest()+`"} 1` {
		t.Errorf("the policy in force: %v", lines)
	}
	if lines := g.metricLines(t, `regent_bundle_info{bundle="org"`); len(lines) != 1 || lines[0] != `regent_bundle_info{bundle="org",revision="FIRST"} 1` {
		t.Errorf("the bundle in force: %v", lines)
	}
	if lines := g.metricLines(t, "regent_bundle_fetched_timestamp_seconds"); len(lines) != 1 {
		t.Errorf("fetched: %v", lines)
	}

	second := rule("SECOND")
	tampered := signed(t, second, "write")
	tampered["org/rules/streams/streams.rego"] = strings.Replace(tampered["org/rules/streams/streams.rego"], "input.call.stream", "false", 1)
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a syntax error":          {signed(t, but(second, "org/rules/streams/streams.rego", "if input", "iff input"), "write"), "bundle org: org/rules/streams/streams.rego:14: "},
		"a test that fails":       {signed(t, but(second, "org/rules/streams/streams_test.rego", "== 0", "== 1"), "write"), "org/rules/streams/streams_test.rego:10: the test data.org.rules.streams_test.test_whole fails"},
		"a rule that is misspelt": {signed(t, but(second, "org/rules/streams/streams.rego", "deny contains", "dney contains"), "write"), "streams"},
		"a tampered file":         {tampered, "bundle org: .signatures.json: the signature is not good"},
		"a file that is added":    {but(signed(t, second, "write"), "org/rules/more/more.rego", "", "package org.rules.more\n"), "bundle org: .signatures.json: the signature is not good"},
		"no signature":            {second, "bundle org: .signatures.json: it is missing: the bundle has to be signed"},
		"another scope":           {signed(t, second, "read"), "bundle org: .signatures.json: the signature is not good"},
	} {
		look(test.files)
		p = g.ready(t)
		if c := p.Components["policy"]; p.status != 200 || p.Status != degraded || c.Status != degraded || !strings.Contains(c.Message, test.want) {
			t.Errorf("%s: %+v, want %q", name, p, test.want)
		}
		if code := g.streamed(t); code != "FIRST" || g.policy.Current() != inForce {
			t.Errorf("%s: the last good policy is not in force: %q", name, code)
		}
	}
	refused := g.metricLines(t, `regent_policy_activations_total{outcome="refused"}`)
	if len(refused) != 1 || refused[0] != `regent_policy_activations_total{outcome="refused"} 7` {
		t.Errorf("refused: %v", refused)
	}

	look(first) // what is in force is published again: nothing is exchanged
	if p = g.ready(t); p.Status != ok || g.policy.Current() != inForce {
		t.Errorf("the first one again: %+v", p)
	}
	if lines := g.metricLines(t, `regent_policy_activations_total{outcome="activated"}`); lines[0] != `regent_policy_activations_total{outcome="activated"} 1` {
		t.Errorf("activated: %v", lines)
	}

	server.answer(500, nil)
	g.Activate()
	p = g.ready(t)
	if p.status != 200 || p.Status != degraded || p.Components["policy"].Status != ok ||
		p.Components["bundle/org"] != (componentReport{degraded, where + "the answer is 500 Internal Server Error: the other side is at fault; it is asked again"}) {
		t.Errorf("while the server fails: %+v", p)
	}
	if code := g.streamed(t); code != "FIRST" {
		t.Errorf("while the server fails: %q", code)
	}
	server.answer(200, tarball(t, signed(t, second, "write"))) // and is found by itself
	wait(t, "the second bundle", func() bool { return g.streamed(t) == "SECOND" })
	if p = g.ready(t); p.Status != ok {
		t.Errorf("at the end: %+v", p)
	}
	if lines := g.metricLines(t, "regent_policy_info"); len(lines) != 1 || lines[0] != `regent_policy_info{digest="`+g.policy.Current().Digest()+`"} 1` {
		t.Errorf("the policy in force: %v", lines)
	}
	for _, word := range []string{bundleToken, hmacSecret, urlCanary} {
		if tells([]byte(g.output.String()), word) {
			t.Errorf("%q was logged", word)
		}
	}
}

// TestErrorsAreLoggedOnce, however often the sources are looked at.
func TestErrorsAreLoggedOnce(t *testing.T) {
	folder := t.TempDir()
	writeBundle(t, folder, but(rule("FIRST"), "org/rules/streams/streams.rego", "if input", "iff input"))
	g := startGatewayOn(t, memoryURL, withBundle(catalogueText, "    - {name: org, folder: "+folder+"}\n    - {name: gone, folder: "+folder+"/gone}\n"), nil)
	for range 3 {
		g.Activate()
	}
	time.Sleep(time.Second) // four polls
	if text := g.output.String(); strings.Count(text, "cannot be fetched") != 1 || strings.Contains(text, "does not load") {
		t.Errorf("with a bundle that is missing:\n%s", text)
	}
	g.replaceCatalogue(t, withBundle(catalogueText, "    - {name: org, folder: "+folder+"}\n"))
	for range 3 {
		g.Activate()
	}
	if text := g.output.String(); strings.Count(text, "the policy does not load") != 1 {
		t.Errorf("with a bundle that is broken:\n%s", text)
	}
	if _, exists := g.ready(t).Components["bundle/gone"]; exists {
		t.Error("a bundle that was taken out is still told of")
	}
	g.writeCatalogue(t, "nonsense: 1\n")
	logged := func(text string) int { return strings.Count(g.output.String(), text) }
	wait(t, "the broken catalogue", func() bool { return logged("the catalogue is refused; the last good one counts") == 1 })
	time.Sleep(time.Second) // four polls
	g.replaceCatalogue(t, catalogueText)
	wait(t, "the catalogue to be right", func() bool { return logged("the catalogue's file counts again") == 1 })
	if n := logged("the catalogue is refused"); n != 1 {
		t.Errorf("a broken catalogue is logged %d times", n)
	}
}

// replaceCatalogue replaces the catalogue's file and waits until it counts.
func (g *gateway) replaceCatalogue(t *testing.T, text string) {
	t.Helper()
	before := g.Catalogue()
	g.writeCatalogue(t, text)
	wait(t, "the catalogue to be read", func() bool { return g.Catalogue() != before })
}

// writeCatalogue puts a whole file in the catalogue's place: of one that is being written, a look may find a half.
func (g *gateway) writeCatalogue(t *testing.T, text string) {
	t.Helper()
	next := g.config.Catalogue + ".next"
	if err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, g.config.Catalogue)); err != nil {
		t.Fatal(err)
	}
}

func writeBundle(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestBundlesComeAndGoWithTheCatalogue: what the new catalogue names counts when all of it is there, and until then all of the old one.
func TestBundlesComeAndGoWithTheCatalogue(t *testing.T) {
	server := newBundleServer(t)
	server.answer(200, tarball(t, rule("SERVED")))
	g := startGatewayOn(t, memoryURL, catalogueText, nil)
	g.script(t, `{"text": ["Hello"]}`)
	if code := g.streamed(t); code != "" {
		t.Errorf("without a bundle: %q", code)
	}
	from := `    - {name: org, url: "` + server.URL + `/org.tar.gz", credential: "env:BUNDLE", poll: 1h}` + "\n"
	g.replaceCatalogue(t, withBundle(catalogueText, from))
	wait(t, "the bundle", func() bool { return g.streamed(t) == "SERVED" })
	if asked := server.asked.Load(); asked != 1 {
		t.Errorf("the server was asked %d times", asked)
	}

	digest := g.policy.Current().Digest()
	settings := strings.Replace(withBundle(catalogueText, from), "settings: {", "settings: {openrouter_routing: refuse, ", 1)
	g.replaceCatalogue(t, settings)
	wait(t, "the settings", func() bool { return g.policy.Current().Digest() != digest })
	if code, asked := g.streamed(t), server.asked.Load(); code != "SERVED" || asked != 1 {
		t.Errorf("after other settings: %q, asked %d times", code, asked)
	}

	folder := t.TempDir()
	digest = g.policy.Current().Digest()
	g.replaceCatalogue(t, withBundle(catalogueText, from+"    - {name: more, folder: "+folder+"/more}\n"))
	wait(t, "the new bundle to be missed", func() bool {
		return strings.Contains(g.ready(t).Components["bundle/more"].Message, "no such file")
	})
	p := g.ready(t)
	if p.status != 200 || !strings.HasPrefix(p.Components["policy"].Message, "bundle more is missing: "+folder+"/more: no such file") || g.policy.Current().Digest() != digest {
		t.Errorf("while a bundle is missing: %+v", p)
	}
	more := map[string]string{".manifest": `{"roots": ["org2"]}`, "org2/lists/data.json": `{"a": 1}`}
	writeBundle(t, folder+"/more", more)
	wait(t, "both", func() bool { return g.policy.Current().Digest() != digest && g.ready(t).Status == ok })
	if revisions := g.policy.Current().Bundles(); len(revisions) != 3 || revisions["org"] != "SERVED" {
		t.Errorf("in force: %v", revisions)
	}
	g.replaceCatalogue(t, catalogueText)
	wait(t, "no bundle", func() bool { return len(g.policy.Current().Bundles()) == 1 })
	if code := g.streamed(t); code != "" {
		t.Errorf("without a bundle again: %q", code)
	}
	wait(t, "health to be good", func() bool {
		p := g.ready(t)
		_, exists := p.Components["bundle/org"]
		return p.Status == ok && !exists
	})
}

// TestABundleInPlaceOfTheShippedOne counts alone, and is watched as any other is.
func TestABundleInPlaceOfTheShippedOne(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("../policies")); err != nil {
		t.Fatal(err)
	}
	g := startGatewayOn(t, memoryURL, withBundle(catalogueText, "    - {name: regent, folder: "+folder+"}\n"), nil)
	wait(t, "the bundle", func() bool { return g.ready(t).Status == ok })
	g.wantAlive(t)
	if err := os.RemoveAll(filepath.Join(folder, "regent", "main")); err != nil {
		t.Fatal(err)
	}
	wait(t, "the broken bundle to be refused", func() bool { return g.ready(t).Components["policy"].Status == degraded })
	g.wantAlive(t)
}

// TestTestsRunOnlyWithOtherBundles: those of the bundles in force have passed.
func TestTestsRunOnlyWithOtherBundles(t *testing.T) {
	folder := t.TempDir()
	writeBundle(t, folder, rule("FIRST"))
	configured := withBundle(catalogueText, "    - {name: org, folder: "+folder+"}\n")
	g := startGatewayOn(t, memoryURL, configured, nil)
	wait(t, "the bundle", func() bool { return g.ready(t).Status == ok })
	tested := func() (names []string) {
		g.activating.building.Lock()
		defer g.activating.building.Unlock()
		snapshot, err := g.bundles.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		g.activating.mark(snapshot)
		for _, bundle := range snapshot.Bundles {
			if bundle.Tested {
				names = append(names, bundle.Name)
			}
		}
		return names
	}
	if got := tested(); !slices.Equal(got, []string{"regent", "org"}) {
		t.Errorf("of what is in force, tested: %v", got)
	}
	writeBundle(t, folder, but(rule("FIRST"), "org/rules/streams/streams_test.rego", "== 0", "== 1"))
	wait(t, "the tests to fail", func() bool { return g.ready(t).Components["policy"].Status == degraded })
	for _, again := range []func(){g.Activate, func() {
		g.replaceCatalogue(t, strings.Replace(configured, "settings: {", "settings: {openrouter_routing: refuse, ", 1))
		g.Activate()
	}} {
		again()
		if c := g.ready(t).Components["policy"]; c.Status != degraded || !strings.Contains(c.Message, "test_whole fails") || !slices.Equal(tested(), []string{"regent"}) {
			t.Errorf("looked at again: %+v, tested: %v", c, tested())
		}
	}
	writeBundle(t, folder, rule("FIRST"))
	wait(t, "the first ones", func() bool { return g.ready(t).Status == ok })
	if got := tested(); !slices.Equal(got, []string{"regent", "org"}) {
		t.Errorf("of what is in force again, tested: %v", got)
	}
}

// TestASwapLosesNoCall: while a folder flips between two bundles each call gets one of their two answers.
func TestASwapLosesNoCall(t *testing.T) {
	releases := t.TempDir()
	writeBundle(t, filepath.Join(releases, "a"), rule("FIRST"))
	writeBundle(t, filepath.Join(releases, "b"), rule("SECOND"))
	current := filepath.Join(releases, "current")
	flip := func(to string) {
		next := filepath.Join(releases, "next")
		if err := errors.Join(os.Symlink(to, next), os.Rename(next, current)); err != nil {
			t.Error(err)
		}
	}
	flip("a")
	g := startGatewayOn(t, memoryURL, withBundle(catalogueText, "    - {name: org, folder: "+current+"}\n"), nil)
	g.script(t, `{"text": ["Hello"]}`)
	wait(t, "the bundle", func() bool { return g.ready(t).Status == ok })
	stop := make(chan struct{})
	var callers sync.WaitGroup
	var answers, refusals sync.Map
	var calls atomic.Int64
	for range 4 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, b := g.post(t, streamBody), g.post(t, wholeBody)
				answers.Store(fmt.Sprint(a.status, a.code(), b.status), true)
				if a.broken || b.broken {
					refusals.Store(true, true)
				}
				calls.Add(2)
			}
		})
	}
	for i := range 8 {
		to := []string{"b", "a"}[i%2]
		flip(to)
		code := map[string]string{"a": "FIRST", "b": "SECOND"}[to]
		wait(t, code, func() bool { return g.policy.Current().Bundles()["org"] == code })
	}
	close(stop)
	callers.Wait()
	got := map[any]bool{}
	answers.Range(func(answer, _ any) bool { got[answer] = true; return true })
	if want := map[any]bool{"403FIRST200": true, "403SECOND200": true}; !maps.Equal(got, want) {
		t.Errorf("of %d calls: %v", calls.Load(), got)
	}
	refusals.Range(func(_, _ any) bool { t.Error("an answer broke off"); return true })
	if calls.Load() < 50 {
		t.Errorf("only %d calls were made", calls.Load())
	}
}

// TestNothingRunsAfterTheEnd: not even what was waiting for a server that says nothing.
func TestNothingRunsAfterTheEnd(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer silent.Close()
	folder := t.TempDir()
	writeBundle(t, folder, rule("FIRST"))
	before := goleak.IgnoreCurrent()
	began := time.Now()
	g := startGatewayOn(t, memoryURL, withBundle(catalogueText, "    - {name: org, folder: "+folder+"}\n    - {name: slow, url: \""+silent.URL+"\"}\n"), nil)
	wait(t, "the folder", func() bool { return g.ready(t).Components["bundle/org"].Status == ok })
	if p := g.ready(t); p.status != 503 || p.Components["policy"].Message != "bundle slow is missing: it is being looked for" {
		t.Errorf("while a server says nothing: %+v", p)
	}
	if err := g.halt(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	silent.CloseClientConnections()
	goleak.VerifyNone(t, before)
}
