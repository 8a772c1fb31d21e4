package torture

// This file makes states comparable. Two runs of the same controller always differ in uids,
// revisions, times and generated names. normalise removes or replaces these. Other differences
// between plain runs are found by comparing them, and are ignored later (newReference).
//
//	configmaps shop/web-x7k2p, generated from web-       configmaps shop/web-*1, the first when sorted by content
//	metadata.uid, resourceVersion, managedFields ...     removed
//	2026-11-23T10:00:00Z, a uid                          (time), (uid)
//	a condition's reason and message                     removed, because they describe the history
//	an observedGeneration that is the newest             (newest)
//	an owner that was deleted                            ownerReferences[0].owner: gone

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"apilet/internal/history"
)

// mark is the name of the annotation added by another client. It is not part of a state.
const mark = "apilet.dev/edited"

// A state holds the objects that have changed since the beginning, each as a map of paths to
// values.
type state map[string]map[string]string

// gone is the value for objects that existed before the run and have been deleted.
var gone = map[string]string{"(deleted)": "true"}

var (
	uidPattern  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	timePattern = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)`)
)

const hidden = "***"

// A fold is used to convert lines of the history to a state.
type fold struct {
	docs    map[string]map[string]any // by key; nil if the object existed before and was deleted
	owners  map[string]bool           // uids of deleted objects
	aliases map[string]string         // replacements of generated names
}

// normalise returns the state after the given lines.
func normalise(lines []history.Line, ignored []string) state {
	f := fold{docs: map[string]map[string]any{}, owners: map[string]bool{}, aliases: map[string]string{}}
	made := map[string]bool{}
	for i := range lines {
		line, key := &lines[i], keyOfLine(&lines[i])
		if !counts(ignored, line.Group, line.Resource) {
			continue
		}
		if line.Type != "DELETED" {
			made[key] = made[key] || line.Type == "ADDED" && !hasKey(f.docs, key)
			doc := map[string]any{}
			_ = json.Unmarshal(line.New, &doc) // an invalid object has no paths
			f.docs[key] = doc
			continue
		}
		f.owners[line.UID] = true
		if f.docs[key] = nil; made[key] {
			delete(f.docs, key)
		}
	}
	return f.state()
}

func hasKey(docs map[string]map[string]any, key string) bool { _, ok := docs[key]; return ok }

func (f *fold) state() state {
	for _, doc := range f.docs {
		meta, _ := doc["metadata"].(map[string]any)
		if generate, _ := meta["generateName"].(string); generate != "" {
			f.aliases[fmt.Sprint(meta["name"])] = generate + "*"
		}
	}
	alike := map[string][]map[string]string{} // the objects that were generated from the same name
	for key, doc := range f.docs {
		if doc == nil {
			alike[f.plain(key)] = append(alike[f.plain(key)], gone)
			continue
		}
		f.strip(doc)
		paths := map[string]string{}
		f.flatten(paths, "", doc)
		what, name, _ := strings.Cut(key, " ")
		namespace, own, namespaced := strings.Cut(name, "/")
		if alias := f.aliases[own]; namespaced && alias != "" {
			key = what + " " + namespace + "/" + alias
		}
		alike[f.plain(key)] = append(alike[f.plain(key)], paths)
	}
	st := state{}
	for key, all := range alike {
		if len(all) == 1 && !strings.HasSuffix(key, "*") {
			st[key] = all[0]
			continue
		}
		slices.SortFunc(all, func(a, b map[string]string) int { return strings.Compare(text(a), text(b)) })
		for i, paths := range all {
			st[fmt.Sprintf("%s%d", strings.TrimSuffix(key, "*")+"*", i+1)] = paths
		}
	}
	return st
}

// text returns the paths and values as a sortable text.
func text(paths map[string]string) string {
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		b.WriteString(path + "=" + paths[path] + "\n")
	}
	return b.String()
}

// strip removes fields that differ between runs, and marks owner references to deleted objects.
func (f *fold) strip(doc map[string]any) {
	meta, _ := doc["metadata"].(map[string]any)
	if meta == nil {
		return
	}
	if status, _ := doc["status"].(map[string]any); status != nil && status["observedGeneration"] != nil && status["observedGeneration"] == meta["generation"] {
		status["observedGeneration"] = "(newest)" // another client's edit increments the generation
	}
	if meta["deletionTimestamp"] != nil {
		meta["deletionTimestamp"] = "(set)"
	}
	if notes, _ := meta["annotations"].(map[string]any); notes != nil {
		if delete(notes, mark); len(notes) == 0 {
			delete(meta, "annotations")
		}
	}
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink", "generation", "deletionGracePeriodSeconds"} {
		delete(meta, field)
	}
	owners, _ := meta["ownerReferences"].([]any)
	for _, entry := range owners {
		if owner, _ := entry.(map[string]any); owner != nil {
			if uid, _ := owner["uid"].(string); f.owners[uid] {
				owner["owner"] = "gone"
			}
			delete(owner, "uid")
		}
	}
}

// flatten adds the values below a path to paths.
func (f *fold) flatten(paths map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, below := range v {
			if f.plain(name) == name {
				f.flatten(paths, path+"."+name, below)
			}
		}
		f.flattenRenamed(paths, path, v)
		if len(v) == 0 {
			paths[path] = "{}"
		}
	case []any:
		for i, below := range v {
			place := strconv.Itoa(i)
			if condition, _ := below.(map[string]any); strings.HasSuffix(path, ".conditions") && condition["type"] != nil {
				place = fmt.Sprint(condition["type"])
				condition = maps.Clone(condition)
				delete(condition, "reason") // these are not considered to be part of the state
				delete(condition, "message")
				below = condition
			}
			f.flatten(paths, path+"["+place+"]", below)
		}
		if len(v) == 0 {
			paths[path] = "[]"
		}
	case string:
		paths[path] = f.plain(v)
	default:
		paths[path] = fmt.Sprint(v)
	}
}

// flattenRenamed handles members whose names contain a uid, such as a file in a ConfigMap. Members
// that get the same name are numbered in the order of their content.
func (f *fold) flattenRenamed(paths map[string]string, path string, fields map[string]any) {
	alike := map[string][]any{}
	for name, below := range fields {
		if plain := f.plain(name); plain != name {
			alike[plain] = append(alike[plain], below)
		}
	}
	for name, all := range alike {
		slices.SortFunc(all, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		for i, below := range all {
			f.flatten(paths, fmt.Sprintf("%s.%s#%d", path, name, i+1), below)
		}
	}
}

// plain removes the parts of a string that differ between runs. Masked values of Secrets are
// replaced with stars, without any indication of whether they have changed.
func (f *fold) plain(text string) string {
	if strings.HasPrefix(text, hidden) {
		return hidden
	}
	if alias := f.aliases[text]; alias != "" {
		return alias
	}
	return timePattern.ReplaceAllString(uidPattern.ReplaceAllString(text, "(uid)"), "(time)")
}

// ---- Comparison

// A reference is the common state of the plain runs. It ignores the parts on which they differ.
type reference struct {
	want       state
	loose      map[string]bool            // objects that only some runs have
	loosePaths map[string]map[string]bool // paths that are not the same in all runs
	lawful     map[Difference]bool        // differences that are accepted
	quiet      []*reference               // the references for each quiet point of the workload
}

// but returns a reference that accepts the given differences.
func (ref *reference) but(lawful map[Difference]bool) *reference {
	other := *ref
	other.lawful = lawful
	return &other
}

func newReference(states []state) *reference {
	ref := &reference{want: states[0], loose: map[string]bool{}, loosePaths: map[string]map[string]bool{}}
	for _, other := range states[1:] {
		for _, d := range ref.compare(other) {
			if d.Path == "" {
				ref.loose[d.Object] = true
				continue
			}
			if ref.loosePaths[d.Object] == nil {
				ref.loosePaths[d.Object] = map[string]bool{}
			}
			ref.loosePaths[d.Object][d.Path] = true
		}
	}
	return ref
}

// A Difference is a difference between the wanted and the actual state. If it concerns a whole
// object, the path is "".
type Difference struct {
	Object string `json:"object"`
	Path   string `json:"path,omitempty"`
	Want   string `json:"want,omitempty"` // "" if it should not exist
	Have   string `json:"have,omitempty"`
	At     string `json:"at,omitempty"` // the quiet point; "" means the end
}

func (d Difference) String() string {
	if at := d.At; at != "" {
		d.At = ""
		return "at " + at + ": " + d.String()
	}
	switch {
	case d.Path == "" && d.Want == "":
		return d.Object + " is left over"
	case d.Path == "":
		return d.Object + " is missing"
	case d.Path == ".metadata.deletionTimestamp" && d.Want == "":
		return d.Object + " is being deleted for ever: a finalizer holds it"
	case strings.HasSuffix(d.Path, ".owner") && d.Want == "":
		return d.Object + " has an owner that is gone"
	case d.Want == "":
		return fmt.Sprintf("%s has %s: %s", d.Object, d.Path, d.Have)
	case d.Have == "":
		return fmt.Sprintf("%s lacks %s: %s", d.Object, d.Path, d.Want)
	}
	return fmt.Sprintf("%s has %s: %s, and not %s", d.Object, d.Path, d.Have, d.Want)
}

// compare returns the differences in the order of objects and paths.
func (ref *reference) compare(st state) []Difference {
	var all []Difference
	for _, key := range union(ref.want, st) {
		want, wanted := ref.want[key]
		have, there := st[key]
		switch {
		case ref.loose[key]:
		case !there:
			all = append(all, Difference{Object: key, Want: "(there)"})
		case !wanted:
			all = append(all, Difference{Object: key, Have: "(there)"})
		default:
			for _, path := range union(want, have) {
				if d := (Difference{Object: key, Path: path, Want: want[path], Have: have[path]}); d.Want != d.Have && !ref.loosePaths[key][path] && !ref.lawful[d] {
					all = append(all, d)
				}
			}
		}
	}
	return all
}

func union[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}
