package rules

// This file generates objects by changing random places in a document of the corpus. The new value
// is taken from the corpus, filled by randfill, or invalid.

import (
	"encoding/json"
	"fmt"
	"math/rand"
	randv2 "math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/scheme"
)

// A corpus contains documents and the values of their fields.
type corpus struct {
	seeds  map[*scheme.Resource][][]byte
	fields map[fieldKey][]reflect.Value
	types  map[reflect.Type][]reflect.Value
	names  map[string][]string // strings by the name of their field
	enums  map[string][]string // by package and name of the type
}

type fieldKey struct {
	in    reflect.Type
	index int
}

// documents are the files of valid objects.
var documents = []string{"seeds.yaml", "../../internal/kinds/validation/testdata/objects.yaml", "../../internal/kinds/validation/testdata/statuses.yaml",
	"../defaults/objects.yaml"}

func readCorpus(t *testing.T, rows []*scheme.Resource) *corpus {
	c := &corpus{map[*scheme.Resource][][]byte{}, map[fieldKey][]reflect.Value{}, map[reflect.Type][]reflect.Value{}, map[string][]string{}, readEnums(t)}
	for _, file := range documents {
		for _, doc := range kubetest.ReadDocuments(t, file) {
			c.add(rows, doc)
		}
	}
	for _, row := range rows {
		if len(c.seeds[row]) == 0 {
			t.Errorf("no document of %s %s", row.APIVersion(), row.Kind)
		}
	}
	return c
}

// add decodes a document as every version of the kind that has all of its fields.
func (c *corpus) add(rows []*scheme.Resource, doc []byte) {
	var root map[string]any
	if err := json.Unmarshal(doc, &root); err != nil {
		panic(err)
	}
	group, _, grouped := strings.Cut(fmt.Sprint(root["apiVersion"]), "/")
	if !grouped {
		group = ""
	}
	for _, row := range rows {
		if row.Kind != root["kind"] || row.Group != group {
			continue
		}
		root["apiVersion"] = row.APIVersion()
		versioned := must(json.Marshal(root))
		obj := reflect.New(row.GoType)
		decoder := json.NewDecoder(strings.NewReader(string(versioned)))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(obj.Interface()); err != nil {
			continue
		}
		c.seeds[row] = append(c.seeds[row], versioned)
		c.collect("", obj.Elem())
	}
}

// collect notes all values inside v, which is in a field of that name.
func (c *corpus) collect(name string, v reflect.Value) {
	if v.IsZero() {
		return
	}
	c.types[v.Type()] = append(c.types[v.Type()], v)
	switch v.Kind() {
	case reflect.Pointer:
		c.collect(name, v.Elem())
	case reflect.Struct:
		if isAtom(v.Type()) {
			return
		}
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() && v.Type().Field(i).IsExported() {
				key := fieldKey{v.Type(), i}
				c.fields[key] = append(c.fields[key], f)
				c.collect(v.Type().Field(i).Name, f)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			c.collect(name, v.Index(i))
		}
	case reflect.Map:
		for _, key := range mapKeys(v) {
			c.names[name+" key"] = append(c.names[name+" key"], key.String())
			c.collect(name, v.MapIndex(key))
		}
	case reflect.String:
		c.names[name] = append(c.names[name], v.String())
	}
}

// readEnums reads the values of the string types of k8s.io/api.
func readEnums(t *testing.T) map[string][]string {
	text, err := os.ReadFile("../../internal/discovery/openapi_enums.txt")
	if err != nil {
		t.Fatal(err)
	}
	all, name := map[string][]string{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if value, ok := strings.CutPrefix(line, "\t"); ok {
			value, _, _ = strings.Cut(value, "\t")
			all[name] = append(all[name], value)
		} else {
			name = strings.TrimSuffix(line, ":")
		}
	}
	return all
}

// isAtom reports whether the type is treated as a single value.
func isAtom(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](), reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](),
		reflect.TypeFor[runtime.RawExtension](), reflect.TypeFor[metav1.Duration](), reflect.TypeFor[metav1.FieldsV1]():
		return true
	}
	return false
}

// A generator makes objects from a corpus.
type generator struct {
	*corpus
	random *rand.Rand
	filler *randfill.Filler
	tame   bool // changes are likely to be valid
}

// A source is a PCG for randfill, which takes a rand.Source.
type source struct{ *randv2.PCG }

func (s source) Int63() int64 { return int64(s.Uint64() >> 1) }

