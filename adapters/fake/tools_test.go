package fake_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestAgentsRunACommand: of an agent's many tools its shell is called, with what that requires, and with nothing else.
func TestAgentsRunACommand(t *testing.T) {
	server := start(t, `{}`)
	shapes := map[string]string{
		"/chat/completions": `{"model":"scripted","messages":[],"tools":[%s]}`,
		"/responses":        `{"model":"scripted","input":"x","tools":[{"type":"web_search"},%s]}`,
		"/messages":         `{"model":"scripted","messages":[],"tools":[%s]}`,
	}
	tools := map[string]string{
		"/chat/completions": `{"type":"function","function":{"name":%q,"parameters":%s}}`,
		"/responses":        `{"type":"function","name":%q,"parameters":%s}`,
		"/messages":         `{"name":%q,"input_schema":%s}`,
	}
	const other = `{"properties":{"path":{"type":"string"}}}`
	for _, test := range []struct{ name, schema, want string }{
		{"exec_command", `{"properties":{"cmd":{"type":"string"},"tty":{"type":"boolean"},"yield_time_ms":{"type":"number"}},"required":["cmd"]}`, `{"cmd":"echo hello"}`},
		{"shell_command", `{"properties":{"command":{"type":"string"},"workdir":{"type":"string"}},"required":["command"]}`, `{"command":"echo hello"}`},
		{"shell", `{"properties":{"command":{"type":"array"},"timeout_ms":{"type":"number"}},"required":["command"]}`, `{"command":["echo","hello"]}`},
		{"Bash", `{"properties":{"command":{"type":"string"},"run_in_background":{"type":"boolean"}},"required":["command"]}`, `{"command":"echo hello"}`},
	} {
		for endpoint, shape := range shapes {
			offered := fmt.Sprintf(tools[endpoint], "read", other) + "," + fmt.Sprintf(tools[endpoint], test.name, test.schema)
			text, _, err := askMessages(server, endpoint, fmt.Sprintf(shape, offered))
			written := test.want
			if endpoint != "/messages" { // the protocols of OpenAI have arguments as a text
				written = strings.ReplaceAll(written, `"`, `\"`)
			}
			if err != nil || !strings.Contains(text, fmt.Sprintf(`"name":%q`, test.name)) || !strings.Contains(text, written) {
				t.Errorf("%s, %s: got %s, %v", endpoint, test.name, text, err)
			}
		}
	}
}
