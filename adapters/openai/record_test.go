package openai

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"regent/adapters"
	"regent/ledger"
)

// recordedChats are the streams of chat completions that were recorded, one of each dialect, and what is to be read in them.
var recordedChats = map[string]struct {
	kinds string
	bytes int
	usage ledger.Usage
}{
	"openai":     {"occzzd", len("Grüße aus \"Köln\".\n"), ledger.Usage{UncachedInput: 176, CachedInput: 1024, Output: 12, Reasoning: 64, Tier: "default"}},
	"azure":      {"oottzzd", len("get_weather" + `{"city":"Köln"}`), ledger.Usage{UncachedInput: 61, Output: 17}},
	"openrouter": {"cczzd", len("Let me see." + "Four."), ledger.Usage{UncachedInput: 20, CachedInput: 4000, CacheWrite5m: 1000, Output: 16, Reasoning: 24}},
	"vllm":       {"occzzd", len("Hm." + "Yes"), ledger.Usage{UncachedInput: 26, CachedInput: 64, Output: 5}},
	"ollama":     {"cczzd", len("Short." + "Hi"), ledger.Usage{UncachedInput: 68, Output: 21}},
	"llamacpp":   {"occzzd", len("OK"), ledger.Usage{UncachedInput: 1, CachedInput: 236, Output: 35}},
	"deepseek":   {"occzd", len("Two and two" + "4"), ledger.Usage{UncachedInput: 44, CachedInput: 256, Output: 2, Reasoning: 18}},
	"moonshot":   {"occzzd", len("Hello" + "Hello!"), ledger.Usage{UncachedInput: 11, CachedInput: 8, Output: 13}},
	"gemini":     {"ccd", len("Eins, zwei."), ledger.Usage{UncachedInput: 10, Output: 5, Reasoning: 200}},
}

var (
	// namedModel is the model's name wherever a chunk shows it.
	namedModel = regexp.MustCompile(`"model":"[^"]*"`)
	// comment is what a server says to keep a connection open.
	comment = regexp.MustCompile(`(?m)^:.*\n\n`)
)

func recordedChat(t *testing.T, dialect string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../testdata/record/openai-chat", dialect+".sse"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRecordedChats replays what was recorded, of every dialect. To a client that asked for usage all of it is relayed as it came, but for
// the model's name and the comments.
func TestRecordedChats(t *testing.T) {
	asked := adapters.Request{Protocol: adapters.OpenAIChat, Stream: true, UsageWanted: true}
	for dialect := range dialects {
		want, recorded := recordedChats[dialect]
		if !recorded {
			t.Errorf("there is no record of %s", dialect)
			continue
		}
		stream := recordedChat(t, dialect)
		got := read(t, dialect, strings.NewReader(stream), asked)
		if relayed := comment.ReplaceAllString(namedModel.ReplaceAllString(stream, `"model":"pub"`), ""); got.text != relayed || got.err != nil {
			t.Errorf("%s: %v, relayed\n%s", dialect, got.err, got.text)
		}
		if !reflect.DeepEqual(got.kinds, kinds(want.kinds)) || got.bytes != want.bytes || !reflect.DeepEqual(got.usage, &want.usage) {
			t.Errorf("%s: kinds %v, %d bytes of output, usage %+v", dialect, got.kinds, got.bytes, got.usage)
		}
		for i := 1; i < len(stream); i++ {
			parts := io.MultiReader(strings.NewReader(stream[:i]), strings.NewReader(stream[i:]))
			if split := read(t, dialect, parts, asked); !reflect.DeepEqual(split, got) {
				t.Fatalf("%s, split at %d: got %+v", dialect, i, split)
			}
		}
	}
}

// TestUsageThatNobodyAskedFor is read, and not relayed.
func TestUsageThatNobodyAskedFor(t *testing.T) {
	for dialect, want := range recordedChats {
		got := read(t, dialect, strings.NewReader(recordedChat(t, dialect)), adapters.Request{Protocol: adapters.OpenAIChat, Stream: true})
		if got.err != nil || !reflect.DeepEqual(got.usage, &want.usage) || got.bytes != want.bytes {
			t.Errorf("%s: %v, %d bytes of output, usage %+v", dialect, got.err, got.bytes, got.usage)
		}
		// Moonshot reports in the last choice, too, which is relayed as it is.
		if strings.Contains(got.text, `"total_tokens":`) && dialect != "moonshot" || !strings.HasSuffix(got.text, "data: [DONE]\n\n") {
			t.Errorf("%s: relayed\n%s", dialect, got.text)
		}
	}
}