func (s source) Seed(int64) {}

// newGenerator returns the generator of one object.
func newGenerator(c *corpus, seed uint64, object int) *generator {
	from := source{randv2.NewPCG(seed, uint64(object))}
	g := &generator{corpus: c, random: rand.New(from)}
	g.tame = g.chance(40)
	g.filler = randfill.New().RandSource(from).NilChance(0.6).NumElements(0, 2).MaxDepth(7).Funcs(
		func(v *metav1.Time, _ randfill.Continue) { *v = metav1.Time{Time: g.moment(time.Second)} },
		func(v *metav1.MicroTime, _ randfill.Continue) {
			*v = metav1.MicroTime{Time: g.moment(time.Microsecond)}
		},
		func(v *metav1.Duration, _ randfill.Continue) {
			v.Duration = pick(g, []time.Duration{0, -1, time.Second, time.Hour})
		},
		func(v *resource.Quantity, _ randfill.Continue) {
			*v = resource.MustParse(pick(g, []string{"0", "1", "-1", "100m", "1Gi", "1.5", "5", "1e3", "0.1Ki", "1u", "3n"}))
		},
		func(v *intstr.IntOrString, _ randfill.Continue) {
			*v = pick(g, []intstr.IntOrString{intstr.FromInt32(0), intstr.FromInt32(1), intstr.FromInt32(80), intstr.FromInt32(-1), intstr.FromInt32(70000),
				intstr.FromString("http"), intstr.FromString("25%"), intstr.FromString("0%"), intstr.FromString("101%"), intstr.FromString("x%"), intstr.FromString("")})
		},
		func(v *runtime.RawExtension, _ randfill.Continue) {
			v.Raw = []byte(pick(g, []string{`{"a":1}`, `{}`, `null`, `[1]`, `{"apiVersion":"v1","kind":"Pod"}`}))
		},
		func(v *metav1.FieldsV1, _ randfill.Continue) {},
		func(v *metav1.TypeMeta, _ randfill.Continue) {},
	)
	return g
}

func pick[T any](g *generator, from []T) T { return from[g.random.Intn(len(from))] }

func (g *generator) chance(percent int) bool { return g.random.Intn(100) < percent }

// moment returns a time in the past or the zero time.
func (g *generator) moment(precision time.Duration) time.Time {
	if g.chance(10) {
		return time.Time{}
	}
	return time.Unix(1.7e9+int64(g.random.Intn(1e6)), int64(g.random.Intn(1e9))).UTC().Truncate(precision)
}

// object returns a new object of a row, changed at n places.
func (g *generator) object(row *scheme.Resource, n int) map[string]any {
	return g.changed(row, pick(g, g.seeds[row]), n, "")
}

// changed returns a document after n changes, all of them inside the field top if top is not empty.
func (g *generator) changed(row *scheme.Resource, doc []byte, n int, top string) map[string]any {
	obj := reflect.New(row.GoType)
	if err := json.Unmarshal(doc, obj.Interface()); err != nil {
		panic(fmt.Sprintf("%v: %s", err, doc))
	}
	name := obj.Interface().(metav1.Object).GetName()
	for range n {
		if field := obj.Elem().FieldByName(top); field.IsValid() {
			g.change(top, field)
		} else {
			g.change("", obj.Elem())
		}
	}
	meta := obj.Interface().(metav1.Object)
	meta.SetManagedFields(nil)
	meta.SetGenerateName("")
	if meta.GetName() == "" && !g.chance(10) {
		meta.SetName(name)
	}
	var root map[string]any
	if err := json.Unmarshal(must(json.Marshal(obj.Interface())), &root); err != nil {
		panic(err)
	}
	root["apiVersion"], root["kind"] = row.APIVersion(), row.Kind
	if n > 0 && !g.tame && g.chance(6) {
		g.breakJSON(root)
	}
	return root
}

// change changes a random place inside v, which is in a field of that name.
func (g *generator) change(name string, v reflect.Value) {
	if empty := v.IsZero() && v.Kind() != reflect.Struct || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0; empty {
		g.fill(name, v)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if g.chance(15) {
			v.SetZero()
			return
		}
		copied := deepCopy(v)
		g.change(name, copied.Elem())
		v.Set(copied)
	case reflect.Struct:
		g.changeStruct(name, v)
	case reflect.Slice:
		g.changeSlice(name, v)
	case reflect.Map:
		g.changeMap(name, v)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	default:
		g.fill(name, v)
	}
}

