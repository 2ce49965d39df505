package openai

import (
	"errors"
	"testing"

	"regent/adapters"
)

// A later report that is unusable must not leave the one before standing, which would charge too little.
func TestAnUnusableLastReportIsUnknownUsage(t *testing.T) {
	good := `"usage":{"prompt_tokens":1,"completion_tokens":1}`
	for name, stream := range map[string]string{
		"after a report with the finish": `data: {"choices":[{"delta":{},"finish_reason":"stop"}],` + good + "}\n\n" +
			`data: {"choices":[],"usage":{"prompt_tokens":1e300,"completion_tokens":1}}` + "\n\ndata: [DONE]\n\n",
		"after a running count": `data: {"choices":[{"delta":{"content":"x"}}],` + good + "}\n\n" +
			`data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":-1}}` + "\n\ndata: [DONE]\n\n",
	} {
		_, _, usage, err := relayed(t, stream, false)
		if err != nil || usage != nil {
			t.Errorf("%s: %+v, %v", name, usage, err)
		}
	}
}

func TestAnErrorDocumentIsNoChunk(t *testing.T) {
	_, _, _, err := relayed(t, "data: {\"object\":\"error\",\"message\":\"secret\",\"code\":500}\n\ndata: [DONE]\n\n", false)
	var failure *adapters.Failure
	if !errors.As(err, &failure) || failure.Reason != adapters.StreamBroken {
		t.Errorf("got %v", err)
	}
}
