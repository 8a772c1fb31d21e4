package fieldmanager_test

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/fieldmanager"
)

// A field that an apply would change while another manager has it is a conflict. With force it is taken.
func ExampleManager_Apply() {
	m := &fieldmanager.Manager{Kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, GoType: reflect.TypeFor[corev1.ConfigMap]()}
	body := func(colour string) []byte {
		return []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"shop"},"data":{"colour":"` + colour + `"}}`)
	}
	live, _, err := m.Apply(nil, body("red"), fieldmanager.Applier{Manager: "alice"})
	fmt.Println(live.(*corev1.ConfigMap).Data, err)

	_, _, err = m.Apply(live, body("blue"), fieldmanager.Applier{Manager: "bob"})
	fmt.Println(err)

	live, _, err = m.Apply(live, body("blue"), fieldmanager.Applier{Manager: "bob", Force: true})
	fmt.Println(live.(*corev1.ConfigMap).Data, live.GetManagedFields()[0].Manager, err)
	// Output:
	// map[colour:red] <nil>
	// Apply failed with 1 conflict: conflict with "alice": .data.colour
	// map[colour:blue] bob <nil>
}

// Who names no manager is the program, as it calls itself.
func ExampleManagerName() {
	fmt.Println(fieldmanager.ManagerName("", "kubectl/v1.33.0 (linux/amd64)"), fieldmanager.ManagerName("deploy", "kubectl/v1.33.0"))
	// Output:
	// kubectl deploy
}
