// Package clients holds the official SDKs of OpenAI and Anthropic, and agents, against the program as it is built, with a scripted
// provider behind it. It is a module of its own, so that the program does not depend on what only its clients need.
package clients

import (
	"bufio"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"regent/adapters/fake"
)

// Tokens of the catalogue's users.
var (
	richToken = "gwi_" + strings.Repeat("1", 64)
	poorToken = "gwi_" + strings.Repeat("2", 64)
)

//go:embed catalogue.yaml
var catalogue string

// program is the built binary.
var program string

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run builds the program as its own module does, runs the tests, and returns the exit code.
func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "clients")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(folder) }() // it is a temporary folder
	program = filepath.Join(folder, "regent")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", program, "./server/cmd/regent")
	build.Dir = filepath.Join("..", "..")
	if output, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "the program does not build: %v\n%s", err, output)
		return 1
	}
	return m.Run()
}

// gateway is the program running, and the provider behind it.
type gateway struct {
	url      string
	upstream *fake.Server
}

const patience = 30 * time.Second // for what takes milliseconds on an idle machine

// start starts the program on the SDKs' catalogue.
func start(t *testing.T) *gateway {
	return startOn(t, catalogue, "UPSTREAM", "TOKEN_RICH="+richToken, "TOKEN_POOR="+poorToken)
}

// startOn starts the program on SQLite in a folder of its own, with a catalogue in which the provider is written so. Its end is part of
// the test: it stops cleanly when asked to, and has complained about nothing.
func startOn(t *testing.T, catalogue, provider string, tokens ...string) *gateway {
	upstream, err := fake.Start(fake.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = upstream.Close() }) // what is still open is ended
	folder := t.TempDir()
	file := filepath.Join(folder, "catalogue.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(catalogue, provider, upstream.URL())), 0o600); err != nil {
		t.Fatal(err)
	}
	process := exec.Command(program)
	process.Env = append(tokens, "REGENT_ADDR=127.0.0.1:0", "REGENT_CONFIG="+file, "REGENT_DATA="+filepath.Join(folder, "data"))
	var complaints bytes.Buffer
	process.Stderr = &complaints
	stdout, err := process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(patience, func() { _ = process.Process.Kill() }) // and what waits for it fails
	line, err := bufio.NewReader(stdout).ReadString('\n')
	late.Stop()
	t.Cleanup(func() {
		late.Reset(patience)
		defer late.Stop()
		_ = process.Process.Signal(syscall.SIGTERM) // Wait says if it has ended before
		err := process.Wait()
		if said := wrong(complaints.String()); err != nil || said != "" {
			t.Errorf("the program ended with %v and said:\n%s", err, said)
		}
	})
	url, found := strings.CutPrefix(strings.TrimSpace(line), "listen ")
	if err != nil || !found {
		t.Fatalf("the program began with %q, %v", line, err)
	}
	g := &gateway{url: strings.TrimSpace(url), upstream: upstream}
	eventually(t, "the gateway is ready", func() bool {
		response, err := http.Get(g.url + "/readyz")
		if err != nil {
			return false
		}
		defer func() { _ = response.Body.Close() }()
		return response.StatusCode == http.StatusOK
	})
	return g
}

// What OpenAI's SDKs are given as their base URL, and what Anthropic's are.
func (g *gateway) openAI() string    { return g.url + "/api/inference/v1" }
func (g *gateway) anthropic() string { return g.url + "/api/inference" }

// get reads a document of the gateway's own.
func (g *gateway) get(t *testing.T, token, path string) gjson.Result {
	t.Helper()
	return gjson.Parse(g.read(t, token, "/api/inference/v1"+path))
}

func (g *gateway) read(t *testing.T, token, path string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, g.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v, %s", path, response.Status, err, body)
	}
	return string(body)
}

// settled waits until a call has its last state, and returns it.
func (g *gateway) settled(t *testing.T, token, id string) (call gjson.Result) {
	t.Helper()
	eventually(t, "call "+id+" is settled", func() bool {
		call = g.get(t, token, "/requests/"+id)
		return call.Get("ended_at").Type == gjson.String
	})
	return call
}

// script sets how the provider's model behaves from now on.
func (g *gateway) script(model string, text []byte) error {
	script, err := fake.ParseScript(text)
	if err == nil {
		g.upstream.SetScript(model, script)
	}
	return err
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// wrong is what a log says besides what went as it should.
func wrong(log string) string {
	var lines []string
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "level=INFO") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}
