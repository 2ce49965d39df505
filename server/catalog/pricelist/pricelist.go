// Package pricelist holds prices that providers publish, as an open-source list had them on one day.
//
// The list is @pydantic/genai-prices, under the MIT licence; its notice lies beside it and is part of the program. It is imported
// into published.json, which keeps of it what a price needs, in the form in which an administrator writes one. What a price of
// the ledger cannot express is kept as the reason why it cannot be used, so that nobody takes the rest for the whole. To import a
// newer one, give the list's JSON data, its version and its day to the importer:
//
//	cd server/catalog/pricelist && go run ./importer -version 0.1.8 -date 2026-09-23 data.json > published.json
package pricelist

import (
	_ "embed"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"regent/ledger"
)

// List is all that was imported.
type List struct {
	// Source and Version say what was imported.
	Source  string `json:"source"`
	Version string `json:"version"`
	// Date is the day on which that version was published, as YYYY-MM-DD.
	Date string `json:"date"`
	// Models are ordered by id.
	Models []Model `json:"models"`
}

// Model is one model of one provider.
type Model struct {
	// ID is PROVIDER/MODEL. A model's own name may contain slashes.
	ID string `json:"id"`
	// ContextTokens is the size of the model's context, 0 if unknown.
	ContextTokens int64 `json:"context_tokens,omitempty"`
	// Price is nil if it cannot be used.
	Price *ledger.PriceList `json:"price,omitempty"`
	// Unusable says why there is no price that could be used.
	Unusable string `json:"unusable,omitempty"`
	// Apart are the modalities (audio, image, file) whose input has a rate of its own, which a price of the ledger cannot express.
	Apart []string `json:"apart,omitempty"`
	// Deprecated says that the provider is about to withdraw the model, or has.
	Deprecated bool `json:"deprecated,omitempty"`
}

// staleAfter is when a list should not be relied on any more: providers change the prices of some models every few months.
const staleAfter = 180 * 24 * time.Hour

//go:embed published.json
var published []byte

// Notice is the licence of the list.
//
//go:embed genai-prices.LICENSE
var Notice string

// Published is the list that is part of the program.
var Published = sync.OnceValue(func() *List {
	list, err := read(published)
	if err != nil { // a test reads it, too
		panic(err)
	}
	return list
})

func read(text []byte) (*List, error) {
	list := &List{}
	return list, json.Unmarshal(text, list)
}

// Find finds a model by its id; nil if the list has none.
func (l *List) Find(id string) *Model {
	at, found := slices.BinarySearchFunc(l.Models, id, func(m Model, id string) int { return strings.Compare(m.ID, id) })
	if !found {
		return nil
	}
	return &l.Models[at]
}

// Age is how old the list is.
func (l *List) Age(now time.Time) time.Duration {
	day, err := time.Parse(time.DateOnly, l.Date)
	if err != nil {
		return 1<<63 - 1 // a list without a day is older than any
	}
	return now.Sub(day)
}

// Stale says whether the list is too old to be relied on.
func (l *List) Stale(now time.Time) bool { return l.Age(now) > staleAfter }
