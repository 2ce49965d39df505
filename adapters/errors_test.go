package adapters

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestFailure(t *testing.T) {
	failure := &Failure{Reason: Overloaded, Status: 503, Code: "canary", Cause: io.ErrUnexpectedEOF}
	if got, want := failure.Error(), "provider: overloaded (status 503): unexpected EOF"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := (&Failure{Reason: Connection}).Error(); got != "provider: connection" {
		t.Errorf("got %q", got)
	}
	if !errors.Is(fmt.Errorf("wrapped: %w", failure), io.ErrUnexpectedEOF) {
		t.Error("the cause is hidden")
	}
}

// TestElsewhere: only a request that is itself at fault fails everywhere.
func TestElsewhere(t *testing.T) {
	for reason, want := range map[Reason]bool{
		Credential: true, ModelMissing: true, RateLimited: true, Overloaded: true, UpstreamError: true, Connection: true, Timeout: true,
		StreamBroken: true, InvalidRequest: false, ContextLength: false, ContentPolicy: false,
	} {
		if got := (&Failure{Reason: reason}).Elsewhere(); got != want {
			t.Errorf("%s: %v", reason, got)
		}
	}
}

func TestIsOutput(t *testing.T) {
	for kind, want := range map[Kind]bool{Opening: false, Content: true, ToolCall: true, Closing: false, Done: false} {
		if kind.IsOutput() != want {
			t.Errorf("%d: %v", kind, !want)
		}
	}
}
