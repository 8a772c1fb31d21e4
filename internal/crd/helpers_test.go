package crd

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"apilet/internal/scheme"
	"apilet/internal/scheme/protobuf"
)

// definitionFile is one of testdata/crds, as JSON.
func definitionFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../testdata/crds/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(asJSON)
}

var oracleURL = flag.String("oracle", "", "record the answers of this kube-apiserver")

var oracleToken = flag.String("token", "", "bearer token for -oracle")

var builtin = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme,
		certificatesv1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme,
		flowcontrolv1.AddToScheme, flowcontrolv1beta3.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme,
		rbacv1.AddToScheme, resourcev1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}()

const clusterKinds = " Namespace Node PersistentVolume IngressClass ClusterRole ClusterRoleBinding StorageClass CSIDriver CSINode VolumeAttachment " +
	"VolumeAttributesClass PriorityClass RuntimeClass FlowSchema PriorityLevelConfiguration ValidatingWebhookConfiguration " +
	"MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding MutatingAdmissionPolicy " +
	"MutatingAdmissionPolicyBinding CertificateSigningRequest DeviceClass ServiceCIDR IPAddress "

// collectionPath is where objects of a kind are created.
func collectionPath(gvk schema.GroupVersionKind) string {
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	resource := plural.Resource
	if gvk.Kind == "Endpoints" {
		resource = "endpoints"
	}
	root := "/apis/" + gvk.Group
	if gvk.Group == "" {
		root = "/api"
	}
	if strings.Contains(clusterKinds, " "+gvk.Kind+" ") {
		return root + "/" + gvk.Version + "/" + resource
	}
	return root + "/" + gvk.Version + "/namespaces/default/" + resource
}

var oracleClient = http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// askOracle sends one request and returns the answer.
func askOracle(t testing.TB, method, path string, body []byte, headers ...string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, *oracleURL+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+*oracleToken)
	setHeaders(req, headers)
	resp, err := oracleClient.Do(req)
	if err != nil {
		return 0, []byte(err.Error()) // some objects make kube-apiserver panic
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

func readDocuments(t testing.TB, file string) (docs [][]byte) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, doc := range strings.Split(string(text), "\n---\n") {
		j, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			t.Fatalf("%s: %v in %s", file, err, doc)
		}
		docs = append(docs, j)
	}
	return docs
}

func decodeBuiltin(t testing.TB, doc []byte) runtime.Object {
	t.Helper()
	obj, err := tryDecode(doc)
	if err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	return obj
}

func tryDecode(doc []byte) (runtime.Object, error) {
	var tm metav1.TypeMeta
	if err := json.Unmarshal(doc, &tm); err != nil {
		return nil, err
	}
	obj, err := builtin.New(tm.GroupVersionKind())
	if err == nil {
		err = json.Unmarshal(doc, obj)
	}
	return obj, err
}

func setHeaders(r *http.Request, headers []string) {
	for _, line := range headers {
		switch key, value, _ := strings.Cut(line, ": "); key {
		case "":
		case "Host":
			r.Host = value
		default:
			r.Header.Set(key, value)
		}
	}
}

const onlyProtobuf = "Accept: application/vnd.kubernetes.protobuf"

// protobufTypes are what may be in an envelope, beside the rows of the table and their lists.
var protobufTypes = map[string]reflect.Type{
	"v1 Status":                             reflect.TypeFor[metav1.Status](),
	"v1 APIResourceList":                    reflect.TypeFor[metav1.APIResourceList](),
	"v1 APIGroup":                           reflect.TypeFor[metav1.APIGroup](),
	"v1 APIGroupList":                       reflect.TypeFor[metav1.APIGroupList](),
	" APIResourceList":                      reflect.TypeFor[metav1.APIResourceList](),
	" APIVersions":                          reflect.TypeFor[metav1.APIVersions](),
	"autoscaling/v1 Scale":                  reflect.TypeFor[autoscalingv1.Scale](),
	"authentication.k8s.io/v1 TokenRequest": reflect.TypeFor[authenticationv1.TokenRequest](),
	"apidiscovery.k8s.io/v2 APIGroupDiscoveryList":  reflect.TypeFor[apidiscoveryv2.APIGroupDiscoveryList](),
	"meta.k8s.io/v1 PartialObjectMetadata":          reflect.TypeFor[metav1.PartialObjectMetadata](),
	"meta.k8s.io/v1 PartialObjectMetadataList":      reflect.TypeFor[metav1.PartialObjectMetadataList](),
	"meta.k8s.io/v1beta1 PartialObjectMetadata":     reflect.TypeFor[metav1.PartialObjectMetadata](),
	"meta.k8s.io/v1beta1 PartialObjectMetadataList": reflect.TypeFor[metav1beta1.PartialObjectMetadataList](),
}

