package validation_test

// This file holds the rules against the answers of a kube-apiserver: what it says when one place of an object is broken.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/strategy"
	"apilet/internal/kinds/validation"
)

// A validationCase breaks one place of one of testdata/objects.yaml; Causes are kube-apiserver's, none when it takes the object.
type validationCase struct {
	Doc    int         `json:"doc"`
	Update bool        `json:"update,omitempty"` // of the unbroken object
	At     string      `json:"at"`               // /spec/ports/0/port
	Value  any         `json:"value,omitempty"`  // absent: removed
	Remove bool        `json:"remove,omitempty"`
	Causes [][3]string `json:"causes,omitempty"` // reason, field, message
}

// mutate returns the document with one place set or removed.
func mutate(t testing.TB, doc []byte, c *validationCase) []byte {
	t.Helper()
	var root any
	if err := json.Unmarshal(doc, &root); err != nil {
		t.Fatal(err)
	}
	root = changePlace(root, strings.Split(strings.TrimPrefix(c.At, "/"), "/"), c)
	out, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func changePlace(node any, steps []string, c *validationCase) any {
	switch parent := node.(type) {
	case map[string]any:
		key := strings.ReplaceAll(steps[0], "~1", "/")
		if len(steps) > 1 {
			parent[key] = changePlace(parent[key], steps[1:], c)
		} else if c.Remove {
			delete(parent, key)
		} else {
			parent[key] = c.Value
		}
		return parent
	case []any:
		i, err := strconv.Atoi(steps[0])
		switch {
		case err != nil:
			return append(parent, c.Value)
		case i >= len(parent): // removed before
		case len(steps) > 1:
			parent[i] = changePlace(parent[i], steps[1:], c)
		case c.Remove:
			return slices.Delete(parent, i, i+1)
		default:
			parent[i] = c.Value
		}
		return parent
	}
	return node
}

// breakages lists what is tried at every place of a document but its metadata and kind.
func breakages(t testing.TB, doc []byte, update bool) (cases []validationCase) {
	t.Helper()
	var root map[string]any
	if err := json.Unmarshal(doc, &root); err != nil {
		t.Fatal(err)
	}
	for _, key := range slices.Sorted(maps.Keys(root)) {
		switch key {
		case "apiVersion", "kind", "metadata", "status":
		default:
			cases = append(cases, breakagesBelow("/"+key, root[key], update)...)
		}
	}
	return cases
}

func breakagesBelow(at string, node any, update bool) (cases []validationCase) {
	try := func(at string, value any) {
		cases = append(cases, validationCase{At: at, Value: value, Update: update})
	}
	var walk func(at string, node any)
	walk = func(at string, node any) {
		cases = append(cases, validationCase{At: at, Remove: true, Update: update})
		switch n := node.(type) {
		case map[string]any:
			if !update {
				try(at, map[string]any{})
			}
			for _, key := range slices.Sorted(maps.Keys(n)) {
				walk(at+"/"+strings.ReplaceAll(key, "/", "~1"), n[key])
			}
			if plain := len(n) > 0 && !slices.ContainsFunc(slices.Collect(maps.Values(n)), func(v any) bool { _, ok := v.(string); return !ok }); plain {
				try(at+"/bad key!", "1")
				try(at+"/new", "1")
			}
		case []any:
			if !update {
				try(at, []any{})
			}
			for i, item := range n {
				walk(fmt.Sprintf("%s/%d", at, i), item)
			}
			if len(n) > 0 {
				try(at+"/-", n[len(n)-1])
			}
		case string:
			if update {
				try(at, "changed")
				return
			}
			for _, value := range []string{"", "Bad_Value!", "ok", "-1", strings.Repeat("x", 64), "a/../b"} {
				try(at, value)
			}
		case float64:
			if update {
				try(at, n+1)
				return
			}
			for _, value := range []int{-1, 0, 100001} {
				try(at, value)
			}
		case bool:
			try(at, !n)
		}
	}
	walk(at, node)
	return cases
}

var namesAndNumbers = regexp.MustCompile(`"[^"]*"|[0-9]+`)

// A recorder keeps the oracle's answers; what is refused for other reasons than validation is left out.
type recorder struct {
	t    *testing.T
	docs [][]byte
	seen map[string]int
	out  bytes.Buffer
}

func (r *recorder) ask(i int, c validationCase, method, path string, doc []byte) {
	code, answer := kubetest.AskOracle(r.t, method, path, doc)
	answer = kubetest.AnyUID.ReplaceAll(answer, []byte(kubetest.FixedUID))
	var status metav1.Status
	if err := json.Unmarshal(answer, &status); code == http.StatusUnprocessableEntity && err == nil && status.Details != nil {
		for _, cause := range status.Details.Causes {
			if cause.Field != "metadata.labels" { // copied there from a template; the caller's to check
				c.Causes = append(c.Causes, [3]string{string(cause.Type), cause.Field, kubetest.RecordedWords(cause.Message)})
			}
		}
	}
	fromElsewhere := strings.Contains(status.Message, "failed to allocate") || strings.Contains(status.Message, "metadata.finalizers") || strings.Contains(status.Message, "compilation failed")
	if code != 200 && code != 201 && len(c.Causes) == 0 || fromElsewhere {
		return
	}
	// of what reads the same but for names and numbers one is enough, and of what is taken one in eight
	kind := kubetest.CollectionPath(kubetest.Decode(r.t, r.docs[i]).GetObjectKind().GroupVersionKind())
	key := kind + fmt.Sprint(c.Update) + namesAndNumbers.ReplaceAllString(fmt.Sprint(c.Causes), "")
	if r.seen[key]++; len(c.Causes) > 0 && r.seen[key] > 1 || len(c.Causes) == 0 && r.seen[key]%8 != 1 {
		return
	}
	c.Doc = i
	line, err := json.Marshal(c)
	if err != nil {
		r.t.Fatal(err)
	}
	r.out.Write(append(line, '\n'))
}

// make creates an object for updates and returns its version.
func (r *recorder) make(path string, doc []byte) string {
	code, answer := kubetest.AskOracle(r.t, "POST", path, doc)
	var made struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(answer, &made); err != nil || code != http.StatusCreated {
		r.t.Errorf("%s: %d %s", doc, code, answer)
	}
	return made.Metadata.ResourceVersion
}

func atVersion(t testing.TB, doc []byte, version string) []byte {
	return mutate(t, doc, &validationCase{At: "/metadata/resourceVersion", Value: version})
}

func recordValidation(t *testing.T, docs [][]byte) {
	r := &recorder{t: t, docs: docs, seen: map[string]int{}}
	for i, doc := range docs {
		obj := kubetest.Decode(t, doc)
		path, name := kubetest.CollectionPath(obj.GetObjectKind().GroupVersionKind()), obj.(metav1.Object).GetName()
		for _, c := range breakages(t, doc, false) {
			r.ask(i, c, "POST", path+"?dryRun=All", mutate(t, doc, &c))
		}
		version := r.make(path, doc)
		for _, c := range breakages(t, doc, true) {
			r.ask(i, c, "PUT", path+"/"+name+"?dryRun=All", atVersion(t, mutate(t, doc, &c), version))
		}
		kubetest.AskOracle(t, "DELETE", path+"/"+name+"?gracePeriodSeconds=0&propagationPolicy=Background", nil)
	}
	if err := os.WriteFile("testdata/cases.jsonl", r.out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func recordStatuses(t *testing.T, docs [][]byte) {
	r := &recorder{t: t, docs: docs, seen: map[string]int{}}
	for i, doc := range docs {
		obj := kubetest.Decode(t, doc)
		path, name := kubetest.CollectionPath(obj.GetObjectKind().GroupVersionKind()), obj.(metav1.Object).GetName()
		version := r.make(path, doc)
		code, answer := kubetest.AskOracle(t, "PUT", path+"/"+name+"/status", atVersion(t, doc, version))
		var made struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
		}
		if err := json.Unmarshal(answer, &made); err != nil || code != http.StatusOK {
			t.Errorf("%s: %d %s", doc, code, answer)
		}
		for _, c := range statusBreakages(t, doc) {
			r.ask(i, c, "PUT", path+"/"+name+"/status?dryRun=All", atVersion(t, mutate(t, doc, &c), made.Metadata.ResourceVersion))
		}
		kubetest.AskOracle(t, "DELETE", path+"/"+name+"?gracePeriodSeconds=0&propagationPolicy=Background", nil)
	}
	if err := os.WriteFile("testdata/statuses.jsonl", r.out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func statusBreakages(t testing.TB, doc []byte) []validationCase {
	var root map[string]any
	if err := json.Unmarshal(doc, &root); err != nil {
		t.Fatal(err)
	}
	return breakagesBelow("/status", root["status"], false)
}

// gvOf returns the group and version that a decoded document names.
func gvOf(obj runtime.Object) schema.GroupVersion {
	return obj.GetObjectKind().GroupVersionKind().GroupVersion()
}

func fixed(obj runtime.Object) runtime.Object {
	o := obj.(metav1.Object)
	o.SetUID(types.UID(kubetest.FixedUID))
	o.SetResourceVersion("1")
	if !kubetest.OfTheCluster(obj.GetObjectKind().GroupVersionKind().Kind) {
		o.SetNamespace("default")
	}
	defaults.Set(obj)
	return obj
}

// check validates a case as the server does: defaults, preparation, rules.
func checkCase(t testing.TB, doc []byte, c *validationCase) field.ErrorList {
	obj := fixed(kubetest.Decode(t, mutate(t, doc, c)))
	if !c.Update {
		strategy.PrepareForCreate(t.Context(), obj)
		if errs := fitFamilies(obj, nil); len(errs) > 0 {
			return errs
		}
		return validation.ValidateCreate(t.Context(), gvOf(obj), obj)
	}
	old := fixed(kubetest.Decode(t, doc))
	strategy.PrepareForCreate(t.Context(), old)
	fitFamilies(old, nil)
	allocate(old)
	defaults.Set(old)
	obj.(metav1.Object).SetGeneration(old.(metav1.Object).GetGeneration())
	strategy.PrepareForUpdate(t.Context(), "", obj, old)
	if errs := fitFamilies(obj, old); len(errs) > 0 {
		return errs
	}
	return validation.ValidateUpdate(t.Context(), gvOf(obj), "", obj, old)
}

// fitFamilies is what the allocator asks first, on a cluster of IPv4.
func fitFamilies(obj, old runtime.Object) field.ErrorList {
	before, _ := old.(*corev1.Service)
	if svc, ok := obj.(*corev1.Service); ok {
		return validation.SetIPFamilies(svc, before, []corev1.IPFamily{corev1.IPv4Protocol})
	}
	return nil
}

// allocate gives a Service the address and the port that the allocator would.
func allocate(obj runtime.Object) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return
	}
	if svc.Spec.ClusterIP == "" && svc.Spec.Type != corev1.ServiceTypeExternalName {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.9", []string{"10.96.0.9"}
	}
	if strategy.NeedsHealthPort(svc) {
		svc.Spec.HealthCheckNodePort = 30009
	}
}

// checkStatus validates a broken status as the server does.
func checkStatus(t testing.TB, doc []byte, c *validationCase) field.ErrorList {
	old, obj := fixed(kubetest.Decode(t, doc)), fixed(kubetest.Decode(t, mutate(t, doc, c)))
	strategy.PrepareForUpdate(t.Context(), "status", obj, old)
	return validation.ValidateUpdate(t.Context(), gvOf(obj), "status", obj, old)
}

func TestValidation(t *testing.T) {
	t.Parallel()
	docs := kubetest.ReadDocuments(t, "testdata/objects.yaml")
	if *kubetest.OracleURL != "" {
		recordValidation(t, docs)
	}
	compareAll(t, docs, "testdata/cases.jsonl", checkCase)
}

func TestStatusValidation(t *testing.T) {
	t.Parallel()
	docs := kubetest.ReadDocuments(t, "testdata/statuses.yaml")
	if *kubetest.OracleURL != "" {
		recordStatuses(t, docs)
	}
	compareAll(t, docs, "testdata/statuses.jsonl", checkStatus)
}

// compareAll replays recorded cases and asks for the shares that apilet promises.
func compareAll(t *testing.T, docs [][]byte, file string, check func(testing.TB, []byte, *validationCase) field.ErrorList) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var refused, codes, fields, messages, wrongly int
	for _, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var c validationCase
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		errs := check(t, docs[c.Doc], &c)
		if len(c.Causes) == 0 {
			if len(errs) > 0 {
				wrongly++
				t.Errorf("%s: refused: %v", line, errs)
			}
			continue
		}
		refused++
		sameFields, sameMessages := compareCauses(errs, c.Causes)
		if len(errs) > 0 {
			codes++
		}
		if sameFields {
			fields++
		}
		if sameMessages {
			messages++
		}
		if testing.Verbose() && !sameMessages {
			t.Logf("%s %s\n got %v\nwant %v", c.At, line[:min(len(line), 120)], errs, c.Causes)
		}
	}
	if refused < 100 {
		t.Errorf("%d broken objects are too few to say anything", refused)
	}
	percent := func(n int) float64 { return 100 * float64(n) / float64(refused) }
	t.Logf("%d broken objects: %.1f %% refused, %.1f %% with the same fields, %.1f %% in the same words; %d valid ones refused",
		refused, percent(codes), percent(fields), percent(messages), wrongly)
	if percent(codes) < 98 || percent(fields) < 95 || percent(messages) < 90 {
		t.Errorf("want at least 98 %%, 95 %% and 90 %%")
	}
}

