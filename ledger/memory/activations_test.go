package memory_test

import (
	"errors"
	"testing"

	"regent/ledger"
	"regent/ledger/memory"
)

// TestActivationsAreBounded: beyond their bound in bytes a store forgets the activations that were used longest ago, and never the newest.
func TestActivationsAreBounded(t *testing.T) {
	store := memory.New(nil)
	keep := func(name byte, size int) {
		t.Helper()
		if err := store.KeepActivation(t.Context(), [32]byte{name}, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(names string) {
		t.Helper()
		kept := ""
		for name := byte('a'); name <= 'e'; name++ {
			_, err := store.Activation(t.Context(), [32]byte{name})
			switch {
			case err == nil:
				kept += string(name)
			case !errors.Is(err, ledger.ErrNotFound):
				t.Fatal(err)
			}
		}
		if kept != names {
			t.Errorf("kept %s, want %s", kept, names)
		}
	}
	const quarter = 16 << 20 // of the bound
	for _, name := range []byte("abcd") {
		keep(name, quarter)
	}
	want("abcd")
	keep('a', 0) // is used
	keep('e', 1)
	want("acde")
	keep('b', ledger.ActivationMax)
	want("be")
	keep('c', ledger.ActivationMax)
	want("c")
}
