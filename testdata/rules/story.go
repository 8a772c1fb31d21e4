package rules

// This file implements the story of an object. It is created, and if both sides accept it, it is
// updated and patched in all versions that are served. Both sides receive the same requests.

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apiserver/pkg/registry/rest"

	"apilet/internal/scheme"
)

// A step is a request and both answers.
type step struct {
	call         *call
	ours, theirs answer
	differences  []string
}

// A story contains the requests for an object and the responses of both sides.
type story struct {
	*generator
	ref          *reference
	cand         *candidate
	rows         []*scheme.Resource // the versions of the type
	steps        []step
	ours, theirs []byte // the object as both sides answered it last
}

// tell creates an object and changes it until only one of the sides rejects a change.
func (s *story) tell() {
	row := pick(s.generator, s.rows)
	root := s.object(row, s.random.Intn(pick(s.generator, []int{3, 8, 20})))
	name, _ := dig(root, "metadata", "name").(string)
	if meta, ok := root["metadata"].(map[string]any); ok && name == "default" && row.Kind == "Namespace" {
		name = "another" // this one exists in apilet
		meta["name"] = name
	}
	create := call{row: row, method: http.MethodPost, contentType: "application/json"}
	if s.chance(1) && len(content.IsPathSegmentName(name)) == 0 {
		create.method, create.name = http.MethodPut, cmp.Or(name, "missing")
	}
	if again := create; !s.send(&create, root) || s.chance(1) && !s.send(&again, root) || name == "" || s.theirs == nil {
		return
	}
	for range s.random.Intn(8) {
		if row = pick(s.generator, s.rows); !s.change(row, name) {
			return
		}
	}
}

// change reads the object with an empty patch and then changes it. It reports whether the story
// continues.
func (s *story) change(row *scheme.Resource, name string) bool {
	agree := s.send(&call{row: row, method: http.MethodPatch, name: name, contentType: string(types.MergePatchType)}, map[string]any{})
	if last := s.steps[len(s.steps)-1]; !agree || !last.theirs.accepted() {
		return agree
	}
	c := &call{row: row, name: name, sub: s.subresource(row), method: http.MethodPut, contentType: "application/json"}
	if c.sub == "scale" {
		return s.send(c, s.scale(name))
	}
	top := ""
	if c.sub == "status" && !s.chance(20) {
		top = "Status"
	} else if c.sub != "" {
		top = "Spec"
	}
	before := s.theirs
	if s.chance(15) {
		before = s.other(row)
	}
	after := s.changed(row, before, 1+s.random.Intn(3), top)
	if meta, ok := after["metadata"].(map[string]any); ok && !s.chance(3) {
		meta["name"] = name
		if meta["resourceVersion"] != dig(parse(s.theirs), "metadata", "resourceVersion") || s.chance(3) { // a revision of neither side
			meta["resourceVersion"] = pick(s.generator, revisions)
		}
	}
	if _, ok := s.ref.storage(row, c.sub).(rest.Patcher); !ok || s.chance(50) {
		return s.send(c, after)
	}
	return s.patch(c, after)
}

// subresource returns the subresource to write, or "" for the whole object.
func (s *story) subresource(row *scheme.Resource) string {
	all := []string{"", "", ""}
	for _, sub := range row.Subresources {
		switch {
		case sub.Name == "status" && s.ref.serves(row, sub.Name):
			all = append(all, sub.Name, sub.Name, sub.Name)
		case s.ref.serves(row, sub.Name):
			all = append(all, sub.Name)
		}
	}
	return pick(s.generator, all)
}

// other returns another document of the row with the metadata of the object.
func (s *story) other(row *scheme.Resource) []byte {
	doc := parse(pick(s.generator, s.seeds[row])).(map[string]any)
	doc["metadata"] = parse(s.theirs).(map[string]any)["metadata"]
	return must(json.Marshal(doc))
}

func (s *story) scale(name string) map[string]any {
	meta := map[string]any{"name": name, "namespace": "default"}
	return map[string]any{"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": meta,
		"spec": map[string]any{"replicas": pick(s.generator, []int{-1, 0, 1, 5, 1 << 30})}}
}

