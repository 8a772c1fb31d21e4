package examples

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"apilet/apilettest"
)

// TestPermissions checks the permissions of a user with read-only access.
func TestPermissions(t *testing.T) {
	t.Parallel()
	s := apilettest.Start(t, apilettest.User("jane", "auditors"))
	clientsOf := func(kubeconfig []byte) *kubernetes.Clientset {
		config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
		check(t, err)
		clients, err := kubernetes.NewForConfig(config)
		check(t, err)
		return clients
	}
	admin, jane := clientsOf(s.Kubeconfig()), clientsOf(s.KubeconfigFor("jane"))
	_, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "auditors"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "auditors"}},
	}, metav1.CreateOptions{})
	check(t, err)

	_, err = jane.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	check(t, err)
	_, err = jane.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want a refusal", err)
	}
}
