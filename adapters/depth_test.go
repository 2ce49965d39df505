package adapters

import (
	"strings"
	"testing"
)

func TestTooDeep(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for document, want := range map[string]bool{
		"":                                  false,
		nested(DepthMax):                    false,
		nested(DepthMax + 1):                true,
		strings.Repeat(`{"a":`, DepthMax+1): true, // unfinished, as it never gets to be parsed
		`"` + nested(DepthMax+1) + `"`:      false,
		`"\"` + nested(DepthMax+1) + `"`:    false,
		`"\\"` + nested(DepthMax+1):         true,
		`[` + strings.Repeat("[],", 10*DepthMax) + "[]]":  false, // wide, not deep
		strings.Repeat("]", 1000) + nested(DepthMax+1001): true,
	} {
		if got := TooDeep([]byte(document)); got != want {
			t.Errorf("%.40q (%d bytes): got %v", document, len(document), got)
		}
	}
}
