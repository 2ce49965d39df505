package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/cover"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/storage/inmem"
	"github.com/open-policy-agent/opa/v1/tester"
	"github.com/open-policy-agent/opa/v1/topdown"
	"github.com/open-policy-agent/opa/v1/topdown/lineage"
)

// Bounds of tests.
const (
	maxTestTime  = 5 * time.Second  // one test: some thousand times what it takes
	maxTestsTime = 30 * time.Second // all of them, without those that are run again to see where they fail
)

// TestRun says which tests to run, and what to tell of them.
type TestRun struct {
	// Filter is a regular expression of the tests' full names; empty runs all.
	Filter string
	// Coverage has the lines counted that tests have reached.
	Coverage bool
}

// TestReport is how the tests of bundles ended.
type TestReport struct {
	// Tests in the order of their bundle, file and line.
	Tests []TestResult
	// Coverage of each module that is no test, in order; nil unless it was asked for.
	Coverage []Coverage
}

// TestResult is how one test ended.
type TestResult struct {
	// Name is the test's whole path, for example data.org.rules.weekdays_test.test_sunday.
	Name string
	// Bundle, File and Line say where it is written.
	Bundle string
	File   string
	Line   int
	Passed bool
	// Skipped is true of tests whose names begin with "todo_".
	Skipped bool
	// Failure says why it has not passed, and where, if it is known.
	Failure Problem
	// Printed is what it wrote by print.
	Printed string
	Took    time.Duration

	broken bool // it ended with an error, which says where
}

// Coverage is what tests have reached of one module.
type Coverage struct {
	Bundle, File string
	// Lines is how many lines there are that something can be evaluated on, Covered how many of them were.
	Lines, Covered int
	// Uncovered are the first lines of what no test has reached, in order.
	Uncovered []int
}

// Failed are the tests that have not passed, as problems.
func (r *TestReport) Failed() (problems []Problem) {
	for _, test := range r.Tests {
		if !test.Passed && !test.Skipped {
			problems = append(problems, test.Failure)
		}
	}
	return problems
}

// Covered is the share of lines that tests have reached, in percent; 100 if there is none.
func (r *TestReport) Covered() float64 {
	lines, covered := 0, 0
	for _, file := range r.Coverage {
		lines, covered = lines+file.Lines, covered+file.Covered
	}
	if lines == 0 {
		return 100
	}
	return 100 * float64(covered) / float64(lines)
}

// Test runs the tests of a source's bundles, on the bundles' own data: settings of a host are not what tests rely on. A source that
// does not load is a *LoadError.
func Test(ctx context.Context, source Source, run TestRun) (*TestReport, error) {
	return guarded(ctx, func(ctx context.Context) (*TestReport, error) {
		reduced := capabilities(source.Forbidden)
		bundles, problems := unpackAll(source.Bundles, reduced)
		if len(problems) > 0 {
			return nil, loadError(problems)
		}
		return runTests(ctx, bundles, reduced, run)
	})
}

// test refuses an activation whose tests do not pass.
func (a *Activation) test(ctx context.Context, reduced *ast.Capabilities) error {
	if !slices.ContainsFunc(a.bundles, func(u *unpacked) bool { return !u.tested && len(u.tests) > 0 }) {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, maxTestsTime)
	defer cancel()
	report, err := runTests(bounded, a.bundles, reduced, TestRun{})
	if ctx.Err() == nil && bounded.Err() != nil {
		return loadError([]Problem{{Text: fmt.Sprintf("the tests of the bundles take longer than %v together", maxTestsTime)}})
	}
	if err != nil {
		return err
	}
	if failed := report.Failed(); len(failed) > 0 {
		return &LoadError{Problems: failed, Tests: true}
	}
	return nil
}

