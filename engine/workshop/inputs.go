package workshop

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"regent/engine/decisions"
	"regent/engine/policy"
)

// Input is one judgement that is to be looked at: an input document, and what was said of it if it comes from a record.
type Input struct {
	// Where it comes from: the file, and the decision's id if it is a record's.
	Where string
	// Candidate is the source that was judged.
	Candidate string
	Document  policy.Document
	// Recorded is how the candidate fared; nil unless it is a record's.
	Recorded *decisions.Candidate
	// Activation is the digest of the policy that decided, as the record names it; empty if it names none.
	Activation string
}

// RecordedDenials are the rules that refused according to the record, as a [Verdict] has them.
func (i Input) RecordedDenials() []string {
	return verdictOf(policy.Decision{Denials: i.Recorded.Denials}, nil).Denials
}

// Otherwise says that the record says something else than this verdict: another policy judged, or other settings.
func (i Input) Otherwise(verdict Verdict) bool {
	if i.Recorded == nil {
		return false
	}
	if wasDecided := i.Recorded.Reason != policyFailed; !wasDecided || verdict.Error != "" {
		return wasDecided == (verdict.Error != "")
	}
	return !slices.Equal(i.RecordedDenials(), verdict.Denials)
}

// WhyOtherwise is why a record may say something else than a policy does now, and what to do about it.
const WhyOtherwise = "another policy decided, or other settings: --settings names those, as `regent policy settings` prints them"

// Counts of what is read from files.
type Counts struct {
	// Inputs that were judged, and Others: documents of a log that are no decisions, or decisions upon no candidate.
	Inputs, Others int
}

// maxRecord bounds one document of a log: a decision has at most some hundred candidates of a KB each.
const maxRecord = 8 << 20

// readAhead is how much a decoder may have read of what follows a document.
const readAhead = 64 << 10

var (
	// inputEndings are those of the files that are read in a folder.
	inputEndings = []string{".json", ".jsonl", ".ndjson"}
	// logEndings are those of files that hold a document a line, as logs do.
	logEndings = []string{".jsonl", ".ndjson"}
)

// InputError is what is wrong with files of inputs.
type InputError struct {
	// Err is what is wrong with the first document that cannot be read, and where; or why there is no file.
	Err error
	// Count is how many documents cannot be read; 0 if none was read at all. All others were visited.
	Count int
	// Recorded says that all of them are records of a log, and none is what an author wrote.
	Recorded bool
}

func (e *InputError) Error() string {
	if e.Count > 1 {
		return fmt.Sprintf("%d documents cannot be read, the first is %v", e.Count, e.Err)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *InputError) Unwrap() error { return e.Err }

// ReadInputs visits the inputs in files: input documents, which have to be whole, as [policy.ParseFacts] wants them, and decision logs in
// the form that `regent decisions tail` and `regent decisions show` print and that sinks keep, of any size. Of a folder all files below
// it with JSON in their names are read, in order. A document that cannot be read keeps none of the others from being visited: it is told
// at the end. What is wrong with the files is an *[InputError]; an error of visit ends the reading, and is returned as it is.
func ReadInputs(paths []string, visit func(Input) error) (Counts, error) {
	r := reading{visit: visit}
	files, err := filesAt(paths)
	if err != nil {
		return r.counts, &InputError{Err: err}
	}
	for _, file := range files {
		if err := r.read(file); err != nil {
			return r.counts, err
		}
	}
	if r.unread.Count > 0 {
		return r.counts, &r.unread
	}
	return r.counts, nil
}

func filesAt(paths []string) (files []string, err error) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, path)
			continue
		}
		err = filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && entry.Type().IsRegular() && slices.Contains(inputEndings, filepath.Ext(name)) {
				files = append(files, name)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// reading is how far files have been read.
type reading struct {
	visit  func(Input) error
	counts Counts
	unread InputError
}

// read visits the inputs of a file.
func (r *reading) read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		r.failed(err, false)
		return nil
	}
	defer func() { _ = file.Close() }() // it was only read
	documents := newDocuments(file)
	isLog := slices.Contains(logEndings, filepath.Ext(path))
	for n := 1; ; n++ {
		text, err := documents.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			r.failed(fmt.Errorf("%s: document %d: %w", path, n, err), isLog)
			if documents.skip() != nil { // the end of the file, or of what can be read of it
				return nil
			}
			continue
		}
		inputs, isRecord, err := inputsOf(text, path)
		isLog = isLog || isRecord
		if err != nil {
			r.failed(fmt.Errorf("%s: document %d: %w", path, n, err), isRecord)
			continue
		}
		if err := r.visitAll(inputs); err != nil {
			return err
		}
	}
}

