package workshop

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"regent/engine/policy"
	"regent/policies"
)

// What Init writes passes all that an author is asked for.
func TestANewBundlePasses(t *testing.T) {
	for _, rule := range []string{"weekdays", "rule", "fixture", "lib", "a1"} {
		folder := filepath.Join(t.TempDir(), "deep", "org")
		written, err := Init(context.Background(), policies.Files(), folder, rule)
		if err != nil || len(written) != 4 {
			t.Fatalf("%s: %v, %v", rule, written, err)
		}
		if problems, loads := told(t, folder); !loads || len(problems) > 0 {
			t.Errorf("%s: %v", rule, problems)
		}
		report, err := bench(t, folder).Test(context.Background(), policy.TestRun{Coverage: true})
		if err != nil || len(report.Failed()) > 0 || len(report.Tests) != 3 || report.Covered() != 100 {
			t.Errorf("%s: %+v, %v", rule, report, err)
		}
	}
}

func TestANewBundleNeedsAFreeFolderAndAName(t *testing.T) {
	folder := t.TempDir()
	for _, rule := range []string{"", "x", "Weekdays", "week-days", "../up", "default", "import"} {
		if _, err := Init(context.Background(), policies.Files(), folder, rule); err == nil {
			t.Errorf("%q is no name of a rule", rule)
		}
	}
	// A code of the shipped bundle's.
	if _, err := Init(context.Background(), policies.Files(), folder, "source_disabled"); err == nil {
		t.Error("a code was given twice")
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) > 0 {
		t.Errorf("something was written: %v, %v", entries, err)
	}
	write(t, folder, "mine.txt", "precious")
	if _, err := Init(context.Background(), policies.Files(), folder, "weekdays"); !errors.Is(err, ErrOccupied) {
		t.Errorf("got %v", err)
	}
	if entries, err := os.ReadDir(folder); err != nil || !slices.Equal([]string{entries[0].Name()}, []string{"mine.txt"}) || len(entries) != 1 {
		t.Errorf("something was written: %v, %v", entries, err)
	}
}

// The page for authors shows the rule that is written.
func TestThePageForAuthorsShowsWhatIsWritten(t *testing.T) {
	page, err := os.ReadFile("../../policies/README.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := startingWith(newBundle{Rule: "weekdays", Code: "WEEKDAYS", Folder: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	if rule := "```rego\n" + string(files["org/rules/weekdays/weekdays.rego"]) + "```"; !strings.Contains(string(page), rule) {
		t.Errorf("the page does not hold\n%s", rule)
	}
}

// A name that ends as those of tests do would make a rule that nobody asks.
func TestInitRefusesTheNameOfATest(t *testing.T) {
	if _, err := Init(context.Background(), policies.Files(), filepath.Join(t.TempDir(), "acme"), "load_test"); err == nil {
		t.Error("a rule load_test is made")
	}
}