// runTests runs the tests that are there, and if some fail, those again to see where.
func runTests(ctx context.Context, bundles []*unpacked, reduced *ast.Capabilities, run TestRun) (*TestReport, error) {
	if _, err := regexp.Compile(run.Filter); err != nil {
		return nil, fmt.Errorf("policy: test: the filter is no regular expression: %w", err)
	}
	report, err := runOnce(ctx, bundles, reduced, run, false)
	if err != nil {
		return nil, err
	}
	var failed []string
	for _, test := range report.Tests {
		if !test.Passed && !test.Skipped && !test.broken {
			failed = append(failed, regexp.QuoteMeta(test.Name))
		}
	}
	if len(failed) == 0 {
		return report, nil
	}
	traced, err := runOnce(ctx, bundles, reduced, TestRun{Filter: "^(" + strings.Join(failed, "|") + ")$"}, true)
	if err != nil {
		return nil, err
	}
	for _, again := range traced.Tests {
		for i := range report.Tests {
			if report.Tests[i].Name == again.Name && report.Tests[i].Line == again.Line && !again.Passed {
				report.Tests[i].Failure = again.Failure
			}
		}
	}
	return report, nil
}

func runOnce(ctx context.Context, bundles []*unpacked, reduced *ast.Capabilities, run TestRun, trace bool) (*TestReport, error) {
	modules := modulesOf(bundles)
	tests, packages, problems := parseTests(bundles, reduced)
	if len(problems) > 0 {
		return nil, loadError(problems)
	}
	if len(packages) == 0 {
		return &TestReport{}, nil
	}
	maps.Copy(modules, tests)
	store := inmem.NewFromObjectWithOpts(dataOf(bundles), inmem.OptRoundTripOnWrite(false), inmem.OptReturnASTValuesOnRead(true))
	txn, err := store.NewTransaction(ctx)
	if err != nil {
		return nil, err
	}
	defer store.Abort(ctx, txn)
	coverage := cover.New()
	runner := tester.NewRunner().
		SetCompiler(testCompiler(ctx, bundles, reduced, store, txn)).
		SetStore(store).
		SetModules(modules).
		SetTimeout(maxTestTime).
		RaiseBuiltinErrors(true).
		CapturePrintOutput(true).
		EnableTracing(trace).
		SetPrefixMatchers(packages...).
		Filter(run.Filter)
	if run.Coverage {
		runner = runner.SetCoverageQueryTracer(coverage)
	}
	results, err := runner.RunTests(ctx, txn)
	if err != nil {
		return nil, loadError(problemsOf(err, ""))
	}
	report := &TestReport{}
	for result := range results {
		report.Tests = append(report.Tests, testResult(result))
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("policy: test: %w", err)
	}
	slices.SortFunc(report.Tests, func(a, b TestResult) int {
		return cmp.Or(cmp.Compare(a.Bundle, b.Bundle), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Name, b.Name))
	})
	if run.Coverage {
		report.Coverage = coverageOf(coverage.Report(modules), modules)
	}
	return report, nil
}

// parseTests parses the modules of tests, and tells the packages of those that have not passed yet. The others are there all the same,
// since tests may use what they define.
func parseTests(bundles []*unpacked, reduced *ast.Capabilities) (modules map[string]*ast.Module, packages []ast.Ref, problems []Problem) {
	modules = make(map[string]*ast.Module)
	for _, u := range bundles {
		for name, content := range u.tests {
			file := u.name + "/" + name
			module, err := ast.ParseModuleWithOpts(file, string(content), ast.ParserOptions{
				ProcessAnnotation: true, RegoVersion: ast.RegoV1, Capabilities: reduced,
			})
			switch {
			case err != nil:
				problems = append(problems, problemsOf(err, u.name)...)
			case module == nil: // nothing but comments
			case !isTest(module):
				problems = append(problems, problemAt(module.Package.Loc(), fmt.Sprintf(
					"the package %s is in a file of tests, where no rule counts: end its name with _test, or the file's otherwise", module.Package.Path)))
			case slices.ContainsFunc(module.Rules, func(rule *ast.Rule) bool { return rule.Ref()[len(module.Package.Path)].Equal(denyTerm) }):
				problems = append(problems, problemAt(module.Package.Loc(), "this file is one of tests, and nobody asks its `deny`: name the file of a "+
					"rule otherwise than "+testSuffix))
			case !owns(u, module.Package.Path):
				problems = append(problems, problemAt(module.Package.Loc(), fmt.Sprintf(
					"the package %s lies outside of the roots of the bundle", module.Package.Path)))
			case len(unbounded(module)) > 0:
				problems = append(problems, unbounded(module)...)
			default:
				modules[file] = module
				if !u.tested {
					packages = append(packages, module.Package.Path)
				}
			}
		}
	}
	return modules, packages, problems
}

