package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"regent/ledger"
	"regent/server/catalog/pricelist"
)

const day = "2026-09-23"

// converted converts one model, whose prices and more are given as JSON.
func converted(t *testing.T, rest string) (pricelist.Model, error) {
	t.Helper()
	models, err := convert([]byte(`[{"id":"p","name":"P","models":[{"id":"m",`+rest+`}]}]`), day)
	if err != nil {
		return pricelist.Model{}, err
	}
	if len(models) != 1 || models[0].ID != "p/m" {
		t.Fatalf("%s: %+v", rest, models)
	}
	return models[0], nil
}

func TestConvert(t *testing.T) {
	plain := ledger.PriceList{RateList: ledger.RateList{Input: "1", Output: "2"}}
	for name, test := range map[string]struct {
		model string
		want  pricelist.Model
	}{
		"every key": {
			`"context_window":1000,"deprecated":true,"prices":{"input_mtok":3,"cache_read_mtok":0.3,"cache_write_mtok":3.75,"cache_write_1h_mtok":6,
				"output_mtok":15.50,"output_reasoning_mtok":16,"web_searches_kcount":10,"storage_searches_kcount":2.5,"input_audio_mtok":1,
				"cache_audio_read_mtok":1,"input_image_mtok":2,"input_video_mtok":3}`,
			pricelist.Model{ContextTokens: 1000, Deprecated: true, Apart: []string{"audio", "file", "image"}, Price: &ledger.PriceList{
				RateList:    ledger.RateList{Input: "3", CachedInput: "0.3", CacheWrite5m: "3.75", CacheWrite1h: "6", Output: "15.5", Reasoning: "16"},
				UnitCharges: map[string]string{"web_search": "0.01", "file_search": "0.0025"},
			}},
		},
		"long context, where a rate without a tier stays": {
			`"prices":{"cache_read_mtok":0.05,"input_mtok":{"base":0.2,"tiers":[{"start":128000,"price":0.4}]},"output_mtok":{"base":0.5,"tiers":[{"start":128000,"price":1}]}}`,
			pricelist.Model{Price: &ledger.PriceList{
				RateList:    ledger.RateList{Input: "0.2", CachedInput: "0.05", Output: "0.5"},
				LongContext: &ledger.LongContextList{Threshold: 128_000, RateList: ledger.RateList{Input: "0.4", CachedInput: "0.05", Output: "1"}},
			}},
		},
		"a quotient that was cut off is rounded up": {
			`"prices":{"input_mtok":0.08333333333333334,"output_mtok":1e-7,"web_searches_kcount":0.0000001}`,
			pricelist.Model{Price: &ledger.PriceList{
				RateList: ledger.RateList{Input: "0.083334", Output: "0.000001"}, UnitCharges: map[string]string{"web_search": "0.000000001"},
			}},
		},
		"the price that counts on the day": {
			`"prices":[{"prices":{"input_mtok":9,"output_mtok":9}},{"constraint":{"start_date":"2026-09-23","type":"start_date"},"prices":{"input_mtok":1,"output_mtok":2}}]`,
			pricelist.Model{Price: &plain},
		},
		"a price that will change": {
			`"prices":[{"prices":{"input_mtok":1,"output_mtok":2}},{"constraint":{"start_date":"2026-09-24"},"prices":{"input_mtok":9,"output_mtok":9}}]`,
			pricelist.Model{Unusable: "the price changes on 2026-09-24"},
		},
		"a price by the time of day": {
			`"prices":[{"prices":{"input_mtok":1,"output_mtok":2}},{"constraint":{"start_time":"00:30:00Z","end_time":"16:30:00Z"},"prices":{"input_mtok":2,"output_mtok":4}}]`,
			pricelist.Model{Unusable: "the price changes with the time of day"},
		},
		"no input":       {`"prices":{"output_mtok":2}`, pricelist.Model{Unusable: "input has no price per token"}},
		"no output":      {`"prices":{"input_mtok":2}`, pricelist.Model{Unusable: "output has no price per token"}},
		"nothing":        {`"prices":{}`, pricelist.Model{Unusable: "input has no price per token"}},
		"audio output":   {`"prices":{"input_mtok":1,"output_mtok":2,"output_audio_mtok":20}`, pricelist.Model{Unusable: "it is also priced by output_audio_mtok"}},
		"a key unknown":  {`"prices":{"input_mtok":1,"output_mtok":2,"moonlight_hours":20}`, pricelist.Model{Unusable: "it is also priced by moonlight_hours"}},
		"two thresholds": {`"prices":{"input_mtok":{"base":1,"tiers":[{"start":1,"price":2},{"start":2,"price":3}]},"output_mtok":2}`, pricelist.Model{Unusable: "it has several thresholds of long context"}},
		"a threshold each": {`"prices":{"input_mtok":{"base":1,"tiers":[{"start":1,"price":2}]},"output_mtok":{"base":1,"tiers":[{"start":2,"price":2}]}}`,
			pricelist.Model{Unusable: "it has several thresholds of long context"}},
	} {
		test.want.ID = "p/m"
		if got, err := converted(t, test.model); err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v (price %+v), %v, want %+v", name, got, got.Price, err, test.want)
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	for name, prices := range map[string]string{
		"a negative price":     `{"input_mtok":-1,"output_mtok":1}`,
		"a text":               `{"input_mtok":"cheap","output_mtok":1}`,
		"null":                 `{"input_mtok":null,"output_mtok":1}`,
		"a negative tier":      `{"input_mtok":{"base":1,"tiers":[{"start":1,"price":-1}]},"output_mtok":1}`,
		"a threshold of 0":     `{"input_mtok":{"base":1,"tiers":[{"start":0,"price":1}]},"output_mtok":1}`,
		"a negative unit":      `{"input_mtok":1,"output_mtok":1,"web_searches_kcount":-1}`,
		"a price beyond all":   `{"input_mtok":1e300,"output_mtok":1}`,
		"a number as prices":   `1`,
		"a list without price": `[1]`,
	} {
		if got, err := converted(t, `"prices":`+prices); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	if got, err := convert([]byte(`[{"id":"p","models":[{"id":"m","prices":{}},{"id":"m","prices":{}}]}]`), day); err == nil {
		t.Errorf("a model twice: %+v", got)
	}
}

// TestRun imports a file and reads what comes of it.
func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data.json")
	data := `[{"id":"q","models":[{"id":"z","prices":{"input_mtok":1,"output_mtok":2}},{"id":"a","prices":{}}]},{"id":"p","models":[{"id":"x/y","prices":{"input_mtok":1,"output_mtok":2}}]}]`
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run("1.2.3", day, []string{path}, &out); err != nil {
		t.Fatal(err)
	}
	const want = `{"source":"@pydantic/genai-prices","version":"1.2.3","date":"2026-09-23","models":[
{"id":"p/x/y","price":{"input":"1","output":"2"}},
{"id":"q/a","unusable":"input has no price per token"},
{"id":"q/z","price":{"input":"1","output":"2"}}
]}
`
	if out.String() != want || !json.Valid([]byte(out.String())) {
		t.Errorf("got %s", out.String())
	}
	for name, test := range map[string]struct {
		version, date string
		files         []string
	}{
		"no version": {"", day, []string{path}}, "no date": {"1", "", []string{path}}, "a date that is none": {"1", "2026-13-01", []string{path}},
		"no file": {"1", day, nil}, "two files": {"1", day, []string{path, path}}, "a file that is not there": {"1", day, []string{path + "x"}},
	} {
		if err := run(test.version, test.date, test.files, &out); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
