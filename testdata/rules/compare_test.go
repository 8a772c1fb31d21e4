// Package rules compares apilet with the registry of the Kubernetes that it imports. A generator
// creates valid and invalid objects of all types and sends the same requests to both.
package rules

import (
	"flag"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"apilet/internal/scheme"
)

var (
	objects = flag.Int("objects", 2000, "number of `objects` that TestAgreesWithKubernetes generates")
	seed    = flag.Uint64("seed", 1, "seed of the generator")
	first   = flag.Int("first", 0, "number of the first `object`")
	kind    = flag.String("kind", "", "generate objects of this `kind` only")
	show    = flag.Int("show", 60, "number of `kinds` of difference that are printed")
	stories = flag.Bool("story", false, "print all requests and answers")
)

func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// TestAgreesWithKubernetes creates, updates and patches generated objects on both sides and
// compares the responses, including the reason, the causes, the warnings and the object. It fails
// for a difference that known.go does not list.
func TestAgreesWithKubernetes(t *testing.T) {
	checkKnown(t)
	registry := typesOf()
	byType := versions(registry.All())
	names := slices.Sorted(maps.Keys(byType))
	var rows []*scheme.Resource
	for _, name := range names {
		rows = append(rows, byType[name]...)
	}
	c := readCorpus(t, rows)
	if t.Failed() {
		return
	}
	r := &report{kinds: map[string]int{}, examples: map[string]int{}, requests: map[string]int{}, refused: map[string]int{}}
	w := &world{t: t, types: registry}
	defer w.close()
	for i := *first; i < *first+*objects; i++ {
		var s *story
		for tries := 0; tries == 0 || tries < 10 && s.dependsOnClock(); tries++ {
			g := newGenerator(c, *seed, i)
			rows := byType[pick(g, names)]
			if *kind != "" && rows[0].Kind != *kind {
				break
			}
			s = &story{generator: g, rows: rows}
			s.ref, s.cand = w.sides()
			s.tell()
			w.clear(s)
		}
		if s == nil {
			continue
		}
		r.add(i, s)
		if *stories {
			t.Logf("object %d\n%s", i, s.describe())
		}
	}
	r.print(t)
}

// versions returns the rows of each type that can be created and changed.
func versions(rows []*scheme.Resource) map[string][]*scheme.Resource {
	all := map[string][]*scheme.Resource{}
	for _, row := range rows {
		if !row.Virtual && slices.Contains(row.Verbs, "update") {
			name := row.StorageGroup + "/" + row.Plural
			all[name] = append(all[name], row)
		}
	}
	return all
}

// A report counts requests and differences.
type report struct {
	requests, refused map[string]int // by operation
	kinds, examples   map[string]int // number of differences of each kind, and an example
	differ, known     int            // requests
}

func (r *report) add(i int, s *story) {
	for _, st := range s.steps {
		operation := st.call.operation()
		r.requests[operation]++
		if !st.theirs.accepted() {
			r.refused[operation]++
		}
		if len(st.differences) > 0 {
			r.differ++
		}
		for _, text := range st.differences {
			if isKnown(st.call.row.Kind + " " + operation + ": " + text) {
				r.known++
				return // the object differs from here on
			}
			kind := kindOf(st.call.row.Kind + " " + operation + ": " + text)
			if r.kinds[kind]++; r.kinds[kind] == 1 {
				r.examples[kind] = i
			}
		}
	}
}

func (r *report) print(t *testing.T) {
	requests, refused := 0, 0
	for _, operation := range slices.Sorted(maps.Keys(r.requests)) {
		t.Logf("%7d %s, %d refused", r.requests[operation], operation, r.refused[operation])
		requests += r.requests[operation]
		refused += r.refused[operation]
	}
	t.Logf("seed %d: %d objects, %d requests, %.1f %% refused, %d with a difference, %d of them intended", *seed, *objects,
		requests, 100*float64(refused)/float64(requests), r.differ, r.known)
	kinds := slices.SortedFunc(maps.Keys(r.kinds), func(a, b string) int { return r.kinds[b] - r.kinds[a] })
	for _, kind := range kinds[:min(*show, len(kinds))] {
		t.Errorf("%d times: %s\n\tgo test . -seed %d -first %d -objects 1 -story", r.kinds[kind], kind, *seed, r.examples[kind])
	}
	if more := len(kinds) - *show; more > 0 {
		t.Errorf("%d more kinds of difference; see -show", more)
	}
}

// A world has both sides. The sides are replaced after a number of stories, because a store keeps
// its history.
type world struct {
	t     *testing.T
	types *scheme.Registry
	ref   *reference
	cand  *candidate
	told  int // stories of these sides
}

// storiesPerStore is the maximum number of objects that are created in a store.
const storiesPerStore = 500

func (w *world) sides() (*reference, *candidate) {
	if w.ref == nil || w.told == storiesPerStore {
		w.close()
		w.ref, w.cand, w.told = newReference(), newCandidate(w.t, w.types), 0
	}
	w.told++
	return w.ref, w.cand
}

// clear removes the object of a story from both sides.
func (w *world) clear(s *story) {
	w.ref.clear()
	if s.rows[0].Plural == "services" || w.cand.remove(s.rows[0]) != nil {
		w.told = storiesPerStore // addresses and ports stay allocated
	}
}

func (w *world) close() {
	if w.cand != nil {
		w.cand.close(w.t)
	}
}
