package main

// This file tests the siege's generator with the types of a real server, and the shrinking of
// findings.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// besieged returns a siege with a running server that stores an object of each kind.
func besieged(t *testing.T) *siege {
	if runtime.GOOS == "windows" {
		t.Skip("the server is ended by signals")
	}
	dir := t.TempDir()
	*binary = filepath.Join(dir, "apilet")
	if out, err := exec.Command("go", "build", "-o", *binary, "apilet").CombinedOutput(); err != nil {
		t.Fatalf("building the server: %v\n%s", err, out)
	}
	*seed = 7
	s := &siege{out: os.Stderr, dir: dir, spent: map[string]time.Duration{}}
	if err := s.fresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.leave(); s.server.kill() })
	return s
}

// TestGrammarFitsTheServer checks that the server accepts nine of ten base objects, that all
// families generate requests, and that they depend only on the seed.
func TestGrammarFitsTheServer(t *testing.T) {
	s := besieged(t)
	accepted := 0
	for _, k := range s.kinds {
		code, answer, err := s.server.ask("administrator", "POST", k.collection+"?dryRun=All", k.base("siege-base").bytes())
		if err != nil {
			t.Fatal(err)
		}
		if code/100 == 2 || code == 409 && bytes.Contains(answer, []byte("AlreadyExists")) {
			accepted++
		} else {
			t.Logf("%s %s: %d %.300s", k.apiVersion, k.name, code, answer)
		}
	}
	if accepted*10 < len(s.kinds)*9 || len(s.kinds) < 60 {
		t.Errorf("%d of %d base objects accepted, want nine of ten", accepted, len(s.kinds))
	}
	again := newGenerator(*seed, s.kinds, s.gen.tenants, s.gen.recorded)
	first := newGenerator(*seed, s.kinds, s.gen.tenants, s.gen.recorded)
	for _, family := range families {
		made := 0
		for range 60 {
			a, b := first.next(family), again.next(family)
			if !bytes.Equal(jsonOf(t, a), jsonOf(t, b)) {
				t.Fatalf("%s: the same seed made two requests:\n%s\n%s", family, jsonOf(t, a), jsonOf(t, b))
			}
			if a == nil {
				continue
			}
			if made++; a.Body != nil && a.Body.Kind != "bytes" && !bottomless(a) && !json.Valid(a.Body.bytes()) {
				t.Errorf("%s: no JSON: %.300s", family, a.Body.bytes())
			}
			if size := len(a.Body.bytes()); size > bodyLimit {
				t.Errorf("%s: a body of %d bytes is refused unread: %v", family, size, a.features())
			}
		}
		if made < 20 {
			t.Errorf("%s: %d requests of 60 cards", family, made)
		}
	}
}

// bottomless reports whether encoding/json rejects the body because of its depth, or because of
// numbers that are not valid.
func bottomless(q *request) bool {
	return slices.ContainsFunc(q.Body.nodes(), func(n *node) bool { return n.Depth > 8000 || n.Kind == "literal" && n.Tail != "" })
}