type unmarshaler interface{ Unmarshal([]byte) error }

// unsealed is the JSON of what an envelope holds.
func unsealed(sealed []byte) ([]byte, error) {
	envelope, err := scheme.OpenEnvelope(sealed)
	if err != nil {
		return nil, err
	}
	if again, err := envelope.Marshal(); err != nil || !bytes.Equal(again, sealed[4:]) {
		return nil, fmt.Errorf("%s is not how an envelope is written: %v", envelope.Kind, err)
	}
	goType := protobufTypes[envelope.APIVersion+" "+envelope.Kind]
	for _, res := range testRows() {
		switch {
		case res.APIVersion() != envelope.APIVersion:
		case res.Kind == envelope.Kind:
			goType = res.GoType
		case res.ListKind == envelope.Kind:
			return unsealedList(res, envelope.Raw)
		}
	}
	if goType == nil {
		return nil, fmt.Errorf("an envelope of %s %s", envelope.APIVersion, envelope.Kind)
	}
	obj := reflect.New(goType).Interface()
	if err := obj.(unmarshaler).Unmarshal(envelope.Raw); err != nil {
		return nil, err
	}
	return scheme.MarshalAs(obj.(runtime.Object), envelope.APIVersion, envelope.Kind)
}

// testRows are all resources that have Go types, definitions included.
var testRows = sync.OnceValue(func() []*scheme.Resource {
	reg := scheme.NewRegistry()
	NewDefinitions(nil, reg, nil, zerolog.Nop())
	return reg.All()
})

// unsealedList reads a list of any kind: 1 is its metadata, 2 an item.
func unsealedList(res *scheme.Resource, raw []byte) ([]byte, error) {
	meta, items := metav1.ListMeta{}, []json.RawMessage{}
	for len(raw) > 0 {
		length, n := binary.Uvarint(raw[1:])
		if n <= 0 || length > uint64(len(raw)-1-n) {
			return nil, fmt.Errorf("%s: a field of %d bytes where %d are left", res.ListKind, length, len(raw))
		}
		tag, content := raw[0], raw[1+n:][:length]
		raw = raw[1+n:][length:]
		if tag == protobuf.Field1 {
			if err := meta.Unmarshal(content); err != nil {
				return nil, err
			}
			continue
		}
		obj := scheme.NewOf(res.GoType)
		if err := obj.(unmarshaler).Unmarshal(content); err != nil || tag != protobuf.Field2 {
			return nil, fmt.Errorf("%s: field %#x: %v", res.ListKind, tag, err)
		}
		item, err := json.Marshal(obj)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return json.Marshal(map[string]any{"kind": res.ListKind, "apiVersion": res.APIVersion(), "metadata": meta, "items": items})
}

// generatedBytes are a document's protobuf by way of its Go type.
func generatedBytes(t testing.TB, res *scheme.Resource, doc []byte) []byte {
	t.Helper()
	obj, err := res.DecodeStored(doc)
	if err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	m, err := protobuf.AsMessage(obj)
	if err != nil {
		t.Fatal(err)
	}
	want, err := protobuf.AppendMessage(nil, m, m.Size())
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// fillValue sets everything in v to something, the same each time.
func fillValue(v reflect.Value) {
	switch x := v.Addr().Interface().(type) {
	case *metav1.Time:
		*x = metav1.Unix(1700000000, 0)
		return
	case *metav1.MicroTime:
		*x = metav1.MicroTime{Time: time.Unix(1700000000, 123456000)}
		return
	case *apiresource.Quantity:
		*x = apiresource.MustParse("5Mi")
		return
	case *intstr.IntOrString:
		*x = intstr.FromString("50%")
		return
	case *runtime.RawExtension:
		x.Raw = []byte(`{"a":1}`)
		return
	case *metav1.FieldsV1:
		*x = *metav1.NewFieldsV1("{}")
		return
	case *metav1.TypeMeta, *metav1.ManagedFieldsEntry:
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			fillValue(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillValue(v.Index(0))
		fillValue(v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillValue(key)
		fillValue(value)
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(`text "resourceVersion":"7" <ü>`)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint8:
		v.SetUint(7)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1.5)
	}
}

func filled(t reflect.Type) scheme.Object {
	obj := scheme.NewOf(t)
	fillValue(reflect.ValueOf(obj).Elem())
	obj.SetManagedFields(nil)
	return obj
}

func protoEnvelope(t testing.TB, res *scheme.Resource, obj any) []byte {
	raw, err := obj.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: res.APIVersion(), Kind: res.Kind}, Raw: raw}
	data, err := unknown.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), data...)
}
