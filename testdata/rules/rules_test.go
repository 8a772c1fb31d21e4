package rules

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/kinds/defaults"
	prepare "apilet/internal/kinds/strategy"
	"apilet/internal/kinds/validation"
)

var (
	objects = flag.Int("objects", 5000, "how many `objects` TestRulesAgree generates")
	seed    = flag.Uint64("seed", 1, "seed of the generator")
	show    = flag.Int("show", 40, "how many `kinds` of difference are printed")
)

// minAgreement is the share of broken objects, in percent, for which both sides return the same errors.
const minAgreement = 99.9

const documents = "../../internal/kinds/validation/testdata/"

// TestRulesAgree generates objects by breaking valid documents at one to three random places, and
// compares the errors of apilet's rules with those of Kubernetes' for a create, an update of the valid
// object and an update of its status.
func TestRulesAgree(t *testing.T) {
	docs := append(kubetest.ReadDocuments(t, documents+"objects.yaml"), kubetest.ReadDocuments(t, documents+"statuses.yaml")...)
	random := rand.New(rand.NewPCG(*seed, *seed))
	kinds, examples := map[string]int{}, map[string]string{}
	refused, differ := 0, 0
	for range *objects {
		c := generate(t, docs[random.IntN(len(docs))], random)
		if c == nil {
			continue
		}
		ours, theirs := c.compare(t)
		if len(ours)+len(theirs) > 0 {
			refused++
		}
		if slices.Equal(ours, theirs) {
			continue
		}
		differ++
		for _, text := range difference(ours, theirs) {
			key := c.kind + " " + c.operation + ": " + numbers.ReplaceAllString(text, "0")
			kinds[key]++
			examples[key] = c.what
		}
	}
	agreement := 100 * float64(refused-differ) / float64(refused)
	t.Logf("seed %d: %d objects, %d of them invalid, %.2f %% with the same errors", *seed, *objects, refused, agreement)
	byCount := slices.SortedFunc(maps.Keys(kinds), func(a, b string) int { return kinds[b] - kinds[a] })
	for _, key := range byCount[:min(*show, len(byCount))] {
		t.Logf("%4d %s\n\t(%s)", kinds[key], key, examples[key])
	}
	if refused < *objects/4 || agreement < minAgreement {
		t.Errorf("%d invalid objects with %.2f %% agreement; want at least a quarter of all, and %.1f %%", refused, agreement, minAgreement)
	}
}

var numbers = regexp.MustCompile(`[0-9]+`)

// difference lists the errors that only one side has.
func difference(ours, theirs []string) (all []string) {
	for _, text := range ours {
		if !slices.Contains(theirs, text) {
			all = append(all, "only apilet: "+text)
		}
	}
	for _, text := range theirs {
		if !slices.Contains(ours, text) {
			all = append(all, "only Kubernetes: "+text)
		}
	}
	if len(all) == 0 {
		all = append(all, "different numbers of the same errors")
	}
	return all
}

// A generated object, and the object that it replaces.
type generated struct {
	kind, operation, what string
	old, obj              func() runtime.Object
}

// generate breaks a document. It returns nil if the result cannot be decoded.
func generate(t *testing.T, doc []byte, random *rand.Rand) *generated {
	var root map[string]any
	if err := json.Unmarshal(doc, &root); err != nil {
		t.Fatal(err)
	}
	c := &generated{kind: fmt.Sprint(root["kind"]), operation: []string{"create", "update"}[random.IntN(2)]}
	top := "spec"
	if _, ok := root["status"]; ok {
		c.operation, top = "status", "status"
	}
	var what []string
	for range 1 + random.IntN(3) {
		what = append(what, breakPlace(root, top, random))
	}
	c.what = strings.Join(what, ", ")
	broken, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubetest.TryDecode(broken); err != nil {
		return nil
	}
	c.old = func() runtime.Object { return prepared(kubetest.Decode(t, doc), nil) }
	c.obj = func() runtime.Object { return kubetest.Decode(t, broken) }
	return c
}

