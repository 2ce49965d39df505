package exchange

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"regent/adapters"
	"regent/adapters/splice"
	"regent/ledger"
)

// editRoom is for a longer model name, and what a protocol adds.
const editRoom = 128

// Member may change a top-level member of a request's body.
type Member func(s *splice.Splicer, name string, value gjson.Result) error

// Body is a request's body as its provider gets it. It names the provider's model, and lacks what is to be stripped and what is
// foreign; see [IsForeign]. For what else a protocol needs, missing has the members, as JSON, that are added unless they are there, and
// other, if it is not nil, is called for those that are. A member that is stripped is not added either. Every other byte stays.
func Body(request adapters.Request, missing map[string]string, other Member) ([]byte, error) {
	root := gjson.ParseBytes(request.Body)
	if !root.IsObject() || !gjson.ValidBytes(request.Body) {
		return nil, errors.New("exchange: the body is not a JSON object")
	}
	s := splice.New(request.Body, editRoom)
	add := map[string]string{"model": string(gjson.AppendJSONString(nil, request.Model))}
	maps.Copy(add, missing)
	for _, name := range request.Strip {
		delete(add, name)
	}
	var err error
	root.ForEach(func(key, value gjson.Result) bool {
		name := key.String()
		switch {
		case slices.Contains(request.Strip, name), IsForeign(name):
			s.Cut(key, value)
		case name == "model":
			s.ReplaceText(value, request.Model)
		case other != nil:
			err = other(s, name, value)
		}
		delete(add, name)
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(request.Body, '}')
	for _, name := range slices.Sorted(maps.Keys(add)) {
		s.Add(end, name, add[name])
	}
	body, _ := s.Result()
	return body, nil
}

// foreignFields are top-level fields by which some gateways and servers behind these protocols let a request name another upstream,
// key, principal or region, another model than the one that was chosen and priced, another bound of the output than the one that the
// call was admitted with, or another way of reading the prompt. No client may, so that they are never passed on.
var foreignFields = []string{
	"api_base", "api_key", "api_version", "api_type", "base_url", "organization", "extra_body", "extra_headers", "fallbacks",
	"mock_response", "custom_llm_provider", "litellm_params", "cache_salt",
	"n_predict", "n_cmpl", "num_predict", "options", "data_sources", "kv_transfer_params", "chat_template", "inference_geo", "debug",
}

// IsForeign says whether a top-level field of a request is none that a client may send.
func IsForeign(name string) bool {
	return slices.ContainsFunc(foreignFields, func(field string) bool { return strings.EqualFold(field, name) })
}

// Object reads a provider's document, if it is an object of JSON. Its depth is looked at first, since what reads it is recursive.
func Object(document []byte) (root gjson.Result, ok bool) {
	if adapters.TooDeep(document) || !gjson.ValidBytes(document) {
		return gjson.Result{}, false
	}
	root = gjson.ParseBytes(document)
	return root, root.IsObject()
}

// IsSome says whether a value is a text, a list or an object with something in it.
func IsSome(value gjson.Result) bool {
	if value.Type == gjson.JSON {
		return Any(value, func(string, gjson.Result) bool { return true })
	}
	return value.Type == gjson.String && value.Str != ""
}

// Any says whether one of an object's members, or of a list's, is what is looked for.
func Any(value gjson.Result, is func(name string, value gjson.Result) bool) (found bool) {
	value.ForEach(func(key, value gjson.Result) bool {
		found = is(key.Str, value)
		return !found
	})
	return found
}

// Count reads a whole number of tokens, or of anything else that a provider counts. It is not told if it is absent or null, and not
// ok if it cannot be a count.
func Count(value gjson.Result) (n int64, told, ok bool) {
	switch {
	case value.Type == gjson.Null:
		return 0, false, true
	case value.Type != gjson.Number || len(value.Raw) > 16 || strings.ContainsAny(value.Raw, ".eE-"):
		return 0, true, false
	}
	n = value.Int()
	return n, true, n <= ledger.TokensMax
}

// Tier reads which service tier served a call; empty if the document does not tell. What cannot be a tier's name is
// [ledger.UnknownTier]: it must not be taken for the ordinary one.
func Tier(value gjson.Result) string {
	switch {
	case value.Type == gjson.Null, value.Type == gjson.String && value.Str == "":
		return ""
	case value.Type == gjson.String && ledger.ValidName(value.Str):
		return strings.Clone(value.Str) // the rest of the document is not kept for it
	}
	return ledger.UnknownTier
}
