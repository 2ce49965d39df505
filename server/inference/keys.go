package inference

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

const (
	// keysMax bounds the keys of all objects that are open at a time: no protocol has a hundredth of it, and to find a repeated one all
	// are kept.
	keysMax = 10_000
	// keysListed is up to how many keys an object's are looked through one by one, which costs less than a map.
	keysListed = 16
)

// readKeys are the keys whose values decide what a call may cost and who serves it. A provider that reads keys whatever their
// case would see another value than the gateway did.
var readKeys = []string{
	"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "n", "service_tier",
	"messages", "system", "input", "instructions", "text", "tools", "functions", "response_format",
	"previous_response_id", "conversation", "prompt", "background",
}

// checkKeys sees that no object of a valid document repeats a key. At the top, keys that differ in case alone are the same. It goes
// through the document once, however deeply that is nested.
func checkKeys(document string) error {
	var c keyCheck
	for i := 0; i < len(document); i++ {
		switch document[i] {
		case '{', '[':
			c.enter(document[i] == '{')
		case '}', ']':
			c.leave()
		case ',':
			c.here().beforeKey = c.here().isObject
		case '"':
			end := stringEnd(document, i)
			if len(c.open) > 0 && c.here().beforeKey {
				if err := c.add(document[i:end]); err != nil {
					return err
				}
			}
			i = end - 1
		}
	}
	return nil
}

// stringEnd is the place after the closing quote of the string that begins at a place.
func stringEnd(document string, start int) int {
	for end := start + 1; ; end++ {
		end += strings.IndexByte(document[end:], '"')
		backslashes := end - len(strings.TrimRight(document[start+1:end], `\`)) - start - 1
		if backslashes%2 == 0 {
			return end + 1
		}
	}
}

// keyCheck remembers the keys of every object that is open.
type keyCheck struct {
	keys []string // the innermost object's stand last
	open []opened
}

// opened is an object, or a list, that has begun.
type opened struct {
	isObject, beforeKey bool
	first               int             // of its keys
	many                map[string]bool // its keys where they are too many to look through
}

func (c *keyCheck) here() *opened { return &c.open[len(c.open)-1] }

func (c *keyCheck) enter(isObject bool) {
	c.open = append(c.open, opened{isObject: isObject, beforeKey: isObject, first: len(c.keys)})
}

func (c *keyCheck) leave() {
	c.keys = c.keys[:c.here().first]
	c.open = c.open[:len(c.open)-1]
}

// add notes a key, as it is written, of the innermost object.
func (c *keyCheck) add(written string) error {
	here, name, place := c.here(), written[1:len(written)-1], " in one object"
	here.beforeKey = false
	if strings.Contains(name, `\`) {
		name = gjson.Parse(written).String()
	}
	key := name
	if len(c.open) == 1 {
		key, place = strings.ToLower(strings.ToUpper(name)), "" // upper case first: it knows more letters that are the same
	}
	switch {
	case here.has(c.keys, key):
		return fmt.Errorf("the key %q is given twice%s", clip(name), place)
	case len(c.open) == 1 && key != name && slices.Contains(readKeys, key):
		return fmt.Errorf("the key %q must be written %q", clip(name), key)
	case len(c.keys) == keysMax:
		return fmt.Errorf("an object has more than %d keys, with those around it", keysMax)
	}
	c.keys = append(c.keys, key)
	here.list(c.keys)
	return nil
}

func (o *opened) has(keys []string, key string) bool {
	if o.many != nil {
		return o.many[key]
	}
	return slices.Contains(keys[o.first:], key)
}

// list puts the object's keys into a map once they are too many to look through.
func (o *opened) list(keys []string) {
	mine := keys[o.first:]
	switch {
	case o.many != nil:
		o.many[mine[len(mine)-1]] = true
	case len(mine) > keysListed:
		o.many = map[string]bool{}
		for _, key := range mine {
			o.many[key] = true
		}
	}
}

// clip shortens a name that a client chose.
func clip(name string) string {
	if len(name) > 64 {
		return strings.ToValidUTF8(name[:64], "") + "..."
	}
	return name
}
