package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"regent/ledger"
)

// callers is how many calls are booked at the same time.
const callers = 64

// booked is what a load has come to.
type booked struct {
	Latencies []time.Duration `json:"latencies"` // of operations
	Took      time.Duration   `json:"took"`
	Conflicts int64           `json:"conflicts"`
}

func (r *booked) perSecond() float64 { return float64(len(r.Latencies)) / r.Took.Seconds() }

// bookFor books calls for a time: each of n callers admits and settles, one call after the other, on accounts of its own. The group
// is one for all of them if it has a name.
func bookFor(ctx context.Context, on books, n int, name, group string, dur time.Duration) (*booked, error) {
	claims := make([][]ledger.Claim, n)
	for i := range claims {
		own := fmt.Sprintf("%s-%d", name, i)
		shared := own
		if group != "" {
			shared = group
		}
		claims[i] = claimsOf(own, shared, plenty)
		if err := on.prepare(ctx, claims[i]); err != nil {
			return nil, err
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	result := &booked{Conflicts: -on.conflicts()}
	began := time.Now()
	for _, own := range claims {
		wg.Go(func() {
			latencies, err := bookUntil(ctx, on, own, began.Add(dur))
			mu.Lock()
			defer mu.Unlock()
			result.Latencies = append(result.Latencies, latencies...)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	result.Took = time.Since(began)
	result.Conflicts += on.conflicts()
	return result, errors.Join(errs...)
}

func bookUntil(ctx context.Context, on books, claims []ledger.Claim, end time.Time) (latencies []time.Duration, err error) {
	for time.Now().Before(end) {
		b := &booking{claims: claims}
		for _, step := range []func(context.Context, *booking) error{on.admit, on.settle} {
			began := time.Now()
			if err := step(ctx, b); err != nil {
				return latencies, err
			}
			latencies = append(latencies, time.Since(began))
		}
	}
	return latencies, nil
}

// grantedMax is how many holds have room under the limit of checkLimit.
const grantedMax = 100

// checkLimit lets all callers admit until they are denied, and sees that exactly what has room was granted.
func checkLimit(ctx context.Context, on books) error {
	claims := make([][]ledger.Claim, callers)
	for i := range claims {
		claims[i] = claimsOf(fmt.Sprintf("limited-%d", i), "limited", grantedMax*reservedTokens)
		if err := on.prepare(ctx, claims[i]); err != nil {
			return err
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var failed error
	granted := 0
	for _, own := range claims {
		wg.Go(func() {
			for {
				err := on.admit(ctx, &booking{claims: own})
				mu.Lock()
				if err == nil {
					granted++
				} else if !errors.Is(err, errDenied) {
					failed = err
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if failed == nil && granted != grantedMax {
		failed = fmt.Errorf("%d holds were granted where %d have room", granted, grantedMax)
	}
	return failed
}