func (r *reading) visitAll(inputs []Input) error {
	if len(inputs) == 0 {
		r.counts.Others++
	}
	for _, input := range inputs {
		r.counts.Inputs++
		if err := r.visit(input); err != nil {
			return err
		}
	}
	return nil
}

// failed keeps the first of what cannot be read.
func (r *reading) failed(err error, isRecord bool) {
	if r.unread.Count == 0 {
		r.unread.Err, r.unread.Recorded = err, true
	}
	r.unread.Count++
	r.unread.Recorded = r.unread.Recorded && isRecord
}

// documents are the JSON documents of a file, one after the other, of which only one is held.
type documents struct {
	from    io.Reader
	decoder *json.Decoder
	read    int64
}

func newDocuments(from io.Reader) *documents {
	d := &documents{}
	d.begin(from)
	return d
}

func (d *documents) begin(from io.Reader) {
	d.from, d.read = from, 0
	d.decoder = json.NewDecoder(d)
}

func (d *documents) next() (text json.RawMessage, err error) {
	err = d.decoder.Decode(&text)
	return text, err
}

// skipPage is how much is looked at in one step for where the next document begins.
const skipPage = 4 << 10

// skip goes on behind a document that cannot be read: to the next line that an object begins. It fails if there is none.
func (d *documents) skip() error {
	rest := io.MultiReader(d.decoder.Buffered(), d.from)
	page := make([]byte, skipPage)
	inside, lineBegins := false, false // blank lines may be left before it
	for {
		n, err := rest.Read(page)
		for i, b := range page[:n] {
			if lineBegins && b == '{' {
				d.begin(io.MultiReader(bytes.NewReader(page[i:n]), rest))
				return nil
			}
			inside = inside || !strings.ContainsRune(" \t\r\n", rune(b))
			lineBegins = inside && b == '\n'
		}
		if err != nil {
			return err
		}
	}
}

// Read is the decoder's to call.
func (d *documents) Read(p []byte) (int, error) {
	if d.read-d.decoder.InputOffset() > maxRecord {
		return 0, fmt.Errorf("it has more than %d bytes", maxRecord)
	}
	n, err := d.from.Read(p[:min(len(p), readAhead)])
	d.read += int64(n)
	return n, err
}

// document is what a document of a file may be: an input document, a decision of a log, or a record as `regent decisions show` prints it.
type document struct {
	recorded
	Kind string          `json:"kind"`
	Body json.RawMessage `json:"body"`
	// Candidate is an input document's own.
	Candidate json.RawMessage `json:"candidate"`
}

// recorded is what counts of an event of a decision log.
type recorded struct {
	Path       string                     `json:"path"`
	DecisionID string                     `json:"decision_id"`
	Input      map[string]json.RawMessage `json:"input"`
	Result     json.RawMessage            `json:"result"`
	Custom     struct {
		Activation string `json:"activation"`
	} `json:"custom"`
}

var errNoInput = errors.New("it is neither an input document, which has a candidate, nor an event of a decision log, which has a path")

// InputsOf are the inputs in one document; none if it is a record of something else than a decision.
func InputsOf(text []byte, where string) ([]Input, error) {
	inputs, _, err := inputsOf(text, where)
	return inputs, err
}

// inputsOf also says whether the document is a record; else it is what an author wrote.
func inputsOf(text []byte, where string) (inputs []Input, isRecord bool, err error) {
	var found document
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, false, err
	}
	switch {
	case found.Candidate != nil:
		facts, err := policy.ParseFacts(text)
		if err != nil {
			return nil, false, err
		}
		return []Input{{Where: where, Candidate: sourceOf(found.Candidate), Document: facts.Document()}}, false, nil
	case found.Path == decisions.DecisionPath:
		inputs, err := found.inputs(where)
		if err != nil {
			err = fmt.Errorf("decision %s: %w", found.DecisionID, err)
		}
		return inputs, true, err
	case found.Path != "" || found.Kind != "" && found.Kind != "decision":
		return nil, true, nil
	case found.Body != nil:
		inputs, _, err := inputsOf(found.Body, where)
		return inputs, true, err
	}
	return nil, false, errNoInput
}

