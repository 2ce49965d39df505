package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"regent/engine/workshop"
)

type policyBuildCmd struct {
	Path       string `arg:"" help:"The bundle: a folder or a .tar.gz."`
	Output     string `short:"o" required:"" placeholder:"FILE" help:"Where the .tar.gz goes."`
	Revision   string `help:"The revision in its manifest."`
	SigningKey string `placeholder:"FILE|env:NAME" help:"Sign it: a private key in PEM, or of the algorithms HS… the secret, in a file or a variable."`
	SigningAlg string `default:"RS256" help:"The algorithm of the signature."`
	KeyID      string `name:"key-id" default:"default" help:"The key's id, by which those who verify know it."`
	Scope      string `help:"The scope that is signed, if those who verify want one."`
	asJSON
}

// buildDocument is what was built.
type buildDocument struct {
	File   string `json:"file"`
	Bytes  int    `json:"bytes"`
	Signed bool   `json:"signed"`
	workshop.Summary
}

// Run builds. What was checked and tested is what is packed: the bundle is read once.
func (c policyBuildCmd) Run(ctx context.Context, e *environment) error {
	bench, err := gather(c.Path)
	if err != nil {
		return e.told(bench, err, c.JSON)
	}
	if len(bench.Given) == 0 {
		return usageError{fmt.Errorf("%s is no bundle to build", c.Path)}
	}
	signer, err := c.signer(e)
	if err != nil {
		return usageError{err}
	}
	checked, err := bench.Check(ctx)
	if err != nil {
		return err
	}
	if err := outcomeOf(checked); err != nil {
		return errors.Join(e.tell(bench, checked.Problems, c.JSON), err)
	}
	if err := e.tested(ctx, bench, c.JSON); err != nil {
		return err
	}
	archive, err := bench.Given[0].Build(c.Revision, signer)
	if err == nil {
		err = workshop.WriteFile(c.Output, archive)
	}
	if err != nil {
		return err
	}
	built := buildDocument{File: c.Output, Bytes: len(archive), Signed: signer != nil, Summary: checked.Bundles[0]}
	if c.Revision != "" {
		built.Revision = c.Revision
	}
	if c.JSON {
		return e.document(built)
	}
	signed := "unsigned"
	if built.Signed {
		signed = fmt.Sprintf("signed by %s (%s)", c.KeyID, c.SigningAlg)
	}
	return e.printf("%s: %d bytes, revision %s, %s\n", built.File, built.Bytes, built.Revision, signed)
}

// signer signs with the key that was named; nil if none was.
func (c policyBuildCmd) signer(e *environment) (*workshop.Signer, error) {
	if c.SigningKey == "" {
		return nil, nil
	}
	var key string
	if name, isVariable := strings.CutPrefix(c.SigningKey, "env:"); isVariable {
		value, exists := e.env(name)
		if !exists {
			return nil, fmt.Errorf("--signing-key: the variable %s is not set", name)
		}
		key = value
	} else {
		text, err := os.ReadFile(c.SigningKey)
		if err != nil { // its text names the file, which may be the key itself by mistake
			return nil, errors.New("--signing-key: there is no such file that can be read; a variable is named as env:NAME")
		}
		key = string(text)
	}
	return workshop.NewSigner(key, c.SigningAlg, c.KeyID, c.Scope)
}