// compareCauses compares without the errors of labels that were copied from a template, which are not
// recorded.
func compareCauses(errs field.ErrorList, want [][3]string) (sameFields, sameMessages bool) {
	errs = slices.DeleteFunc(errs, func(err *field.Error) bool { return err.Field == "metadata.labels" })
	if len(errs) != len(want) {
		return false, false
	}
	sameFields, sameMessages = true, true
	for i, err := range errs {
		sameFields = sameFields && err.Field == want[i][1]
		sameMessages = sameMessages && string(err.Type) == want[i][0] && kubetest.RecordedWords(err.ErrorBody()) == want[i][2]
	}
	return sameFields, sameFields && sameMessages
}

func TestValidObjectsPass(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../../../testdata/defaults/objects.yaml", "testdata/objects.yaml"} {
		for _, doc := range kubetest.ReadDocuments(t, file) {
			obj := fixed(kubetest.Decode(t, doc))
			strategy.PrepareForCreate(t.Context(), obj)
			allocate(obj)
			if errs := validation.ValidateCreate(t.Context(), gvOf(obj), obj); len(errs) > 0 {
				t.Errorf("%s: %v", doc, errs)
			}
			if errs := validation.ValidateUpdate(t.Context(), gvOf(obj), "", obj.DeepCopyObject(), obj); len(errs) > 0 {
				t.Errorf("update with itself: %s: %v", doc, errs)
			}
		}
	}
}

