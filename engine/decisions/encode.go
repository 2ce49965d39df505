package decisions

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"regent/engine/policy"
)

// Events are encoded by hand, as every call waits for its record: json.Marshal takes more than twice as long, and ten times the
// allocations. Tests hold both forms equal, and fail for a field that is forgotten here.

// Encode returns the event in JSON, byte for byte as json.Marshal does, and fails where that fails: for a time that RFC 3339 has no
// form for, such as one after the year 9999, and for a result other than a Result that JSON has no form for.
func (e *Event) Encode() ([]byte, error) {
	scratch := scratches.Get().(*[]byte)
	written, err := output((*scratch)[:0]).event(e)
	if err != nil {
		return nil, err
	}
	encoded := slices.Clone([]byte(written))
	if cap(written) <= scratchMax {
		*scratch = written
		scratches.Put(scratch)
	}
	return encoded, nil
}

// scratches are what events are written to before their size is known, so that each takes one allocation, of that size.
var scratches = sync.Pool{New: func() any { return new([]byte) }}

// scratchMax bounds what is kept for the next event.
const scratchMax = 64 << 10

// output is JSON, to which its methods append. A method that appends a member of an object takes all of it that stands before the
// value, as it is written.
type output []byte

func (to output) event(e *Event) (output, error) {
	to = table(to.raw(`{"labels":`), e.Labels, output.quoted).
		text(`,"decision_id":`, e.DecisionID)
	if len(e.Bundles) > 0 {
		to = table(to.raw(`,"bundles":`), e.Bundles, output.bundle)
	}
	to = to.text(`,"path":`, e.Path)
	if e.Input != nil {
		to = to.raw(`,"input":`).input(*e.Input)
	}
	to, err := to.raw(`,"result":`).result(e.Result)
	if err != nil {
		return nil, err
	}
	if to, err = to.raw(`,"timestamp":`).time(e.Timestamp); err != nil {
		return nil, err
	}
	if e.Custom != nil {
		to = to.raw(`,"custom":`).custom(*e.Custom)
	}
	return to.raw(`}`), nil
}

func (to output) bundle(b Bundle) output {
	return to.raw(`{`).optionalText(`"revision":`, b.Revision).raw(`}`)
}

func (to output) custom(c Custom) output {
	return to.text(`{"activation":`, c.Activation).raw(`}`)
}

func (to output) input(i Input) output {
	to = to.number(`{"now":`, i.Now).
		raw(`,"call":`).call(i.Call).
		raw(`,"identity":`).identity(i.Identity)
	to = list(to.raw(`,"candidates":`), i.Candidates, output.facts)
	to = list(to.raw(`,"attempts":`), i.Attempts, output.attempt)
	return to.raw(`}`)
}

func (to output) call(c policy.Call) output {
	return to.
		text(`{"model":`, c.Model).
		text(`,"protocol":`, c.Protocol).
		text(`,"kind":`, c.Kind).
		truth(`,"stream":`, c.Stream).
		textOrNull(`,"residency":`, c.Residency).
		texts(`,"modalities":`, c.Modalities).
		numberOrNull(`,"input_tokens":`, c.InputTokens).
		numberOrNull(`,"output_tokens_max":`, c.OutputTokensMax).
		truth(`,"tokens_bounded":`, c.TokensBounded).
		truth(`,"cost_bounded":`, c.CostBounded).
		raw(`}`)
}

func (to output) identity(i policy.Identity) output {
	return to.
		textOrNull(`{"user":`, i.User).
		texts(`,"groups":`, i.Groups).
		textOrNull(`,"tenant":`, i.Tenant).
		textOrNull(`,"principal":`, i.Principal).
		textOrNull(`,"principal_kind":`, i.PrincipalKind).
		raw(`}`)
}

// facts are what policy sees of a candidate.
func (to output) facts(c policy.Candidate) output {
	return to.
		text(`{"source":`, c.Source).
		text(`,"provider":`, c.Provider).
		text(`,"model":`, c.Model).
		textOrNull(`,"residency":`, c.Residency).
		truth(`,"enabled":`, c.Enabled).
		text(`,"connection":`, c.Connection).
		truth(`,"stale":`, c.Stale).
		number(`,"cooling_until":`, c.CoolingUntil).
		texts(`,"protocols":`, c.Protocols).
		texts(`,"modalities":`, c.Modalities).
		numberOrNull(`,"context_tokens":`, c.ContextTokens).
		numberOrNull(`,"output_tokens_max":`, c.OutputTokensMax).
		truth(`,"priced":`, c.Priced).
		numberOrNull(`,"input_price":`, c.InputPrice).
		numberOrNull(`,"output_price":`, c.OutputPrice).
		truth(`,"openrouter_routing":`, c.OpenRouterRouting).
		text(`,"accounting":`, c.Accounting).
		raw(`}`)
}

func (to output) attempt(a policy.Attempt) output {
	return to.
		text(`{"source":`, a.Source).
		text(`,"provider":`, a.Provider).
		text(`,"reason":`, a.Reason).
		text(`,"accounting":`, a.Accounting).
		raw(`}`)
}

// result leaves what is no Result to json.Marshal.
func (to output) result(result any) (output, error) {
	switch result := result.(type) {
	case Result:
		return to.decision(result), nil
	case *Result:
		if result != nil {
			return to.decision(*result), nil
		}
	}
	encoded, err := json.Marshal(result)
	return append(to, encoded...), err
}

