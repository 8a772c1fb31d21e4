package rbac_test

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/auth/rbac"
	"apilet/internal/scheme"
)

func shop() *rbac.Index {
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "reader"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "devs-read"},
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{APIGroup: "rbac.authorization.k8s.io", Kind: "Group", Name: "dev"}}}
	return rbac.NewIndex([]scheme.Object{role, binding})
}

// A binding allows what its role has, in its namespace; the reason names it.
func ExampleIndex_Allows() {
	x := shop()
	for _, q := range []rbac.Access{
		{User: "bob", Groups: []string{"dev"}, ResourceRequest: true, Verb: "get", Resource: "pods", Namespace: "shop", Name: "web"},
		{User: "bob", Groups: []string{"dev"}, ResourceRequest: true, Verb: "get", Resource: "secrets", Namespace: "shop"},
		{User: "bob", Groups: []string{"dev"}, ResourceRequest: true, Verb: "list", Resource: "pods"},
	} {
		allowed, reason := x.Allows(&q)
		fmt.Printf("%v %q\n", allowed, reason)
	}
	// Output:
	// true "RBAC: allowed by RoleBinding \"devs-read/shop\" of Role \"reader\" to Group \"dev\""
	// false ""
	// false ""
}

// Nobody gives away more than they have.
func ExampleIndex_MayGrantRole() {
	bob := &rbac.Access{User: "bob", Groups: []string{"dev"}, ResourceRequest: true, Verb: "create", Group: "rbac.authorization.k8s.io",
		Resource: "roles", Namespace: "shop", Name: "more"}
	for _, resource := range []string{"pods", "secrets"} {
		role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "more"},
			Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{resource}}}}
		fmt.Println(resource, shop().MayGrantRole(bob, role, nil) == nil)
	}
	// Output:
	// pods true
	// secrets false
}
