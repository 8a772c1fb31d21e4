package changes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
)

func TestBetween(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, old, new, want string }{
		{"scalars", `{"spec":{"replicas":1,"paused":true}}`, `{"spec":{"replicas":2,"paused":true}}`, `.spec.replicas 1→2`},
		{"added and removed", `{"a":{"x":1}}`, `{"b":null}`, `.a {"x":1}→; .b →null`},
		{"what follows from a write", `{"metadata":{"generation":1,"resourceVersion":"1","managedFields":[1]}}`, `{"metadata":{"generation":2,"resourceVersion":"2"}}`, ``},
		{"generation elsewhere", `{"status":{"generation":1}}`, `{"status":{"generation":2}}`, `.status.generation 1→2`},
		{"odd names", `{"metadata":{"annotations":{"a.b/c":"1","[":"1","":"1"}}}`, `{"metadata":{"annotations":{"a.b/c":"2","[":"2","":"2"}}}`,
			`.metadata.annotations[""] "1"→"2"; .metadata.annotations["["] "1"→"2"; .metadata.annotations["a.b/c"] "1"→"2"`},
		{"containers by name", `{"c":[{"name":"a","image":"1"},{"name":"b","image":"1"}]}`, `{"c":[{"name":"b","image":"2"},{"name":"c","image":"1"}]}`,
			`.c[name=a] {"image":"1","name":"a"}→; .c[name=b].image "1"→"2"; .c[name=c] →{"image":"1","name":"c"}`},
		{"conditions by type", `{"s":[{"type":"Ready","status":"False"}]}`, `{"s":[{"type":"Ready","status":"True"},{"type":"Live","status":"True"}]}`,
			`.s[type=Ready].status "False"→"True"; .s[type=Live] →{"status":"True","type":"Live"}`},
		{"owners of one name by uid", `{"o":[{"name":"x","uid":"1"},{"name":"x","uid":"2"}]}`, `{"o":[{"name":"x","uid":"2"}]}`, `.o[uid=1] {"name":"x","uid":"1"}→`},
		{"ports by number", `{"p":[{"containerPort":80}]}`, `{"p":[{"containerPort":81}]}`, `.p[containerPort=80] {"containerPort":80}→; .p[containerPort=81] →{"containerPort":81}`},
		{"no key in common", `{"p":[{"name":"a"},{"x":1}]}`, `{"p":[{"name":"b"},{"x":1}]}`, `.p[0].name "a"→"b"`},
		{"a key twice", `{"p":[{"name":"a","v":1},{"name":"a","v":2}]}`, `{"p":[{"name":"a","v":1},{"name":"a","v":3}]}`, `.p[1].v 2→3`},
		{"one of three goes", `{"f":["a","b","c"]}`, `{"f":["a","c"]}`, `.f[1] "b"→`},
		{"one comes in front", `{"f":["b"]}`, `{"f":["a","b"]}`, `.f[0] →"a"`},
		{"an order", `{"c":[{"name":"a"},{"name":"b"},{"name":"c"}]}`, `{"c":[{"name":"b"},{"name":"a"}]}`, `.c[name=c] {"name":"c"}→; .c ["a","b"]→["b","a"]`},
		{"another type", `{"a":{"b":1}}`, `{"a":[1]}`, `.a {"b":1}→[1]`},
		{"one name of two lives", `{"a":1}`, ``, ``},
		{"escapes", `{"a":[{"name":"\u001b[31m"}]}`, `{"a":[]}`, `.a[name="\x1b[31m"] {"name":"\u001b[31m"}→`},
		{"a secret says so", `{"apiVersion":"v1","kind":"Secret","data":{"p":"b2xk"},"type":"x"}`, `{"apiVersion":"v1","kind":"Secret","data":{"p":"bmV3","q":"bmV3"},"type":"y"}`,
			`.data["p"] "***"→"***"; .data["q"] →"***"; .type "x"→"y"`},
		{"not every Secret is one", `{"apiVersion":"x/v1","kind":"Secret","data":"1"}`, `{"apiVersion":"x/v1","kind":"Secret","data":"2"}`, `.data "1"→"2"`},
		{"what was applied", `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{1}"}}}`, `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{2}"}}}`,
			`.metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"] "***"→"***"`},
		{"applied for the first time", `{"metadata":{}}`, `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{2}"}}}`,
			`.metadata.annotations →{"kubectl.kubernetes.io/last-applied-configuration":"***"}`},
	} {
		list, more, err := Options{}.Compare([]byte(c.old), []byte(c.new))
		if got := strings.ReplaceAll(line(list), ".data.", ".data."); err != nil || more != 0 || plainKeys(got) != plainKeys(c.want) {
			t.Errorf("%s: %v, %d more\n got %s\nwant %s", c.name, err, more, got, c.want)
		}
	}
}

