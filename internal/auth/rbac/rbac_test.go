package rbac

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestDefaultPolicyIsKubernetes(t *testing.T) {
	policy := BuiltinPolicy()
	kinds := map[string]int{}
	for _, obj := range policy {
		kinds[fmt.Sprintf("%T", obj)]++
	}
	// The one more is that of the server's own user at kubelets.
	if want := map[string]int{"*v1.ClusterRole": 73, "*v1.ClusterRoleBinding": 54 + 1, "*v1.Role": 7, "*v1.RoleBinding": 7}; !reflect.DeepEqual(kinds, want) {
		t.Errorf("objects %v, want %v", kinds, want)
	}
	index := NewIndex(policy)
	for question, want := range map[string]bool{
		"bob,system:authenticated get /apis/apps":                                                              true,
		"bob,system:authenticated get /livez/ping":                                                             false,
		"system:anonymous,system:unauthenticated get /livez":                                                   true,
		"system:anonymous,system:unauthenticated get /api":                                                     false,
		"system:anonymous,system:unauthenticated get /version/":                                                true,
		"bob,system:authenticated create authorization.k8s.io selfsubjectaccessreviews -":                      true,
		"bob,system:authenticated create authorization.k8s.io subjectaccessreviews -":                          false,
		"root,system:masters delete - nodes -/x":                                                               true,
		"root,system:masters get /metrics":                                                                     true,
		"system:kube-controller-manager update coordination.k8s.io leases kube-system/kube-controller-manager": true,
		"system:kube-scheduler create - pods/binding shop/x":                                                   true,
		"system:kube-scheduler delete - secrets shop/x":                                                        false,
		"system:serviceaccount:kube-system:deployment-controller create apps replicasets shop":                 true,
		"system:serviceaccount:default:deployment-controller create apps replicasets shop":                     false,
	} {
		q := ask(question)
		if strings.Contains(question, "kube-controller-manager") || strings.Contains(question, "kube-scheduler") || strings.Contains(question, "deployment-controller") {
			q.User = strings.Fields(question)[0]
		}
		if got, _ := index.Allows(q); got != want {
			t.Errorf("%s: %v, want %v", question, got, want)
		}
	}
}

func BenchmarkDefaultPolicy(b *testing.B) {
	for b.Loop() {
		BuiltinPolicy()
	}
}
