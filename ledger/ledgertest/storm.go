package ledgertest

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// Seed is the seed of a random test: that of the variable REGENT_TEST_SEED, else a new one. It is printed if the test fails, and
// by go test -v.
func Seed(t *testing.T) uint64 {
	t.Helper()
	seed := number(t, "REGENT_TEST_SEED", uint64(time.Now().UnixNano()))
	t.Cleanup(func() {
		if t.Failed() || testing.Verbose() {
			t.Logf("REGENT_TEST_SEED=%d has the same random choices made again", seed)
		}
	})
	return seed
}

// Rounds is how often a storm is repeated: as the variable REGENT_TEST_ROUNDS says, else n.
func Rounds(t *testing.T, n int) int {
	t.Helper()
	return int(number(t, "REGENT_TEST_ROUNDS", uint64(n)))
}

func number(t *testing.T, variable string, standard uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q: want a number", variable, text)
	}
	return n
}
