package bootstrap

// This file publishes ConfigMap cluster-info in kube-public for nodes that join with a bootstrap token (kubeadm join). It says where the
// server is and which authority has signed its certificate, in a kubeconfig without users. kubeadm init creates the same three objects.
//
//	ConfigMap    cluster-info                           kubeconfig: ...; kube-controller-manager's bootstrapsigner adds jws-kubeconfig-ID
//	Role         kubeadm:bootstrap-signer-clusterinfo   get ConfigMap cluster-info
//	RoleBinding  kubeadm:bootstrap-signer-clusterinfo   to User system:anonymous
//
// A node that knows no authority yet reads the ConfigMap anonymously and checks it with the signature of its token, or with the hash of
// the authority's key. The Role and its binding are created together with the ConfigMap only: an administrator who deletes the
// RoleBinding, so that anonymous users cannot read the ConfigMap any more, does not see it again after a restart.

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	"sigs.k8s.io/yaml"

	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	manager           = "apilet" // of the fields that the server sets
	clusterInfoReader = "kubeadm:bootstrap-signer-clusterinfo"
)

// ClusterInfo publishes the URL of a server and the certificate of its authority in PEM. A kubeconfig that somebody else has written
// stays as it is.
func (f Initializer) ClusterInfo(ctx context.Context, server string, authority []byte) error {
	kubeconfig, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "preferences": map[string]any{}, "current-context": "", "contexts": nil, "users": nil,
		"clusters": []any{map[string]any{"name": "", "cluster": map[string]any{"server": server, "certificate-authority-data": authority}}}})
	if err != nil {
		return err
	}
	info := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: bootstrapapi.ConfigMapClusterInfo}}
	key := f.Types.Lookup("", "v1", "configmaps").Key(info.Namespace, info.Name)
	if _, err := f.Writer.Store.Get(key); errors.Is(err, store.ErrNotFound) {
		if err := f.admitClusterInfoReaders(ctx); err != nil {
			return err
		}
	}
	return f.createOrUpdate(ctx, "", "configmaps", info, func(obj scheme.Object) {
		info := obj.(*corev1.ConfigMap)
		if _, there := info.Data[bootstrapapi.KubeConfigKey]; there && !managesKubeconfig(info) {
			return
		}
		if info.Data == nil {
			info.Data = map[string]string{}
		}
		info.Data[bootstrapapi.KubeConfigKey] = string(kubeconfig)
	})
}

// managesKubeconfig reports whether the server is the last that has set the kubeconfig.
func managesKubeconfig(info *corev1.ConfigMap) bool {
	for _, entry := range info.ManagedFields {
		if entry.Manager == manager && entry.FieldsV1 != nil && gjson.Get(entry.FieldsV1.GetRawString(), "f:data.f:"+bootstrapapi.KubeConfigKey).Exists() {
			return true
		}
	}
	return false
}

// admitClusterInfoReaders allows anonymous users to read ConfigMap cluster-info.
func (f Initializer) admitClusterInfoReaders(ctx context.Context) error {
	meta := metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: clusterInfoReader}
	return errors.Join(
		f.create(ctx, rbacv1.GroupName, "roles", &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{bootstrapapi.ConfigMapClusterInfo}}}}),
		f.create(ctx, rbacv1.GroupName, "rolebindings", &rbacv1.RoleBinding{ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: clusterInfoReader},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: request.UserAnonymous}}}))
}

// URLForNodes returns the URL at which other machines reach a server. It differs from the server's own URL if that names this machine's
// loopback address, although the server listens on all addresses.
func URLForNodes(own string, listening netip.AddrPort, six bool) string {
	parsed, err := url.Parse(own)
	if err != nil || !listening.Addr().IsUnspecified() || !request.IsLoopback(parsed.Hostname()) {
		return own
	}
	parsed.Host = net.JoinHostPort(reachable(listening, six).Addr().String(), parsed.Port())
	return parsed.String()
}
