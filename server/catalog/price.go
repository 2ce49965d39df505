package catalog

import (
	"errors"
	"fmt"
	"maps"

	"regent/ledger"
	"regent/server/catalog/pricelist"
)

// price resolves the price of a source of a model that accepts some modalities. An error has the line of what is wrong in it.
func (p *parser) price(source string, entry priceEntry, modalities map[string]int64, way []any) (*ledger.Price, error) {
	list := entry.PriceList
	if entry.Published != "" {
		var err error
		if list, err = entry.published(modalities); err != nil {
			return nil, p.fail(append(way, "published"), "source %q: price: %v", source, err)
		}
	}
	price, err := list.Price()
	if err == nil {
		return &price, nil
	}
	var wrong *ledger.ListError
	if errors.As(err, &wrong) {
		for _, key := range wrong.Keys {
			way = append(way, key)
		}
	}
	return nil, p.fail(way, "source %q: price: %v", source, err)
}

// published is the published price that the entry names, with the tiers and the unit charges that are written beside it.
func (e priceEntry) published(modalities map[string]int64) (ledger.PriceList, error) {
	model, none := pricelist.Published().Find(e.Published), ledger.PriceList{}
	switch {
	case e.RateList != ledger.RateList{} || e.LongContext != nil:
		return none, errors.New("the rates are the published ones: beside them stand only tiers and unit_charges")
	case model == nil:
		return none, fmt.Errorf("no price of %q is published; `regent prices` lists those that are", e.Published)
	case model.Price == nil:
		return none, fmt.Errorf("the published price of %q cannot be used: %s; write the price", e.Published, model.Unusable)
	}
	for _, modality := range model.Apart {
		if _, accepted := modalities[modality]; accepted {
			return none, fmt.Errorf("the published price of %q has a rate of its own for %s, which the model accepts; write the price",
				e.Published, modality)
		}
	}
	list := *model.Price
	list.Tiers, list.UnitCharges = e.Tiers, map[string]string{}
	maps.Copy(list.UnitCharges, model.Price.UnitCharges)
	maps.Copy(list.UnitCharges, e.UnitCharges)
	return list, nil
}

// PublishedPrices counts the sources whose price is a published one.
func (c *Catalogue) PublishedPrices() int {
	n := 0
	for _, model := range c.Models {
		for _, source := range model.Sources {
			if source.PublishedPrice != "" {
				n++
			}
		}
	}
	return n
}
