package layout

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/kinds/defaults"
	"apilet/internal/scheme"
)

// A recording is one object as kube-apiserver 1.37 has it in etcd: the same one in JSON and, by a server without --storage-media-type, in
// protobuf. Read is its answer to GET where that is more than the value and the revision.
type recording struct {
	Key      string `json:"key"`
	JSON     string `json:"json"`
	Protobuf []byte `json:"protobuf"`
	Read     string `json:"read"`
}

func recordings(t testing.TB) (all []recording) {
	t.Helper()
	file, err := os.Open("testdata/kube-apiserver-1.37.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var r recording
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// withCustom serves the custom resources of the recordings.
func withCustom() *Layout {
	reg := scheme.NewRegistry()
	row := func(group, version, kind, plural string, namespaced bool) *scheme.Resource {
		return scheme.GroupVersion(group, version, &scheme.Resource{Kind: kind, Plural: plural, Namespaced: namespaced,
			Custom: &scheme.CustomStrategy{StorageVersion: version, ImplicitVersion: "v1"}})[0]
	}
	reg.ReplaceCustom([]*scheme.Resource{row("a.example.com", "v1", "Widget", "widgets", true), row("z.example.com", "v1alpha1", "Global", "globals", false)})
	return New("/registry", reg)
}

// served is what a GET shows of stored JSON: its members in the kept version, the revision in its place.
func served(t testing.TB, lay *Layout, key string, s Document, revision string) map[string]any {
	t.Helper()
	text := string(s.JSON[:s.RevAt]) + revision + string(s.JSON[s.RevAt:])
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%s: %v: %s", key, err, text)
	}
	if got, _ := doc["metadata"].(map[string]any)["resourceVersion"].(string); got != revision {
		t.Fatalf("%s: revision %q of %s", key, got, text)
	}
	delete(doc, "kind")
	delete(doc, "apiVersion")
	return doc
}

// TestKubeAPIServersValues: keys lead to the store and back, values in both encodings are read as kube-apiserver reads them, and what is
// written again is what it wrote.
func TestKubeAPIServersValues(t *testing.T) {
	t.Parallel()
	lay := withCustom()
	seen := map[string]bool{}
	for _, r := range recordings(t) {
		key, ok := lay.StoreKey(r.Key)
		back, err := lay.EtcdKey(key)
		if !ok || err != nil || back != r.Key {
			t.Fatalf("%s: %q, %v, back %q, %v", r.Key, key, ok, back, err)
		}
		base, _, _, _ := scheme.SplitKey(key)
		seen[base] = true
		stored, err := lay.Decode(key, []byte(r.JSON))
		if err != nil {
			t.Error(err)
			continue
		}
		want := map[string]any{}
		text := r.JSON
		if r.Read != "" {
			text = r.Read
		}
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		want["metadata"].(map[string]any)["resourceVersion"] = "77"
		delete(want, "kind")
		delete(want, "apiVersion")
		if got := served(t, lay, key, stored, "77"); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s is read as\n%v, want\n%v", r.Key, got, want)
		}
		written, err := lay.Encode(key, stored.JSON)
		if filledIn := strings.Contains(r.Key, "/persistentvolumeclaims/"); err != nil || string(written) != r.JSON && !filledIn {
			t.Errorf("%s (%v)\nwritten %s\nwas     %s", r.Key, err, written, r.JSON)
		}
		if again, err := lay.Decode(key, written); err != nil || string(again.JSON) != string(stored.JSON) {
			t.Errorf("%s: %v: %s, and before it was written %s", r.Key, err, again.JSON, stored.JSON)
		}
		if r.Protobuf == nil {
			continue
		}
		if fromProtobuf, err := lay.Decode(key, r.Protobuf); err != nil || !reflect.DeepEqual(fromProtobuf, stored) {
			t.Errorf("%s: %v\nprotobuf %s\nJSON     %s", r.Key, err, fromProtobuf.JSON, stored.JSON)
		}
	}
	for base := range lay.byBase {
		if !seen[base] {
			t.Errorf("there is no recording of %s", base)
		}
	}
}

