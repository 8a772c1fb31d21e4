package discovery_test

import (
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/scheme/listtypes"
)

// Containers are told apart by name, as their tag says; the ports of a Service by two keys, as only a comment says.
func Example_listTypes() {
	containers, _ := reflect.TypeFor[corev1.PodSpec]().FieldByName("Containers")
	fmt.Println(listtypes.RelationFromTags(containers.Tag))
	fmt.Println(listtypes.Relations[listtypes.TypeName(reflect.TypeFor[corev1.ServiceSpec]())+".ports"])
	// Output:
	// name
	// port,protocol
}
