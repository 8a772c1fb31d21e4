package registry

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/kinds/defaults"
	"apilet/internal/kinds/printers"
	"apilet/internal/kinds/strategy"
	"apilet/internal/kinds/validation"
	"apilet/internal/kinds/warnings"
	"apilet/internal/scheme"
)

// TestEveryListMapAndTextCostsItsLength: each list, map and text of each built-in type, once by its place in Kubernetes' types, is filled with so many
// elements or letters and with twice as many (lists and maps equal, distinct, in descending order; free documents so many levels deep), and goes
// through the passes over an object: defaults, preparation, validation, warnings, a table's row, encoding. What they make is to grow with the elements.
// APILET_LINEAR=all looks at the time as well, of objects that are as large as bodies may be.
func TestEveryListMapAndTextCostsItsLength(t *testing.T) {
	p := passes{t: t, seen: map[string]bool{}, thorough: os.Getenv("APILET_LINEAR") == "all"}
	for _, res := range scheme.NewRegistry().All() {
		if res.GoType == nil || res.Virtual {
			continue
		}
		p.res, p.filled = res, kubetest.Filled(res.GoType)
		p.walk(res.GoType, nil)
	}
	if p.places < 300 || p.texts < 500 {
		t.Errorf("%d lists and maps, %d texts in all types: some are not looked at", p.places, p.texts)
	}
}

// passes walks types and tries each list and map that it finds.
type passes struct {
	t        *testing.T
	res      *scheme.Resource
	filled   scheme.Object   // of its Go type
	seen     map[string]bool // by struct and field
	thorough bool
	places   int // lists and maps
	texts    int
}

// units are what long texts are made of: letters that some pass may double, quote, split or look up.
var units = []string{"$(A)", "a.", "a/", "a,", "\x00", "<", "é", "*", "(", "0", "- ", "\n"}

// walk visits the fields of a struct that path leads to.
func (p *passes) walk(t reflect.Type, path []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() || f.Type == reflect.TypeFor[metav1.TypeMeta]() || strings.HasPrefix(f.Name, "ManagedFields") {
			continue
		}
		at := append(path[:len(path):len(path)], i)
		place := t.String() + "." + f.Name
		if f.Anonymous && f.Type.Kind() == reflect.Struct {
			p.walk(f.Type, at)
			continue
		}
		if p.seen[place] {
			continue
		}
		p.seen[place] = true
		p.field(f.Type, at, place)
	}
}

func (p *passes) field(t reflect.Type, at []int, place string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Slice, reflect.Map:
		if t.Elem().Kind() == reflect.Uint8 {
			if strings.HasSuffix(place, ".Raw") {
				p.tryBytes(at, place, "deep")
			}
			return
		}
		for _, how := range []string{"equal", "distinct", "descending"} {
			asMap := t.Kind() == reflect.Map && how == "equal"
			if !asMap && (p.thorough || how != "descending" && (t.Kind() == reflect.Map || how == "equal")) {
				p.try(at, place, how)
			}
		}
		p.places++
		if elem := t.Elem(); elem.Kind() == reflect.Struct && elem != reflect.TypeFor[apiresource.Quantity]() {
			p.walk(elem, at)
		}
	case reflect.String:
		if p.texts++; strings.HasSuffix(place, "Expression") { // whose mistakes the compiler draws with a row of dots; TestMistakesOfExpressionsHaveABound
			return
		}
		for i, unit := range units { // without the time for all, a unit for every third text
			if p.thorough || 3*i == p.texts%(3*len(units)) {
				p.tryBytes(at, place, unit)
			}
		}
	case reflect.Struct:
		p.walk(t, at)
	}
}

// remeasured is how often a pair that seems to grow too fast is measured again: a collection of garbage empties the pools of buffers, and who comes
// next makes them anew.
const remeasured = 4

// try compares what n elements cost with what 2n do.
func (p *passes) try(at []int, place, how string) {
	n := 128
	if p.thorough {
		n = 1024
	}
	large := p.cost(at, how, 2*n)
	if large.pieces <= 20*uint64(n) && !p.thorough {
		return
	}
	small := p.cost(at, how, n)
	for range remeasured {
		if large.pieces <= 20*uint64(n) || large.pieces <= 3*small.pieces {
			break
		}
		large, small = p.cost(at, how, 2*n), p.cost(at, how, n)
	}
	if large.pieces > 20*uint64(n) && large.pieces > 3*small.pieces {
		p.t.Errorf("%s of %s, %s: %d pieces of memory for %d elements, %d for twice as many", place, p.res.Kind, how, small.pieces, n, large.pieces)
	}
	p.compareTimes(place, how, n, small, large)
}

