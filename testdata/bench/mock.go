package main

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A mock upstream that speaks each protocol and does as little work per call as it can. The prompt says what is
// wanted, because that is the one part which every gateway forwards: "mock:chunks=16,gap=400ms".
const (
	chunkHead  = `data: {"id":"chatcmpl-mock","object":"chat.completion.chunk","created":1700000000,"model":"gpt-4o-mini",`
	roleChunk  = chunkHead + `"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	textChunk  = chunkHead + `"choices":[{"index":0,"delta":{"content":"a token of text "},"finish_reason":null}]}` + "\n\n"
	stopChunk  = chunkHead + `"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usageChunk = chunkHead + `"choices":[],"usage":{"prompt_tokens":120,"completion_tokens":90,"total_tokens":210}}` + "\n\n"
	doneChunk  = "data: [DONE]\n\n"

	answerHead = `{"id":"chatcmpl-mock","object":"chat.completion","created":1700000000,"model":"gpt-4o-mini","choices":[{"index":0,` +
		`"message":{"role":"assistant","content":"`
	answerTail = `"},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":120,"completion_tokens":90,"total_tokens":210}}`
)

// wholeAnswer is what a call that does not stream gets.
var wholeAnswer = answerHead + strings.Repeat("The quick brown fox jumps over it. ", 12) + answerTail

// plan is what a prompt asks of the mock.
type plan struct {
	chunks int
	gap    time.Duration
}

func (p plan) String() string {
	return "mock:chunks=" + strconv.Itoa(p.chunks) + ",gap=" + p.gap.String()
}

// readPlan finds the plan in a request's body.
func readPlan(body []byte) (p plan) {
	_, rest, _ := bytes.Cut(body, []byte("mock:"))
	if end := bytes.IndexAny(rest, `" \`); end >= 0 {
		rest = rest[:end]
	}
	for setting := range strings.SplitSeq(string(rest), ",") {
		switch name, value, _ := strings.Cut(setting, "="); name {
		case "chunks":
			p.chunks, _ = strconv.Atoi(value) // this program writes it
		case "gap":
			p.gap, _ = time.ParseDuration(value)
		}
	}
	return p
}

// mock is the upstream's handler.
func mock() http.Handler {
	mux := http.NewServeMux()
	for _, s := range speeches {
		mux.HandleFunc("POST /v1"+s.path, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			if bytes.Contains(body, []byte(`"stream":true`)) {
				streamAnswer(w, r, s, readPlan(body))
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(wholeAnswer)))
			_, _ = io.WriteString(w, wholeAnswer)
		})
	}
	return mux
}

func streamAnswer(w http.ResponseWriter, r *http.Request, s *speech, p plan) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	flush := w.(http.Flusher).Flush
	_, _ = io.WriteString(w, s.opening)
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	for i := range p.chunks {
		if i > 0 && p.gap > 0 {
			pause.Reset(p.gap)
			select {
			case <-pause.C:
			case <-r.Context().Done():
				return
			}
		}
		if _, err := io.WriteString(w, s.text); err != nil {
			return
		}
		flush()
	}
	_, _ = io.WriteString(w, s.closing)
}