func jsonOf(t *testing.T, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestNodesRender(t *testing.T) {
	name := parsed(`{"name":"n","size":1}`)
	for want, n := range map[string]*node{
		`{"a":[1,"x",null]}`:                parsed(`{"a":[1,"x",null]}`),
		`"<<<"`:                             {Kind: "text", Text: "<", N: 3},
		`0.001`:                             {Kind: "literal", Head: "0.", Text: "0", Tail: "1", N: 2},
		`["x","x"]`:                         {Kind: "series", Order: equal, Elem: text("x"), N: 2},
		`[2,1]`:                             {Kind: "series", Order: descending, Elem: literal("7"), N: 2},
		`[{"name":"n00000000","size":1}]`:   {Kind: "series", Order: ascending, Elem: name, Key: "name", N: 1},
		`{"f:00000001":{},"f:00000000":{}}`: {Kind: "pairs", Order: descending, Key: "f:", Elem: &node{Kind: "object"}, N: 2},
		`{"f:a":{"f:a":1}}`:                 {Kind: "deep", Key: "f:a", Depth: 2, Elem: literal("1")},
		`[[1]]`:                             {Kind: "deep", Depth: 2, Elem: literal("1")},
		"k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x04abab": {Kind: "bytes", Head: "v1", Tail: "Pod", Data: []byte("ab"), N: 2},
	} {
		if got := string(n.bytes()); got != string(bytes.ReplaceAll([]byte(want), []byte("<"), []byte(`\u003c`))) {
			t.Errorf("%+v: got %q, want %q", n, got, want)
		}
	}
	if got := objectOf(envelope("v1", "Pod", bytes.Repeat([]byte("x"), 300))); len(got) != 300 {
		t.Errorf("%d bytes in an envelope of 300", len(got))
	}
}

// TestShrinkingKeepsTheCause checks that everything is removed from a large request except for the
// part that is the cause.
func TestShrinkingKeepsTheCause(t *testing.T) {
	ports := &node{Kind: "series", Order: equal, Elem: literal("80"), N: 20_000, Tags: []string{"at C.ports"}}
	body := parsed(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"other":{"a":"b"},"more":"x"}}`)
	body.get("spec").set("words", &node{Kind: "series", Order: equal, Elem: text("x"), N: 1000, Tags: []string{"at C.words"}})
	body.get("spec").set("ports", ports)
	q := &request{As: "administrator", Method: "POST", Path: "/x", Query: [][2]string{{"dryRun", "All"}, {"pretty", "1"}}, Accept: "a/b", Body: body, Connections: 64}
	asked := 0
	trips := func(q *request) bool {
		asked++
		n := 0
		for _, of := range q.Body.nodes() {
			if slices.Contains(of.Tags, "at C.ports") {
				n = of.N
			}
		}
		return n >= 3000 && slices.Contains(q.Query, [2]string{"pretty", "1"}) && q.Connections >= 10
	}
	small := shrink(q, trips, func() bool { return asked < 200 })
	want := `{"as":"stranger","method":"POST","path":"/x","query":[["pretty","1"]]`
	if got := string(jsonOf(t, small)); !bytes.HasPrefix([]byte(got), []byte(want)) {
		t.Errorf("got %s, want it to begin with %s", got, want)
	}
	if small.Connections != 16 || len(small.marked()) != 1 || small.marked()[0].N != 5000 || small.Body.get("spec").get("other") != nil {
		t.Errorf("%d connections, %d marked, %s", small.Connections, len(small.marked()), jsonOf(t, small))
	}
	if asked > 100 {
		t.Errorf("asked %d times", asked)
	}
	if len(q.Query) != 2 || ports.N != 20_000 {
		t.Error("the request that was given is not as it was")
	}
}

// TestMetersTrip checks each meter.
func TestMetersTrip(t *testing.T) {
	fine := outcome{code: 200, sent: 1 << 20, stored: 1 << 20, answered: 2 << 20, cpu: time.Second, memory: 64 << 20, ended: true, bound: time.Second}
	if trips := fine.judge(); len(trips) > 0 {
		t.Errorf("%v: %v", fine, trips)
	}
	for meter, change := range map[string]func(*outcome){
		"cpu": func(o *outcome) { o.cpu = time.Minute }, "memory": func(o *outcome) { o.memory = 1 << 30 }, "answer": func(o *outcome) { o.answered = 50 << 20 },
		"bystander": func(o *outcome) { o.longest, o.beyond = 9*time.Second, 3 }, "death": func(o *outcome) { o.died = true },
		"panic": func(o *outcome) { o.panics = "goroutine 1 [running]" },
	} {
		o := fine
		change(&o)
		if trips := o.judge(); len(trips) != 1 || trips[0].meter != meter {
			t.Errorf("%s: %v", meter, trips)
		}
	}
	crowd := outcome{connections: 60, stored: 9 << 20, memory: 540 << 20}
	if trips := crowd.judge(); len(trips) != 1 || trips[0].meter != "memory" {
		t.Errorf("a crowd that is held whole: %v", trips)
	}
}

// TestAFindingIsMetOnce checks that requests are skipped if they have all features of a previous
// finding.
func TestAFindingIsMetOnce(t *testing.T) {
	of := func(tags ...string) *request { return &request{Method: "POST", Tags: tags} }
	s := &siege{findings: []finding{{trip{"cpu", ""}, of("lists", "equal", "at C.ports"), 0}}}
	for tags, want := range map[*request]bool{of("lists", "equal", "at C.ports", "at C.args"): true, of("lists", "equal", "at C.args"): false, of("lists", "ascending", "at C.ports"): false} {
		if got := s.known(tags, ""); got != want {
			t.Errorf("%v: %t, want %t", tags.Tags, got, want)
		}
	}
	watching := of("crowds")
	watching.Connections = 60
	s.findings = []finding{{trip{"memory", ""}, of("crowds"), 0}}
	if s.known(watching, "") || !s.known(watching, "memory") || s.known(watching, "bystander") {
		t.Error("a crowd that holds memory hides how others are served")
	}
}

// TestQuantitiesAreKnownByTheirSchema checks that quantities are detected by their schema.
func TestQuantitiesAreKnownByTheirSchema(t *testing.T) {
	d := new(document)
	err := json.Unmarshal([]byte(`{"paths":{"/t":{"post":{"requestBody":{"content":{"*/*":{"schema":{"$ref":"#/components/schemas/a.T"}}}},"x-kubernetes-group-version-kind":{"version":"v1","kind":"T"}}}},
		"components":{"schemas":{"a.T":{"type":"object","properties":{"spec":{"$ref":"#/components/schemas/a.S"}}},
		"a.S":{"type":"object","properties":{"limits":{"type":"object","additionalProperties":{"$ref":"#/components/schemas/a.Quantity"}},"any":{"type":"object","description":"'f:<name>' or '.'"},
		"ports":{"type":"array","items":{"type":"integer","format":"int32"}},"again":{"$ref":"#/components/schemas/a.S"}}},"a.Quantity":{"oneOf":[{"type":"string"},{"type":"number"}]}}}}`), d)
	if err != nil {
		t.Fatal(err)
	}
	k := kindsOf(d, func(path string) string { return path })[0]
	got := map[string]string{}
	for _, at := range k.sites() {
		got[fmt.Sprint(at.path)] = at.sort
	}
	for path, sort := range map[string]string{"[spec limits k]": "number Quantity", "[spec any]": "free", "[spec ports]": "list", "[spec again]": "object"} {
		if got[path] != sort {
			t.Errorf("%s is %q, want %q; all: %v", path, got[path], sort, got)
		}
	}
	if p := prefixes(k.resolve(k.resolve(k.schema.Properties["spec"]).Properties["any"])); !slices.Contains(p, "f:") {
		t.Errorf("names in a free object begin with %q by its description, want f:", p)
	}
}

// TestDetours checks that the family generates requests of each production and that the aggregated
// server receives them.
func TestDetours(t *testing.T) {
	s := besieged(t)
	made := map[string]bool{}
	for range 400 {
		q := s.gen.next("clients")
		for _, tag := range q.Tags {
			name, _, _ := strings.Cut(tag, " ")
			made[name] = true
		}
		r, err := q.http(s.server.url, nil)
		if err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		for _, h := range q.Header {
			if len(r.Header[h[0]]) == 0 {
				t.Errorf("the header %s is not sent as it is written", h[0])
			}
		}
	}
	for _, want := range []string{"answer", "proxy", "eviction", "apply", "old", "pretending", "critical"} {
		if !made[want] {
			t.Errorf("no request of the sort %q", want)
		}
	}
	code, answer, err := s.server.ask("administrator", "GET", behindPath+"/things/twice", nil)
	if code != 200 || string(answer) != "{}" || err != nil {
		t.Errorf("got %d %q %v from the server behind, want 200 {}", code, answer, err)
	}
}
