package discovery

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/scheme"
)

// TestDefinitionsOfServersGetNames has two servers behind whose types are called alike: who comes first by priority has the name, what is the same is there
// once, and every reference leads to what its own document meant.
func TestDefinitionsOfServersGetNames(t *testing.T) {
	t.Parallel()
	const meta = "io.k8s.apimachinery.pkg.apis.meta.v1."
	document := func(group, definitions string) *Swagger {
		s, err := NewSwagger([]byte(`{"paths":{"/apis/`+group+`/v1/xs":{"get":{"schema":{"$ref":"#/definitions/X"}}}},"definitions":{`+definitions+`}}`), group, group, "v1")
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const time = `"` + meta + `Time":{"type":"string","format":"date-time","description":"Time is a wrapper around time.Time which supports correct marshaling to YAML and JSON.  Wrappers are provided for many of the factory methods that the time package offers."},"` + meta + `Patch":{"type":"object"},"` +
		meta + `MicroTime":{"type":"string","format":"date-time","description":"of theirs"}`
	const x = `"X":{"properties":{"at":{"$ref":"#/definitions/` + meta + `Time"},"y":{"$ref":"#/definitions/Y"},"s":{"$ref":"#/definitions/Same"},"p":{"$ref":"#/definitions/` +
		meta + `Patch"},"m":{"$ref":"#/definitions/` + meta + `MicroTime"},"n":{"$ref":"#/definitions/Null"}}},"Same":{"type":"boolean"},"Null":null,` + time
	late, early, third := document("a.example.com", x+`,"Y":{"type":"string"}`), document("b.example.com", x+`,"Y":{"type":"integer"}`), document("c.example.com", x+`,"Y":{"type":"string"}`)
	o := &RemoteVersions{Priorities: map[metav1.GroupVersion]Priority{{Group: "a.example.com", Version: "v1"}: {10, 1}, {Group: "b.example.com", Version: "v1"}: {20, 1},
		{Group: "c.example.com", Version: "v1"}: {5, 1}, {Group: "apps", Version: "v1"}: {9000, 1}}}
	for group, s := range map[string]*Swagger{"a": late, "b": early, "c": third} {
		o.All = append(o.All, RemoteVersion{Group: group + ".example.com", Version: "v1", Swagger: s})
	}
	before := fmt.Sprint(late, early, third)
	var out strings.Builder
	c := scheme.NewRegistry().Current.Load()
	for range 2 { // the second time from memory
		out.Reset()
		if err := writeSwagger(c, o, swaggerEncoder(string(scheme.JSONFormat), &out)); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(late, early, third) != before {
		t.Error("what was learned is changed")
	}
	var doc struct{ Paths, Definitions map[string]json.RawMessage }
	if err := json.Unmarshal([]byte(out.String()), &doc); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(doc.Definitions)) {
		if !strings.HasPrefix(name, "io.k8s.") || strings.Contains(name, "_v") {
			names = append(names, strings.TrimPrefix(name, meta))
		}
	}
	if got, want := strings.Join(names, " "), "Null Same X X_v2 X_v3 Y Y_v2 MicroTime_v2 Patch_v2"; got != want {
		t.Errorf("the names are %s, want %s", got, want)
	}
	for path, want := range map[string]string{"a": "X_v2", "b": "X", "c": "X_v3"} {
		if got := string(doc.Paths["/apis/"+path+".example.com/v1/xs"]); !strings.Contains(got, `"#/definitions/`+want+`"`) {
			t.Errorf("%s leads to %s, want %s", path, got, want)
		}
	}
	for name, want := range map[string]string{"Y": `{"type":"integer"}`, "Y_v2": `{"type":"string"}`, meta + "Patch_v2": `{"type":"object"}`} {
		if got := string(doc.Definitions[name]); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]string{"X": "Y", "X_v2": "Y_v2", "X_v3": "Y_v2"} {
		var refs []string
		for _, part := range strings.Split(string(doc.Definitions[name]), "#/definitions/")[1:] {
			ref, _, _ := strings.Cut(part, `"`)
			if refs = append(refs, strings.TrimPrefix(ref, meta)); doc.Definitions[ref] == nil && ref != meta+"Time" {
				t.Errorf("%s leads to %s, which is not there", name, ref)
			}
		}
		if got := strings.Join(refs, " "); got != "Time MicroTime_v2 Null Patch_v2 Same "+want {
			t.Errorf("%s refers to %s, want %s last", name, got, want)
		}
	}
}