// ActivationOf is the digest of the policy that decided, as the record of a decision names it; empty if it names none.
func ActivationOf(record []byte) (string, error) {
	var found recorded
	err := json.Unmarshal(record, &found)
	return found.Custom.Activation, err
}

// sourceOf is what a candidate is called.
func sourceOf(candidate json.RawMessage) string {
	var named struct {
		Source string `json:"source"`
	}
	if json.Unmarshal(candidate, &named) != nil {
		return nameless
	}
	return cmp.Or(named.Source, nameless)
}

// nameless is a candidate whose source has no name.
const nameless = "(without source)"

// inputs are the judgements that the record tells of, in the order in which they were made: that of the result, whereas the input has the
// candidates as they were given. A call that goes on after a candidate which did not serve it writes a further record, with all so far;
// what was judged before the last of those is in the record before. A candidate that the result leaves out was not reached.
func (r recorded) inputs(where string) ([]Input, error) {
	given, err := r.given()
	if err != nil {
		return nil, fmt.Errorf("the candidates: %w", err)
	}
	var result decisions.Result
	if err := json.Unmarshal(r.Result, &result); err != nil {
		return nil, fmt.Errorf("the result: %w", err)
	}
	first := 1 + lastUnserved(result.Candidates)
	var inputs []Input
	for i, fared := range result.Candidates {
		source := cmp.Or(fared.Source, nameless)
		candidates := given[source]
		if len(candidates) == 0 {
			return nil, fmt.Errorf("the result tells of the candidate %s, which is not in the input, or more often than it is", source)
		}
		given[source] = candidates[1:]
		if i < first || fared.Outcome == notReached {
			continue
		}
		document, err := r.document(candidates[0])
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, Input{
			Where: where + " " + r.DecisionID, Candidate: source, Document: document, Recorded: &fared, Activation: r.Custom.Activation,
		})
	}
	return inputs, nil
}

// given are the candidates of the input by their sources; those of one source, which a host may give, in their order.
func (r recorded) given() (map[string][]json.RawMessage, error) {
	var candidates []json.RawMessage
	if text, exists := r.Input["candidates"]; exists {
		if err := json.Unmarshal(text, &candidates); err != nil {
			return nil, err
		}
	}
	bySource := make(map[string][]json.RawMessage, len(candidates))
	for _, candidate := range candidates {
		source := sourceOf(candidate)
		bySource[source] = append(bySource[source], candidate)
	}
	return bySource, nil
}

// What records say of a candidate that tells what was judged, and when; package engine writes it.
const (
	notReached   = "not_reached"
	failed       = "failed"
	missed       = "miss"
	policyFailed = "policy_failed"
)

// lastUnserved is the last candidate that was selected and did not serve the call, each of which has a record of its own; -1 without any.
func lastUnserved(candidates []decisions.Candidate) int {
	last := -1
	for i, candidate := range candidates {
		if candidate.Outcome == failed || candidate.Outcome == missed {
			last = i
		}
	}
	return last
}

// document is the input document of one candidate: the record's input with `candidate` in place of `candidates`. All else is as it was
// written, so that the records of former versions are judged as they are; but lists that are null there are empty.
func (r recorded) document(candidate json.RawMessage) (policy.Document, error) {
	fields := map[string]json.RawMessage{"candidate": withLists(candidate, "protocols", "modalities")}
	for name, value := range r.Input {
		switch name {
		case "candidates":
		case "call":
			fields[name] = withLists(value, "modalities")
		case "identity":
			fields[name] = withLists(value, "groups")
		case "attempts":
			fields[name] = orEmpty(value)
		default:
			fields[name] = value
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return policy.Document{}, err
	}
	return policy.ParseDocument(text)
}

// withLists is an object whose named lists are empty where they are null. What is no object stays as it is.
func withLists(object json.RawMessage, lists ...string) json.RawMessage {
	var fields map[string]json.RawMessage
	if json.Unmarshal(object, &fields) != nil || fields == nil {
		return object
	}
	for _, name := range lists {
		if value, exists := fields[name]; exists {
			fields[name] = orEmpty(value)
		}
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return object
	}
	return text
}

func orEmpty(list json.RawMessage) json.RawMessage {
	if bytes.Equal(bytes.TrimSpace(list), []byte("null")) {
		return json.RawMessage("[]")
	}
	return list
}
