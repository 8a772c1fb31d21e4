package auth

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/auth/rbac"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

func TestNobodyGivesWhatTheyDoNotHave(t *testing.T) {
	policy := append(rbac.ParsePolicy(`
ClusterRole role-editor
	create,update,patch,get,list rbac.authorization.k8s.io *
	get,list core pods,*/scale
	get /a/*
	to User:bob
ClusterRole cluster-admin
	* * *
	* *
	to User:root
ClusterRole named
	get core configmaps x,y
	to User:ann
ClusterRole binder
	bind rbac.authorization.k8s.io clusterroles cluster-admin
	to User:binder
ClusterRole escalator
	escalate rbac.authorization.k8s.io clusterroles
	to User:escalator
`), kubetest.ClusterRoleBinding("bob-missing", "missing", rbacv1.Subject{Kind: "User", Name: "bob"}))
	a := testAuthenticator(t, nil)
	a.SetPolicy(policy)
	role := func(text string) scheme.Object { return rbac.ParsePolicy(text)[0] }
	const attempt = ` is attempting to grant RBAC permissions not currently held:` + "\n"
	const lost = `; resolution errors: [%s.rbac.authorization.k8s.io "missing" not found]`
	for _, c := range []struct {
		who      string
		obj, old scheme.Object
		want     string
	}{
		{"bob", role("ClusterRole r\n\tget,delete,list core,apps pods,secrets,deployments/scale\n\tget /a/b,/b/*\n\tget,update core configmaps x,y\n"), nil,
			`clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "bob" (groups=["system:authenticated"])` + attempt + strings.Join([]string{
				`{APIGroups:[""], Resources:["configmaps"], ResourceNames:["x"], Verbs:["get" "update"]}`,
				`{APIGroups:[""], Resources:["configmaps"], ResourceNames:["y"], Verbs:["get" "update"]}`,
				`{APIGroups:[""], Resources:["deployments/scale"], Verbs:["delete"]}`,
				`{APIGroups:[""], Resources:["pods"], Verbs:["delete"]}`,
				`{APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete" "list"]}`,
				`{APIGroups:["apps"], Resources:["deployments/scale"], Verbs:["get" "delete" "list"]}`,
				`{APIGroups:["apps"], Resources:["pods"], Verbs:["get" "delete" "list"]}`,
				`{APIGroups:["apps"], Resources:["secrets"], Verbs:["get" "delete" "list"]}`,
				`{NonResourceURLs:["/b/*"], Verbs:["get"]}`}, "\n") + fmt.Sprintf(lost, "clusterroles")},
		{"bob", role("ClusterRole r\n\tget core pods\n"), nil, ""},
		{"bob", role("ClusterRole r = x\n"), nil, `clusterroles.rbac.authorization.k8s.io "r" is forbidden: must have cluster-admin privileges to use the aggregationRule`},
		{"bob", role("ClusterRole r\n"), role("ClusterRole r = x\n"), `clusterroles.rbac.authorization.k8s.io "r" is forbidden: must have cluster-admin privileges to use the aggregationRule`},
		{"bob", role("ClusterRole r\n\t* * *\n"), role("ClusterRole r\n\t* * *\n"), ""}, // nothing but what collection needs
		{"bob", role("Role default/r\n\t* core secrets\n"), nil, `roles.rbac.authorization.k8s.io "r" is forbidden: user "bob" (groups=["system:authenticated"])` + attempt +
			`{APIGroups:[""], Resources:["secrets"], Verbs:["*"]}` + fmt.Sprintf(lost, "roles")},
		{"bob", kubetest.ClusterRoleBinding("b", "cluster-admin"), nil, `clusterrolebindings.rbac.authorization.k8s.io "b" is forbidden: user "bob" (groups=["system:authenticated"])` + attempt +
			`{APIGroups:["*"], Resources:["*"], Verbs:["*"]}` + "\n" + `{NonResourceURLs:["*"], Verbs:["*"]}` + fmt.Sprintf(lost, "clusterrolebindings")},
		{"bob", kubetest.ClusterRoleBinding("b", "missing"), nil, `clusterrolebindings.rbac.authorization.k8s.io "missing" not found`},
		{"bob", kubetest.RoleBinding("default", "b", "Role", "missing"), nil, `rolebindings.rbac.authorization.k8s.io "missing" not found`},
		{"bob", kubetest.RoleBinding("default", "b", "ClusterRole", "role-editor"), nil, ""},
		{"root", kubetest.ClusterRoleBinding("b", "cluster-admin"), nil, ""},
		{"root", role("ClusterRole r = x\n"), nil, ""},
		{"binder", kubetest.ClusterRoleBinding("b", "cluster-admin"), nil, ""},
		{"escalator", role("ClusterRole r = x\n\t* * *\n"), nil, ""},
		{"ann", role("ClusterRole r\n\tget core configmaps x\n"), nil, ""},
		{"ann", role("ClusterRole r\n\tget core configmaps\n"), nil, `clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "ann" (groups=["system:authenticated"])` + attempt +
			`{APIGroups:[""], Resources:["configmaps"], Verbs:["get"]}`},
	} {
		path := "/apis/rbac.authorization.k8s.io/v1/"
		if c.obj.GetNamespace() != "" {
			path += "namespaces/" + c.obj.GetNamespace() + "/"
		}
		path += strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", c.obj), "*v1.")) + "s"
		rec := &request.Request{User: request.User{Name: c.who}.WithAuthenticatedGroup(), Info: request.Parse(httptest.NewRequest("POST", path, nil))}
		if _, text := status(t, a.MayGrant(rec, c.obj, c.old)); text != c.want {
			t.Errorf("%s writes %T %s\n got %s\nwant %s", c.who, c.obj, c.obj.GetName(), text, c.want)
		}
	}
}
