package policy

import (
	"errors"
	"fmt"
	"strings"
)

// What can be wrong with an answer. Each is an error of Decide and never a decision, so that a caller who looks at the error
// first cannot mistake it for a permission.
var (
	// ErrUndefined: the entry point has no value.
	ErrUndefined = errors.New("policy: the decision is undefined")
	// ErrConflict: rules contradict each other about one value.
	ErrConflict = errors.New("policy: rules contradict each other")
	// ErrLate: the answer did not come within the activation's time limit.
	ErrLate = errors.New("policy: the decision took too long")
	// ErrMalformed: the answer is not of the form of Decision, contradicts itself, or names a denial that no rule declares.
	ErrMalformed = errors.New("policy: the decision is malformed")
	// ErrFailed: a built-in was called with what it cannot work on, or evaluation failed otherwise.
	ErrFailed = errors.New("policy: evaluation failed")
	// ErrTooLarge: the facts exceed one of the bounds of this package. Policy was not asked.
	ErrTooLarge = errors.New("policy: the facts are too large")
	// ErrNotText: a text among the facts is not UTF-8, so that its record would differ from what was judged. Policy was not
	// asked.
	ErrNotText = errors.New("policy: a fact is not valid UTF-8")
)

// Problem is one thing that is wrong with a source, and where.
type Problem struct {
	// Bundle is the name of the bundle; empty if the problem is not one bundle's.
	Bundle string
	// File is the path within the bundle, Line counts from 1; empty and 0 if there is no one place.
	File string
	Line int
	// Text says what is wrong and what to do.
	Text string
}

func (p Problem) String() string {
	var place strings.Builder
	if p.Bundle != "" {
		place.WriteString("bundle " + p.Bundle + ": ")
	}
	if p.File != "" {
		place.WriteString(p.File)
		if p.Line > 0 {
			fmt.Fprintf(&place, ":%d", p.Line)
		}
		place.WriteString(": ")
	}
	return place.String() + p.Text
}

// LoadError is why a source did not become an activation: every problem of the first stage that found any.
type LoadError struct {
	// Problems holds at least one, ordered by bundle, file and line.
	Problems []Problem
	// Tests says that everything else is right, and tests of the bundles have not passed.
	Tests bool
}

func (e *LoadError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, problem := range e.Problems {
		lines[i] = problem.String()
	}
	return "policy: load: " + strings.Join(lines, "\n")
}