// TestEveryTypeRoundTrips: an object with everything in it comes back from etcd as it was.
func TestEveryTypeRoundTrips(t *testing.T) {
	t.Parallel()
	lay := New("/other/prefix/", scheme.NewRegistry())
	for base, typ := range lay.byBase {
		var obj scheme.Object = kubetest.Filled(typ.storeVersion.StoredType())
		obj.SetName("n")
		if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
			defineSomething(crd)
		}
		defaults.Set(obj)
		stored, revAt, err := typ.storeVersion.EncodeStored(obj)
		if err != nil {
			t.Fatal(base, err)
		}
		key := typ.storeVersion.Key(map[bool]string{true: "ns"}[typ.namespaced], "n")
		value, err := lay.Encode(key, []byte(string(stored[:revAt])+"123"+string(stored[revAt:])))
		if err != nil {
			t.Fatal(base, err)
		}
		if !bytes.HasPrefix(value, []byte("{"+typ.etcdVersion.Prefix)) || bytes.Contains(value, []byte(`"123"`)) {
			t.Errorf("%s is written as %s", base, value)
		}
		got, err := lay.Decode(key, value)
		if err != nil || string(got.JSON) != string(stored) || got.RevAt != revAt || !got.Deleting {
			t.Errorf("%s: %v, deleting %v\ngot  %s\nwant %s", base, err, got.Deleting, got.JSON, stored)
		}
		without, err := lay.Encode(key, stored)
		if err != nil || string(without) != string(value) {
			t.Errorf("%s: without a revision it is %s, %v", base, without, err)
		}
		if at, err := lay.EtcdKey(key); err != nil || !strings.HasPrefix(at, "/other/prefix/") {
			t.Errorf("%s: %s, %v", key, at, err)
		} else if back, ok := lay.StoreKey(at); !ok || back != key {
			t.Errorf("%s: %q, %v", at, back, ok)
		}
	}
}

// defineSomething leaves of a filled definition what a valid one may have: v1 and v1beta1 differ in what they can say of others.
func defineSomething(crd *apiextensionsv1.CustomResourceDefinition) {
	schema := func(text string) *apiextensionsv1.CustomResourceValidation {
		props := &apiextensionsv1.JSONSchemaProps{Type: "object", Description: text, Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"spec": {Type: "object", Default: &apiextensionsv1.JSON{Raw: []byte(`{"n":1}`)}, XValidations: apiextensionsv1.ValidationRules{{Rule: "true"}}}}}
		return &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: props}
	}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{
		{Name: "v1", Served: true, Storage: true, Schema: schema("one"), Deprecated: true, AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
			{Name: "N", Type: "string", JSONPath: ".spec.n"}}, SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: ".spec.n"}}},
		{Name: "v2", Served: true, Schema: schema("two"), Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}}}
	crd.Spec.PreserveUnknownFields = true
	crd.Spec.Conversion.Strategy = apiextensionsv1.WebhookConverter
}

// TestKeys: what is no object of ours, and what could be a custom resource.
func TestKeys(t *testing.T) {
	t.Parallel()
	lay := New("registry", scheme.NewRegistry())
	for _, key := range []string{"compact_rev_key", "/registry", "/registry/", "/registry/pods", "/registry/pods/", "/registry/pods/ns", "/registry/pods/ns/",
		"/registry/pods//n", "/registry/pods/ns/n/more", "/registry/minions/ns/n", "/registry/nodes/n", "/registry/services/ns/n", "/registry/services/specs/n",
		"/registry/masterleases/127.0.0.1", "/registry/peerserverleases/a.b", "/registry/apilet/lineage",
		"/registry/a.example.com/widgets", "/registry/a.example.com/widgets/", "/registry/a.example.com/widgets//w", "/registry/a.example.com//ns/n",
		"/registry/apiregistration.k8s.io/apiservices/ns/n", "/registryx/pods/ns/n", "/kubernetes/pods/ns/n", "/registry//pods/ns/n", "/registry/podtemplate/ns/n"} {
		if got, ok := lay.StoreKey(key); ok {
			t.Errorf("%s is taken for %s", key, got)
		}
	}
	for etcdKey, key := range map[string]string{
		"/registry/services/endpoints/ns/e":    "//endpoints/ns/e",
		"/registry/controllers/ns/c":           "//replicationcontrollers/ns/c",
		"/registry/clusterroles/system:node":   "/rbac.authorization.k8s.io/clusterroles//system:node",
		"/registry/a.example.com/widgets/ns/w": "/a.example.com/widgets/ns/w",
		"/registry/a.example.com/widgets/w":    "/a.example.com/widgets//w",
		"/registry/events/ns/e":                "//events/ns/e",
		"/registry/ranges/servicenodeports":    "//rangeallocations//servicenodeports",
	} {
		if got, ok := lay.StoreKey(etcdKey); !ok || got != key {
			t.Errorf("%s: %q, %v", etcdKey, got, ok)
		}
		if got, err := lay.EtcdKey(key); err != nil || got != etcdKey {
			t.Errorf("%s: %q, %v", key, got, err)
		}
	}
	for _, key := range []string{"", "//pods/n", "//pods//n", "//nodes/ns/n", "//things/ns/n", "/apps/things/ns/n", "//reviews/ns/n", "//tokenreviews//n"} {
		if got, err := lay.EtcdKey(key); err == nil {
			t.Errorf("%s: %s", key, got)
		}
	}
}

