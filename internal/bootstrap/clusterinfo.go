package bootstrap

// This file publishes ConfigMap cluster-info in kube-public for nodes that join with a bootstrap
// token (kubeadm join). It contains a kubeconfig with the URL of the server and the certificate of
// its authority, and no users. kubeadm init creates the same three objects.
//
//	ConfigMap    cluster-info                           kubeconfig: ...; kube-controller-manager's bootstrapsigner adds jws-kubeconfig-ID
//	Role         kubeadm:bootstrap-signer-clusterinfo   get ConfigMap cluster-info
//	RoleBinding  kubeadm:bootstrap-signer-clusterinfo   to User system:anonymous
//
// A joining node reads the ConfigMap anonymously. It checks the signature by using its token, or it
// checks the hash of the authority's key. The server creates the Role and the RoleBinding only when
// it creates the ConfigMap. An administrator can therefore delete the RoleBinding to stop anonymous
// users from reading the ConfigMap, and a restart does not bring it back.

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

	"apilet/internal/auth"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	manager           = "apilet" // of the fields that the server sets
	clusterInfoReader = "kubeadm:bootstrap-signer-clusterinfo"
)

// ClusterInfo publishes the URL of a server and the PEM certificate of its authority. If another
// client has set the kubeconfig, it is not overwritten.
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

// managesKubeconfig reports whether the server was the last client that set the kubeconfig.
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

// URLForNodes returns the URL at which other machines reach a server. If the server listens on all
// addresses and its own URL contains a loopback address, URLForNodes replaces that address with one
// of the machine's other addresses.
func URLForNodes(own string, listening netip.AddrPort, six bool) string {
	parsed, err := url.Parse(own)
	if err != nil || !listening.Addr().IsUnspecified() || !request.IsLoopback(parsed.Hostname()) {
		return own
	}
	parsed.Host = net.JoinHostPort(reachable(listening, six).Addr().String(), parsed.Port())
	return parsed.String()
}

// PublishClusterInfo publishes the URL and the CA of a server for nodes that join with a bootstrap
// token, and logs errors. If the administrator provides the serving certificate, the server does
// not know its CA and publishes nothing. own is the URL of the server, and six is set if the
// cluster uses IPv6.
func (f Initializer) PublishClusterInfo(ctx context.Context, cfg *auth.Config, own string, listening netip.AddrPort, six bool) {
	switch {
	case !cfg.BootstrapTokens:
		return
	case cfg.OwnCA == nil:
		f.Log.Info().Msg("ConfigMap cluster-info in kube-public is not published: the CA of --tls-cert-file is unknown")
		return
	}
	if err := f.ClusterInfo(ctx, URLForNodes(own, listening, six), cfg.OwnCA); err != nil {
		f.Log.Error().Err(err).Msg("cannot publish ConfigMap cluster-info in kube-public")
	}
}
