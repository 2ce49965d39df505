package policy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What ends in time is what is returned, however busy the machine is; a panic is an error, and so is what does not end.
func TestGuarded(t *testing.T) {
	for range 20_000 {
		if n, err := guarded(t.Context(), func(context.Context) (int, error) { return 1, nil }); n != 1 || err != nil {
			t.Fatalf("got %d, %v", n, err)
		}
	}
	wants := func(err error, text string) {
		t.Helper()
		var refused *LoadError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %s", err, text)
		}
	}
	_, err := guarded(t.Context(), func(context.Context) (int, error) { panic("no good") })
	wants(err, "OPA has failed over the bundles")
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := guarded(t.Context(), func(context.Context) (int, error) { time.Sleep(time.Hour); return 1, nil })
		wants(err, "loading the bundles takes longer than 1m0s")
		if took := time.Since(began); took != maxLoad {
			t.Errorf("it took %v", took)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := guarded(ended, func(ctx context.Context) (int, error) { time.Sleep(time.Minute); return 1, nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
		time.Sleep(time.Hour) // what was left behind ends, too
	})
}
