package splice

import (
	"testing"

	"github.com/tidwall/gjson"
)

// TestSplicer changes members of one document after another; what is between them stays.
func TestSplicer(t *testing.T) {
	var s Splicer
	for _, test := range []struct{ document, want string }{
		{`{ "a" : 1.0e+1 , "b":"\u00e9" }`, `{ "a" : 1.0e+1 , "b":"\u00e9" }`},
		{`{"text":"x", "a":[ ] }`, `{"text":"\"y", "a":[ ] }`},
		{`{"raw":{"text":1}, "cut":{} ,"z":1}`, `{"raw":true ,"z":1}`},
		{`{"cut":1 , "z":1}`, `{ "z":1}`},
		{`{"cut":1}`, `{}`},
		{`{"inside":{"a":1 }}`, `{"inside":{"a":1 ,"added":2}}`},
		{`{"inside":{ },"text":1}`, `{"inside":{ "added":2},"text":"\"y"}`},
	} {
		s.Reset([]byte(test.document))
		gjson.Parse(test.document).ForEach(func(key, value gjson.Result) bool {
			switch key.Str {
			case "text":
				s.ReplaceText(value, `"y`)
			case "raw":
				s.Replace(value, "true")
			case "cut":
				s.Cut(key, value)
			case "inside":
				s.Add(value.Index+len(value.Raw)-1, "added", "2")
			}
			return true
		})
		if got, changed := s.Result(); string(got) != test.want || changed != (test.document != test.want) {
			t.Errorf("%s\ngot  %s, %v\nwant %s", test.document, got, changed, test.want)
		}
	}
}