// plainKeys: single letters need no quotes, but are easier to read in them here.
func plainKeys(s string) string { return strings.NewReplacer(`["p"]`, ".p", `["q"]`, ".q").Replace(s) }

func line(list []Change) string {
	var texts []string
	for _, c := range list {
		texts = append(texts, fmt.Sprintf("%s %s→%s", c.Path, c.Old, c.New))
	}
	return strings.Join(texts, "; ")
}

// TestSecretsAreNeverTold: whatever becomes of a Secret, no text of this package has its values.
func TestSecretsAreNeverTold(t *testing.T) {
	t.Parallel()
	bodies := []string{`{}`, `{"data":{"p":"c2VjcmV0"}}`, `{"data":{"p":"c2VjcmV0Mg=="},"stringData":{"a":"c2VjcmV0"}}`, `{"data":"c2VjcmV0"}`, `{"data":["c2VjcmV0"]}`,
		`{"data":{"p":{"q":"c2VjcmV0"}}}`, `{"data":{"p":["c2VjcmV0"]}}`, `{"data":null}`,
		`{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"data\":{\"p\":\"c2VjcmV0\"}}"}},"data":{"p":"c2VjcmV0"}}`, ``}
	r := Options{Secret: true}
	for _, old := range bodies {
		for _, new := range bodies {
			list, _, err := r.Compare([]byte(old), []byte(new))
			was, is, err2 := r.Redact([]byte(old), []byte(new))
			diff, err3 := r.Diff([]byte(old), []byte(new), "a", "b")
			text, err4 := r.YAML([]byte(new))
			said := fmt.Sprint(line(list), string(was), string(is), diff, text, err, err2, err3, err4)
			if strings.Contains(said, "c2V") {
				t.Errorf("%s to %s: %s", old, new, said)
			}
			if err != nil || err2 != nil || err3 != nil || err4 != nil {
				t.Errorf("%s to %s: %v, %v, %v, %v", old, new, err, err2, err3, err4)
			}
			if old != "" && new != "" && old != new && (len(list) == 0 || diff == "") {
				t.Errorf("%s to %s: not told that it changed: %v, %q", old, new, list, diff)
			}
		}
	}
}

// An object may show only in its new version that it is a Secret. The old version is redacted then, too.
func TestNewSecretHidesItsOldVersion(t *testing.T) {
	t.Parallel()
	was, is, err := Options{}.Redact([]byte(`{"data":{"p":"c2VjcmV0"}}`), []byte(`{"apiVersion":"v1","kind":"Secret","data":{"p":"c2VjcmV0Mg=="}}`))
	if said := string(was) + string(is); err != nil || strings.Contains(said, "c2V") {
		t.Errorf("%s, %v", said, err)
	}
}

