package ledger

import "time"

// sweep is what a transaction does about the sweeper's lease.
type sweep int

const (
	noSweep sweep = iota
	// sweeps looks for what is due if nobody else does.
	sweeps
	// leaves lets another do so at once.
	leaves
)

// sweep says whether this transaction ends what is due: one that has other work always does, one that only sweeps if this process is
// the sweeper. The sweeper's row is locked: of those that sweep at once, one finds that it may. What this process knows of a
// suspension is told to the others.
func (b *batch) sweep(sweep sweep, lease time.Duration) bool {
	switch sweep {
	case noSweep:
		return true
	case leaves:
		b.leaveSweep()
		return false
	}
	row := b.rows.Sweep
	if b.proves {
		b.setSweep(row)
	}
	if b.suspendedUntil.After(row.SuspendedUntil) && b.rows.Now.Before(b.suspendedUntil) {
		row.SuspendedUntil = b.suspendedUntil
		b.setSweep(row)
	}
	mine, live := row.Sweeper == b.writer, row.isLive(b.rows.Now)
	switch {
	case live && !mine:
		return false
	case live && row.Until.Sub(b.rows.Now) > lease/2:
		return true // a row that is written at every look would cost an idle disk its rest
	case !mine:
		row.Sweeper = b.writer
		row.Epoch++
	}
	row.Until, row.SweptAt = b.rows.Now.Add(lease), b.rows.Now
	b.setSweep(row)
	return true
}

// isLive says whether the lease has not ended. One that begins in the future was given before the clock was put back.
func (r SweepRow) isLive(now time.Time) bool { return now.Before(r.Until) && !now.Before(r.SweptAt) }

func (b *batch) leaveSweep() {
	if row := b.rows.Sweep; row.Sweeper == b.writer && row.isLive(b.rows.Now) {
		row.Until = b.rows.Now
		b.setSweep(row)
	}
}

func (b *batch) setSweep(row SweepRow) {
	b.rows.Sweep = row
	b.changes.Sweep = &row
}
