package ledger

import "errors"

// TokensMax is the largest count of tokens, and the largest limit in tokens: 2^53 - 1, the largest integer that every
// JSON reader keeps exact.
const TokensMax = 1<<53 - 1

// ErrUsage is returned for usage that cannot be true: a negative or too large count, or a total beyond [TokensMax].
var ErrUsage = errors.New("usage is out of range")

// Usage is what one call consumed, in disjoint classes: no token is counted twice, so their sum is the total. An adapter
// makes it from what its provider reports (OpenAI, for one, counts cached tokens inside the prompt and reasoning inside
// the completion).
type Usage struct {
	UncachedInput int64 `json:"uncached_input"`
	CachedInput   int64 `json:"cached_input"`
	CacheWrite5m  int64 `json:"cache_write_5m"`
	CacheWrite1h  int64 `json:"cache_write_1h"`
	Output        int64 `json:"output"`
	Reasoning     int64 `json:"reasoning"`
}

// Tokens is the sum over all classes. It returns [ErrUsage] if a class or the sum is out of range.
func (u Usage) Tokens() (int64, error) {
	var sum int64
	for _, n := range u.classes() {
		if n < 0 || n > TokensMax-sum {
			return 0, ErrUsage
		}
		sum += n
	}
	return sum, nil
}

func (u Usage) classes() [6]int64 {
	return [...]int64{u.UncachedInput, u.CachedInput, u.CacheWrite5m, u.CacheWrite1h, u.Output, u.Reasoning}
}
