package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The standard library prints what a provider sends after the end of an answer. The program lets nothing of it be seen.
func TestNothingOfAProviderIsPrinted(t *testing.T) {
	const canary = "canary-of-a-provider"
	provider, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = provider.Close() }()
	seen := make(chan struct{})
	go func() {
		connection, err := provider.Accept()
		if err != nil {
			return
		}
		defer func() { _ = connection.Close() }()
		r, err := http.ReadRequest(bufio.NewReader(connection))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		answer := `{"choices":[{"message":{"content":"Hello"}}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`
		_, _ = fmt.Fprintf(connection, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s%s", len(answer), answer, canary)
		_, _ = io.Copy(io.Discard, connection) // it returns when the program has seen that and closed
		close(seen)
	}()
	folder := t.TempDir()
	config := filepath.Join(folder, "catalogue.yaml")
	if err := os.WriteFile(config, []byte(`
inference: {enabled: true}
connections: [{id: c, provider: p, adapter: openai, base_url: "http://`+provider.Addr().String()+`", credential: none, allow_private: true}]
models: [{id: m, output_tokens_max: 10, access: {everyone: true}, sources: [{id: s, connection: c, model: up, price: {input: "1", output: "1"}}]}]
users: [{id: demo, features: ["feat:ai:use"], tokens: [{name: t, token: "env:TOKEN"}]}]
limits: {user: {tokens: {max: "10000"}, usd: {max: "1"}}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	program := exec.Command("regent")
	program.Env = append(os.Environ(), "REGENT_ADDR=127.0.0.1:0", "REGENT_CONFIG="+config, "REGENT_DATA="+filepath.Join(folder, "data"),
		"REGENT_DATABASE_URL=memory:", "TOKEN="+tokenOf("demo"))
	var printed bytes.Buffer
	program.Stderr = &printed
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = program.Process.Kill() }() // if it has not ended
	first, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("%v, and %s", err, &printed)
	}
	url := strings.TrimSpace(strings.TrimPrefix(first, "listen"))
	r, err := http.NewRequest(http.MethodPost, url+"/api/inference/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+tokenOf("demo"))
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("got %s", response.Status)
	}
	select {
	case <-seen:
	case <-time.After(20 * time.Second):
		t.Error("the program has not seen what came after the answer")
	}
	if err := program.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := program.Wait(); err != nil {
		t.Errorf("the program ended with %v: %s", err, &printed)
	}
	if strings.Contains(printed.String(), canary) {
		t.Errorf("printed: %s", &printed)
	}
}
