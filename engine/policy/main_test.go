package policy

import (
	"context"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"regent/policies"
)

// The shipped entry point is the one that is known, so that a call's facts are not checked for completeness one by one. Another one is
// asked whole.
func TestTheShippedEntryPointIsKnown(t *testing.T) {
	loaded := func(tree fs.FS) *Activation {
		activation, err := Load(context.Background(), Source{Bundles: []Bundle{{Name: "regent", FS: tree, Tested: true}}})
		if err != nil {
			t.Fatal(err)
		}
		return activation
	}
	shipped := loaded(policies.Files())
	if shipped.judgementAt != judgement {
		modules := make(map[string][]byte)
		for _, file := range shipped.bundles[0].parsed.Modules {
			if file.Parsed.Package.Path.String() == "data.regent.main" {
				modules[file.Path[len("regent"):]] = file.Raw
			}
		}
		t.Errorf("the entry point is not the one that is known; now it is %s", digestOf(nil, &unpacked{files: modules}))
	}
	changed := fstest.MapFS{}
	err := fs.WalkDir(policies.Files(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(policies.Files(), name)
		changed[name] = &fstest.MapFile{Data: content}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	main := changed["regent/main/main.rego"]
	main.Data = []byte(strings.Replace(string(main.Data), "	_input_is_complete\n", "	_input_is_complete\n	input.call.kind != \"tool\"\n", 1))
	other := loaded(changed)
	if other.judgementAt != entryPoint {
		t.Error("another entry point is taken for the shipped one")
	}
	f := ordinary
	f.Call.Kind, f.Attempts = "tool", nil
	for range 2 {
		decision, err := other.Judge(timeOf(f), f.Call, f.Identity).Decide(context.Background(), f.Candidate, nil)
		if err != nil || decision.Allow {
			t.Errorf("what the other entry point refuses is allowed: %+v, %v", decision, err)
		}
	}
}

func timeOf(f Facts) time.Time { return time.Unix(0, f.Now) }
