package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"regent/adapters/fake"
	"regent/ledger"
	"regent/ledger/sqldb"
)

// patience bounds every wait for something that is to happen, on a machine that does much else.
const patience = 60 * time.Second

// address is where a gateway listens: a URL.
type address string

// process is the program itself as a child process, on a data folder that outlives it.
type process struct {
	t *testing.T
	address
	cmd    *exec.Cmd
	stderr *lockedBuffer
	exited chan struct{}
	// killed says that it was, by this test.
	killed bool
}

// site is what stays when a process goes: a database, a folder, a catalogue, and the provider that it names.
type site struct {
	t        *testing.T
	folder   string
	provider *fake.Server
	// url is the database server's; empty is SQLite in the data folder.
	url string
	// variables are further ones of the environment, NAME=VALUE.
	variables []string
}

// siteCatalogue takes the provider's URL, a model for each of its scripts, and the limit of a user's tokens.
const siteCatalogue = `
inference: {enabled: true}
connections:
  - {id: up, provider: fake, adapter: openai, base_url: %q, credential: none, allow_private: true}
models:
%s
groups:
  - {id: engineering, features: ["feat:ai:use"]}
users:
  - {id: alice, groups: [engineering], residency: eu, tokens: [{name: first, token: "env:TOKEN_ALICE"}]}
limits:
  user: {tokens: %s, usd: {max: "1000000", window: 24h}}
policy:
  required_rules: [access, allow_list, availability, fallback, openrouter, residency, strict_budget]
decisions:
  sinks: [{name: file, file: decisions.jsonl}]
`

// siteOutputMax is the output that a call of a site can have. Its provider may think without telling: where nobody knows what was used, that
// is charged.
const siteOutputMax = 1024

// siteModel is one model of the catalogue, with one source for each of its scripts.
func siteModel(name string, sources ...string) string {
	text := fmt.Sprintf("  - id: %s\n    context_tokens: 128000\n    output_tokens_max: %d\n    access: {everyone: true}\n    sources:\n", name, siteOutputMax)
	for _, source := range sources {
		text += fmt.Sprintf("      - {id: %s-%s, connection: up, model: %s, residency: eu, circuit: {enabled: false}, price: {input: \"0.25\", output: \"2\"}}\n", name, source, source)
	}
	return text
}

// boundless is a limit that no test comes to.
const boundless = `{max: "1000000000000", window: 24h}`

// newSite starts a provider with these scripts and writes a catalogue with these models.
func newSite(t *testing.T, config fake.Config, scripts map[string]fake.Script, models string, variables ...string) *site {
	t.Helper()
	return newLimitedSite(t, config, scripts, models, boundless, variables...)
}

// newLimitedSite is newSite with a limit of a user's tokens.
func newLimitedSite(t *testing.T, config fake.Config, scripts map[string]fake.Script, models, tokens string, variables ...string) *site {
	t.Helper()
	provider, err := fake.Start(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = provider.Close() }) // it breaks what is open
	for model, script := range scripts {
		provider.SetScript(model, script)
	}
	s := &site{t: t, folder: t.TempDir(), provider: provider, variables: variables}
	catalogue := fmt.Sprintf(siteCatalogue, provider.URL(), models, tokens)
	if err := os.WriteFile(filepath.Join(s.folder, "catalogue.yaml"), []byte(catalogue), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// dataFolder is where a process keeps its own, unless it is given another folder.
const dataFolder = "data"

// start starts the program and waits until it listens.
func (s *site) start() *process { return s.startIn(dataFolder) }

// startIn starts the program on a data folder, with further variables.
func (s *site) startIn(data string, variables ...string) *process {
	s.t.Helper()
	p := &process{t: s.t, cmd: exec.Command("regent"), stderr: &lockedBuffer{}, exited: make(chan struct{})}
	p.cmd.Env = append([]string{
		"REGENT_ADDR=127.0.0.1:0", "REGENT_DATA=" + filepath.Join(s.folder, data),
		"REGENT_CONFIG=" + filepath.Join(s.folder, "catalogue.yaml"), "TOKEN_ALICE=" + tokenOf("alice"),
	}, slices.Concat(s.variables, variables)...)
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(p.kill)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "listen "); ok {
			p.address = address(strings.TrimSpace(url))
			break
		}
	}
	go func() {
		for lines.Scan() { // until the process ends: a full pipe would hold it up
		}
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.exited)
	}()
	if p.address == "" {
		<-p.exited
		s.t.Fatalf("the program did not start: %v\n%s", p.cmd.ProcessState, p.stderr.bytes())
	}
	return p
}

func (p *process) signal(signal os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatalf("%v: %v", signal, err)
	}
}

// kill ends the process as a power cut or the kernel does. One that has ended stays as it is.
func (p *process) kill() {
	p.killed = true
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("kill: %v", err)
	}
	<-p.exited
}

// wantExit waits until the process has ended by itself, and well.
func (p *process) wantExit() {
	p.t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		p.signal(syscall.SIGQUIT) // prints where each goroutine is
		<-p.exited
		p.t.Fatalf("the program does not end\n%s", p.stderr.bytes())
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Errorf("the program ended as %v\n%s", p.cmd.ProcessState, p.stderr.bytes())
	}
	p.wantSound()
}

// wantSound looks at what the program has logged for what no program may log.
func (p *process) wantSound() {
	p.t.Helper()
	if stderr := p.stderr.bytes(); bytes.Contains(stderr, []byte("DATA RACE")) || bytes.Contains(stderr, []byte("panic")) {
		p.t.Errorf("the program said\n%s", stderr)
	}
}

// request is a chat completion of alice's. Its client request id is in its body, too, for the provider to see.
func (a address) request(ctx context.Context, model, id string, stream bool) *http.Request {
	body := fmt.Sprintf(`{"model":%q,"stream":%v,"user":%q,"messages":[{"role":"user","content":"Hello"}]}`, model, stream, id)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, string(a)+"/api/inference/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		panic(err) // a URL and a body of our own
	}
	r.Header.Set("Authorization", "Bearer "+tokenOf("alice"))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-Client-Request-Id", id)
	return r
}

// withStore opens the site's database for looking; the program may run on it.
func (s *site) withStore(look func(ledger.Store)) {
	s.t.Helper()
	database := sqldb.Config{URL: s.url, ReadOnly: true}
	if s.url == "" {
		database.Path = filepath.Join(s.folder, dataFolder, "regent.db")
	}
	store, err := sqldb.Open(context.Background(), database)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			s.t.Error(err)
		}
	}()
	look(store)
}

// waitUntil polls until something is so.
func waitUntil(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