// TestOtherVersions: values in versions that kube-apiserver once stored, or will, are read in the one that is kept.
func TestOtherVersions(t *testing.T) {
	t.Parallel()
	lay := New("/registry", scheme.NewRegistry())
	for _, c := range []struct{ key, value, has string }{
		{"/autoscaling/horizontalpodautoscalers/ns/h", `{"kind":"HorizontalPodAutoscaler","apiVersion":"autoscaling/v1","metadata":{"name":"h","namespace":"ns"},"spec":{"maxReplicas":2,"scaleTargetRef":{"kind":"Deployment","name":"d"},"targetCPUUtilizationPercentage":7}}`, `"averageUtilization":7`},
		{"/admissionregistration.k8s.io/mutatingadmissionpolicies//p", `{"kind":"MutatingAdmissionPolicy","apiVersion":"admissionregistration.k8s.io/v1","metadata":{"name":"p"},"spec":{}}`, `"failurePolicy":"Fail"`},
		{"/apiextensions.k8s.io/customresourcedefinitions//d", `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1","metadata":{"name":"d"},"spec":{"scope":"Cluster"}}`, `"scope":"Cluster"`},
	} {
		if got, err := lay.Decode(c.key, []byte(c.value)); err != nil || !strings.Contains(string(got.JSON), c.has) {
			t.Errorf("%s: %v, %s", c.key, err, got.JSON)
		}
	}
}

// TestMarkedVersions: what a custom resource's value says of its version is kept, and is what is written again, whichever goes without saying.
func TestMarkedVersions(t *testing.T) {
	t.Parallel()
	lay := withCustom()
	for _, version := range []string{"v1", "v9"} {
		value := `{"apiVersion":"a.example.com/` + version + `","kind":"Widget","metadata":{"name":"w","namespace":"ns"},"spec":{}}` + "\n"
		stored, err := lay.Decode("/a.example.com/widgets/ns/w", []byte(value))
		if err != nil || !strings.HasPrefix(string(stored.JSON), `{"apiVersion":"`+version+`","metadata":`) {
			t.Fatalf("%v: %s", err, stored.JSON)
		}
		if got, err := lay.Encode("/a.example.com/widgets/ns/w", stored.JSON); err != nil || string(got) != value {
			t.Errorf("%v: %s", err, got)
		}
	}
	got, err := lay.Encode("/a.example.com/widgets/ns/w", []byte(`{"metadata":{"name":"w","resourceVersion":"5"},"Upper":1,"data":2}`))
	if want := `{"Upper":1,"apiVersion":"a.example.com/v1","data":2,"kind":"Widget","metadata":{"name":"w"}}` + "\n"; err != nil || string(got) != want {
		t.Errorf("%v: %s", err, got)
	}
	if _, err := lay.Encode("/b.example.com/things/ns/w", []byte(`{"metadata":{"name":"w"}}`)); err == nil {
		t.Error("an object without a definition was written")
	}
}

