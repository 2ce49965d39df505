package server

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"regent/server/catalog/pricelist"
)

// Components that everything depends on: if one of them fails, the server is not ready.
const (
	policyComponent    = "policy"
	ledgerComponent    = "ledger"
	catalogueComponent = "catalogue"
	drainComponent     = "drain"
)

// bundlePrefix begins the name of the component that is the source of a policy bundle.
const bundlePrefix = "bundle/"

// pricesComponent is the list of published prices, if the catalogue relies on it.
const pricesComponent = "prices"

// States of a component, and of the whole.
const (
	ok = "ok"
	// degraded: something is wrong, and calls are served all the same.
	degraded = "degraded"
	failed   = "failed"
)

// health is what the parts of the program say of themselves.
type health struct {
	mu     sync.Mutex
	errors map[string]error
}

func newHealth() *health { return &health{errors: map[string]error{}} }

func (h *health) set(component string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errors[component] = err
}

// healthReport is the answer of the health endpoints.
type healthReport struct {
	Status     string                     `json:"status"`
	Components map[string]componentReport `json:"components"`
}

type componentReport struct {
	Status string `json:"status"`
	// Message says what is wrong and where, for an operator.
	Message string `json:"message,omitempty"`
}

// oldPrices says that the catalogue relies on a list of prices that is too old for that. They count all the same: a gateway that
// stops at a date helps nobody.
func (s *Server) oldPrices() error {
	n, list := s.catalogue.Current().PublishedPrices(), pricelist.Published()
	if n == 0 || !list.Stale(s.config.Now()) {
		return nil
	}
	return fmt.Errorf("the published prices are of %s and may be too low by now; sources that have them: %d", list.Date, n)
}

// report collects the state of every component. Without a policy or a ledger that answers nothing can be admitted; a broken
// catalogue file, bundle or sink leaves the last good state at work.
func (s *Server) report() healthReport {
	s.health.mu.Lock()
	errors := maps.Clone(s.health.errors)
	s.health.mu.Unlock()
	status := s.ledger.Status()
	errors[ledgerComponent] = status.Err
	errors[catalogueComponent] = s.catalogue.Err()
	errors[pricesComponent] = s.oldPrices()
	errors[policyComponent] = s.policyErr()
	for _, bundle := range s.bundles.States() {
		errors[bundlePrefix+bundle.Name] = bundle.Err
		if bundle.Err == nil && !bundle.There {
			errors[bundlePrefix+bundle.Name] = errLooking
		}
	}
	report := healthReport{Status: ok, Components: map[string]componentReport{}}
	for component, err := range errors {
		c := componentReport{Status: ok}
		switch {
		case err == nil:
		case component == ledgerComponent, component == drainComponent, component == policyComponent && s.policy.Current() == nil:
			c.Status = failed
		default:
			c.Status = degraded
		}
		if err != nil {
			c.Message = err.Error()
		}
		report.Components[component] = c
		if c.Status == failed || report.Status == ok {
			report.Status = c.Status
		}
	}
	if until := status.SuspendedUntil; status.Err == nil && s.config.Now().Before(until) {
		report.Components[ledgerComponent] = componentReport{Status: ok,
			Message: "the clock has stepped, or nothing could be written for a while: no hold expires before " + until.Format(time.RFC3339)}
	}
	return report
}
