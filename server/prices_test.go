package server

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"regent/policies"
)

// TestOldPricesAreSaid: a gateway whose catalogue relies on a list of prices of more than half a year ago says so, and serves.
func TestOldPricesAreSaid(t *testing.T) {
	now := time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC)
	s, err := New(Config{
		Addr: "127.0.0.1:0", Data: t.TempDir(), DatabaseURL: memoryURL, Policies: policies.Files(), Stdout: io.Discard,
		Env: func(string) (string, bool) { return "", false }, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	if report := s.report(); report.Status != ok || report.Components[pricesComponent].Status != ok {
		t.Errorf("fresh prices: %+v", report)
	}
	now = now.AddDate(1, 0, 0)
	report := s.report()
	if prices := report.Components[pricesComponent]; report.Status != degraded || prices.Status != degraded ||
		prices.Message != "the published prices are of 2026-09-23 and may be too low by now; sources that have them: 1" {
		t.Errorf("old prices: %+v", report)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := s.Run(stopped); err != nil {
		t.Error(err)
	}
}
