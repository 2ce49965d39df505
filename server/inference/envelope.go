package inference

import (
	"cmp"
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

// envelope is what the gateway reads of a request. Everything else in the body is the provider's business.
type envelope struct {
	protocol    *protocol
	model       string
	stream      bool
	usageWanted bool
	// outputTokensMax is the request's own bound of its output over all choices; nil if it has none.
	outputTokensMax *int64
	// choices is how many answers are asked for.
	choices int64
	// session is what the request itself says of the conversation that it belongs to; empty if it does not.
	session string
	// modalities counts the parts beyond text.
	modalities map[string]int64
	// texts are the prompt's texts, textBytes the sum of their lengths, and formatTokens what the protocol adds to them.
	texts        []string
	textBytes    int64
	formatTokens int64
	// serviceTier is the service tier that is asked for; empty if none is.
	serviceTier string
	// speed is the speed that is asked for, where it has a price of its own; empty if none is. It is asked of prices like a service tier.
	speed string
	// searches is how many web searches the provider may make; 0 if no tool offers any. openSearches says that a tool for them has no bound.
	searches     int64
	openSearches bool
	// fetched is how many tokens the provider may fetch into the prompt.
	fetched int64
	// compacts says that the provider may make the conversation shorter on the way: it then reads the prompt twice.
	compacts bool
	// toolCalls is the request's own bound of what the provider's tools do; nil if it has none.
	toolCalls *int64
	// keptFiles says that a part stands for a file that a provider keeps.
	keptFiles bool
	// refusal is why a part cannot be served; nil if none was found that cannot.
	refusal error
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

// readEnvelope checks a request's body and reads what the gateway needs of it in its protocol. An error is an [answerError].
func readEnvelope(p *protocol, body []byte) (*envelope, error) {
	root, err := checkJSON(body)
	if err != nil {
		return nil, answerError(invalid(err.Error()))
	}
	e := &envelope{protocol: p, modalities: map[string]int64{}, choices: 1}
	missing := map[string]bool{"model": true}
	for _, name := range p.needs {
		missing[name] = true
	}
	root.ForEach(func(key, value gjson.Result) bool {
		name := key.String()
		delete(missing, name)
		if engine.IsRoutingField(name) {
			e.routing = append(e.routing, strings.Clone(name))
		}
		err = cmp.Or(e.read(name, value), e.refusal)
		return err == nil
	})
	var refusal answerError
	switch {
	case errors.As(err, &refusal):
		return nil, err
	case err != nil:
		return nil, answerError(invalid(err.Error()))
	}
	for _, name := range append([]string{"model"}, p.needs...) {
		if missing[name] {
			return nil, answerError(invalid(name + " is missing"))
		}
	}
	if e.keptFiles {
		return nil, answerError(keptNotFound)
	}
	e.bindOutput()
	e.bindSearches()
	return e, nil
}

// bindSearches makes the bound of all that the provider's tools do that of the searches.
func (e *envelope) bindSearches() {
	if e.toolCalls != nil && e.searches > 0 {
		e.searches, e.openSearches = *e.toolCalls, false
	}
}

// searchesTold is the bound of web searches that the provider has to be told; 0 if the request says it itself. One of Anthropic's is of
// each tool, one of OpenAI's of all.
func (e *envelope) searchesTold() int64 {
	switch {
	case !e.openSearches:
		return 0
	case e.protocol.name == adapters.AnthropicMessages:
		return searchesMax
	}
	return e.searches
}

// bindOutput makes the request's bound of one answer's output the bound of all answers that are asked for.
func (e *envelope) bindOutput() {
	switch {
	case e.protocol.kind == engine.Embedding: // which has no output
		e.outputTokensMax = new(int64)
	case e.protocol.kind == engine.Compaction: // which has no such bound
		e.outputTokensMax = nil
	case e.outputTokensMax != nil:
		total := *e.outputTokensMax * e.choices // at most 2^31 x 128
		e.outputTokensMax = &total
	}
}

// read reads one top-level member: what all protocols have in common here, and the rest by the request's own.
func (e *envelope) read(name string, value gjson.Result) error {
	switch name {
	case "model":
		e.model = strings.Clone(value.Str) // it is kept for longer than the copy of the body that it is a part of
		if value.Type != gjson.String {
			return errors.New("model must be the id of a published model")
		}
		if !catalog.ValidModelID(e.model) || catalog.ValidToken(e.model) { // a token that somebody has put there is never written down
			return answerError(modelNotFound)
		}
		return nil
	case "stream":
		if e.stream = value.Bool(); !isBoolOrNull(value) {
			return errors.New("stream must be true or false")
		}
		if e.stream && !e.protocol.streams {
			return errors.New("this endpoint does not stream")
		}
		return nil
	case "service_tier":
		if e.serviceTier = strings.Clone(value.Str); value.Type != gjson.Null && (value.Type != gjson.String || !ledger.ValidName(value.Str)) {
			return errors.New("service_tier must be the name of a service tier")
		}
		return nil
	case "prompt_cache_key":
		e.noteSession(value)
		return nil
	}
	return e.protocol.read(e, name, value)
}

// noteSession takes a text as what tells the conversation, unless another does already.
func (e *envelope) noteSession(value gjson.Result) {
	if value.Type == gjson.String && e.session == "" {
		e.session = strings.Clone(value.Str)
	}
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

// boundMax is the largest bound of an output that is taken for one: a thousand times what any model writes.
const boundMax = 1 << 31

// readBound reads max_tokens or its newer name; where both are given the smaller one counts.
func (e *envelope) readBound(name string, value gjson.Result) error {
	if value.Type == gjson.Null {
		return nil
	}
	n, ok := wholeNumber(value)
	if !ok || n < e.protocol.boundMin || n > boundMax {
		return fmt.Errorf("%s must be a whole number within %d and %d", name, e.protocol.boundMin, boundMax)
	}
	if e.outputTokensMax == nil || n < *e.outputTokensMax {
		e.outputTokensMax = &n
	}
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

// addOther adds a member of which nothing is known to the prompt, of which it may be a part, unless it is a mere word or number.
func (e *envelope) addOther(value gjson.Result) {
	if value.Type == gjson.JSON {
		e.addValue(value)
	}
}

// addValue adds a value to the prompt: a text as such, anything else as it is written.
func (e *envelope) addValue(value gjson.Result) {
	switch value.Type {
	case gjson.String:
		e.addText(value.String())
	case gjson.JSON:
		e.addText(value.Raw)
	}
}

// eachPart reads the parts of a content that is no text. One that is an object is a part by itself: no protocol has it, and some server may
// take it for a list of one.
func eachPart(content gjson.Result, read func(part gjson.Result)) {
	switch {
	case content.IsObject():
		read(content)
	case content.IsArray():
		content.ForEach(func(_, part gjson.Result) bool {
			read(part)
			return true
		})
	}
}

// addPart counts a part of a content. modality is empty for a text, which is in one of some fields.
func (e *envelope) addPart(part gjson.Result, modality string, known bool, texts ...string) {
	e.keptFiles = e.keptFiles || (!known || modality != "") && isKept(part, insideMax)
	e.refusal = cmp.Or(e.refusal, checkSpelling(part, "text"))
	switch {
	case !known: // a source has to accept it explicitly
		e.modalities["file"]++
		e.addWritten(part)
	case modality == "file":
		e.modalities["file"]++
		e.addWritten(part)
	case modality != "":
		e.modalities[modality]++
	default:
		for _, field := range texts {
			e.addValue(part.Get(field))
		}
	}
}

// names are the modalities in a fixed order; never nil, as policy asks for a list.
func (e *envelope) names() []string {
	names := slices.AppendSeq([]string{}, maps.Keys(e.modalities))
	slices.Sort(names)
	return names
}
