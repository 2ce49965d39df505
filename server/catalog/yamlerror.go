package catalog

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	yamlLine    = regexp.MustCompile(`line (\d+): (.*)`)
	unknownFile = regexp.MustCompile(`field (\S+) not found in type \S+`)
	wrongType   = regexp.MustCompile("^cannot unmarshal !!(\\S+) (?:`(.*)` )?into (\\S+)$")
)

// yamlError says what a YAML error says of a document, without the names of Go types.
func yamlError(name string, document *yaml.Node, err error) error {
	if errors.Is(err, io.EOF) {
		return &Error{File: name, Message: "the file is empty"}
	}
	e := &Error{File: name, Message: strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n  ")}
	if match := yamlLine.FindStringSubmatch(e.Message); match != nil {
		e.Line, _ = strconv.Atoi(match[1]) // the expression matches digits only
		e.Message = match[2]
	}
	e.Message = unknownFile.ReplaceAllString(e.Message, "unknown key $1")
	if match := wrongType.FindStringSubmatch(e.Message); match != nil {
		e.Message = typeError(document, e.Line, match[1], match[2], match[3])
	}
	return e
}

// typeError says of a value of the wrong type under which key it stands, and what is wanted in its place.
func typeError(document *yaml.Node, line int, tag, value, goType string) string {
	message := fmt.Sprintf("want %s, not %s", wanted(goType), found(tag, value))
	if key := keyOf(document, line, tag, value, goType); key != "" {
		return key + ": " + message
	}
	return message
}

// wanted says which value the file needs where it is read into a Go type.
func wanted(goType string) string {
	switch goType {
	case "bool":
		return "true or false"
	case "string":
		return "a text"
	case "int64", "float64", "catalog.number":
		return "a number"
	case "catalog.circuitEntry":
		return "a mapping with threshold, cool_down or enabled"
	case "catalog.rateEntry":
		return "a mapping with calls and window"
	case "catalog.signingEntry":
		return "a mapping with key and scope"
	}
	if strings.HasPrefix(goType, "[]") {
		return "a list"
	}
	return "a mapping"
}

// found says what a value is, of a YAML tag.
func found(tag, value string) string {
	switch tag {
	case "seq":
		return "a list"
	case "map":
		return "a mapping"
	case "str":
		return fmt.Sprintf("the text %q", value)
	}
	return value
}

// keyOf finds the key under which a value stands that begins at a line and cannot be read into a Go type, itself or in a list; empty if
// there is none. A long text is known by its beginning, to which the YAML package cuts it. Of several on the line it is the
// last, which is within the others, whose key wants that type; where keys are free, the first.
func keyOf(document *yaml.Node, line int, tag, value, goType string) string {
	value = strings.TrimSuffix(value, "...")
	var keys []string
	eachValue(document, "", func(key string, node *yaml.Node) {
		if node.Line == line && node.ShortTag() == "!!"+tag && strings.HasPrefix(node.Value, value) {
			keys = append(keys, key)
		}
	})
	for _, key := range slices.Backward(keys) {
		if fileKeys[key][goType] {
			return key
		}
	}
	return strings.Join(keys[:min(1, len(keys))], "")
}

// eachValue visits what is under a node, with the key that each stands under, itself or in a list.
func eachValue(node *yaml.Node, key string, visit func(key string, node *yaml.Node)) {
	for i, child := range node.Content {
		under := key
		if node.Kind == yaml.MappingNode {
			if i%2 == 0 {
				continue // a key
			}
			under = node.Content[i-1].Value
		}
		visit(under, child)
		eachValue(child, under, visit)
	}
}

// fileKeys are the Go types that are read under each key of the file.
var fileKeys = func() keyTypes {
	keys := keyTypes{}
	keys.add("", reflect.TypeFor[file]())
	return keys
}()

// keyTypes are names of Go types by key.
type keyTypes map[string]map[string]bool

// add enters a type under a key, and what is within it.
func (k keyTypes) add(key string, t reflect.Type) {
	if k[key] == nil {
		k[key] = map[string]bool{}
	}
	k[key][t.String()] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		k.add(key, t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ",") // without a name the field is inline
			k.add(cmp.Or(name, key), t.Field(i).Type)
		}
	}
}