// tryBytes does so for the letters of a text, or the levels of a free document: the bytes of what is made for them count.
func (p *passes) tryBytes(at []int, place, how string) {
	n := 2048
	if p.thorough && how != "deep" {
		n = 256 << 10
	}
	large := p.cost(at, how, 2*n)
	if large.bytes <= 1000*uint64(n) && !p.thorough {
		return
	}
	small := p.cost(at, how, n)
	for range remeasured {
		if large.bytes <= 1000*uint64(n) || large.bytes <= 3*small.bytes {
			break
		}
		large, small = p.cost(at, how, 2*n), p.cost(at, how, n)
	}
	if large.bytes > 1000*uint64(n) && large.bytes > 3*small.bytes {
		p.t.Errorf("%s of %s, %q: %d bytes of memory for %d times, %d for twice as many", place, p.res.Kind, how, small.bytes, n, large.bytes)
	}
	p.compareTimes(place, how, n, small, large)
}

func (p *passes) compareTimes(place, how string, n int, small, large price) {
	if p.thorough && large.took > 200*time.Millisecond && large.took > 3*small.took {
		p.t.Errorf("%s of %s, %q: %v for %d, %v for twice as many", place, p.res.Kind, how, small.took, n, large.took)
	}
}

// A price is what the passes make, and how long they take.
type price struct {
	pieces, bytes uint64
	took          time.Duration
}

// cost is the price of an object with n elements, letters or levels at a place.
func (p *passes) cost(at []int, how string, n int) (paid price) {
	obj := p.filled.DeepCopyObject().(scheme.Object)
	place := reach(reflect.ValueOf(obj).Elem(), at)
	if !place.IsValid() || place.Kind() != reflect.String && place.Len() == 0 {
		return price{}
	}
	fill(place, how, n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	defaults.Set(obj)
	prepared := obj.DeepCopyObject()
	strategy.PrepareForCreate(p.t.Context(), prepared)
	strategy.PrepareForUpdate(p.t.Context(), "", prepared, obj.DeepCopyObject())
	gv := groupVersion(p.res)
	validation.ValidateCreate(p.t.Context(), gv, obj)
	validation.ValidateUpdate(p.t.Context(), gv, "", obj, obj)
	warnings.ForObject(p.t.Context(), obj, nil)
	printers.CellsOf(p.res, obj, began)
	_, _, _ = p.res.EncodeStored(obj) // what cannot be stored has cost what it costs
	paid.took = time.Since(began)
	runtime.ReadMemStats(&after)
	paid.pieces, paid.bytes = after.Mallocs-before.Mallocs, after.TotalAlloc-before.TotalAlloc
	return paid
}

// reach follows a path of fields, through pointers and the first elements of lists. Values of maps cannot be changed in place: none.
func reach(v reflect.Value, at []int) reflect.Value {
	for _, i := range at {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice || v.Kind() == reflect.Map {
			switch {
			case v.Kind() == reflect.Map, v.Kind() == reflect.Pointer && v.IsNil(), v.Kind() == reflect.Slice && v.Len() == 0:
				return reflect.Value{}
			case v.Kind() == reflect.Pointer:
				v = v.Elem()
			default:
				v = v.Index(0)
			}
		}
		v = v.Field(i)
	}
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return reflect.Value{}
		}
		v = v.Elem()
	}
	return v
}

// fill puts n elements into a list or map: copies of its first, which are told apart by the first text in them unless they are to be equal. A text
// becomes n times how, and a free document n levels deep.
func fill(v reflect.Value, how string, n int) {
	switch {
	case v.Kind() == reflect.String:
		v.SetString(strings.Repeat(how, n))
		return
	case how == "deep":
		v.SetBytes([]byte(strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n)))
		return
	}
	name := func(i int) string {
		if how == "descending" {
			i = n - i
		}
		return fmt.Sprintf("n%06d", i)
	}
	if v.Kind() == reflect.Map {
		first := v.MapIndex(v.MapKeys()[0])
		grown := reflect.MakeMapWithSize(v.Type(), n)
		for i := range n {
			grown.SetMapIndex(reflect.ValueOf(name(i)).Convert(v.Type().Key()), first)
		}
		v.Set(grown)
		return
	}
	grown := reflect.MakeSlice(v.Type(), n, n)
	for i := range n {
		grown.Index(i).Set(v.Index(0))
		if how != "equal" {
			setText(grown.Index(i), name(i))
		}
	}
	v.Set(grown)
}

func setText(v reflect.Value, text string) bool {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
		return true
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && setText(v.Field(i), text) {
				return true
			}
		}
	}
	return false
}
