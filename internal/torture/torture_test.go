package torture

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"apilet/internal/history"
	"apilet/internal/request"
)

// A teller makes up a history.
type teller struct{ lines []history.Line }

func (t *teller) tell(kind, who, namespaceAndName, object string) *teller {
	namespace, name, _ := strings.Cut(namespaceAndName, "/")
	verb := map[string]string{"ADDED": "create", "MODIFIED": "update", "DELETED": "delete"}[kind]
	line := history.Line{Revision: int64(100 + len(t.lines)), Type: kind, Verb: verb, Version: "v1", Resource: "configmaps", Namespace: namespace, Name: name,
		UID: uid(len(t.lines)), Agent: who}
	if kind == "DELETED" {
		line.Old, line.UID = []byte(object), "00000000-0000-4000-8000-00000000000a"
	} else {
		line.New = []byte(object)
	}
	t.lines = append(t.lines, line)
	return t
}

func uid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func configMap(name, generate, uid, value, owner string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"generateName":%q,"uid":%q,"resourceVersion":%q,"creationTimestamp":"2026-11-26T10:00:0%sZ",
		"ownerReferences":[{"kind":"Nest","name":"n","uid":%q}]},"data":{"k":%q}}`, name, generate, uid, uid[30:], uid[35:], owner, value)
}

func TestStatesAreComparedWithoutWhatIsNeverTheSame(t *testing.T) {
	t.Parallel()
	const nobody = "00000000-0000-4000-8000-0000000000ff"
	one := (&teller{}).tell("ADDED", "c", "x/a-1", configMap("a-1", "a-", uid(1), "same", nobody)).tell("ADDED", "c", "x/b", configMap("b", "", uid(2), "a-1", nobody))
	two := (&teller{}).tell("ADDED", "c", "x/b", configMap("b", "", uid(3), "a-7", nobody)).tell("ADDED", "c", "x/a-7", configMap("a-7", "a-", uid(4), "same", nobody))
	ref := newReference([]state{normalise(one.lines, nil), normalise(two.lines, nil)})
	if d := ref.compare(normalise(two.lines, nil)); len(d) > 0 || len(ref.loose)+len(ref.loosePaths) > 0 {
		t.Errorf("differences %v, loose %v %v", d, ref.loose, ref.loosePaths)
	}
	two.tell("ADDED", "c", "x/a-8", configMap("a-8", "a-", uid(5), "same", nobody))
	if d := fmt.Sprint(ref.compare(normalise(two.lines, nil))); d != "[configmaps x/a-*2 is left over]" {
		t.Error(d)
	}
	two.tell("DELETED", "c", "x/b", configMap("b", "", uid(3), "a-7", nobody)).tell("DELETED", "c", "x/a-8", configMap("a-8", "a-", uid(5), "same", nobody))
	if d := fmt.Sprint(ref.compare(normalise(two.lines, nil))); d != "[configmaps x/b is missing]" {
		t.Error(d)
	}
}

func TestTheBookOfAddressesIsTheServers(t *testing.T) {
	t.Parallel()
	h := (&teller{}).tell("ADDED", agent, "/10.96.0.7", `{"metadata":{"name":"10.96.0.7"}}`)
	h.lines[0].Group, h.lines[0].Resource = "networking.k8s.io", "ipaddresses"
	if st := normalise(h.lines, nil); len(st) > 0 {
		t.Error(st)
	}
}

func TestWhatPlainRunsDoNotAgreeOnIsLeftOut(t *testing.T) {
	t.Parallel()
	of := func(value string, more ...string) state {
		h := (&teller{}).tell("ADDED", "c", "x/a", configMap("a", "", uid(1), value, ""))
		for _, name := range more {
			h.tell("ADDED", "c", "x/"+name, configMap(name, "", uid(2), "v", ""))
		}
		return normalise(h.lines, nil)
	}
	ref := newReference([]state{of("1", "sometimes"), of("2")})
	if d := ref.compare(of("3", "sometimes")); len(d) > 0 {
		t.Error(d)
	}
	strict := newReference([]state{of("1"), of("1")})
	lawful := strict.but(map[Difference]bool{{Object: "configmaps x/a", Path: ".data.k", Want: "1", Have: "3"}: true})
	if len(lawful.compare(of("3"))) > 0 || len(lawful.compare(of("4"))) != 1 || len(strict.compare(of("3"))) != 1 {
		t.Error("lawful is that difference, and no other")
	}
	if d := ref.compare(of("3", "never")); fmt.Sprint(d) != "[configmaps x/never is left over]" {
		t.Error(d)
	}
}

func TestConditionsAreWhatIsSo(t *testing.T) {
	t.Parallel()
	of := func(conditions string) state {
		return normalise((&teller{}).tell("ADDED", "c", "x/a", `{"status":{"conditions":[`+conditions+`]}}`).lines, nil)
	}
	ref := newReference([]state{of(`{"type":"A","status":"True","reason":"Made"},{"type":"B","status":"False"}`)})
	if d := ref.compare(of(`{"type":"B","status":"False","message":"told"},{"type":"A","status":"True","reason":"Found"}`)); len(d) > 0 {
		t.Error(d)
	}
	if d := fmt.Sprint(ref.compare(of(`{"type":"A","status":"False"},{"type":"B","status":"False"}`))); d != "[configmaps x/a has .status.conditions[A].status: False, and not True]" {
		t.Error(d)
	}
}

func TestNamesOfFieldsAreComparedWithoutUIDs(t *testing.T) {
	t.Parallel()
	of := func(data string) state {
		return normalise((&teller{}).tell("ADDED", "c", "x/a", `{"data":{`+data+`}}`).lines, nil)
	}
	ref := newReference([]state{of(fmt.Sprintf(`"rule-%s.yaml":"one","rule-%s.yaml":"two","plain":"p"`, uid(1), uid(2)))})
	if d := ref.compare(of(fmt.Sprintf(`"rule-%s.yaml":"two","rule-%s.yaml":"one","plain":"p"`, uid(3), uid(4)))); len(d) > 0 {
		t.Error(d)
	}
	if d := fmt.Sprint(ref.compare(of(fmt.Sprintf(`"rule-%s.yaml":"one","plain":"p"`, uid(3))))); d != "[configmaps x/a lacks .data.rule-(uid).yaml#2: two]" {
		t.Error(d)
	}
}

func TestWhatIsHiddenIsNotCompared(t *testing.T) {
	t.Parallel()
	of := func(value string) state {
		return normalise((&teller{}).tell("ADDED", "c", "x/a", `{"data":{"k":"`+value+`"}}`).lines, nil)
	}
	if d := newReference([]state{of("***")}).compare(of("*** (after)")); len(d) > 0 {
		t.Error(d)
	}
}

func TestOwnersThatAreGoneAreTold(t *testing.T) {
	t.Parallel()
	const owner = "00000000-0000-4000-8000-00000000000a" // what teller deletes
	h := (&teller{}).tell("ADDED", "c", "x/a", configMap("a", "", uid(1), "v", owner))
	ref := newReference([]state{normalise(h.lines, nil)})
	h.tell("ADDED", agent, "x/n", configMap("n", "", owner, "v", "")).tell("DELETED", agent, "x/n", "{}")
	if d := fmt.Sprint(ref.compare(normalise(h.lines, nil))); d != "[configmaps x/a has an owner that is gone]" {
		t.Error(d)
	}
}

func TestPlansAreTheSameForASeed(t *testing.T) {
	t.Parallel()
	h := (&teller{}).tell("ADDED", agent, "x/n", configMap("n", "", uid(0), "1", "")).tell("ADDED", "c", "x/a", configMap("a", "", uid(1), "1", "")).
		tell("MODIFIED", "c", "x/n", configMap("n", "", uid(0), "2", ""))
	o := &outcome{lines: h.lines, requests: []passed{
		{info: request.Info{Verb: "watch", Resource: "configmaps"}, query: "allowWatchBookmarks=true&resourceVersion=5"},
		{info: request.Info{Verb: "create", Resource: "configmaps", Namespace: "x"}, what: "create configmaps x/a", nth: 1, writes: true, code: 201, rev: 101},
		{info: request.Info{Verb: "update", Resource: "configmaps", Namespace: "x", Name: "n"}, what: "update configmaps x/n", nth: 1, writes: true, code: 200, rev: 102},
		{info: request.Info{Verb: "update", Resource: "configmaps", Namespace: "x", Name: "n"}, what: "update configmaps x/n", nth: 2, writes: true, code: 409},
	}}
	first, again, other := makePlans(o, 1, nil, 7), makePlans(o, 1, nil, 7), makePlans(o, 1, nil, 8)
	if !reflect.DeepEqual(first, again) || reflect.DeepEqual(first, other) || len(first) != len(other) {
		t.Errorf("%d, %d and %d plans", len(first), len(again), len(other))
	}
	var told []string
	for i, p := range first {
		if told = append(told, p.String()); i > 0 && p.rank < first[i-1].rank {
			t.Errorf("%s comes late", p)
		}
	}
	for _, want := range []string{"died after create configmaps x/a, without the answer", "somebody edited it before update configmaps x/n", "somebody deleted configmaps x/a",
		"started again after update configmaps x/n, saw what was before it", "was told 504, carried out to create configmaps x/a", "did not see change 1 of configmaps x/n",
		"saw configmaps late", "saw bookmarks alone of configmaps for a while", "was told 403, a quota is full to create configmaps x/a",
		"was told 500, a webhook is down to update configmaps x/n", "was told 422, by a policy to create configmaps x/a",
		"somebody deleted configmaps x/a, which a finalizer held for a while", "somebody deleted configmaps x/n after create configmaps x/a, and made it again"} {
		if n := strings.Count(strings.Join(told, "\n")+"\n", want+"\n"); n != 1 {
			t.Errorf("%d times %q in %q", n, want, told)
		}
	}
}

func TestWorkloadsAreReadOrRefused(t *testing.T) {
	t.Parallel()
	read := func(text string) ([]step, error) {
		path := filepath.Join(t.TempDir(), "w.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readWorkload(path)
	}
	steps, err := read("# nothing\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: x}\n---\nquiet: true\n---\n" +
		"wait: {apiVersion: v1, kind: ConfigMap, name: a, namespace: x, until: \"object.data.k == 'v'\"}\n---\ndelete: {apiVersion: v1, kind: Namespace, name: x}\n")
	var told []string
	for i := range steps {
		told = append(told, steps[i].String())
	}
	if got := strings.Join(told, ", "); err != nil || got != "apply ConfigMap x/a, quiet, wait for ConfigMap x/a, delete Namespace x" {
		t.Errorf("%s %v", got, err)
	}
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: ConfigMap\n": "metadata.name",
		"quite: true\n":                     "quite",
		"quiet: true\ndelete: {apiVersion: v1, kind: A, name: b}\n": "one of",
		"delete: {kind: A}\n": "apiVersion, kind and name",
		"wait: {apiVersion: v1, kind: A, name: b, until: \"object.\"}\n": "object.",
		"a: [\n": "document 1",
		"7\n":    "document 1",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestNamesAreReadFromBothForms(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: "a", GenerateName: "a-", Namespace: "x"}}
	body, err := runtime.Encode(protobuf.NewSerializer(nil, nil), pod)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range [][]byte{body, []byte(`{"metadata":{"name":"a","generateName":"a-"}}`)} {
		if name, generate := nameInBody(body); name != "a" || generate != "a-" {
			t.Errorf("%q: %q %q", body, name, generate)
		}
	}
	for i := range body { // never panics
		nameInBody(body[:i])
	}
}

func TestTimelinesLieBesideEachOther(t *testing.T) {
	t.Parallel()
	of := func(words string) (all []entry) {
		for _, w := range strings.Fields(words) {
			all = append(all, entry{"0", w})
		}
		return all
	}
	pairs := align(of("a b c"), of("a x c d"))
	a, b, c, d, x := entry{"0", "a"}, entry{"0", "b"}, entry{"0", "c"}, entry{"0", "d"}, entry{"0", "x"}
	if want := [][2]entry{{a, a}, {b, {}}, {{}, x}, {c, c}, {{}, d}}; !reflect.DeepEqual(pairs, want) {
		t.Errorf("%q", pairs)
	}
}

func TestProgressEstimatesWhatIsLeft(t *testing.T) {
	t.Parallel()
	var told strings.Builder
	began := time.Now()
	p := progress{out: &told, of: 100, began: began, lastReport: began}
	p.note(Verdict{Verdict: Wrong}, began.Add(10*time.Second)) // too early
	p.note(Verdict{Verdict: OK}, began.Add(20*time.Second))
	p.end = began.Add(100 * time.Second)
	p.note(Verdict{Verdict: OK}, began.Add(40*time.Second))
	p.of = 4
	p.note(Verdict{Verdict: OK}, began.Add(80*time.Second)) // done
	if want := "2 of 100 plans, 1 wrong, about 16m20s left\n3 of 100 plans, 1 wrong, about 1m0s left\n"; told.String() != want {
		t.Errorf("got %q, want %q", told.String(), want)
	}
}

func TestCausesHaveAShape(t *testing.T) {
	t.Parallel()
	one, two := shapes([]string{"configmaps zoo/robin-2 is missing"}), shapes([]string{"configmaps zoo/blackbird-14 is missing"})
	if other := shapes([]string{"configmaps zoo/robin-2 is left over"}); !reflect.DeepEqual(one, two) || reflect.DeepEqual(one, other) {
		t.Error(one, two, other)
	}
}

func TestObjectsAreLeftOutWithAllStepsAboutThem(t *testing.T) {
	t.Parallel()
	steps := []step{{ref: ref{"v1", "Namespace", "", "x"}}, {ref: ref{"v1", "ConfigMap", "x", "a"}}, {Quiet: true}, {ref: ref{"v1", "ConfigMap", "x", "b"}},
		{ref: ref{"v1", "ConfigMap", "x", "a"}, Delete: &ref{}}}
	if got := strings.Join(objectsOf(steps), ", "); got != "Namespace x, ConfigMap x/a, ConfigMap x/b" {
		t.Error(got)
	}
	if got := withoutObjects(steps, []string{"ConfigMap x/a"}); len(got) != 3 || len(steps) != 5 || got[2].ref.Name != "b" {
		t.Error(got)
	}
	if !holdsOthers(steps, "Namespace x") || holdsOthers(steps, "Namespace y") || holdsOthers(steps, "ConfigMap x/a") {
		t.Error("which namespaces hold others")
	}
}

func TestThePageMakesNoMarkupOfText(t *testing.T) {
	t.Parallel()
	const evil = `<script>alert("'1&'")</script>`
	s := &story{title: evil, why: []string{evil}, pairs: [][2]entry{{{"  0.10", "controller create " + evil}, {}}, {{}, {"  0.20", pointHere}}}, said: evil, notes: []string{evil}}
	page := s.html()
	if strings.Contains(page, "<script") || strings.Count(page, "&#60;script&#62;") != 6 || !strings.Contains(page, `<tr class="point">`) {
		t.Error(page)
	}
	if text := s.markdown(); !strings.Contains(text, "──▶ here") {
		t.Error(text)
	}
}