// patch sends the difference between the object and after as a patch.
func (s *story) patch(c *call, after map[string]any) bool {
	c.method = http.MethodPatch
	wanted := must(json.Marshal(after))
	switch s.random.Intn(3) {
	case 0:
		c.contentType = string(types.MergePatchType)
		return s.send(c, parse(must(jsonpatch.CreateMergePatch(s.theirs, wanted))))
	case 1:
		c.contentType = string(types.StrategicMergePatchType)
		patch, err := strategicpatch.CreateTwoWayMergePatch(s.theirs, wanted, reflect.New(c.row.GoType).Interface())
		if err != nil {
			return true
		}
		return s.send(c, parse(patch))
	}
	c.contentType = string(types.JSONPatchType)
	var operations []any
	for _, key := range sortedKeys(after) {
		if key != "apiVersion" && key != "kind" && key != "metadata" {
			operations = append(operations, map[string]any{"op": "add", "path": "/" + key, "value": after[key]})
		}
	}
	if labels := dig(after, "metadata", "labels"); labels != nil {
		operations = append(operations, map[string]any{"op": "add", "path": "/metadata/labels", "value": labels})
	}
	return s.send(c, operations)
}

// send sends a request to both sides. It reports whether both accepted or both refused it.
func (s *story) send(c *call, body any) bool {
	c.creates = s.theirs == nil
	theirs := *c
	theirs.body = must(json.Marshal(body))
	c.body = s.translate(theirs.body)
	st := step{call: &theirs, ours: s.cand.do(c), theirs: s.ref.do(&theirs)}
	if st.ours.accepted() && st.theirs.accepted() && c.sub != "scale" {
		s.ours, s.theirs = st.ours.body, st.theirs.body
	}
	shown := st.theirs
	shown.body = s.translate(shown.body)
	st.differences = differences(st.ours, shown)
	s.steps = append(s.steps, st)
	return st.ours.accepted() == st.theirs.accepted()
}

// given matches the values that are set by the server: UIDs, revisions, times, addresses and ports.
var given = []*regexp.Regexp{
	regexp.MustCompile(`"uid":"([0-9a-f]{8}-[0-9a-f-]{27})"`),
	regexp.MustCompile(`"resourceVersion":"([0-9]+)"`),
	regexp.MustCompile(`"creationTimestamp":"([^"]+)"`),
	regexp.MustCompile(`"clusterIP":"(10\.96\.[0-9.]+)"`),
	regexp.MustCompile(`"healthCheckNodePort":([0-9]+)`),
	regexp.MustCompile(`"nodePort":([0-9]+)`),
}

// translate replaces values that were set by the reference with the values that were set by the
// candidate.
func (s *story) translate(body []byte) []byte {
	if s.ours == nil {
		return body
	}
	var pairs []string
	for i, pattern := range given {
		ours, theirs := pattern.FindAllSubmatch(s.ours, -1), pattern.FindAllSubmatch(s.theirs, -1)
		for j := range min(len(ours), len(theirs)) {
			if a, b := ours[j], theirs[j]; !bytes.Equal(a[1], b[1]) {
				pairs = append(pairs, string(b[0]), string(a[0]))
				if i == 0 || i == 3 {
					pairs = append(pairs, string(b[1]), string(a[1]))
				}
			}
		}
	}
	return []byte(strings.NewReplacer(pairs...).Replace(string(body)))
}

// secondCounts finds the difference between an answer and one of the next second: the default of
// timeAdded is the time of the request, and another timeAdded is a change of the spec.
var secondCounts = regexp.MustCompile(`^metadata\.generation: `)

// dependsOnClock reports whether the answers may agree if the story is repeated.
func (s *story) dependsOnClock() bool {
	return s.rows[0].Kind == "DeviceTaintRule" && slices.ContainsFunc(s.steps, func(st step) bool {
		return slices.ContainsFunc(st.differences, secondCounts.MatchString)
	})
}

// describe prints the story for a person.
func (s *story) describe() string {
	var b strings.Builder
	for _, st := range s.steps {
		fmt.Fprintf(&b, "%s %s (%s)\n%s\n", st.call.method, st.call.path(), st.call.contentType, st.call.body)
		fmt.Fprintf(&b, "apilet     %d %q %s\nKubernetes %d %q %s%s\n", st.ours.code, st.ours.warnings, st.ours.body, st.theirs.code, st.theirs.warnings,
			st.theirs.body, st.theirs.panicked)
		for _, text := range st.differences {
			fmt.Fprintf(&b, "    %s\n", text)
		}
	}
	return b.String()
}

func dig(v any, path ...string) any {
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }
