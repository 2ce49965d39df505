package decisions_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"regent/engine/decisions"
	"regent/engine/policy"
)

// What is encoded by hand is what encoding/json would have made of it, whatever clients, providers and authors of rules write.
func TestEncodeIsMarshal(t *testing.T) {
	events := anyEvent()
	rapid.Check(t, func(t *rapid.T) {
		event := events.Draw(t, "event")
		want, refused := json.Marshal(event)
		got, err := event.Encode()
		_, _ = new(decisions.Event).Encode() // which leaves what was returned alone
		if string(got) != string(want) || (err != nil) != (refused != nil) {
			t.Fatalf("got  %s, %v\nwant %s, %v", got, err, want, refused)
		}
	})
}

// anyEvent has a result of any kind; its lists and tables may be nil, empty, or have something in them.
func anyEvent() *rapid.Generator[decisions.Event] {
	like := rapid.MakeConfig{
		Kinds: map[reflect.Kind]*rapid.Generator[any]{reflect.String: anyText().AsAny()},
		Types: map[reflect.Type]*rapid.Generator[any]{},
	}
	// What is in a list comes before what has such a list.
	addList[string](like)
	addList[policy.Denial](like)
	addList[policy.Candidate](like)
	addList[policy.Attempt](like)
	addList[decisions.Candidate](like)
	labels, bundles := tableOf[string](like), tableOf[decisions.Bundle](like)
	input, custom := rapid.MakeCustom[*decisions.Input](like), rapid.MakeCustom[*decisions.Custom](like)
	result := rapid.OneOf(
		rapid.MakeCustom[decisions.Result](like).AsAny(),
		rapid.MakeCustom[*decisions.Result](like).AsAny(),
		rapid.SampledFrom([]any{nil, json.RawMessage(`{"a": "<"}`), json.RawMessage(`{`), 1.5, func() {}}),
	)
	text, at := anyText(), anyTime()
	return rapid.Custom(func(t *rapid.T) decisions.Event {
		return decisions.Event{
			Labels: labels.Draw(t, "labels"), DecisionID: text.Draw(t, "id"), Bundles: bundles.Draw(t, "bundles"), Path: text.Draw(t, "path"),
			Input: input.Draw(t, "input"), Result: result.Draw(t, "result"), Timestamp: at.Draw(t, "time"), Custom: custom.Draw(t, "custom"),
		}
	})
}

// anyText has much of what JSON, HTML or JavaScript escape, and what is no UTF-8.
func anyText() *rapid.Generator[string] {
	pieces := []string{
		"plain", "é", "語", "😀", "\ufffd", "\u2027", "\u2028", "\u2029", "\u202a", "<", ">", "&", "'", `"`, `\`, "/",
		"\xff", "\x80", "\xc3", "\xe2\x80", "\xed\xa0\x80", "\xf0\x9f\x98", "\xc0\xaf",
	}
	for c := range 0x80 {
		pieces = append(pieces, string(rune(c)))
	}
	odd := rapid.Map(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 8), func(some []string) string { return strings.Join(some, "") })
	return rapid.OneOf(odd, rapid.String())
}

// anyTime has some that no record may have: of the year 10000 and before the year 0, and a day and more from UTC.
func anyTime() *rapid.Generator[time.Time] {
	year := rapid.SampledFrom([]int{-1, 0, 1, 1970, 2026, 2026, 2026, 9999, 10_000})
	nanoseconds := rapid.SampledFrom([]int{0, 1, 100_000_000, 123_456_000, 999_999_999})
	offset := rapid.SampledFrom([]int{0, 0, 0, 3600, -11 * 3600, 19_800, 75, 24 * 3600})
	return rapid.Custom(func(t *rapid.T) time.Time {
		zone := time.FixedZone("", offset.Draw(t, "offset"))
		return time.Date(year.Draw(t, "year"), time.March, 4, 12, 0, 5, nanoseconds.Draw(t, "nanoseconds"), zone)
	})
}

// addList has lists of a type drawn as nil, too.
func addList[T any](like rapid.MakeConfig) {
	some := rapid.SliceOfN(rapid.MakeCustom[T](like), 0, 3)
	like.Types[reflect.TypeFor[[]T]()] = rapid.OneOf(some, rapid.Just([]T(nil))).AsAny()
}

func tableOf[T any](like rapid.MakeConfig) *rapid.Generator[map[string]T] {
	some := rapid.MapOfN(rapid.MakeCustom[string](like), rapid.MakeCustom[T](like), 0, 12)
	return rapid.OneOf(some, rapid.Just(map[string]T(nil)))
}

// A field that is added to an event, or to what is in one, is encoded, too.
func TestNoFieldIsForgotten(t *testing.T) {
	var event decisions.Event
	encoded := func() string {
		got, err := event.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if want, err := json.Marshal(event); err != nil || string(got) != string(want) {
			t.Fatalf("got  %s\nwant %s, %v", got, want, err)
		}
		return string(got)
	}
	setEach(t, "Event", reflect.ValueOf(&event).Elem(), encoded)
	if !reflect.ValueOf(event).IsZero() {
		t.Errorf("left with %+v", event)
	}
}

// setEach sets a value, and all that may be in it, to something else than zero, one after the other, and checks that each changes what
// is encoded.
func setEach(t *testing.T, name string, value reflect.Value, encoded func() string) {
	t.Helper()
	set := func(to any) {
		t.Helper()
		before := encoded()
		value.Set(reflect.ValueOf(to).Convert(value.Type()))
		if encoded() == before {
			t.Errorf("%s is forgotten", name)
		}
	}
	defer value.SetZero()
	switch kind := value.Kind(); {
	case value.Type() == reflect.TypeFor[time.Time]():
		set(time.Unix(1, 0))
	case kind == reflect.String:
		set("a")
	case kind == reflect.Int, kind == reflect.Int64:
		set(1)
	case kind == reflect.Bool:
		set(true)
	case kind == reflect.Struct:
		for i := range value.NumField() {
			setEach(t, name+"."+value.Type().Field(i).Name, value.Field(i), encoded)
		}
	case kind == reflect.Pointer:
		set(reflect.New(value.Type().Elem()).Interface())
		setEach(t, name, value.Elem(), encoded)
	case kind == reflect.Slice:
		set(reflect.MakeSlice(value.Type(), 1, 1).Interface())
		setEach(t, name, value.Index(0), encoded)
	case kind == reflect.Map:
		key, item := reflect.ValueOf("a"), reflect.New(value.Type().Elem()).Elem()
		table := reflect.MakeMap(value.Type())
		table.SetMapIndex(key, item)
		set(table.Interface())
		setEach(t, name, item, func() string { table.SetMapIndex(key, item); return encoded() })
	case kind == reflect.Interface:
		result := reflect.New(reflect.TypeFor[decisions.Result]()).Elem()
		set(result.Interface())
		setEach(t, name, result, func() string { value.Set(result); return encoded() })
	default:
		t.Fatalf("%s: the test knows no %s", name, kind)
	}
}

// walked is the event of a call whose first candidate was refused by a rule, and whose second served it.
func walked() decisions.Event {
	facts := func(source, provider string) policy.Candidate {
		return policy.Candidate{
			Source: source, Provider: provider, Model: "gpt-5.2-2025-12-11", Residency: new("eu"), Enabled: true, Connection: "authorised",
			Protocols: []string{"openai.chat", "openai.responses"}, Modalities: []string{"image"}, ContextTokens: new(int64(400_000)),
			OutputTokensMax: new(int64(128_000)), Priced: true, InputPrice: new(int64(1_750_000)), OutputPrice: new(int64(14_000_000)),
			Accounting: policy.ByAPIKey,
		}
	}
	return decisions.Event{
		Labels:     map[string]string{"id": "0198b8a0-0000-7000-8000-00000000000a"},
		DecisionID: "0198b8a0-0000-7000-8000-000000000001",
		Bundles:    map[string]decisions.Bundle{"regent": {Revision: "1.4.0"}, "org": {Revision: "9f86d081884c7d65"}},
		Path:       decisions.DecisionPath,
		Input: &decisions.Input{
			Now: 1_772_625_600_000_000_000,
			Call: policy.Call{
				Model: "gpt-5.2", Protocol: "openai.chat", Kind: "generation", Stream: true, Modalities: []string{},
				InputTokens: new(int64(1200)), OutputTokensMax: new(int64(4096)), TokensBounded: true, CostBounded: true,
			},
			Identity:   policy.Identity{User: new("alice@example.com"), Groups: []string{"staff", "research"}},
			Candidates: []policy.Candidate{facts("openai-eu", "openai"), facts("azure-eu", "azure"), facts("openrouter", "openrouter")},
			Attempts:   []policy.Attempt{},
		},
		Result: decisions.Result{
			Allow: true, Selected: "azure-eu",
			Candidates: []decisions.Candidate{
				{Source: "openai-eu", Provider: "openai", Outcome: "denied", Reason: "PROVIDER_NOT_ALLOWED", Denials: []policy.Denial{{
					Rule: "allow_list", Code: "PROVIDER_NOT_ALLOWED", Title: "The provider is not allowed",
					Remedy: "Ask an administrator to add the provider to the allow list.", Terminal: true,
				}}},
				{Source: "azure-eu", Provider: "azure", Outcome: "selected"},
				{Source: "openrouter", Provider: "openrouter", Outcome: "not_reached"},
			},
		},
		Timestamp: time.Date(2026, time.March, 4, 12, 0, 0, 123_456_000, time.UTC),
		Custom:    &decisions.Custom{Activation: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},
	}
}

func BenchmarkEvent(b *testing.B) {
	event := walked()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.Encode(); err != nil {
			b.Fatal(err)
		}
	}
}
