// Command host embeds the router: its state outlives it, so that a task that is run again and again comes to the end of its budget.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"regent/adapters"
	"regent/engine"
	"regent/engine/policy"
	"regent/ledger"
	"regent/ledger/sqldb"
	"regent/policies"
)

func main() {
	ctx := context.Background()
	store := must(sqldb.Open(ctx, sqldb.Config{Path: os.Args[1]}))
	rules := must(policy.NewEngine(ctx, policy.Source{Bundles: []policy.Bundle{{Name: "regent", FS: policies.Files()}}}))
	router := must(engine.New(engine.Config{
		Policy: rules, Resolver: local{}, Store: store, Budgets: &engine.Budgets{MaxTokens: new(int64(100))},
	}))
	defer router.Close(ctx)
	cost := &engine.Cost{Input: new(1.0), Output: new(2.0), Unit: engine.PerMillion}
	parrot := engine.Model{Provider: "local", ID: "parrot", Cost: cost, OutputTokensMax: new(int64(20))}
	governed := must(router.NewGovernedProvider(engine.GovernedConfig{Request: engine.Request{
		Identity: policy.Identity{Principal: new("builder")}, Verified: true, TaskID: "build",
		Candidates: []engine.Candidate{parrot.Candidate()}, MaxTokens: new(int64(40)),
	}}))
	answer := must(governed.Send(ctx, adapters.Request{Body: []byte(strings.Join(os.Args[2:], " "))}))
	defer answer.Close()
	for event, err := answer.Next(); err != io.EOF; event, err = answer.Next() {
		fmt.Println(string(must(event, err).Relay))
	}
	spent := must(router.ReadBudget(ctx, engine.Budget{Identity: policy.Identity{Principal: new("builder")}, Verified: true, TaskID: "build"}))
	fmt.Printf("the task has used %d of 100 tokens\n", spent.Used.Tokens)
}

// local knows one provider, which says the prompt again.
type local struct{}

func (local) Resolve(engine.Candidate) (adapters.Provider, error) {
	return adapters.ProviderFunc(func(_ context.Context, request adapters.Request) (adapters.Answer, error) {
		words := int64(len(strings.Fields(string(request.Body))))
		return adapters.Whole(request.Body, &ledger.Usage{UncachedInput: words, Output: words}), nil
	}), nil
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
