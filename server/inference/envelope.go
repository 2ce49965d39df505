package inference

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/engine"
	"regent/ledger"
	"regent/server/catalog"
)

const (
	// choicesMax bounds the answers that one call can ask for: OpenAI's own bound.
	choicesMax = 128
)

// envelope is what the gateway reads of a chat request. Everything else in the body is the provider's business.
type envelope struct {
	model       string
	stream      bool
	usageWanted bool
	// outputTokensMax is the request's own bound of its output over all choices; nil if it has none.
	outputTokensMax *int64
	// choices is how many answers are asked for.
	choices int64
	// modalities counts the parts beyond text.
	modalities map[string]int64
	// texts are the prompt's texts, textBytes the sum of their lengths, and formatTokens what the protocol adds to them.
	texts        []string
	textBytes    int64
	formatTokens int64
	// serviceTier is the service tier that is asked for; empty if none is.
	serviceTier string
	// routing are the fields by which the request chooses where OpenRouter sends it.
	routing []string
}

func (e *envelope) addText(text string) {
	if text == "" {
		return
	}
	e.texts = append(e.texts, text)
	e.textBytes += int64(len(text))
}

// readEnvelope checks a chat request's body and reads what the gateway needs of it. An error is an [answerError].
func readEnvelope(body []byte) (*envelope, error) {
	root, err := checkJSON(body)
	if err != nil {
		return nil, answerError(invalid(err.Error()))
	}
	e := &envelope{modalities: map[string]int64{}, choices: 1, routing: engine.RoutingFields(body)}
	missing := map[string]bool{"model": true, "messages": true}
	root.ForEach(func(key, value gjson.Result) bool {
		delete(missing, key.String())
		err = e.read(key.String(), value)
		return err == nil
	})
	if err != nil {
		return nil, answerError(invalid(err.Error()))
	}
	for _, name := range []string{"model", "messages"} {
		if missing[name] {
			return nil, answerError(invalid(name + " is missing"))
		}
	}
	if e.outputTokensMax != nil {
		total := *e.outputTokensMax * e.choices // at most 2^31 x 128
		e.outputTokensMax = &total
	}
	return e, nil
}

// read reads one top-level member.
func (e *envelope) read(name string, value gjson.Result) error {
	switch name {
	case "model":
		e.model = strings.Clone(value.String()) // it is kept for longer than the copy of the body that it is a part of
		if value.Type != gjson.String || !catalog.ValidModelID(e.model) {
			return errors.New("model must be the id of a published model")
		}
	case "stream":
		if e.stream = value.Bool(); !isBoolOrNull(value) {
			return errors.New("stream must be true or false")
		}
	case "stream_options":
		return e.readStreamOptions(value)
	case "max_tokens", "max_completion_tokens":
		return e.readBound(name, value)
	case "n":
		return e.readChoices(value)
	case "messages":
		return e.readMessages(value)
	case "service_tier":
		if e.serviceTier = strings.Clone(value.Str); value.Type != gjson.Null && (value.Type != gjson.String || !ledger.ValidName(value.Str)) {
			return errors.New("service_tier must be the name of a service tier")
		}
	case "tools", "functions", "response_format":
		e.addText(value.Raw)
	case "temperature", "top_p", "frequency_penalty", "presence_penalty":
		if value.Type != gjson.Null && value.Type != gjson.Number {
			return fmt.Errorf("%s must be a number", name)
		}
	}
	return nil
}

// checkJSON sees that a body is one JSON object in UTF-8, not nested too deeply, in which no object repeats a key: two readers of a
// repeated key may each see another value. It returns a copy of the body, of which every text that is read from it is a part.
func checkJSON(body []byte) (root gjson.Result, err error) {
	if !utf8.Valid(body) {
		return root, errors.New("the body is not valid UTF-8")
	}
	if adapters.TooDeep(body) {
		return root, fmt.Errorf("the body is nested more than %d deep", adapters.DepthMax)
	}
	if !json.Valid(body) {
		return root, errors.New("the body is not valid JSON")
	}
	root = gjson.ParseBytes(body)
	if !root.IsObject() {
		return root, errors.New("the body must be a JSON object")
	}
	return root, checkKeys(root.Raw)
}

