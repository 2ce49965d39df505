package ledger

import "time"

// sweep says whether this process is the one that looks for what is due when nobody else does. The sweeper's row is locked: of those
// that sweep at once, one finds that it may. What this process knows of a suspension is told to the others.
func (b *batch) sweep(lease time.Duration) bool {
	row := b.rows.Sweep
	mine := row.Sweeper == b.writer
	if b.suspendedUntil.After(row.SuspendedUntil) && b.rows.Now.Before(b.suspendedUntil) {
		row.SuspendedUntil = b.suspendedUntil
		b.setSweep(row)
	}
	if !mine && b.rows.Now.Before(row.Until) && !b.rows.Now.Before(row.SweptAt) { // unless the clock was put back since
		return false
	}
	if mine && b.rows.Now.Before(row.Until.Add(-lease/2)) && !b.rows.Now.Before(row.SweptAt) {
		return true // a row that is written at every look would cost an idle disk its rest
	}
	if !mine {
		row.Sweeper = b.writer
		row.Epoch++
	}
	row.Until, row.SweptAt = b.rows.Now.Add(lease), b.rows.Now
	b.setSweep(row)
	return true
}

func (b *batch) setSweep(row SweepRow) {
	b.rows.Sweep = row
	b.changes.Sweep = &row
}
