package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"regent/ledger"
)

// TestStoreErrors: a caller learns what to do, and never a store's own words.
func TestStoreErrors(t *testing.T) {
	const canary = "canary: /var/lib/disk"
	secret := errors.New(canary)
	id := uuid.Must(uuid.NewV7())
	for _, test := range []struct {
		err    error
		code   Code
		class  Class
		reason string
	}{
		{fmt.Errorf("%w: %w", ledger.ErrUnavailable, secret), CodeState, ClassUnavailable, ReasonUnavailable},
		{secret, CodeState, ClassUnavailable, ReasonUnavailable},
		{context.Canceled, CodeState, ClassUnavailable, ReasonUnavailable},
		{ledger.ErrClosed, CodeState, ClassUnavailable, ReasonUnavailable},
		{ledger.ErrBusy, CodeState, ClassUnavailable, ReasonBusy},
		{ledger.ErrState, CodeState, ClassUnavailable, ReasonState},
		{ledger.ErrExpired, CodeState, ClassUnavailable, ReasonState},
		{fmt.Errorf("%w: %s", ledger.ErrInvalid, canary), CodeValidation, ClassInvalid, ReasonInvalid},
		{ledger.ErrOverflow, CodeValidation, ClassInvalid, ReasonInvalid},
		{ledger.ErrUsage, CodeValidation, ClassInvalid, ReasonInvalid},
		{fmt.Errorf("%w: %s", ledger.ErrPrice, canary), CodeValidation, ClassInvalid, ReasonInvalid},
		{&ledger.DuplicateError{Call: id, State: ledger.Held}, CodeState, ClassDuplicate, ReasonDuplicate},
	} {
		got := storeError(test.err)
		if got.Code != test.code || got.Details.Class != test.class || got.Details.Reason != test.reason {
			t.Errorf("%v: got %s, class %d, %s", test.err, got.Code, got.Details.Class, got.Details.Reason)
		}
		if got.Message == "" || strings.Contains(got.Error(), canary) {
			t.Errorf("%v is told as %q", test.err, got.Error())
		}
		if !errors.Is(got, test.err) {
			t.Errorf("%v is lost to the program's own log", test.err)
		}
	}
	if text := storeError(&ledger.DuplicateError{Call: id, State: ledger.Completed}).Message; !strings.Contains(text, id.String()) || !strings.Contains(text, "completed") {
		t.Errorf("a duplicate is told as %q", text)
	}
}
