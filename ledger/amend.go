package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Amendment is what a person does to the books: who, and why. It erases nothing: it is a record like every other.
type Amendment struct {
	// ID is the caller's, new for each amendment: the same one again is done once, and another under its id is [ErrState].
	ID uuid.UUID `json:"id"`
	// Reason and Actor are printable texts, both required.
	Reason string `json:"reason"`
	Actor  string `json:"actor"`
}

const (
	reasonMax = 1000 // bytes: some sentences, which fit a line of a log
	actorMax  = 200  // bytes: the longest names that directories give to persons
)

func (a *Amendment) validate() error {
	if a.ID == uuid.Nil {
		return fmt.Errorf("%w: an amendment needs an id", ErrInvalid)
	}
	if err := validateText("reason", a.Reason, reasonMax); err != nil {
		return err
	}
	return validateText("actor", a.Actor, actorMax)
}

func validateText(name, text string, most int) error {
	printable := utf8.ValidString(text) && strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
	if strings.TrimSpace(text) == "" || len(text) > most || !printable {
		return fmt.Errorf("%w: the %s must be a printable text of 1 to %d bytes", ErrInvalid, name, most)
	}
	return nil
}

// amendmentOf is the row of what is done once.
func amendmentOf(content any) (AmendmentRow, error) {
	text, err := json.Marshal(content)
	if err != nil {
		return AmendmentRow{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return AmendmentRow{Digest: sha256.Sum256(text)}, nil
}

// isMade says whether what bears an id was made already. The id then stands for the same content, or the answer is [ErrState].
func (b *batch) isMade(id uuid.UUID, content any) (made bool, err error) {
	row, err := amendmentOf(content)
	if err != nil {
		return false, err
	}
	before, made := b.rows.Amendments[id]
	if made && before != row {
		return false, fmt.Errorf("%w: what was made under %s was another one", ErrState, id)
	}
	return made, nil
}

// setMade notes what bears an id, so that it is not made again.
func (b *batch) setMade(id uuid.UUID, content any) {
	row, _ := amendmentOf(content) // isMade has made it
	if b.rows.Amendments == nil {
		b.rows.Amendments = map[uuid.UUID]AmendmentRow{}
	}
	b.rows.Amendments[id], b.changes.Amendments[id] = row, row
}

// Reset has everything that accounts have used so far leave every window at once. What is held stays held, windows stay open, and
// the journal tells of all of it still. It returns [ErrNotFound] if the ledger does not know one of the accounts, and then resets
// none.
func (l *Ledger) Reset(ctx context.Context, amendment Amendment, accounts []Account) error {
	if err := amendment.validate(); err != nil {
		return err
	}
	if len(accounts) == 0 {
		return fmt.Errorf("%w: a reset needs an account", ErrInvalid)
	}
	if err := validateAccounts(accounts); err != nil {
		return err
	}
	return l.do(ctx, laneEnd, &reset{amendment, accounts})
}

// reset is the operation behind [Ledger.Reset].
type reset struct {
	Amendment
	Of []Account
}

func (op *reset) keys(keys *Keys, _ time.Time) {
	keys.Amendments = append(keys.Amendments, op.ID)
	keys.Accounts = append(keys.Accounts, op.Of...)
}

func (op *reset) decide(_ context.Context, b *batch) error {
	if made, err := b.isMade(op.ID, op); made || err != nil {
		return err
	}
	for _, account := range op.Of {
		if _, known := b.rows.Accounts[account]; !known {
			return fmt.Errorf("account %s: %w", account, ErrNotFound)
		}
	}
	at := b.dated(b.rows.Now, op.Of)
	body := ResetBody{Amendment: op.Amendment, Accounts: make(map[Account]int64, len(op.Of))}
	for _, account := range op.Of {
		row := b.rows.Accounts[account]
		row.Floor, row.TouchedAt = row.Used, at
		b.setAccount(account, row)
		body.Accounts[account] = row.Floor
	}
	b.setMade(op.ID, op)
	return b.record(ResetRecord, uuid.Nil, at, body)
}

// Correction corrects what was charged: further, or less.
type Correction struct {
	Amendment
	// The amounts are charged further to Accounts, each in its unit. Below 0 they are taken back of the charge that Hold became,
	// at most what is left of it, and leave every window together with it. They must not differ in sign.
	Tokens, NanoUSD, NanoCredits int64
	Accounts                     []Account
	Hold                         uuid.UUID
}

// Correct makes a correction. It returns [ErrInvalid] for one that asks for more than what is left of a charge, and [ErrState] if the
// hold has not become a charge.
func (l *Ledger) Correct(ctx context.Context, correction Correction) error {
	if err := correction.validate(); err != nil {
		return err
	}
	return l.do(ctx, laneEnd, &correct{correction})
}

func (c *Correction) validate() error {
	if err := c.Amendment.validate(); err != nil {
		return err
	}
	least, most := min(c.Tokens, c.NanoUSD, c.NanoCredits), max(c.Tokens, c.NanoUSD, c.NanoCredits)
	switch {
	case least < 0 && most > 0:
		return fmt.Errorf("%w: a correction either charges further or takes back", ErrInvalid)
	case least == 0 && most == 0:
		return fmt.Errorf("%w: a correction of nothing", ErrInvalid)
	case least < -NanoUSDMax || most > NanoUSDMax || max(c.Tokens, -c.Tokens) > TokensMax:
		return fmt.Errorf("%w: a correction must be within 2^62 nano-USD and 2^53 - 1 tokens", ErrInvalid)
	case c.takesBack() != (c.Hold != uuid.Nil) || c.takesBack() == (len(c.Accounts) > 0):
		return fmt.Errorf("%w: what is taken back is of a hold's charge; what is charged further is charged to accounts", ErrInvalid)
	}
	return validateAccounts(c.Accounts)
}

func (c *Correction) takesBack() bool { return min(c.Tokens, c.NanoUSD, c.NanoCredits) < 0 }

func (c *Correction) charge() Charge {
	return Charge{Tokens: c.Tokens, NanoUSD: c.NanoUSD, NanoCredits: c.NanoCredits}
}

// correct is the operation behind [Ledger.Correct].
type correct struct{ Correction }

func (op *correct) keys(keys *Keys, _ time.Time) {
	keys.Amendments = append(keys.Amendments, op.ID)
	keys.Accounts = append(keys.Accounts, op.Accounts...)
	if op.takesBack() {
		keys.Ends = append(keys.Ends, op.Hold)
	}
}

func (op *correct) decide(ctx context.Context, b *batch) error {
	if made, err := b.isMade(op.ID, op.Correction); made || err != nil {
		return err
	}
	body := CorrectionBody{Amendment: op.Amendment, Hold: op.Hold, Tokens: op.Tokens, NanoUSD: op.NanoUSD, NanoCredits: op.NanoCredits}
	if op.takesBack() {
		return op.takeBack(ctx, b, body)
	}
	for _, account := range op.Accounts {
		if row := b.rows.Accounts[account]; !hasRoom(row.Used, row.Held, op.charge().Of(account.Unit)) {
			return ErrOverflow
		}
	}
	at := b.dated(b.rows.Now, op.Accounts)
	body.Accounts, body.Totals = b.postAll(op.Accounts, op.charge(), at)
	b.setMade(op.ID, op.Correction)
	return b.record(CorrectionRecord, uuid.Nil, at, body)
}

// takeBack lowers the charge of a hold in every account that was charged, or in none.
func (op *correct) takeBack(ctx context.Context, b *batch, body CorrectionBody) error {
	hold, known := b.rows.Holds[op.Hold]
	if !known || hold.State == HoldLive || hold.State == HoldReleased {
		return fmt.Errorf("%w: hold %s has become no charge", ErrState, op.Hold)
	}
	for _, unit := range Units {
		if -op.charge().Of(unit) > hold.Charge.Of(unit) {
			return fmt.Errorf("%w: more than what is left of the charge", ErrInvalid)
		}
	}
	body.Accounts, body.Totals = map[Account]int64{}, map[Account]int64{}
	for account, total := range hold.Totals {
		back := -op.charge().Of(account.Unit)
		if back == 0 {
			continue
		}
		charge, found, err := b.charge(ctx, Mark{account, total})
		if err != nil {
			return err
		}
		if !found || back > charge.Amount-charge.Refunded {
			return fmt.Errorf("%w: more than what is left of the charge of %s", ErrInvalid, account)
		}
		body.Accounts[account], body.Totals[account] = -back, total
	}
	for account, total := range body.Totals {
		b.refund(Mark{account, total}, -body.Accounts[account])
	}
	for _, unit := range Units {
		*hold.Charge.in(unit) += op.charge().Of(unit)
	}
	hold.Refunded = true
	b.setHold(hold)
	b.setMade(op.ID, op.Correction)
	return b.record(CorrectionRecord, hold.Call, b.rows.Now, body)
}
