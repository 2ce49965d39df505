package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"regent/engine/policy"
	"regent/engine/workshop"
)

type policyTestCmd struct {
	bundlePaths
	Filter    string  `name:"run" placeholder:"REGEXP" help:"Run the tests whose names match, such as org.rules.weekdays_test.test_denies."`
	Coverage  bool    `help:"Tell which lines no test reaches."`
	Threshold float64 `placeholder:"PERCENT" help:"Fail if tests reach less of the lines. Counts them, too."`
	Verbose   bool    `short:"v" help:"Print each test, and what it prints."`
	asJSON
}

// Run runs tests.
func (c policyTestCmd) Run(ctx context.Context, e *environment) error {
	if _, err := regexp.Compile(c.Filter); err != nil {
		return usageError{fmt.Errorf("--run: %w", err)}
	}
	if c.Threshold < 0 || c.Threshold > 100 {
		return usageError{fmt.Errorf("--threshold: %v is no percentage", c.Threshold)}
	}
	bench, err := gather(c.Paths...)
	if err != nil {
		return e.told(bench, err, c.JSON)
	}
	report, err := bench.Test(ctx, policy.TestRun{Filter: c.Filter, Coverage: c.Coverage || c.Threshold > 0})
	if err != nil {
		return e.told(bench, err, c.JSON)
	}
	if c.JSON {
		err = e.document(testDocumentOf(report, c.passed(report)))
	} else {
		err = e.printTests(bench, report, c)
	}
	if err == nil && !c.passed(report) {
		err = answered(exitTestsFailed)
	}
	return err
}

// passed says whether the tests are content. Where none was run, nothing was shown.
func (c policyTestCmd) passed(report *policy.TestReport) bool {
	return ran(report) > 0 && len(report.Failed()) == 0 && (c.Threshold == 0 || report.Covered() >= c.Threshold)
}

// ran counts the tests that were run: all but those that are skipped.
func ran(report *policy.TestReport) (n int) {
	for _, test := range report.Tests {
		if !test.Skipped {
			n++
		}
	}
	return n
}

// printTests prints what failed, what was not reached, and a summary.
func (e *environment) printTests(bench *workshop.Bench, report *policy.TestReport, c policyTestCmd) error {
	var text strings.Builder
	for _, test := range report.Tests {
		describeTest(&text, bench, test, c.Verbose)
	}
	for _, file := range report.Coverage {
		for _, line := range file.Uncovered {
			fmt.Fprintf(&text, "%s: no test reaches this\n", bench.Place(file.Bundle, file.File, line))
		}
	}
	ran := ran(report)
	skipped := len(report.Tests) - ran
	verdict := "PASS"
	if !c.passed(report) {
		verdict = "FAIL"
	}
	fmt.Fprintf(&text, "%s %d of %d", verdict, ran-len(report.Failed()), ran)
	if skipped > 0 {
		fmt.Fprintf(&text, ", %d skipped", skipped)
	}
	if report.Coverage != nil {
		fmt.Fprintf(&text, ", %.4g %% of lines", report.Covered())
	}
	if ran == 0 {
		text.WriteString(": there is no test")
	}
	return e.printf("%s\n", text.String())
}

func describeTest(text *strings.Builder, bench *workshop.Bench, test policy.TestResult, verbose bool) {
	switch {
	case test.Skipped && verbose:
		fmt.Fprintf(text, "skipped %s\n", test.Name)
	case test.Passed && verbose:
		fmt.Fprintf(text, "passed  %s (%v)\n", test.Name, test.Took.Round(1000))
	case !test.Passed && !test.Skipped:
		fmt.Fprintf(text, "%s\n", bench.Tell(test.Failure))
	}
	if test.Printed != "" && (verbose || !test.Passed) {
		fmt.Fprintf(text, "    %s\n", strings.ReplaceAll(strings.TrimSpace(test.Printed), "\n", "\n    "))
	}
}

// testDocument is how tests ended, for programs.
type testDocument struct {
	Passed   bool                 `json:"passed"`
	Tests    []testResultDocument `json:"tests"`
	Coverage []coverageDocument   `json:"coverage,omitempty"`
	// Covered is in percent of the lines.
	Covered *float64 `json:"covered,omitempty"`
}

type testResultDocument struct {
	Name    string `json:"name"`
	Bundle  string `json:"bundle"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Outcome string `json:"outcome"` // passed, failed or skipped
	Failure string `json:"failure,omitempty"`
	Printed string `json:"printed,omitempty"`
	Micros  int64  `json:"micros"`
}

type coverageDocument struct {
	Bundle    string `json:"bundle"`
	File      string `json:"file"`
	Lines     int    `json:"lines"`
	Covered   int    `json:"covered"`
	Uncovered []int  `json:"uncovered"`
}

func testDocumentOf(report *policy.TestReport, passed bool) testDocument {
	document := testDocument{Passed: passed, Tests: []testResultDocument{}}
	for _, test := range report.Tests {
		outcome := "failed"
		switch {
		case test.Skipped:
			outcome = "skipped"
		case test.Passed:
			outcome = "passed"
		}
		document.Tests = append(document.Tests, testResultDocument{
			Name: test.Name, Bundle: test.Bundle, File: test.File, Line: test.Line, Outcome: outcome,
			Failure: test.Failure.Text, Printed: test.Printed, Micros: test.Took.Microseconds(),
		})
	}
	if report.Coverage == nil {
		return document
	}
	document.Covered = new(report.Covered())
	for _, file := range report.Coverage {
		document.Coverage = append(document.Coverage, coverageDocument{file.Bundle, file.File, file.Lines, file.Covered, append([]int{}, file.Uncovered...)})
	}
	return document
}

// tested fails unless the tests of the bundles pass.
func (e *environment) tested(ctx context.Context, bench *workshop.Bench, inJSON bool) error {
	report, err := bench.Test(ctx, policy.TestRun{})
	if err != nil {
		return e.told(bench, err, inJSON)
	}
	failed := report.Failed()
	if len(failed) == 0 {
		return nil
	}
	return errors.Join(e.tell(bench, failed, inJSON), answered(exitTestsFailed))
}
