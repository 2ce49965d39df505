package ledger

import "time"

// Rate is how often something may begin: Max times within a window that opens with the first and closes Window later.
type Rate struct {
	Key    string
	Max    int64
	Window time.Duration
}

// Circuit stands before something that may be down. After Threshold failures with no success between it opens: for CoolDown nothing is
// admitted, then one probe at a time.
type Circuit struct {
	Key       string
	Threshold int64
	CoolDown  time.Duration
}
