package fake

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/http"
)

// embeddings is a call of OpenAI's embeddings.
type embeddings struct {
	*call
	request struct {
		Model          string          `json:"model"`
		Input          json.RawMessage `json:"input"`
		EncodingFormat string          `json:"encoding_format"`
	}
}

func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) {
	c := &embeddings{call: &call{w: w, r: r}}
	s.serve(c.call, c)
}

func (c *embeddings) parse(body []byte) (model string, stream bool, err error) {
	err = json.Unmarshal(body, &c.request)
	return c.request.Model, false, err
}

func (c *embeddings) refusal(message string) any { return openaiRefusal(c.step, message) }

// stream is not called, as no answer is one.
func (c *embeddings) stream() error { return errBreak }

// vector is every text's embedding.
var vector = []float32{0.25, -0.5, 1}

// whole has the same vector for each input. It took a token for four bytes of input.
func (c *embeddings) whole() any {
	var embedding any = vector
	if c.request.EncodingFormat == "base64" {
		var raw bytes.Buffer
		_ = binary.Write(&raw, binary.LittleEndian, vector) // into memory
		embedding = base64.StdEncoding.EncodeToString(raw.Bytes())
	}
	data := []any{}
	for i := range c.inputs() {
		data = append(data, map[string]any{"object": "embedding", "index": i, "embedding": embedding})
	}
	answer := map[string]any{"object": "list", "model": c.request.Model, "data": data}
	tokens := (len(c.request.Input) + 3) / 4
	switch {
	case c.step.OmitUsage:
	case c.step.Usage != nil:
		answer["usage"] = c.step.Usage
	default:
		answer["usage"] = map[string]any{"prompt_tokens": tokens, "total_tokens": tokens}
	}
	return answer
}

// inputs is how many texts there are: the input is one, or a list of them. A list of numbers is one text, too.
func (c *embeddings) inputs() int {
	var texts []json.RawMessage
	var text []int
	if json.Unmarshal(c.request.Input, &texts) != nil || json.Unmarshal(c.request.Input, &text) == nil {
		return 1
	}
	return len(texts)
}