// TestRedactedTwice: what a server has redacted, a client may redact again.
func TestRedactedTwice(t *testing.T) {
	t.Parallel()
	r := Options{Secret: true}
	was, is, err := r.Redact([]byte(`{"data":{"a":"1","b":"1"},"metadata":{"managedFields":[]}}`), []byte(`{"data":{"a":"2","b":"1"}}`))
	if err != nil || string(was) != `{"data":{"a":"*** (before)","b":"***"},"metadata":{}}` || string(is) != `{"data":{"a":"*** (after)","b":"***"}}` {
		t.Fatalf("%s, %s, %v", was, is, err)
	}
	again, new, err := r.Redact(was, is)
	if err != nil || !bytes.Equal(again, was) || !bytes.Equal(new, is) {
		t.Fatalf("%s, %s, %v", again, new, err)
	}
}

// TestCutTextsAreWhole: a text is cut before a letter that does not fit as a whole.
func TestCutTextsAreWhole(t *testing.T) {
	t.Parallel()
	for size, want := range []string{"", "a", "a", "aé", "aé", "aé", "aé€", "aé€"} {
		if got := cutAt("aé€b", size); size < len("aé€b") && got != want {
			t.Errorf("%d bytes: %q, want %q", size, got, want)
		}
	}
	if got := cutAt("aé€b", len("aé€b")); got != "aé€b" {
		t.Errorf("a text of the size is cut to %q", got)
	}
}

