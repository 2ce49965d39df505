package clients

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// codexConfig sets Codex up for a gateway at URL: nobody else is asked or told anything.
const codexConfig = `
model = "demo/agent"
model_provider = "gateway"
check_for_update_on_startup = false
approval_policy = "never"
sandbox_mode = "danger-full-access"

[analytics]
enabled = false

[feedback]
enabled = false

[model_providers.gateway]
name = "Gateway"
base_url = "URL"
env_key = "GATEWAY_TOKEN"
wire_api = "responses"
`

// agent is a program that works on its own with a model and a shell.
type agent struct {
	name, protocol string
	// command runs one turn in a home of its own.
	command func(ctx context.Context, g *gateway, home string) (*exec.Cmd, error)
	// last is the text by which the agent says that its turn has ended well, in what it has printed.
	last func(printed []byte) string
	// results are what its shell has printed, as the provider was shown it in a request.
	results func(request gjson.Result) []string
}

var agents = []agent{
	{
		name: "codex", protocol: "openai.responses",
		command: func(ctx context.Context, g *gateway, home string) (*exec.Cmd, error) {
			folder := filepath.Join(home, ".codex")
			if err := os.Mkdir(folder, 0o700); err != nil {
				return nil, err
			}
			config := strings.ReplaceAll(codexConfig, "URL", g.openAI())
			if err := os.WriteFile(filepath.Join(folder, "config.toml"), []byte(config), 0o600); err != nil {
				return nil, err
			}
			command := agentCommand(ctx, "codex", home, "exec", "--skip-git-repo-check", "--json", "Say hello by the shell.")
			command.Env = append(command.Env, "GATEWAY_TOKEN="+richToken)
			return command, nil
		},
		last: func(printed []byte) (text string) { // a line an event
			for line := range strings.Lines(string(printed)) {
				switch event := gjson.Parse(line); event.Get("type").Str {
				case "item.completed":
					if event.Get("item.type").Str == "agent_message" {
						text = event.Get("item.text").Str
					}
				case "turn.completed":
					return text
				}
			}
			return ""
		},
		results: func(request gjson.Result) (results []string) {
			for _, item := range request.Get("input").Array() {
				if item.Get("type").Str == "function_call_output" {
					results = append(results, item.Get("output").String())
				}
			}
			return results
		},
	},
	{
		name: "claude", protocol: "anthropic.messages",
		command: func(ctx context.Context, g *gateway, home string) (*exec.Cmd, error) {
			command := agentCommand(ctx, "claude", home, "-p", "Say hello by the shell.", "--allowedTools", "Bash(echo:*)",
				"--output-format", "json", "--max-turns", "4")
			command.Env = append(command.Env,
				"ANTHROPIC_BASE_URL="+g.anthropic(), "ANTHROPIC_AUTH_TOKEN="+richToken,
				"ANTHROPIC_MODEL=demo/agent", "ANTHROPIC_SMALL_FAST_MODEL=demo/agent", "ANTHROPIC_DEFAULT_HAIKU_MODEL=demo/agent",
				"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_TELEMETRY=1", "DISABLE_ERROR_REPORTING=1", "DISABLE_AUTOUPDATER=1",
			)
			return command, nil
		},
		last: func(printed []byte) string {
			turn := gjson.ParseBytes(printed)
			if turn.Get("subtype").Str != "success" || turn.Get("is_error").Bool() {
				return ""
			}
			return turn.Get("result").Str
		},
		results: func(request gjson.Result) (results []string) {
			for _, message := range request.Get("messages").Array() {
				for _, block := range message.Get("content").Array() {
					if block.Get("type").Str == "tool_result" {
						results = append(results, block.Get("content").String())
					}
				}
			}
			return results
		},
	},
}

// agentCommand is an agent's program with an environment that holds nothing of the caller's but where programs are.
func agentCommand(ctx context.Context, program, home string, arguments ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, filepath.Join("agents", "node_modules", ".bin", program), arguments...)
	command.Path, _ = filepath.Abs(command.Path) // it runs elsewhere
	command.Dir = home
	command.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8", "TERM=dumb"}
	return command
}

// takeTurn has an agent take a turn on the demo. A limit other than the demo's is its user's tokens.
func (a agent) takeTurn(t *testing.T, tokens string) (g *gateway, printed []byte, err error) {
	if os.Getenv("REGENT_TEST_AGENTS") == "" {
		t.Skip("only with REGENT_TEST_AGENTS: make clients sets it")
	}
	demo, err := os.ReadFile(filepath.Join("..", "..", "server", "catalog", "demo.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const limit = `user:
    tokens: {max: "1000000"`
	if !strings.Contains(string(demo), limit) {
		t.Fatalf("the demo does not say %q", limit)
	}
	g = startOn(t, strings.Replace(string(demo), limit, strings.Replace(limit, "1000000", tokens, 1), 1), "builtin:fake", "REGENT_DEMO_TOKEN="+richToken)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	command, err := a.command(ctx, g, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var complaints bytes.Buffer
	command.Stderr = &complaints
	printed, err = command.Output()
	t.Logf("%s printed\n%s%s", a.name, printed, complaints.String())
	return g, printed, err
}

// agentCall is a call of an agent's, as it is recorded.
type agentCall struct{ Model, Protocol, State string }

func (a agent) calls(t *testing.T, g *gateway) (calls []agentCall) {
	if err := json.Unmarshal([]byte(g.get(t, richToken, "/requests").Get("requests").Raw), &calls); err != nil {
		t.Fatal(err)
	}
	return calls
}

// TestAgents: in its turn, each agent runs the command that the provider wants, shows what it has printed, and gets the last word.
func TestAgents(t *testing.T) {
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			g, printed, err := a.takeTurn(t, "1000000")
			if got := a.last(printed); err != nil || got != "This is the built-in provider." {
				t.Errorf("the turn ended with %q, %v", got, err)
			}
			seen := g.upstream.Seen("steady")
			if got := a.results(gjson.ParseBytes(seen.Body)); len(got) != 1 || !strings.Contains(got[0], "hello") {
				t.Errorf("the provider was shown the results %q", got)
			}
			completed := agentCall{"demo/agent", a.protocol, "completed"}
			if got, want := a.calls(t, g), []agentCall{completed, completed}; seen.Requests != len(want) || !slices.Equal(got, want) {
				t.Errorf("the provider saw %d requests, and the calls are %+v, want %+v", seen.Requests, got, want)
			}
		})
	}
}

// TestAgentsOutOfBudget: an agent whose budget does not do ends its turn at once, whatever it tries again by default.
func TestAgentsOutOfBudget(t *testing.T) {
	for _, a := range agents {
		t.Run(a.name, func(t *testing.T) {
			g, printed, _ := a.takeTurn(t, "10") // how an agent ends that has failed is its business
			if got := a.last(printed); got != "" {
				t.Errorf("the turn ended well, with %q", got)
			}
			if got, want := a.calls(t, g), []agentCall{{"demo/agent", a.protocol, "denied"}}; !slices.Equal(got, want) {
				t.Errorf("the calls are %+v, want %+v", got, want)
			}
			const once = `regent_errors_total{code="insufficient_quota"} 1` // calls that are denied alike may be recorded as one
			if metrics := g.read(t, richToken, "/metrics"); !strings.Contains(metrics, once+"\n") {
				t.Errorf("the metrics lack %q: %s", once, metrics)
			}
		})
	}
}
