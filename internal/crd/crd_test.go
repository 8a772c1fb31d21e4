package crd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"apilet/internal/auth"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

func TestOutlineIsADefinitionWithoutSchemas(t *testing.T) {
	for _, text := range []string{definitionFile(t, "planets"), definitionFile(t, "gadgets"), `{"spec":{"versions":[{"name":"v1"}]}}`, `{"spec":{}}`} {
		var want, got apiextensionsv1.CustomResourceDefinition
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		for i := range want.Spec.Versions {
			want.Spec.Versions[i].Schema = nil
		}
		if err := json.Unmarshal(withoutSchemas([]byte(text)), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%.60s…: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}

// defined are definitions, of which there is one, and its type.
func defined(t testing.TB) (*Definitions, *scheme.Resource) {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	reg := scheme.NewRegistry()
	d := NewDefinitions(st, reg, &registry.Writer{Store: st, Types: reg, Auth: &auth.Authenticator{Accounts: &serviceaccount.Tokens{}}}, zerolog.Nop())
	obj, _, err := d.row.Decode([]byte(definitionFile(t, "gadgets")), "application/json", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.wr.Insert(context.Background(), d.row, obj, registry.Options{}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.wr.Insert(context.Background(), reg.Lookup("", "v1", "namespaces"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, registry.Options{}); err != nil {
		t.Fatal(err)
	}
	return d, reg.Lookup("example.com", "v1", "gadgets")
}

// gadget is an object of testdata/crds/gadgets.yaml; spec is YAML's flow style, without braces.
func gadget(t testing.TB, name, spec string) string {
	t.Helper()
	json, err := yaml.YAMLToJSON(fmt.Appendf(nil, `{apiVersion: example.com/v1, kind: Gadget, metadata: {name: %s, namespace: default}, spec: {%s}}`, name, spec))
	if err != nil {
		t.Fatal(err)
	}
	return string(json)
}

func TestIdleSchemasAreLetGo(t *testing.T) {
	t.Parallel()
	d, res := defined(t)
	insert := func(name, spec string) (store.Record, error) {
		obj, _, err := res.Decode([]byte(gadget(t, name, spec)), "application/json", "")
		if err != nil {
			t.Fatal(err)
		}
		made, err := d.wr.Insert(t.Context(), res, obj, registry.Options{})
		return made, err
	}
	before := time.Now() // the schemas are used after it, on a busy machine long before what follows
	rec, err := insert("a", "size: 2")
	if err != nil {
		t.Fatal(err)
	}
	schemas := d.table["gadgets.example.com"].schemas
	held := func() int {
		schemas.mu.Lock()
		defer schemas.mu.Unlock()
		return len(schemas.compiled)
	}
	d.forgetIdle(before.Add(schemaIdle))
	if held() == 0 {
		t.Error("let go too early")
	}
	d.forgetIdle(time.Now().Add(schemaIdle + time.Second))
	if held() != 0 {
		t.Error("kept too long")
	}
	if _, err := res.Served(rec.JSON); err != nil {
		t.Error(err)
	}
	if held() != 0 {
		t.Error("reading young objects compiles")
	}
	if _, err := insert("b", "size: 3"); !apierrors.IsInvalid(err) {
		t.Errorf("an object that the schema forbids: %v", err)
	}
}

func FuzzCustomBodies(f *testing.F) {
	_, res := defined(f)
	for _, spec := range []string{``, `parts: [{id: a}]`, `inner: {metadata: {name: []}}`, `tags: [[]], choice: [], labels: {a: {b: c}}`, `port: {a: 1}`} {
		f.Add(gadget(f, "x", spec))
	}
	f.Add(`{"apiVersion":"example.com/v1","kind":"Gadget","metadata":[],"spec":null}`)
	f.Fuzz(func(t *testing.T, body string) {
		obj, _, err := res.Decode([]byte(body), "application/json", "")
		if err != nil {
			return
		}
		errs := res.Custom.Validate(context.Background(), res.Custom.Prepare(obj, nil, ""), nil, "")
		stored, _, err := res.EncodeStored(obj)
		if err == nil && len(errs) == 0 {
			if _, err := res.DecodeStored(stored); err != nil {
				t.Errorf("%s is stored as %s: %v", body, stored, err)
			}
		}
	})
}

// TestNothingIsCreatedWithoutItsDefinition: a create that has been on its way since before its definition was deleted stores nothing, neither while
// the last objects go nor once the definition has gone: nobody would ever delete it.
func TestNothingIsCreatedWithoutItsDefinition(t *testing.T) {
	t.Parallel()
	d, began := defined(t)
	ctx := t.Context()
	insert := func(name, finalizer string) error {
		obj, _, err := began.Decode([]byte(gadget(t, name, "size: 2")), "application/json", "")
		if err != nil {
			t.Fatal(err)
		}
		if finalizer != "" {
			obj.SetFinalizers([]string{finalizer})
		}
		_, err = d.wr.Insert(ctx, began, obj, registry.Options{})
		return err
	}
	if err := insert("held", "example.com/wait"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.wr.Delete(ctx, d.row, "", "gadgets.example.com", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	refused := func(when string) {
		t.Helper()
		const want = `gadgets.example.com "late" is forbidden: create not allowed while custom resource definition is terminating`
		if err := insert("late", ""); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", when, err, want)
		}
	}
	refused("marked")
	if waiting, err := d.cleanUp(ctx); !waiting || err != nil {
		t.Fatalf("the held object holds the definition: %t, %v", waiting, err)
	}
	refused("emptied")
	now := d.reg.Lookup("example.com", "v1", "gadgets")
	_, _, err := d.wr.Modify(ctx, registry.Target{Resource: now, Namespace: "default", Name: "held"}, registry.Options{}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		obj := old.DeepCopyObject().(scheme.Object)
		obj.SetFinalizers(nil)
		return obj, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if waiting, err := d.cleanUp(ctx); waiting || err != nil {
		t.Fatalf("nothing holds the definition: %t, %v", waiting, err)
	}
	if _, err := d.st.Get(d.row.Key("", "gadgets.example.com")); !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("the definition has not gone: %v", err)
	}
	refused("gone")
	if left, _, _ := d.st.Count(began.Base); left != 0 {
		t.Errorf("%d objects have no type", left)
	}
}

// TestDefinitionsOutliveCompaction: a type whose definition went while the log was compacted is served no more, and one that came is.
func TestDefinitionsOutliveCompaction(t *testing.T) {
	t.Parallel()
	d, _ := defined(t)
	over := d.table["gadgets.example.com"].replaced
	rec, err := d.st.Get(d.row.Key("", "gadgets.example.com"))
	if err == nil {
		_, err = d.st.Commit(t.Context(), registry.Tombstone(&rec))
	}
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("gadgets", "alphas", "gadget", "alpha", "Gadget", "Alpha", `"gd"`, `"al"`).Replace(definitionFile(t, "gadgets"))
	obj, _, err := d.row.Decode([]byte(text), "application/json", "")
	if err != nil {
		t.Fatal(err)
	}
	doc, revAt, err := d.row.EncodeStored(obj)
	if err == nil {
		_, err = d.st.Commit(t.Context(), store.Change{Op: store.OpCreate, Key: d.row.Key("", "alphas.example.com"), JSON: doc, RevAt: revAt})
	}
	if err != nil {
		t.Fatal(err)
	}
	storetest.Forget(t, d.st)
	if err := d.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d.reg.Lookup("example.com", "v1", "gadgets") != nil || d.reg.Lookup("example.com", "v1", "alphas") == nil {
		t.Error("the wrong types are served")
	}
	select {
	case <-over:
	default:
		t.Error("watches of the type that has gone go on")
	}
	if d.changed.Load() != d.st.Revision() {
		t.Errorf("the definitions are what they are since %d, of %d", d.changed.Load(), d.st.Revision())
	}
}