func (g *generator) changeStruct(name string, v reflect.Value) {
	if isAtom(v.Type()) {
		g.fill(name, v)
		return
	}
	var set, all []int
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && f.Type != reflect.TypeFor[metav1.TypeMeta]() {
			all = append(all, i)
			if !v.Field(i).IsZero() {
				set = append(set, i)
			}
		}
	}
	if len(all) == 0 {
		return
	}
	if len(set) == 0 || g.chance(30) {
		set = all
	}
	i := pick(g, set)
	field, name := v.Field(i), v.Type().Field(i).Name
	switch key := (fieldKey{v.Type(), i}); {
	case !field.IsZero() && !g.tame && g.chance(8):
		field.SetZero()
	case (field.IsZero() || g.chance(15)) && len(g.fields[key]) > 0 && (g.tame || !g.chance(30)):
		field.Set(deepCopy(pick(g, g.fields[key])))
	default:
		g.change(name, field)
	}
}

func (g *generator) changeSlice(name string, v reflect.Value) {
	items := deepCopy(v)
	i := g.random.Intn(v.Len())
	switch n := g.random.Intn(100); {
	case n < 8:
		items = reflect.AppendSlice(items.Slice(0, i), items.Slice(i+1, items.Len()))
	case n < 18:
		items = reflect.Append(items, deepCopy(items.Index(i)))
	case n < 24:
		first := deepCopy(items.Index(0))
		items.Index(0).Set(items.Index(i))
		items.Index(i).Set(first)
	case n < 36:
		item := reflect.New(v.Type().Elem()).Elem()
		g.fill(name, item)
		items = reflect.Append(items, item)
	default:
		g.change(name, items.Index(i))
	}
	v.Set(items)
}

func (g *generator) changeMap(name string, v reflect.Value) {
	m := deepCopy(v)
	key, value := pick(g, mapKeys(m)), reflect.New(v.Type().Elem()).Elem()
	if g.chance(15) {
		m.SetMapIndex(key, reflect.Value{})
		v.Set(m)
		return
	}
	if g.chance(40) {
		key = reflect.New(v.Type().Key()).Elem()
		g.fill(name+" key", key)
	}
	g.fill(name, value)
	m.SetMapIndex(key, value)
	v.Set(m)
}

// fill sets v to a value of the corpus or a random one.
func (g *generator) fill(name string, v reflect.Value) {
	if known := g.types[v.Type()]; len(known) > 0 && v.Kind() != reflect.String && (g.tame || g.chance(40)) {
		v.Set(deepCopy(pick(g, known)))
		return
	}
	g.filler.Fill(v.Addr().Interface())
	g.makePlausible(name, v)
}

// makePlausible replaces random texts and numbers inside v by plausible values.
func (g *generator) makePlausible(name string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			g.makePlausible(name, v.Elem())
		}
	case reflect.Struct:
		if isAtom(v.Type()) {
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				g.makePlausible(v.Type().Field(i).Name, v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(g.text(name, v.Type())))
			return
		}
		for i := range v.Len() {
			g.makePlausible(name, v.Index(i))
		}
	case reflect.Map:
		filled := reflect.MakeMap(v.Type())
		for range v.Len() {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			g.fill(name+" key", key)
			g.fill(name, value)
			filled.SetMapIndex(key, value)
		}
		v.Set(filled)
	case reflect.String:
		v.SetString(g.text(name, v.Type()))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(pick(g, []int64{-1, 0, 0, 1, 1, 2, 3, 5, 10, 30, 80, 100, 443, 8080, 30080, 65535, 65536, 1<<31 - 1}))
	case reflect.Float64:
		v.SetFloat(pick(g, []float64{-1, 0, 0.5, 1, 100}))
	}
}

