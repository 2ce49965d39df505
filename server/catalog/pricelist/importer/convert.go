package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"regent/ledger"
	"regent/server/catalog/pricelist"
)

// provider and model are what is read of the data.
type provider struct {
	ID     string  `json:"id"`
	Models []model `json:"models"`
}

type model struct {
	ID            string `json:"id"`
	ContextWindow int64  `json:"context_window"`
	Deprecated    bool   `json:"deprecated"`
	// Prices is an object, or a list of them with the conditions under which each counts.
	Prices json.RawMessage `json:"prices"`
}

type conditional struct {
	Constraint *struct {
		StartDate string `json:"start_date"`
		StartTime string `json:"start_time"`
	} `json:"constraint"`
	Prices prices `json:"prices"`
}

// prices are by key; each is a number, or a [tiered].
type prices map[string]json.RawMessage

// tiered is a number up to a threshold, and another one for everything where the prompt has more tokens than that.
type tiered struct {
	Base  json.Number `json:"base"`
	Tiers []struct {
		Start int64       `json:"start"`
		Price json.Number `json:"price"`
	} `json:"tiers"`
}

// convert reads the data as it counts on a day. An error is of data that cannot be read; a price that cannot be used is a model's.
func convert(data []byte, date string) ([]pricelist.Model, error) {
	var providers []provider
	if err := json.Unmarshal(data, &providers); err != nil {
		return nil, err
	}
	var models []pricelist.Model
	for _, provider := range providers {
		for _, model := range provider.Models {
			converted, err := model.convert(provider.ID, date)
			if err != nil {
				return nil, fmt.Errorf("%s/%s: %w", provider.ID, model.ID, err)
			}
			models = append(models, converted)
		}
	}
	slices.SortFunc(models, func(a, b pricelist.Model) int { return strings.Compare(a.ID, b.ID) })
	for i := 1; i < len(models); i++ {
		if models[i].ID == models[i-1].ID {
			return nil, fmt.Errorf("%s is there twice", models[i].ID)
		}
	}
	return models, nil
}

func (m model) convert(provider, date string) (pricelist.Model, error) {
	converted := pricelist.Model{ID: provider + "/" + m.ID, ContextTokens: m.ContextWindow, Deprecated: m.Deprecated}
	current, unusable, err := m.current(date)
	if err != nil || unusable != "" {
		converted.Unusable = unusable
		return converted, err
	}
	r := reading{apart: map[string]bool{}}
	if err := r.read(current); err != nil {
		return converted, err
	}
	converted.Unusable = r.unusable
	if r.unusable != "" {
		return converted, nil
	}
	converted.Apart = slices.Sorted(maps.Keys(r.apart))
	converted.Price = &r.list
	_, err = r.list.Price()
	return converted, err
}

// current are the prices that count on a day and from then on; unusable says why there are none.
func (m model) current(date string) (current prices, unusable string, err error) {
	if !bytes.HasPrefix(m.Prices, []byte("[")) {
		return current, "", json.Unmarshal(m.Prices, &current)
	}
	var all []conditional
	if err := json.Unmarshal(m.Prices, &all); err != nil {
		return nil, "", err
	}
	for _, one := range all { // the last one whose condition is met counts
		switch {
		case one.Constraint == nil:
			current = one.Prices
		case one.Constraint.StartDate == "":
			return nil, "the price changes with the time of day", nil
		case one.Constraint.StartDate > date:
			return nil, "the price changes on " + one.Constraint.StartDate, nil
		default:
			current = one.Prices
		}
	}
	return current, "", nil
}

// rate finds where a key of the data belongs in a list of rates; nil if it is no rate.
func rate(key string, list *ledger.RateList) *string {
	switch key {
	case "input_mtok":
		return &list.Input
	case "cache_read_mtok":
		return &list.CachedInput
	case "cache_write_mtok":
		return &list.CacheWrite5m
	case "cache_write_1h_mtok":
		return &list.CacheWrite1h
	case "output_mtok":
		return &list.Output
	case "output_reasoning_mtok":
		return &list.Reasoning
	}
	return nil
}

var (
	// units are charged by the thousand.
	units = map[string]string{"web_searches_kcount": "web_search", "storage_searches_kcount": "file_search"}
	// apart are rates of input that is not text, by its modality in the catalogue.
	apart = map[string]string{
		"input_audio_mtok": "audio", "cache_audio_read_mtok": "audio", "input_image_mtok": "image", "cache_image_read_mtok": "image",
		"input_video_mtok": "file",
	}
)

// reading is a list of the ledger on its way.
type reading struct {
	list     ledger.PriceList
	long     ledger.LongContextList
	hasLong  bool
	apart    map[string]bool
	unusable string
}

func (r *reading) read(current prices) error {
	for _, key := range slices.Sorted(maps.Keys(current)) {
		if err := r.readKey(key, current[key]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	switch {
	case r.unusable != "":
	case r.list.Input == "":
		r.unusable = "input has no price per token"
	case r.list.Output == "":
		r.unusable = "output has no price per token"
	case r.hasLong:
		r.list.LongContext = &r.long
	}
	return nil
}

func (r *reading) readKey(key string, value json.RawMessage) error {
	if modality, isApart := apart[key]; isApart {
		r.apart[modality] = true
		return nil
	}
	if unit, isUnit := units[key]; isUnit {
		charge, err := decimal(json.Number(value), 1000, 9)
		if r.list.UnitCharges == nil {
			r.list.UnitCharges = map[string]string{}
		}
		r.list.UnitCharges[unit] = charge
		return err
	}
	if rate(key, &r.list.RateList) == nil {
		r.unusable = "it is also priced by " + key
		return nil
	}
	return r.readRate(key, value)
}

// readRate reads a rate, and the one for long prompts, which is the same unless it says otherwise.
func (r *reading) readRate(key string, value json.RawMessage) error {
	number := tiered{Base: json.Number(value)}
	if bytes.HasPrefix(value, []byte("{")) {
		number = tiered{}
		if err := json.Unmarshal(value, &number); err != nil {
			return err
		}
		if len(number.Tiers) != 1 || r.hasLong && r.long.Threshold != number.Tiers[0].Start {
			r.unusable = "it has several thresholds of long context"
			return nil
		}
		r.hasLong, r.long.Threshold = true, number.Tiers[0].Start
	}
	base, err := decimal(number.Base, 1, 6)
	if err != nil {
		return err
	}
	long := base
	if len(number.Tiers) == 1 {
		if long, err = decimal(number.Tiers[0].Price, 1, 6); err != nil {
			return err
		}
	}
	*rate(key, &r.list.RateList), *rate(key, &r.long.RateList) = base, long
	return nil
}

// decimal writes number / of with at most so many places, rounded up: a few numbers are quotients that were cut off.
func decimal(number json.Number, of int64, places int) (string, error) {
	n, ok := new(big.Rat).SetString(number.String())
	if !ok || n.Sign() < 0 {
		return "", fmt.Errorf("%s is no price", strconv.Quote(number.String()))
	}
	scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(places)), nil)
	n.Mul(n, new(big.Rat).SetFrac(scale, big.NewInt(of)))
	whole, rest := new(big.Int).QuoRem(n.Num(), n.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	text := new(big.Rat).SetFrac(whole, scale).FloatString(places)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), "."), nil
}