func (to output) decision(r Result) output {
	to = to.truth(`{"allow":`, r.Allow).
		optionalText(`,"selected":`, r.Selected).
		optionalText(`,"selection":`, r.Selection)
	to = list(to.raw(`,"candidates":`), r.Candidates, output.candidate).
		optionalText(`,"code":`, r.Code).
		optionalText(`,"reason":`, r.Reason)
	if r.Count != 0 {
		to = to.number(`,"count":`, int64(r.Count))
	}
	return to.raw(`}`)
}

// candidate is how a candidate fared.
func (to output) candidate(c Candidate) output {
	to = to.
		text(`{"source":`, c.Source).
		text(`,"provider":`, c.Provider).
		text(`,"outcome":`, c.Outcome).
		optionalText(`,"reason":`, c.Reason)
	if len(c.Denials) > 0 {
		to = list(to.raw(`,"denials":`), c.Denials, output.denial)
	}
	if c.Limit != nil {
		to = to.raw(`,"limit":`).limit(*c.Limit)
	}
	if c.Rate != nil {
		to = to.raw(`,"rate":`).rate(*c.Rate)
	}
	return to.raw(`}`)
}

func (to output) denial(d policy.Denial) output {
	return to.
		text(`{"rule":`, d.Rule).
		text(`,"code":`, d.Code).
		text(`,"title":`, d.Title).
		text(`,"remedy":`, d.Remedy).
		truth(`,"terminal":`, d.Terminal).
		raw(`}`)
}

func (to output) limit(l Limit) output {
	return to.
		text(`{"account":`, l.Account).
		text(`,"unit":`, l.Unit).
		text(`,"window":`, l.Window).
		text(`,"limit":`, l.Limit).
		text(`,"used":`, l.Used).
		text(`,"held":`, l.Held).
		text(`,"shortfall":`, l.Shortfall).
		raw(`}`)
}

func (to output) rate(r Rate) output {
	return to.
		text(`{"key":`, r.Key).
		text(`,"max":`, r.Max).
		text(`,"window":`, r.Window).
		raw(`}`)
}

// raw appends what is JSON already.
func (to output) raw(text string) output { return append(to, text...) }

func (to output) text(before, text string) output { return to.raw(before).quoted(text) }

// optionalText leaves an empty text out.
func (to output) optionalText(before, text string) output {
	if text == "" {
		return to
	}
	return to.text(before, text)
}

func (to output) textOrNull(before string, text *string) output {
	if text == nil {
		return to.raw(before).raw(`null`)
	}
	return to.text(before, *text)
}

func (to output) texts(before string, texts []string) output {
	return list(to.raw(before), texts, output.quoted)
}

func (to output) number(before string, n int64) output {
	return strconv.AppendInt(to.raw(before), n, 10)
}

func (to output) numberOrNull(before string, n *int64) output {
	if n == nil {
		return to.raw(before).raw(`null`)
	}
	return to.number(before, *n)
}

func (to output) truth(before string, is bool) output {
	return strconv.AppendBool(to.raw(before), is)
}

func (to output) time(at time.Time) (output, error) {
	written, err := at.AppendText(to.raw(`"`))
	return append(written, '"'), err
}

// list appends an array; null if it is nil.
func list[T any](to output, items []T, each func(output, T) output) output {
	if items == nil {
		return to.raw(`null`)
	}
	to = to.raw(`[`)
	for i, item := range items {
		if i > 0 {
			to = to.raw(`,`)
		}
		to = each(to, item)
	}
	return to.raw(`]`)
}

// table appends an object with its names in order; null if it is nil.
func table[T any](to output, values map[string]T, each func(output, T) output) output {
	if values == nil {
		return to.raw(`null`)
	}
	names := make([]string, 0, 8) // on the stack, and enough for most tables
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	to = to.raw(`{`)
	for i, name := range names {
		if i > 0 {
			to = to.raw(`,`)
		}
		to = each(to.quoted(name).raw(`:`), values[name])
	}
	return to.raw(`}`)
}

// quoted appends a text. What HTML or JavaScript could take for more than text is escaped, and what is no UTF-8 replaced.
func (to output) quoted(text string) output {
	to = to.raw(`"`)
	for {
		n := plainPrefix(text)
		to = to.raw(text[:n])
		if n == len(text) {
			return to.raw(`"`)
		}
		r, size := utf8.DecodeRuneInString(text[n:])
		to = to.special(r, size)
		text = text[n+size:]
	}
}

// plainPrefix is how many bytes from the beginning stand for themselves: of most texts, all.
func plainPrefix(text string) int {
	for i := range len(text) {
		if !plain[text[i]] {
			return i
		}
	}
	return len(text)
}

// special appends a rune that is not plain and was decoded from so many bytes.
func (to output) special(r rune, size int) output {
	switch {
	case r < utf8.RuneSelf:
		return to.raw(escapes[r])
	case r == utf8.RuneError && size == 1:
		return to.raw(`\ufffd`)
	case r == '\u2028':
		return to.raw(`\u2028`)
	case r == '\u2029':
		return to.raw(`\u2029`)
	}
	return utf8.AppendRune(to, r)
}

// escapes are what is written for the ASCII characters that do not stand for themselves.
var escapes = func() (of [utf8.RuneSelf]string) {
	for c := range ' ' {
		of[c] = fmt.Sprintf(`\u%04x`, c)
	}
	of['<'], of['>'], of['&'] = `\u003c`, `\u003e`, `\u0026`
	of['\b'], of['\f'], of['\n'], of['\r'], of['\t'] = `\b`, `\f`, `\n`, `\r`, `\t`
	of['"'], of['\\'] = `\"`, `\\`
	return of
}()

// plain are the bytes that are ASCII without an escape.
var plain = func() (is [1 << 8]bool) {
	for c, escape := range escapes {
		is[c] = escape == ""
	}
	return is
}()