// breakPlace changes a random value below root[top], or beside it if there is none, and describes the change.
func breakPlace(root map[string]any, top string, random *rand.Rand) string {
	var places []func() string
	var walk func(path string, value any, set func(any), remove func())
	walk = func(path string, value any, set func(any), remove func()) {
		change := func(what string, do func()) {
			places = append(places, func() string { do(); return what + " " + path })
		}
		if remove != nil {
			change("without", remove)
		}
		switch v := value.(type) {
		case map[string]any:
			change("empty", func() { set(map[string]any{}) })
			for _, key := range slices.Sorted(maps.Keys(v)) {
				walk(path+"."+key, v[key], func(x any) { v[key] = x }, func() { delete(v, key) })
			}
		case []any:
			change("empty", func() { set([]any{}) })
			for i := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), v[i], func(x any) { v[i] = x }, nil)
			}
			if len(v) > 0 {
				change("twice", func() { set(append(slices.Clone(v), v[len(v)-1])) })
			}
		case string:
			for _, text := range []string{"", "Bad_Value!", "ok", "-1", strings.Repeat("x", 300), "a/../b", "10.0.0.256", "::1"} {
				change(fmt.Sprintf("%.12q at", text), func() { set(text) })
			}
		case float64:
			for _, n := range []float64{-1, 0, 1, 100001, 1 << 31} {
				change(fmt.Sprint(n, " at"), func() { set(n) })
			}
		case bool:
			change("not", func() { set(!v) })
		}
	}
	for _, key := range slices.Sorted(maps.Keys(root)) {
		switch {
		case key == "apiVersion", key == "kind", key == "metadata", key == "status" && top != "status", key != "status" && top == "status":
		default:
			walk(key, root[key], func(x any) { root[key] = x }, func() { delete(root, key) })
		}
	}
	if len(places) == 0 {
		return "nothing"
	}
	return places[random.IntN(len(places))]()
}

// prepared makes an object what it is before validation: defaulted, prepared, with addresses. old is
// nil for a create. It returns nil if apilet's allocator refuses it.
func prepared(obj, old runtime.Object) runtime.Object {
	o := obj.(metav1.Object)
	o.SetUID(types.UID(kubetest.FixedUID))
	o.SetResourceVersion("1")
	if !kubetest.OfTheCluster(obj.GetObjectKind().GroupVersionKind().Kind) {
		o.SetNamespace("default")
	}
	defaults.Set(obj)
	if old == nil {
		prepare.PrepareForCreate(obj)
	} else {
		prepare.PrepareForUpdate(obj, old)
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return obj
	}
	before, _ := old.(*corev1.Service)
	if len(validation.FitFamilies(svc, before, []corev1.IPFamily{corev1.IPv4Protocol})) > 0 {
		return nil
	}
	if svc.Spec.ClusterIP == "" && svc.Spec.Type != corev1.ServiceTypeExternalName {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.9", []string{"10.96.0.9"}
	}
	if prepare.NeedsHealthPort(svc) && svc.Spec.HealthCheckNodePort == 0 {
		svc.Spec.HealthCheckNodePort = 30009
	}
	return obj
}

// compare returns the errors of both sides, sorted, because maps have no order.
func (c *generated) compare(t *testing.T) (ours, theirs []string) {
	obj := c.obj()
	gv := obj.GetObjectKind().GroupVersionKind().GroupVersion()
	var old runtime.Object
	if c.operation == "create" {
		obj = prepared(obj, nil)
	} else if old = c.old(); c.operation == "update" {
		obj = prepared(obj, old)
	} else {
		o := obj.(metav1.Object)
		o.SetUID(types.UID(kubetest.FixedUID))
		o.SetResourceVersion("1")
		o.SetNamespace(old.(metav1.Object).GetNamespace())
		defaults.Set(obj)
		prepare.PrepareForStatusUpdate(obj, old)
		old = old.DeepCopyObject()
	}
	if obj == nil || !has(obj, c.operation) {
		return nil, nil
	}
	copied := obj.DeepCopyObject()
	switch c.operation {
	case "create":
		ours = texts(validation.ValidateCreate(t.Context(), gv, obj))
	case "update":
		ours = texts(validation.ValidateUpdate(t.Context(), gv, "", obj, old))
	default:
		ours = texts(validation.ValidateUpdate(t.Context(), gv, "status", obj, old))
	}
	defer func() {
		if r := recover(); r != nil { // kube-apiserver closes the connection then
			t.Logf("Kubernetes' rules panic: %v (%s %s: %s)", r, c.kind, c.operation, c.what)
			theirs = ours
		}
	}()
	switch c.operation {
	case "create":
		theirs = texts(ValidateCreate(t.Context(), gv, copied))
	case "update":
		theirs = texts(ValidateUpdate(t.Context(), gv, "", copied, old))
	default:
		theirs = texts(ValidateUpdate(t.Context(), gv, "status", copied, old))
	}
	return ours, theirs
}

// has reports whether the strategy of a type is imported here.
func has(obj runtime.Object, operation string) bool {
	s, _ := strategyOf(obj)
	return s.object != nil && (operation != "status" || s.status != nil)
}

// texts returns errors without those of the metadata, which apilet checks elsewhere.
func texts(errs field.ErrorList) (all []string) {
	for _, err := range errs {
		if !strings.HasPrefix(err.Field, "metadata.") {
			all = append(all, err.Error())
		}
	}
	slices.Sort(all)
	return all
}
