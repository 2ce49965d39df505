package inference

import (
	"errors"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/engine"
)

// embeddingsProtocol is OpenAI's embeddings.
var embeddingsProtocol = &protocol{
	name: adapters.OpenAIEmbeddings, kind: engine.Embedding, form: openAIForm, needs: []string{"input"}, read: readEmbeddings,
}

func readEmbeddings(e *envelope, name string, value gjson.Result) error {
	switch {
	case name == "input" && !e.addInputs(value):
		return errors.New("input must be a text, a list of texts, or tokens")
	case name == "messages" && isSet(value): // which some servers embed in place of the input
		return errors.New("messages must be left out: what is to be embedded is the input")
	}
	return nil
}

// addInputs adds what is to be embedded: texts, or tokens by their numbers. It returns false for anything else.
func (e *envelope) addInputs(input gjson.Result) bool {
	switch {
	case input.Type == gjson.String:
		e.addText(input.String())
		return true
	case !input.IsArray() || input.Get("#").Int() == 0:
		return false
	}
	good := true
	input.ForEach(func(_, element gjson.Result) bool {
		switch {
		case element.Type == gjson.Number:
			e.formatTokens++
		default:
			good = e.addInputs(element)
		}
		return good
	})
	return good
}