var (
	goodTexts = []string{"a", "b", "web", "c", "default", "kube-system", "example.com/a", "example.com", "a.b.svc", "v1", "apps/v1", "Pod", "pods", "10.0.0.1",
		"2001:db8::1", "10.96.0.0/16", "/x/y", "x/y", "https://example.com/x", "http", "1", "80", "50%", "metadata.name", "cpu", "memory", "*", "get", "In",
		"Exists", "true", "kubernetes.io/hostname", "requests.cpu", "storage", "0-5", "* * * * *", "Europe/Berlin", "object.spec.x == 1", "device.driver == 'a'"}
	badTexts = []string{"", "", "Bad_Value!", "-1", "a/../b", "..", "10.0.0.256", "::ffff:1.2.3.4", "010.0.0.1", "UPPER", "a b", "a\x00b", "a..b", "é", " ",
		strings.Repeat("x", 64), strings.Repeat("x", 254), strings.Repeat("y", 1100), "a/b/c", "/", "0", "%s", "a:b", "$(X)", "-"}
	noteKeys = []string{"scheduler.alpha.kubernetes.io/critical-pod", "volume.beta.kubernetes.io/storage-class", "volume.beta.kubernetes.io/mount-options",
		"service.kubernetes.io/topology-mode", "container.apparmor.security.beta.kubernetes.io/c", "seccomp.security.alpha.kubernetes.io/pod",
		"kubernetes.io/ingress.class", "batch.kubernetes.io/cronjob-scheduled-timestamp", "deprecated.daemonset.template.generation",
		"controller.kubernetes.io/pod-deletion-cost", "autoscaling.alpha.kubernetes.io/behavior", "autoscaling.alpha.kubernetes.io/metrics",
		"api-approved.kubernetes.io", "endpoints.kubernetes.io/over-capacity", "kubernetes.io/config.mirror", "pod.beta.kubernetes.io/init-containers",
		"resource.kubernetes.io/pod-claim-name", "node.kubernetes.io/exclude-from-external-load-balancers", "statefulset.kubernetes.io/pod-name",
		"service.beta.kubernetes.io/load-balancer-source-ranges", "batch.kubernetes.io/job-tracking", "app", "failure-domain.beta.kubernetes.io/zone"}
)

// revisions are resourceVersions that are the revision of no object on either side.
var revisions = []string{"99999999", "0", "", "x"}

// text returns a string for a field.
func (g *generator) text(name string, t reflect.Type) string {
	if name == "ResourceVersion" {
		return pick(g, revisions)
	}
	enum := g.enums[strings.TrimPrefix(t.PkgPath(), "k8s.io/api/")+"."+t.Name()]
	switch n := g.random.Intn(100); {
	case len(enum) > 0 && n < 85:
		return pick(g, enum)
	case n >= 88 && !g.tame:
		return pick(g, badTexts)
	case (name == "Annotations key" || name == "Labels key") && n < 40:
		return pick(g, noteKeys)
	case len(g.types[t]) > 0 && t.Kind() == reflect.String && t.PkgPath() != "" && n < 60:
		return pick(g, g.types[t]).String()
	case len(g.names[name]) > 0 && n < 60:
		return pick(g, g.names[name])
	}
	return pick(g, goodTexts)
}

// breakJSON replaces the value of a random member by a value of another type, or adds an unknown
// member.
func (g *generator) breakJSON(root map[string]any) {
	at := root
	for range g.random.Intn(4) {
		var below []map[string]any
		for _, key := range sortedKeys(at) {
			if child, ok := at[key].(map[string]any); ok && key != "metadata" {
				below = append(below, child)
			}
		}
		if len(below) == 0 {
			break
		}
		at = pick(g, below)
	}
	if len(at) == 0 || g.chance(30) {
		at["unknown"] = "x"
		return
	}
	key := pick(g, sortedKeys(at))
	if key == "metadata" || key == "apiVersion" || key == "kind" {
		return
	}
	at[key] = pick(g, []any{nil, nil, "x", 1.0, true, []any{}, map[string]any{}, []any{nil}})
}

// mapKeys returns the sorted keys of a map.
func mapKeys(m reflect.Value) []reflect.Value {
	keys := m.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

// deepCopy copies a value except for the insides of atoms.
func deepCopy(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	out.Set(v)
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(deepCopy(v.Elem()))
		}
	case reflect.Slice:
		if !v.IsNil() {
			out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
			for i := range v.Len() {
				out.Index(i).Set(deepCopy(v.Index(i)))
			}
		}
	case reflect.Map:
		if !v.IsNil() {
			out.Set(reflect.MakeMap(v.Type()))
			for pairs := v.MapRange(); pairs.Next(); {
				out.SetMapIndex(pairs.Key(), deepCopy(pairs.Value()))
			}
		}
	case reflect.Struct:
		if !isAtom(v.Type()) {
			for i := range v.NumField() {
				if v.Type().Field(i).IsExported() {
					out.Field(i).Set(deepCopy(v.Field(i)))
				}
			}
		}
	}
	return out
}