// isTest says whether a module's package is one of tests.
func isTest(module *ast.Module) bool {
	way := names(module.Package.Path)
	return len(way) > 0 && strings.HasSuffix(way[len(way)-1], "_test")
}

// owns says whether a package is within a bundle's roots.
func owns(u *unpacked, path ast.Ref) bool {
	name := strings.ReplaceAll(strings.TrimPrefix(path.String(), "data."), ".", "/")
	return slices.ContainsFunc(u.roots(), func(root string) bool {
		return name == strings.Trim(root, "/") || strings.HasPrefix(name, strings.Trim(root, "/")+"/")
	})
}

// testCompiler compiles tests together with what they test. They may print, and use no other built-in that policy may not: a test of
// a bundle that comes from elsewhere opens no connection, and what it says does not depend on the day.
func testCompiler(ctx context.Context, bundles []*unpacked, reduced *ast.Capabilities, store storage.Store, txn storage.Transaction) *ast.Compiler {
	return ast.NewCompiler().
		WithCapabilities(testCapabilities(reduced)).
		WithEnablePrintStatements(true).
		WithSchemas(schemasOf(bundles)).
		WithUseTypeCheckAnnotations(true).
		WithPathConflictsCheck(storage.NonEmpty(ctx, store, txn))
}

func testResult(result *tester.Result) TestResult {
	place := problemAt(result.Location, "")
	test := TestResult{
		Name: result.Package + "." + result.Name, Bundle: place.Bundle, File: place.File, Line: place.Line,
		Passed: result.Pass(), Skipped: result.Skip, Printed: string(result.Output), Took: result.Duration,
	}
	if test.Passed || test.Skipped {
		return test
	}
	test.Failure, test.broken = place, result.Error != nil
	switch {
	case errors.Is(result.Error, context.DeadlineExceeded) || topdown.IsCancel(result.Error):
		test.Failure.Text = fmt.Sprintf("the test %s takes longer than %v", test.Name, maxTestTime)
	case result.Error != nil:
		test.Failure.Text = fmt.Sprintf("the test %s fails: %v", test.Name, result.Error)
	default:
		test.Failure.Text = fmt.Sprintf("the test %s fails", test.Name)
		if expr := failedAt(result); expr != nil {
			at := problemAt(expr.Loc(), "")
			test.Failure.Text += fmt.Sprintf(": line %d is not true: %s", at.Line, strings.TrimSpace(string(expr.Loc().Text)))
		}
	}
	return test
}

// failedAt is the expression of the test's own body at which it failed; nil if it was not traced.
func failedAt(result *tester.Result) *ast.Expr {
	var last *ast.Expr
	for _, event := range lineage.Fails(result.Trace) {
		if expr, isExpr := event.Node.(*ast.Expr); isExpr && event.Op == topdown.FailOp && expr.Loc() != nil &&
			expr.Loc().File == result.Location.File && expr.Loc().Row >= result.Location.Row {
			last = expr
		}
	}
	return last
}

// coverageOf is the report of the modules that are no tests.
func coverageOf(report cover.Report, modules map[string]*ast.Module) (files []Coverage) {
	for name := range modules {
		place := problemAt(&ast.Location{File: name}, "")
		if strings.HasSuffix(name, testSuffix) || place.File == "" {
			continue
		}
		found := report.Files[name]
		if found == nil {
			continue
		}
		file := Coverage{Bundle: place.Bundle, File: place.File, Lines: found.CoveredLines + found.NotCoveredLines, Covered: found.CoveredLines}
		for _, lines := range found.NotCovered {
			file.Uncovered = append(file.Uncovered, lines.Start.Row)
		}
		files = append(files, file)
	}
	slices.SortFunc(files, func(a, b Coverage) int { return cmp.Or(cmp.Compare(a.Bundle, b.Bundle), cmp.Compare(a.File, b.File)) })
	return files
}
