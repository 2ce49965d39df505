package inference

import (
	"encoding/base64"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

// written is what a part says in words, whatever it is: its keys and values as they stand, but for bytes that are no text, and for what only
// its provider can read.
type written struct {
	text strings.Builder
	// sealed is the size of what only the provider can read.
	sealed int64
	// hasBytes says that it holds bytes that are no text.
	hasBytes bool
}

// addWritten adds what a part says in words to the prompt. Bytes are left to the most that the model can make of a file. What is sealed is
// taken for a token in four characters, as text is at least: in base64 it is longer than what it stands for.
func (e *envelope) addWritten(part gjson.Result) (hasBytes bool) {
	var w written
	w.add("", "", part, insideMax)
	e.addText(strings.TrimSpace(w.text.String()))
	e.addSealed(w.sealed)
	return w.hasBytes
}

// addSealed adds so many characters that only the provider can read.
func (e *envelope) addSealed(size int64) { e.formatTokens += (size + 3) / 4 }

// add adds a value, which stands under a key in an object of a type.
func (w *written) add(key, kind string, value gjson.Result, levels int) {
	switch {
	case value.Type == gjson.JSON && levels > 0:
		kind := value.Get("type").Str
		value.ForEach(func(key, value gjson.Result) bool {
			w.say(key.Str)
			w.add(key.Str, kind, value, levels-1)
			return true
		})
	case value.Type != gjson.String:
		w.say(value.Raw)
	case isSealed(key, kind):
		w.sealed += int64(len(value.Str))
	default:
		text, isText := inWords(value.Str, key == "file_data" || key == "data" && kind == "base64")
		w.hasBytes = w.hasBytes || !isText
		w.say(text)
	}
}

func (w *written) say(text string) {
	if text != "" {
		w.text.WriteString(text)
		w.text.WriteByte(' ')
	}
}

// isSealed says whether only the provider can read what stands under a key.
func isSealed(key, kind string) bool {
	switch key {
	case "encrypted_content", "encrypted_index", "signature":
		return true
	case "data":
		return kind == "redacted_thinking"
	}
	return false
}

// inWords is the text of a file. isText is false if it is none.
func inWords(file string, isEncoded bool) (text string, isText bool) {
	if head, data, isURL := strings.Cut(file, ";base64,"); isURL && strings.HasPrefix(head, "data:") {
		file, isEncoded = data, true
	}
	if !isEncoded {
		return file, true
	}
	decoded, err := base64.RawStdEncoding.DecodeString(inOneAlphabet.Replace(strings.TrimRight(file, "=")))
	switch {
	case err != nil: // somebody may read it as it stands
		return file, true
	case !utf8.Valid(decoded):
		return "", false
	}
	return string(decoded), true
}

// inOneAlphabet writes base64 in its usual alphabet.
var inOneAlphabet = strings.NewReplacer("-", "+", "_", "/")
