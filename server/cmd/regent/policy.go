package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"regent/engine/policy"
	"regent/engine/workshop"
	"regent/policies"
)

type policyCmd struct {
	Init    policyInitCmd    `cmd:"" help:"Begin a bundle of your organisation: one rule, its test, and a README."`
	Check   policyCheckCmd   `cmd:"" help:"Load bundles as the gateway does, and tell what is unfinished. Exit code 3: they do not load; 1: they do, and something is unfinished."`
	Fmt     policyFmtCmd     `cmd:"" help:"List the modules that are not formatted, and exit with 1 if there are any; --write formats them."`
	Test    policyTestCmd    `cmd:"" help:"Run the tests of bundles. Exit code 4: some fail, there is none, or they reach too little; 3: the bundles do not load."`
	Eval    policyEvalCmd    `cmd:"" help:"Print the decision on an input document, or the answer to any query, as JSON."`
	Explain policyExplainCmd `cmd:"" help:"Tell why a candidate is allowed or denied, down to rule and line."`
	Diff    policyDiffCmd    `cmd:"" help:"Compare what two policies decide on inputs and on recorded decisions. Exit code 1: they differ, or a record could not be compared; 2: an input is none, or a policy refuses it as incomplete."`
	Build   policyBuildCmd   `cmd:"" help:"Check, test, pack and sign a bundle."`

	Settings policySettingsCmd `cmd:"" help:"Print the settings under which a recorded decision was made, as --settings takes them."`
}

// bundlePaths are bundles as arguments.
type bundlePaths struct {
	Paths []string `arg:"" name:"path" help:"Bundles: folders or .tar.gz files. The shipped one lies beneath them, unless one has its root."`
}

// bundleFlags are bundles beside other arguments.
type bundleFlags struct {
	Bundles  []string `name:"bundle" short:"b" sep:"none" placeholder:"PATH" help:"A bundle: a folder or a .tar.gz. Repeat it for more. The shipped one lies beneath, unless one has its root; - is that alone."`
	Settings string   `placeholder:"FILE" help:"Settings in JSON that replace those of the bundles, as data.regent.settings has them and regent policy settings prints them."`
}

type asJSON struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// shippedAlone is what stands for the shipped bundle where a path is wanted.
const shippedAlone = "-"

// gather reads bundles. What lies at a path and cannot be read as a bundle is a *[policy.LoadError].
func gather(paths ...string) (*workshop.Bench, error) {
	paths = slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return path == shippedAlone })
	bench, err := workshop.Gather(policies.Files(), paths...)
	switch {
	case errors.As(err, new(*policy.LoadError)):
		return &workshop.Bench{}, err
	case err != nil:
		return nil, usageError{err}
	}
	return bench, nil
}

// load loads the bundles under the settings. Why they do not load is told by file and line, as their paths were given.
func (f bundleFlags) load(ctx context.Context, e *environment, inJSON bool) (*workshop.Bench, *policy.Activation, error) {
	bench, err := gather(f.Bundles...)
	if err != nil {
		return nil, nil, e.told(bench, err, inJSON)
	}
	settings, err := readSettings(f.Settings)
	if err != nil {
		return nil, nil, err
	}
	activation, err := bench.Load(ctx, settings)
	return bench, activation, e.told(bench, err, inJSON)
}

// told prints why bundles do not load.
func (e *environment) told(bench *workshop.Bench, err error, inJSON bool) error {
	var refused *policy.LoadError
	if !errors.As(err, &refused) {
		return err
	}
	if err := e.tell(bench, refused.Problems, inJSON); err != nil {
		return err
	}
	return answered(exitNotLoaded)
}

// tell prints problems, a line each, or as JSON.
func (e *environment) tell(bench *workshop.Bench, problems []policy.Problem, inJSON bool) error {
	if inJSON {
		return e.document(map[string]any{"problems": problemDocuments(bench, problems)})
	}
	for _, problem := range problems {
		if _, err := fmt.Fprintln(e.stdout, bench.Tell(problem)); err != nil {
			return err
		}
	}
	return nil
}

// problemDocument is a problem for programs.
type problemDocument struct {
	// Place is PATH/FILE:LINE as the bundle was given; empty if there is no one place.
	Place  string `json:"place,omitempty"`
	Bundle string `json:"bundle,omitempty"`
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Text   string `json:"text"`
}

func problemDocuments(bench *workshop.Bench, problems []policy.Problem) []problemDocument {
	documents := make([]problemDocument, 0, len(problems))
	for _, problem := range problems {
		document := problemDocument{Bundle: problem.Bundle, File: problem.File, Line: problem.Line, Text: problem.Text}
		if problem.File != "" {
			document.Place = bench.Place(problem.Bundle, problem.File, problem.Line)
		}
		documents = append(documents, document)
	}
	return documents
}

func readSettings(path string) (policy.Settings, error) {
	var settings policy.Settings
	if path == "" {
		return settings, nil
	}
	text, err := os.ReadFile(path)
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		err = decoder.Decode(&settings)
	}
	if err != nil {
		return settings, usageError{fmt.Errorf("the settings %s: %w", path, err)}
	}
	return settings, nil
}

// maxRead bounds an input document that is given; policy bounds it further.
const maxRead = 8 << 20

// readAll reads a file, or the standard input if its name is "-".
func readAll(path string) ([]byte, error) {
	from := io.Reader(os.Stdin)
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, usageError{err}
		}
		defer func() { _ = file.Close() }() // it was only read
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(from, maxRead+1))
	if err == nil && len(text) > maxRead {
		err = usageError{fmt.Errorf("%s has more than %d bytes", path, maxRead)}
	}
	return text, err
}

// printf prints to the command's output.
func (e *environment) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(e.stdout, format, args...)
	return err
}
