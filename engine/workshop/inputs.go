package workshop

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

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

// Counts of what is read from files.
type Counts struct {
	// Inputs that were judged, and Others: documents of a log that are no decisions, or decisions upon no candidate.
	Inputs, Others int
}

// maxRecord bounds one document of a log: a decision has at most some hundred candidates of a KB each.
const maxRecord = 8 << 20

// readAhead is how much a decoder may have read of what follows a document.
const readAhead = 64 << 10

// inputEndings are those of the files that are read in a folder.
var inputEndings = []string{".json", ".jsonl", ".ndjson"}

// InputError is what is wrong with a file of inputs.
type InputError struct{ Err error }

func (e *InputError) Error() string { return "workshop: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *InputError) Unwrap() error { return e.Err }

// ReadInputs visits the inputs in files: input documents, and decision logs in the form that `regent decisions tail` and `regent decisions
// show` print and that sinks keep, of any size. Of a folder all files below it with JSON in their names are read, in order.
// What is wrong with the files is an *[InputError]; an error of visit is returned as it is.
func ReadInputs(paths []string, visit func(Input) error) (Counts, error) {
	var counts Counts
	files, err := filesAt(paths)
	if err != nil {
		return counts, &InputError{err}
	}
	for _, file := range files {
		if err := readInputs(file, &counts, visit); err != nil {
			return counts, err
		}
	}
	return counts, nil
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

func readInputs(path string, counts *Counts, visit func(Input) error) error {
	file, err := os.Open(path)
	if err != nil {
		return &InputError{err}
	}
	defer func() { _ = file.Close() }() // it was only read
	documents := newDocuments(file)
	for n := 1; ; n++ {
		text, err := documents.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		var inputs []Input
		if err == nil {
			inputs, err = InputsOf(text, path)
		}
		if err != nil {
			return &InputError{fmt.Errorf("%s: document %d: %w", path, n, err)}
		}
		if len(inputs) == 0 {
			counts.Others++
		}
		for _, input := range inputs {
			counts.Inputs++
			if err := visit(input); err != nil {
				return err
			}
		}
	}
}

// documents are the JSON documents of a file, one after the other, of which only one is held.
type documents struct {
	from    io.Reader
	decoder *json.Decoder
	read    int64
}

func newDocuments(from io.Reader) *documents {
	d := &documents{from: from}
	d.decoder = json.NewDecoder(d)
	return d
}

func (d *documents) next() (text json.RawMessage, err error) {
	err = d.decoder.Decode(&text)
	return text, err
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
	var found document
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, err
	}
	switch {
	case found.Candidate != nil:
		input, err := policy.ParseDocument(text)
		return []Input{{Where: where, Candidate: sourceOf(found.Candidate), Document: input}}, err
	case found.Path == decisions.DecisionPath:
		return found.recorded.inputs(where)
	case found.Path != "" || found.Kind != "" && found.Kind != "decision":
		return nil, nil
	case found.Body != nil:
		return InputsOf(found.Body, where)
	}
	return nil, errNoInput
}

// sourceOf is what a candidate is called.
func sourceOf(candidate json.RawMessage) string {
	var named struct {
		Source string `json:"source"`
	}
	if json.Unmarshal(candidate, &named) != nil || named.Source == "" {
		return "(without source)"
	}
	return named.Source
}

// inputs are the judgements that the record tells of. A call that fails over writes a further record, with the attempts so far; what was
// judged before the last of them is in the record before.
func (r recorded) inputs(where string) ([]Input, error) {
	var candidates []json.RawMessage
	if text, exists := r.Input["candidates"]; exists {
		if err := json.Unmarshal(text, &candidates); err != nil {
			return nil, fmt.Errorf("the candidates: %w", err)
		}
	}
	var result decisions.Result
	if err := json.Unmarshal(r.Result, &result); err != nil {
		return nil, fmt.Errorf("the result: %w", err)
	}
	if len(result.Candidates) != len(candidates) {
		return nil, fmt.Errorf("it has %d candidates, and tells how %d fared", len(candidates), len(result.Candidates))
	}
	first := 1 + lastFailed(result.Candidates)
	var inputs []Input
	for i := first; i < len(candidates); i++ {
		fared := result.Candidates[i]
		if fared.Outcome == notReached {
			continue
		}
		if source := sourceOf(candidates[i]); source != fared.Source {
			return nil, fmt.Errorf("the candidate %s is told of as %s", source, fared.Source)
		}
		document, err := r.document(candidates[i])
		if err != nil {
			return nil, err
		}
		inputs = append(inputs, Input{
			Where: where + " " + r.DecisionID, Candidate: fared.Source, Document: document, Recorded: &fared, Activation: r.Custom.Activation,
		})
	}
	return inputs, nil
}

// Outcomes that say what was judged when; package engine writes them.
const (
	notReached = "not_reached"
	failed     = "failed"
)

func lastFailed(candidates []decisions.Candidate) int {
	last := -1
	for i, candidate := range candidates {
		if candidate.Outcome == failed {
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