// TestRubbish: what cannot be read is an error, and what stands in for it cannot be read either.
func TestRubbish(t *testing.T) {
	t.Parallel()
	lay := withCustom()
	deep := `{"apiVersion":"a.example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + "}"
	for key, values := range map[string][]string{
		"//pods/ns/p": {"", "{}", "null", "[]", "k8s\x00", "k8s\x00\xff\xff", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"},"spec":5}`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p"}} {}`, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"p"}}`,
			`{"kind":"Pod","apiVersion":"v2","metadata":{"name":"p"}}`, `{"kind":"Pod","apiVersion":"v1","metadata":{}}`, `{"kind":"Pod","apiVersion":"v1"`,
			`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","creationTimestamp":"10000-01-01T00:00:00Z"}}`},
		"/a.example.com/widgets/ns/w": {"", "{}", "null", "k8s\x00", deep, `{"apiVersion":"a.example.com/v1","kind":"Widget"}`,
			`{"apiVersion":"b.example.com/v1","kind":"Widget","metadata":{"name":"w"}}`, `{"apiVersion":"a.example.com/v1","metadata":{"name":"w"}}`,
			`{"apiVersion":"a.example.com/v1","kind":"Widget","metadata":{"name":"w","labels":{"a":1}}}`, `{"apiVersion":"a.example.com/v1","kind":"Widget","metadata":[]}`},
	} {
		for _, value := range values {
			checkStandIn(t, lay, key, value)
		}
	}
}

func checkStandIn(t *testing.T, lay *Layout, key, value string) {
	t.Helper()
	got, err := lay.Decode(key, []byte(value))
	if !errors.Is(err, scheme.ErrUnreadable) {
		t.Fatalf("%s, %.100q: %v, %s", key, value, err, got.JSON)
	}
	_, namespace, name, _ := scheme.SplitKey(key)
	text := string(got.JSON[:got.RevAt]) + "5" + string(got.JSON[got.RevAt:])
	var doc struct {
		Metadata struct{ Name, Namespace, ResourceVersion string }
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil || doc.Metadata.Name != name || doc.Metadata.Namespace != namespace || doc.Metadata.ResourceVersion != "5" {
		t.Errorf("%v: %s", err, text)
	}
	if (&scheme.Resource{}).CheckReadable(got.JSON) == nil {
		t.Errorf("%s can be read", text)
	}
}

// FuzzDecode: whatever the value, nothing panics, and what is read can be read again, written, and read as the same.
func FuzzDecode(f *testing.F) {
	lay := withCustom()
	var keys []string
	for i, r := range recordings(f) {
		key, _ := lay.StoreKey(r.Key)
		keys = append(keys, key)
		f.Add(i, []byte(r.JSON))
		if r.Protobuf != nil {
			f.Add(i, r.Protobuf)
		}
	}
	f.Fuzz(func(t *testing.T, which int, value []byte) {
		key := keys[uint(which)%uint(len(keys))]
		stored, err := lay.Decode(key, value)
		served(t, lay, key, stored, "5")
		if err != nil {
			if !errors.Is(err, scheme.ErrUnreadable) {
				t.Fatal(err)
			}
			return
		}
		written, err := lay.Encode(key, stored.JSON)
		if err != nil {
			t.Fatalf("%v: %s", err, stored.JSON)
		}
		again, err := lay.Decode(key, written)
		if err != nil || plain(again.JSON) != plain(stored.JSON) {
			t.Errorf("%v: %s\nbecame %s", err, stored.JSON, again.JSON)
		}
	})
}

// plain is JSON with the replacement character spelt as itself: the encoder escapes the one that it puts for what is no UTF-8, and once that is read
// it is a character like others.
func plain(json []byte) string { return strings.ReplaceAll(string(json), `\ufffd`, "\ufffd") }

func BenchmarkDecode(b *testing.B) {
	lay := withCustom()
	for _, r := range recordings(b) {
		if !strings.HasPrefix(r.Key, "/registry/pods/") && !strings.HasPrefix(r.Key, "/registry/a.example") {
			continue
		}
		key, _ := lay.StoreKey(r.Key)
		for form, value := range map[string][]byte{"json": []byte(r.JSON), "protobuf": r.Protobuf} {
			if value == nil {
				continue
			}
			b.Run(strings.Split(key, "/")[2]+"/"+form, func(b *testing.B) {
				b.SetBytes(int64(len(value)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := lay.Decode(key, value); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		stored, _ := lay.Decode(key, []byte(r.JSON))
		b.Run(strings.Split(key, "/")[2]+"/encode", func(b *testing.B) {
			b.SetBytes(int64(len(r.JSON)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := lay.Encode(key, stored.JSON); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
