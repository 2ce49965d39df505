package inference

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/engine"
)

// chatProtocol is OpenAI's chat completions.
var chatProtocol = &protocol{
	name: adapters.OpenAIChat, kind: engine.Generation, form: openAIForm, streams: true, boundMin: 1, needs: []string{"messages"}, read: readChat,
}

// choicesMax bounds the answers that one call can ask for: OpenAI's own bound.
const choicesMax = 128

func readChat(e *envelope, name string, value gjson.Result) error {
	switch name {
	case "stream_options":
		return e.readStreamOptions(value)
	case "max_tokens", "max_completion_tokens":
		return e.readBound(name, value)
	case "n":
		return e.readChoices(value)
	case "messages":
		return e.readMessages(value, e.readMessage)
	case "tools":
		return e.readTools(value)
	case "web_search_options":
		if isSet(value) {
			return errors.New("web_search_options must be left out: no usage tells what the search costs")
		}
	case "modalities":
		return checkModalities(value)
	case "chat_template_kwargs":
		e.addValue(value)
		if isSet(value.Get("chat_template")) {
			return errors.New("chat_template_kwargs must not hold a chat_template: a source's server has its own")
		}
	case "temperature", "top_p", "frequency_penalty", "presence_penalty":
		return checkNumber(name, value)
	case "metadata", "logit_bias": // which no model reads
	default:
		e.addOther(value)
	}
	return nil
}

// checkNumber refuses what no server takes for a number.
func checkNumber(name string, value gjson.Result) error {
	if value.Type != gjson.Null && value.Type != gjson.Number {
		return fmt.Errorf("%s must be a number", name)
	}
	return nil
}

// checkModalities refuses answers that are more than text.
func checkModalities(value gjson.Result) error {
	onlyText := value.IsArray()
	eachPart(value, func(modality gjson.Result) { onlyText = onlyText && modality.Str == "text" })
	if isSet(value) && !onlyText {
		return errors.New(`modalities must be ["text"]: no price covers what else an answer can be`)
	}
	return nil
}

func (e *envelope) readStreamOptions(value gjson.Result) error {
	if value.Type == gjson.Null {
		return nil
	}
	usage := value.Get("include_usage")
	if !value.IsObject() || !isBoolOrNull(usage) { // what is absent reads as null
		return errors.New("stream_options must be an object, and include_usage true or false")
	}
	e.usageWanted = usage.Bool()
	return checkSpelling(value, "include_usage")
}

// checkSpelling refuses a key that differs from a name by its case alone: some servers take it for that.
func checkSpelling(object gjson.Result, name string) (err error) {
	object.ForEach(func(key, _ gjson.Result) bool {
		if key.Str != name && strings.EqualFold(key.Str, name) {
			err = fmt.Errorf("the key %q must be written %q", clip(key.Str), name)
		}
		return err == nil
	})
	return err
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

// perMessage is how many tokens OpenAI's chat format adds to each message.
const perMessage = 4

// readMessages reads each message of a conversation.
func (e *envelope) readMessages(messages gjson.Result, read func(message gjson.Result)) (err error) {
	if !messages.IsArray() || messages.Get("#").Int() == 0 {
		return errors.New("messages must be a list with at least one message")
	}
	messages.ForEach(func(_, message gjson.Result) bool {
		if !message.IsObject() {
			err = errors.New("each message must be an object")
			return false
		}
		e.formatTokens += perMessage
		read(message)
		return true
	})
	return err
}

// readMessage gathers the texts and counts the parts that are not text.
func (e *envelope) readMessage(message gjson.Result) {
	e.refusal = cmp.Or(e.refusal, checkSpelling(message, "content"))
	message.ForEach(func(key, value gjson.Result) bool {
		switch {
		case key.Str == "content" && value.Type == gjson.JSON:
			eachPart(value, e.readPart)
		case key.Str == "audio" && isSet(value.Get("id")): // of an answer before
			e.keptFiles = true
		default:
			e.addValue(value)
		}
		return true
	})
}

// partModality says which modality a content part of a type is; a type that is not known counts as a file, which a source has
// to accept explicitly.
var partModality = map[string]string{"text": "", "refusal": "", "image_url": "image", "input_audio": "audio", "file": "file"}

func (e *envelope) readPart(part gjson.Result) {
	modality, known := partModality[part.Get("type").String()]
	e.addPart(part, modality, known, "text", "refusal")
}