func TestBounds(t *testing.T) {
	// It is not parallel, because it counts the bytes that the process allocates.
	members := func(n int, value string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"m%07d":%s`, i, value)
		}
		return "{" + b.String()[1:] + "}"
	}
	deep := func(n int, end string) string { return strings.Repeat(`{"a":`, n) + end + strings.Repeat(`}`, n) }
	lists := func(n int, end string) string {
		return `{"l":` + strings.Repeat(`[1,`, n) + end + strings.Repeat(`,2]`, n) + "}"
	}
	long := `"` + strings.Repeat("ü", 1<<20) + `"`
	for _, c := range []struct{ name, old, new string }{
		{"many paths", members(20_000, "1"), members(20_000, "2")},
		{"all is new", `{}`, members(20_000, "2")},
		{"all goes", members(20_000, `{"x":[1,2,3]}`), `{}`},
		{"deep", deep(9_900, "1"), deep(9_900, "2")},
		{"deep lists", lists(9_900, "1"), lists(9_900, "2")},
		{"a long value", `{"a":` + long + `}`, `{"a":1}`},
		{"a long name", `{` + long + `:1}`, `{` + long + `:2}`},
		{"a list of its own", `{"a":[` + strings.Repeat(`{"name":"x"},`, 20_000) + `1]}`, `{"a":[` + strings.Repeat(`{"name":"y"},`, 20_000) + `1]}`},
	} {
		before := apitest.Allocated()
		list, more, err := Options{}.Compare([]byte(c.old), []byte(c.new))
		said, _ := json.Marshal(list)
		if err != nil || len(list) == 0 || len(list) > pathsMax || len(said) > pathsMax*(stepsMax*16+2*valueMax+stepMax) {
			t.Errorf("%s: %d changes of %d bytes, %d more, %v", c.name, len(list), len(said), more, err)
		}
		for _, change := range list {
			if !utf8.ValidString(change.Path) {
				t.Errorf("%s: half a letter in %q", c.name, change.Path)
			}
		}
		if diff, err := (Options{}).Diff([]byte(c.old), []byte(c.new), "a", "b"); diff == "" && err == nil {
			t.Errorf("%s: no diff", c.name)
		}
		size, allocated := len(c.old)+len(c.new), apitest.Allocated()-before
		if allocated > 300*uint64(size) {
			t.Errorf("%s: %d bytes, for which %d KiB were allocated", c.name, size, allocated>>10)
		}
		t.Logf("%s: %d bytes, for which %d KiB were allocated", c.name, size, allocated>>10)
	}
	if list, more, _ := (Options{MaxChanges: 3}).Compare([]byte(members(10, "1")), []byte(members(10, "2"))); len(list) != 3 || more != 7 {
		t.Errorf("%d changes and %d more, want 3 and 7", len(list), more)
	}
}

func TestNoObject(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{`[]`, `1`, `null`, `{`, `{}{}`, `{"a":}`, "\xff", strings.Repeat(`{"a":`, 20_000)} {
		if list, _, err := (Options{}).Compare([]byte(doc), []byte(`{}`)); err == nil || list != nil {
			t.Errorf("%.20q: %v, %v", doc, list, err)
		}
		if _, err := (Options{}).YAML([]byte(doc)); err == nil {
			t.Errorf("%.20q as YAML: no error", doc)
		}
	}
}

func TestDiff(t *testing.T) {
	t.Parallel()
	old := `{"spec":{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":{"k":[1,2,3]}}}`
	new := `{"spec":{"a":1,"b":9,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":{"k":[1,3]}}}`
	got, err := Options{}.Diff([]byte(old), []byte(new), "before", "after")
	want := `--- before
+++ after
@@ -1,6 +1,6 @@
 spec:
   a: 1
-  b: 2
+  b: 9
   c: 3
   d: 4
   e: 5
@@ -11,5 +11,4 @@
   j:
     k:
     - 1
-    - 2
     - 3
`
	if err != nil || got != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
	for _, c := range [][3]string{{``, `{"a":1}`, "--- x\n+++ y\n@@ -0,0 +1,1 @@\n+a: 1\n"}, {`{"a":1}`, ``, "--- x\n+++ y\n@@ -1,1 +0,0 @@\n-a: 1\n"}, {``, ``, ``}, {old, old, ``}} {
		if got, err := (Options{}).Diff([]byte(c[0]), []byte(c[1]), "x", "y"); err != nil || got != c[2] {
			t.Errorf("%s to %s: %v\n%s", c[0], c[1], err, got)
		}
	}
}

// TestDifferenceLeadsThere: applied to the first text the edits give the second, with and without the bound on them.
func TestDifferenceLeadsThere(t *testing.T) {
	t.Parallel()
	seed := time.Now().UnixNano()
	random := rand.New(rand.NewPCG(uint64(seed), 1))
	for round := range 2_000 {
		size := 12
		if round%100 == 0 {
			size = 1_500
		}
		text := func() (lines []string) {
			for range random.IntN(size) {
				lines = append(lines, string(rune('a'+random.IntN(5))))
			}
			return lines
		}
		a, b := text(), text()
		var made []string
		at := 0
		for _, e := range difference(a, b) {
			made = append(made, a[at:e.a]...)
			if len(made) != e.b {
				t.Fatalf("seed %d: %q to %q: an edit at %d stands at %d", seed, a, b, e.b, len(made))
			}
			made = append(made, b[e.b:e.b+e.added]...)
			at = e.a + e.removed
		}
		if made = append(made, a[at:]...); strings.Join(made, "") != strings.Join(b, "") {
			t.Fatalf("seed %d: %q to %q gives %q", seed, a, b, made)
		}
	}
}

// TestYAML: what is written is read as the same by others.
func TestYAML(t *testing.T) {
	t.Parallel()
	doc := `{"a":{"b":[],"c":{},"d":[[1,2],[{"x":1,"y":{"z":[true,null]}}],"s"]},"ml":"a\n b\n\nc\n","odd":["1","true","","a: b","a #b","- x","\u001b[2J","ü","0x1","1e3","~","a\nb","a\n\n"," x","a\tb\nc","#","!x","*a","&a","%","|","a:"],"n":1.50,
		"10.0.0.1":"10.0.0.1","y":"y","docker.io/x:1@sha256:ab":"k=v,w"}`
	text, err := Options{}.YAML([]byte(doc))
	if err != nil || strings.ContainsRune(text, 27) {
		t.Fatalf("%v\n%s", err, text)
	}
	sameInYAML(t, doc, text)
	for _, want := range []string{"\nml: |\n  a\n   b\n\n  c\n", "\n  d:\n  - - 1\n    - 2\n  - - x: 1\n      \"y\":\n        z:\n        - true\n", "docker.io/x:1@sha256:ab: k=v,w\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func sameInYAML(t *testing.T, doc, text string) {
	t.Helper()
	var want, got any
	if err := json.Unmarshal([]byte(doc), &want); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%s\nis written as\n%s\nand read as %v, %v", doc, text, got, err)
	}
}

func FuzzYAML(f *testing.F) {
	for _, text := range []string{"", "a", "1", "a: b", "\n", "a\nb", " a\nb", "\u2028", "ÿ\nb", "<<", "=", "a\n \nb"} {
		f.Add(text, "x")
		f.Add("x", text)
	}
	f.Add(strings.Repeat("a", 2000), "x\ny")
	f.Add(strings.Repeat("\n", 700), "x")
	f.Fuzz(func(t *testing.T, name, value string) {
		doc, _ := json.Marshal(map[string]any{name: []any{map[string]any{name: value}, value, []any{value, name}}, "d" + name: map[string]any{"e": value}})
		text, err := Options{}.YAML(doc)
		if err != nil {
			t.Fatal(err)
		}
		sameInYAML(t, string(doc), text)
	})
}

func FuzzBetween(f *testing.F) {
	for _, doc := range []string{`{}`, `{"metadata":null}`, `{"metadata":{"annotations":[1]}}`, `{"a":[{"name":"a"},{"name":1}]}`, `{"kind":"Secret","apiVersion":"v1","data":{"a":"b"}}`,
		`{"a":[{"type":"x","v":1},{"type":"y"}],"b":1e999}`, `{"a":[{"type":"y"},{"type":"x","v":2}],"":""}`, "{\"\xff\":\"\xff\"}"} {
		f.Add(doc, `{"a":[1]}`, 3)
		f.Add(doc, doc, 1)
	}
	f.Fuzz(func(t *testing.T, old, new string, bound int) {
		r := Options{MaxChanges: bound % 10, MaxValueBytes: bound % 50}
		list, more, err := r.Compare([]byte(old), []byte(new))
		back, moreBack, errBack := r.Compare([]byte(new), []byte(old))
		if len(list)+more != len(back)+moreBack || (err == nil) != (errBack == nil) {
			t.Fatalf("%q to %q: %v and %d more, %v; back: %v and %d more, %v", old, new, list, more, err, back, moreBack, errBack)
		}
		if _, err := json.Marshal(list); err != nil {
			t.Fatalf("%q to %q: %v", old, new, err)
		}
		was, is, err := r.Redact([]byte(old), []byte(new))
		if err == nil && (old != "" && !json.Valid(was) || new != "" && !json.Valid(is)) {
			t.Fatalf("%q, %q: %s, %s", old, new, was, is)
		}
		if diff, err := r.Diff([]byte(old), []byte(new), "a", "b"); err == nil && was != nil && is != nil && len(list) > 0 && diff == "" {
			t.Fatalf("%q to %q: %v, and no diff", old, new, line(list))
		}
	})
}

func BenchmarkBetween(b *testing.B) {
	pod := func(phase string) []byte {
		return []byte(`{"metadata":{"name":"web","namespace":"default","uid":"u","labels":{"app":"web"},"managedFields":[{"manager":"m","fieldsV1":{"f:spec":{}}}]},"spec":{"containers":[{"name":"a","image":"nginx","env":[{"name":"A","value":"1"},{"name":"B","value":"2"}],"ports":[{"containerPort":80}]},{"name":"b","image":"nginx"}],"volumes":[{"name":"v","emptyDir":{}}]},"status":{"phase":"` + phase + `","conditions":[{"type":"Ready","status":"True"},{"type":"ContainersReady","status":"True"}]}}`)
	}
	old, new := pod("Pending"), pod("Running")
	for b.Loop() {
		Options{}.Compare(old, new)
	}
}
