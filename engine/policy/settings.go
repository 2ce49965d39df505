package policy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"
)

// settingsPath is where policy finds the settings: data.regent.settings.
var settingsPath = []string{"regent", "settings"}

// overlay lays the host's settings over those of the bundles, key by key at the top level, and puts the outcome back into
// data, in the form that both Go and Rego read. data is changed.
func overlay(data map[string]any, bundles []*unpacked, host Settings) (Settings, []byte, []Problem) {
	parent, isObject := child(data, settingsPath[0])
	if !isObject {
		return refuse("data.regent is not an object")
	}
	defaults, isObject := child(parent, settingsPath[1])
	if !isObject {
		return refuse("data.regent.settings is not an object")
	}
	if err := host.check(); err != nil {
		return refuse("the host's settings: %v", err)
	}
	own, err := toTree(host)
	if err != nil {
		return refuse("the host's settings: %v", err)
	}
	merged := maps.Clone(defaults)
	maps.Copy(merged, own)
	effective, err := decodeSettings(merged)
	if err != nil {
		_, _, problems := refuse("data.regent.settings: %v", err)
		problems[0].Bundle, problems[0].File = dataFile(bundles, settingsPath)
		return Settings{}, nil, problems
	}
	canonical, err := toTree(effective)
	if err != nil {
		return refuse("data.regent.settings: %v", err)
	}
	text, err := json.Marshal(canonical)
	if err != nil {
		return refuse("data.regent.settings: %v", err)
	}
	parent[settingsPath[1]] = canonical
	return effective, text, nil
}

func refuse(format string, args ...any) (Settings, []byte, []Problem) {
	return Settings{}, nil, []Problem{{Text: fmt.Sprintf(format, args...)}}
}

// child returns the object under a key, which is made if there is none.
func child(of map[string]any, key string) (value map[string]any, isObject bool) {
	if _, exists := of[key]; !exists {
		of[key] = map[string]any{}
	}
	value, isObject = of[key].(map[string]any)
	return value, isObject
}

// decodeSettings refuses what Settings has no field for, and null, which would read as absent and so lift a restriction.
func decodeSettings(tree map[string]any) (Settings, error) {
	var settings Settings
	if key, found := findNull("", tree); found {
		return settings, fmt.Errorf("%s is null: give it a value, or leave it out", key)
	}
	text, err := json.Marshal(tree)
	if err != nil {
		return settings, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&settings); err != nil {
		return settings, err
	}
	return settings, settings.check()
}

func (s Settings) check() error {
	if s.OpenRouterRouting != "" && !slices.Contains([]string{"strip", "honour", "refuse"}, s.OpenRouterRouting) {
		return fmt.Errorf(`openrouter_routing is %q, not "strip", "honour" or "refuse"`, s.OpenRouterRouting)
	}
	if s.Settlement == nil {
		return nil
	}
	if !slices.Contains([]string{"estimate", "held"}, s.Settlement.Interrupted) {
		return fmt.Errorf(`settlement.interrupted is %q, not "estimate" or "held"`, s.Settlement.Interrupted)
	}
	if !slices.Contains([]string{"release", "estimate"}, s.Settlement.AcceptedWithoutOutput) {
		return fmt.Errorf(`settlement.accepted_without_output is %q, not "release" or "estimate"`, s.Settlement.AcceptedWithoutOutput)
	}
	if s.Settlement.DrainMillis < 0 {
		return fmt.Errorf("settlement.drain_millis is %d, less than 0", s.Settlement.DrainMillis)
	}
	return nil
}

func findNull(at string, value any) (key string, found bool) {
	switch value := value.(type) {
	case nil:
		return strings.TrimPrefix(at, "."), true
	case map[string]any:
		for _, name := range util.KeysSorted(value) {
			if key, found := findNull(at+"."+name, value[name]); found {
				return key, true
			}
		}
	case []any:
		for i, element := range value {
			if key, found := findNull(fmt.Sprintf("%s[%d]", at, i), element); found {
				return key, true
			}
		}
	}
	return "", false
}

// toTree returns settings in their JSON form. A list that a host gave as nil behind a pointer is an empty list.
func toTree(settings Settings) (map[string]any, error) {
	settings = settings.withoutNil()
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := util.UnmarshalJSON(text, &tree); err != nil {
		return nil, err
	}
	if settings.Providers != nil { // "omitempty" leaves an empty list out, which here is not the same as an absent one
		tree["providers"] = toAny(settings.Providers)
	}
	return tree, nil
}

func toAny(texts []string) []any {
	list := make([]any, 0, len(texts))
	for _, text := range texts {
		list = append(list, text)
	}
	return list
}

func (s Settings) withoutNil() Settings {
	s.AllowedResidencies = emptyIfNil(s.AllowedResidencies)
	if s.AllowList != nil {
		s.AllowList = &AllowList{Providers: emptyIfNil(s.AllowList.Providers), Models: emptyIfNil(s.AllowList.Models)}
	}
	if s.Fallback != nil {
		s.Fallback = &Fallback{On: append([]string{}, s.Fallback.On...)}
	}
	if s.Access != nil {
		s.Access = s.Access.withoutNil()
	}
	return s
}

func (a *Access) withoutNil() *Access {
	full := &Access{Users: map[string][]string{}, Groups: map[string][]string{}, Models: map[string]ModelAccess{}}
	for user, features := range a.Users {
		full.Users[user] = append([]string{}, features...)
	}
	for group, features := range a.Groups {
		full.Groups[group] = append([]string{}, features...)
	}
	for model, access := range a.Models {
		access.Users = append([]string{}, access.Users...)
		access.Groups = append([]string{}, access.Groups...)
		full.Models[model] = access
	}
	return full
}

func emptyIfNil(list *[]string) *[]string {
	if list == nil || *list != nil {
		return list
	}
	return &[]string{}
}

// dataFile names the file that data at a path comes from, as far as it can be known: data may be spread.
func dataFile(bundles []*unpacked, way []string) (owner, file string) {
	for _, u := range bundles {
		if !bundle.RootPathsContain(u.roots(), path.Join(way...)) {
			continue
		}
		for above := len(way); above >= 0; above-- {
			for _, base := range []string{"data.json", "data.yaml", "data.yml"} {
				if name := path.Join(path.Join(way[:above]...), base); u.files[name] != nil {
					return u.name, name
				}
			}
		}
	}
	return "", ""
}
