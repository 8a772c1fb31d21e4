package scheme_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/scheme"
)

// One table says what is served. A row tells of its objects' keys, verbs and kind.
func ExampleRegistry_Lookup() {
	reg := scheme.NewRegistry()
	deployments := reg.Lookup("apps", "v1", "deployments")
	fmt.Println(deployments.Kind, deployments.APIVersion(), deployments.Key("shop", "web"), deployments.Allows("patch"))
	fmt.Println(reg.Lookup("apps", "v1beta1", "deployments"))
	// Output:
	// Deployment apps/v1 /apps/deployments/shop/web true
	// <nil>
}

// A body is decoded into an object of the storage version; fields that nobody knows are told beside it.
func ExampleResource_Decode() {
	pods := scheme.NewRegistry().Lookup("", "v1", "pods")
	obj, strictErrs, err := pods.Decode([]byte("metadata: {name: web}\nspec: {colour: red}\n"), "application/yaml", "")
	fmt.Println(obj.GetName(), strictErrs, err)
	_, _, err = pods.Decode([]byte(`{"kind":"Secret","apiVersion":"v1"}`), "application/json", "")
	fmt.Println(err)
	// Output:
	// web [unknown field "spec.colour"] <nil>
	// Secret in version "v1" cannot be handled as a Pod: converting (v1.Secret) to (core.Pod): unknown conversion
}

// What is stored has no kind, and room for the revision at a known place.
func ExampleResource_EncodeStored() {
	maps := scheme.NewRegistry().Lookup("", "v1", "configmaps")
	stored, at, err := maps.EncodeStored(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "shop"}, Data: map[string]string{"k": "v"}})
	fmt.Printf("%s %q %v", stored, stored[:at][at-19:], err)
	// Output:
	// {"metadata":{"name":"a","namespace":"shop","resourceVersion":""},"data":{"k":"v"}} "\"resourceVersion\":\"" <nil>
}

// A key is taken apart as it was made.
func ExampleSplitKey() {
	fmt.Println(scheme.SplitKey("/apps/deployments/shop/web"))
	fmt.Println(scheme.SplitKey("//nodes//n1"))
	// Output:
	// /apps/deployments/ shop web true
	// //nodes/  n1 true
}
