package pricelist

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"regent/ledger"
)

// TestPublished reads the whole list: every model either has a price that the ledger takes, or says why it has none.
func TestPublished(t *testing.T) {
	list, err := read(published)
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`^[a-z-]+/[!-~]+$`)
	usable := 0
	for _, model := range list.Models {
		if !id.MatchString(model.ID) || list.Find(model.ID) == nil || list.Find(model.ID).ID != model.ID {
			t.Errorf("%s cannot be found", model.ID)
		}
		if (model.Price == nil) != (model.Unusable != "") {
			t.Errorf("%s: price %+v, unusable %q", model.ID, model.Price, model.Unusable)
		}
		if model.Price == nil {
			continue
		}
		usable++
		price, err := model.Price.Price()
		if err != nil || price.UncachedInput == 0 && price.Output == 0 {
			t.Errorf("%s: %+v, %v", model.ID, price, err)
		}
	}
	if len(list.Models) != 1519 || usable != 1265 {
		t.Errorf("%d models, %d with a price", len(list.Models), usable)
	}
	if !slices.IsSortedFunc(list.Models, func(a, b Model) int { return strings.Compare(a.ID, b.ID) }) {
		t.Error("the models are not in order")
	}
	if list.Source != "@pydantic/genai-prices" || list.Version != "0.1.8" || list.Date != "2026-09-23" {
		t.Errorf("of %s %s, %s", list.Source, list.Version, list.Date)
	}
	if !strings.HasPrefix(Notice, "The MIT License (MIT)\n\nCopyright (c) Pydantic Services Inc.") {
		t.Errorf("the notice is %q", Notice)
	}
}

func TestFind(t *testing.T) {
	model := Published().Find("openai/gpt-5.4")
	want := ledger.PriceList{
		RateList: ledger.RateList{Input: "2.5", CachedInput: "0.25", Output: "15"},
		LongContext: &ledger.LongContextList{
			Threshold: 271_999, // a prompt of 272,000 tokens is the first that is long
			RateList:  ledger.RateList{Input: "5", CachedInput: "0.5", Output: "22.5"},
		},
		UnitCharges: map[string]string{"web_search": "0.01", "file_search": "0.0025"},
	}
	if model == nil || model.ContextTokens != 1_050_000 || !reflect.DeepEqual(*model.Price, want) {
		t.Errorf("got %+v", model)
	}
	for _, id := range []string{"", "openai", "openai/", "openai/gpt-5.4 ", "gpt-5.4", "OpenAI/gpt-5.4", "zzz/zzz"} {
		if found := Published().Find(id); found != nil {
			t.Errorf("%q finds %+v", id, found)
		}
	}
}

func TestAge(t *testing.T) {
	day := func(text string) time.Time {
		at, err := time.Parse(time.DateOnly, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	list := &List{Date: "2026-09-23"}
	for now, stale := range map[string]bool{
		"2020-01-01": false, "2026-09-23": false, "2026-11-30": false, "2027-03-22": false, "2027-03-23": true,
	} {
		if got := list.Stale(day(now)); got != stale {
			t.Errorf("on %s, %v old: stale %t", now, list.Age(day(now)), got)
		}
	}
	if (&List{}).Stale(day("2026-09-23")) != true {
		t.Error("a list without a day is fresh")
	}
}
