package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
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
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"apilet/internal/admission"
	"apilet/internal/admission/plugins"
	"apilet/internal/registry/defaults"
	"apilet/internal/registry/strategy"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// With -oracle the recorded answers in testdata are asked for again, from a real kube-apiserver, with DryRun=All.
var (
	oracleURL   = flag.String("oracle", "", "record the answers of this kube-apiserver")
	oracleToken = flag.String("token", "", "bearer token for -oracle")
)

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

const testUID = "11111111-2222-3333-4444-555555555555"

// stripAnswer removes what another chapter decides: identity, times, allocated addresses and ports, protection finalizers.
func stripAnswer(t testing.TB, answer []byte) []byte {
	t.Helper()
	var obj map[string]any
	if err := json.Unmarshal(answer, &obj); err != nil {
		t.Fatal(err)
	}
	m := obj["metadata"].(map[string]any)
	if uid, ok := m["uid"].(string); ok && uid != testUID {
		if err := json.Unmarshal(bytes.ReplaceAll(answer, []byte(uid), []byte(testUID)), &obj); err != nil {
			t.Fatal(err)
		}
		m = obj["metadata"].(map[string]any)
	}
	for _, key := range []string{"uid", "creationTimestamp", "managedFields", "resourceVersion", "generation", "namespace", "finalizers"} {
		delete(m, key)
	}
	spec, _ := obj["spec"].(map[string]any)
	if obj["kind"] == "Service" && spec["clusterIP"] != "None" {
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
	}
	if obj["kind"] == "Service" {
		delete(spec, "healthCheckNodePort")
		ports, _ := spec["ports"].([]any)
		for _, p := range ports {
			delete(p.(map[string]any), "nodePort")
		}
	}
	if obj["kind"] == "CertificateSigningRequest" {
		for _, key := range []string{"username", "uid", "groups", "extra"} {
			delete(spec, key)
		}
	}
	if status, ok := obj["status"].(map[string]any); ok {
		delete(status, "lastPhaseTransitionTime")
		conditions, _ := status["conditions"].([]any)
		for _, c := range conditions {
			delete(c.(map[string]any), "lastTransitionTime")
		}
	}
	stripped, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return stripped
}

// rowOf finds an object's type in the table.
func rowOf(t testing.TB, obj runtime.Object) *scheme.Resource {
	t.Helper()
	gvk := obj.GetObjectKind().GroupVersionKind()
	for _, res := range scheme.NewRegistry().All() {
		if res.GroupVersionKind() == gvk {
			return res
		}
	}
	t.Fatalf("%v is not served", gvk)
	return nil
}

// madeHere is what defaults, the plug-ins of an empty cluster and preparation make of a document.
func madeHere(t testing.TB, st *store.Store, doc []byte) (runtime.Object, []byte) {
	t.Helper()
	obj := decodeBuiltin(t, doc)
	res := rowOf(t, obj)
	defaults.Set(obj)
	obj.(metav1.Object).SetUID(types.UID(testUID))
	table := plugins.Table(plugins.Config{Store: st, Webhooks: &admission.Webhooks{}, Tolerations: plugins.TolerationSeconds{NotReady: 300, Unreachable: 300}})
	on, err := plugins.Select(table, nil, []string{"NamespaceLifecycle", "ServiceAccount"})
	if err != nil {
		t.Fatal(err)
	}
	a := admission.Attributes{Resource: res, Operation: admission.OpCreate, Object: obj.(scheme.Object)}
	if _, err := admission.NewChain(table, on).Admit(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	strategy.PrepareForCreate(obj)
	out, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return obj, stripAnswer(t, out)
}

func TestDefaultsAreKubernetes(t *testing.T) {
	t.Parallel()
	docs := readDocuments(t, "testdata/defaults/objects.yaml")
	if *oracleURL != "" {
		var record bytes.Buffer
		for _, doc := range docs {
			path := collectionPath(decodeBuiltin(t, doc).GetObjectKind().GroupVersionKind())
			code, answer := askOracle(t, "POST", path+"?dryRun=All", doc)
			if code != http.StatusCreated {
				t.Errorf("%s: %d %s", doc, code, answer)
				continue
			}
			fmt.Fprintf(&record, "%s\n", stripAnswer(t, answer))
		}
		if err := os.WriteFile("testdata/defaults/answers.jsonl", record.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("testdata/defaults/answers.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(answers) != len(docs) {
		t.Fatalf("%d objects, %d answers", len(docs), len(answers))
	}
	st := startTest(t).server.st
	for i, doc := range docs {
		obj, got := madeHere(t, st, doc)
		name := fmt.Sprintf("%s/%s", obj.GetObjectKind().GroupVersionKind().Kind, obj.(metav1.Object).GetName())
		for _, diff := range diffJSON(t, got, []byte(answers[i])) {
			t.Errorf("%s: %s", name, diff)
		}
		again := obj.DeepCopyObject()
		defaults.Set(again)
		if !equality.Semantic.DeepEqual(obj, again) {
			t.Errorf("%s: defaults are not idempotent", name)
		}
	}
}

// diffJSON lists where two documents differ. null and an absent member are the same: Go types write null for an empty creationTimestamp.
func diffJSON(t testing.TB, got, want []byte) (diffs []string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal(got, &g); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(want, &w); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, g, w any)
	walk = func(path string, g, w any) {
		gm, gok := g.(map[string]any)
		wm, wok := w.(map[string]any)
		if gok && wok {
			for key := range gm {
				walk(path+"."+key, gm[key], wm[key])
			}
			for key := range wm {
				if _, both := gm[key]; !both {
					walk(path+"."+key, nil, wm[key])
				}
			}
			return
		}
		gl, gok := g.([]any)
		wl, wok := w.([]any)
		if gok && wok && len(gl) == len(wl) {
			for i := range gl {
				walk(fmt.Sprintf("%s[%d]", path, i), gl[i], wl[i])
			}
			return
		}
		if !reflect.DeepEqual(g, w) {
			diffs = append(diffs, fmt.Sprintf("%s: got %v, want %v", path, g, w))
		}
	}
	walk("", g, w)
	return diffs
}

func TestStatusIsTheLastField(t *testing.T) {
	t.Parallel()
	for gvk, goType := range builtin.AllKnownTypes() {
		if _, ok := goType.FieldByName("Status"); ok && goType.Field(goType.NumField()-1).Name != "Status" && goType != reflect.TypeFor[metav1.Status]() {
			t.Errorf("%s: status is not the last field", gvk)
		}
	}
}