func isBoolOrNull(value gjson.Result) bool { return value.IsBool() || value.Type == gjson.Null }

func (e *envelope) readStreamOptions(value gjson.Result) error {
	if value.Type == gjson.Null {
		return nil
	}
	usage := value.Get("include_usage")
	if !value.IsObject() || !isBoolOrNull(usage) { // what is absent reads as null
		return errors.New("stream_options must be an object, and include_usage true or false")
	}
	e.usageWanted = usage.Bool()
	return nil
}

// readBound reads max_tokens or its newer name; where both are given the smaller one counts.
func (e *envelope) readBound(name string, value gjson.Result) error {
	if value.Type == gjson.Null {
		return nil
	}
	n, ok := wholeNumber(value)
	if !ok || n < 1 || n > 1<<31 {
		return fmt.Errorf("%s must be a whole number above 0", name)
	}
	if e.outputTokensMax == nil || n < *e.outputTokensMax {
		e.outputTokensMax = &n
	}
	return nil
}

func (e *envelope) readChoices(value gjson.Result) error {
	if value.Type == gjson.Null {
		return nil
	}
	n, ok := wholeNumber(value)
	if !ok || n < 1 || n > choicesMax {
		return fmt.Errorf("n must be a whole number within 1 and %d", choicesMax)
	}
	e.choices = n
	return nil
}

// wholeNumber reads an integer as it is written: no fraction, no exponent, nothing beyond 2^53 - 1.
func wholeNumber(value gjson.Result) (int64, bool) {
	if value.Type != gjson.Number || strings.ContainsAny(value.Raw, ".eE") || len(value.Raw) > 16 {
		return 0, false
	}
	n := value.Int()
	return n, n <= ledger.TokensMax && n >= -ledger.TokensMax
}

// perMessage is how many tokens OpenAI's chat format adds to each message.
const perMessage = 4

// readMessages gathers the texts and counts the parts that are not text.
func (e *envelope) readMessages(messages gjson.Result) (err error) {
	if !messages.IsArray() || messages.Get("#").Int() == 0 {
		return errors.New("messages must be a list with at least one message")
	}
	messages.ForEach(func(_, message gjson.Result) bool {
		if !message.IsObject() {
			err = errors.New("each message must be an object")
			return false
		}
		e.readMessage(message)
		return true
	})
	return err
}

func (e *envelope) readMessage(message gjson.Result) {
	e.formatTokens += perMessage
	message.ForEach(func(key, value gjson.Result) bool {
		switch {
		case key.String() == "content" && value.IsArray():
			e.readParts(value)
		case key.String() == "content" && value.IsObject(): // no protocol has it, and some server may take it for a list of one
			e.readPart(value)
		case value.Type == gjson.String:
			e.addText(value.String())
		case value.Type == gjson.JSON:
			e.addText(value.Raw)
		}
		return true
	})
}

// partModality says which modality a content part of a type is; a type that is not known counts as a file, which a source has
// to accept explicitly.
var partModality = map[string]string{"text": "", "refusal": "", "image_url": "image", "input_audio": "audio", "file": "file"}

func (e *envelope) readParts(parts gjson.Result) {
	parts.ForEach(func(_, part gjson.Result) bool {
		e.readPart(part)
		return true
	})
}

func (e *envelope) readPart(part gjson.Result) {
	modality, known := partModality[part.Get("type").String()]
	switch {
	case !known:
		e.modalities["file"]++
	case modality != "":
		e.modalities[modality]++
	default:
		e.addText(part.Get("text").String())
		e.addText(part.Get("refusal").String())
	}
}

// names are the modalities in a fixed order; never nil, as policy asks for a list.
func (e *envelope) names() []string {
	names := slices.AppendSeq([]string{}, maps.Keys(e.modalities))
	slices.Sort(names)
	return names
}