// Whatever decodes is refused or taken, and nothing panics: every place broken, two at a time here and there, and empty objects.
func TestBrokenObjectsNeverPanic(t *testing.T) {
	t.Parallel()
	for _, doc := range kubetest.ReadDocuments(t, "testdata/objects.yaml") {
		all := append(breakages(t, doc, false), breakages(t, doc, true)...)
		for i := 0; i < len(all); i += 4 { // recorded cases have the rest
			c, broken := all[i], doc
			if other := all[i*7919%len(all)]; !strings.HasPrefix(c.At, other.At) {
				broken = mutate(t, doc, &other)
			}
			if _, err := kubetest.TryDecode(mutate(t, broken, &c)); err != nil {
				continue
			}
			if _, err := kubetest.TryDecode(broken); err == nil || !c.Update {
				checkCase(t, broken, &c)
			}
		}
		obj := reflect.New(reflect.TypeOf(kubetest.Decode(t, doc)).Elem()).Interface().(runtime.Object)
		defaults.Set(obj)
		gv := gvOf(kubetest.Decode(t, doc))
		validation.ValidateUpdate(t.Context(), gv, "", obj, obj)
		strategy.PrepareForCreate(t.Context(), obj)
		validation.ValidateCreate(t.Context(), gv, obj)
	}
	for _, doc := range kubetest.ReadDocuments(t, "testdata/statuses.yaml") {
		for _, c := range statusBreakages(t, doc) {
			if _, err := kubetest.TryDecode(mutate(t, doc, &c)); err == nil {
				checkStatus(t, doc, &c)
			}
		}
	}
}

func BenchmarkValidateDeployment(b *testing.B) {
	d := kubetest.TwentyContainers()
	defaults.Set(d)
	strategy.PrepareForCreate(b.Context(), d)
	if errs := validation.ValidateCreate(b.Context(), appsv1.SchemeGroupVersion, d); len(errs) > 0 {
		b.Fatal(errs)
	}
	b.ReportAllocs()
	for b.Loop() {
		validation.ValidateCreate(b.Context(), appsv1.SchemeGroupVersion, d)
	}
}
