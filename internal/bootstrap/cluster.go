package bootstrap

// This file creates the default objects of a cluster. Missing objects are created at the start.
// Existing ones are not changed, so that users can modify them.
//
//	Namespace       default, kube-system, kube-public, kube-node-lease    created first
//	PriorityClass   system-cluster-critical, system-node-critical
//	ServiceCIDR     kubernetes                                            the ranges of cluster IPs
//	Service         default/kubernetes                                    the first address of the first range, port 443, and the port of the server
//
// The endpoints of the Service are in endpoints.go, because they depend on the running servers.

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/rs/zerolog"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"apilet/internal/auth"
	"apilet/internal/auth/certs"
	"apilet/internal/kinds/strategy"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// An Initializer creates missing objects.
type Initializer struct {
	Writer *registry.Writer // creates the objects
	Types  *scheme.Registry // the types of the objects
	Warn   func(string)     // called if stored objects disagree with flags, may be nil
	Log    zerolog.Logger   // for errors that do not end the start
}

// FirstNamespaces is the list of namespaces to create before all other objects.
var FirstNamespaces = []string{"default", "kube-system", "kube-public", "kube-node-lease"}

// Namespaces creates FirstNamespaces. It returns all errors joined.
func (f Initializer) Namespaces(ctx context.Context) (err error) {
	for _, name := range FirstNamespaces {
		err = errors.Join(err, f.create(ctx, "", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	return err
}

// Cluster creates the other objects, except for the endpoints. services are the ranges of cluster
// IPs, and port is the port of this server. If an object cannot be created, for example because
// another Service has the address, the others are created nevertheless.
func (f Initializer) Cluster(ctx context.Context, services []netip.Prefix, port int) error {
	return errors.Join(
		f.create(ctx, schedulingv1.GroupName, "priorityclasses", systemClass(strategy.SystemClusterCritical, 2000000000,
			"Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.")),
		f.create(ctx, schedulingv1.GroupName, "priorityclasses", systemClass(strategy.SystemNodeCritical, 2000001000,
			"Used for system critical pods that must not be moved from their current node.")),
		f.serviceRanges(ctx, services),
		f.create(ctx, "", "services", ownService(services[0].Addr().Next(), port)))
}

func (f Initializer) create(ctx context.Context, group, plural string, obj scheme.Object) error {
	res := f.Types.Lookup(group, "v1", plural)
	if _, err := f.Writer.Store.Get(res.Key(obj.GetNamespace(), obj.GetName())); err == nil {
		return nil
	}
	_, err := f.Writer.Insert(ctx, res, obj, registry.Options{Manager: "apilet"})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating %s %s: %w", res.Kind, obj.GetName(), err)
	}
	return nil
}

func systemClass(name string, value int32, description string) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, Description: description}
}

// createOrUpdate creates an object of the server or updates the existing one. If the existing
// object cannot be read, it is replaced.
func (f Initializer) createOrUpdate(ctx context.Context, group, plural string, fresh scheme.Object, set func(scheme.Object)) error {
	err := f.upsert(ctx, group, plural, fresh, set)
	if !registry.IsPermanent(err) {
		return err
	}
	if _, _, err := f.Writer.Delete(ctx, f.Types.Lookup(group, "v1", plural), fresh.GetNamespace(), fresh.GetName(), &metav1.DeleteOptions{}); err != nil {
		return err
	}
	return f.upsert(ctx, group, plural, fresh, set)
}

func (f Initializer) upsert(ctx context.Context, group, plural string, fresh scheme.Object, set func(scheme.Object)) error {
	t := registry.Target{Resource: f.Types.Lookup(group, "v1", plural), Namespace: fresh.GetNamespace(), Name: fresh.GetName(), Upsert: true}
	_, _, err := f.Writer.Modify(ctx, t, registry.Options{Manager: "apilet", Trusted: true}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
		obj := fresh.DeepCopyObject().(scheme.Object)
		if old != nil {
			obj = old.DeepCopyObject().(scheme.Object)
			labels := map[string]string{}
			maps.Copy(labels, fresh.GetLabels())
			maps.Copy(labels, obj.GetLabels())
			obj.SetLabels(labels)
		}
		set(obj)
		return obj, nil
	})
	return err
}

// ClientAuthorities publishes the PEM certificates of the authorities for client certificates, and
// the trusted proxies. This is used by programs that authenticate their clients in the same way as
// this server, such as aggregated servers, kube-controller-manager and kube-scheduler. Other data
// in the ConfigMap is preserved, including the proxies of other servers on the same etcd.
func (f Initializer) ClientAuthorities(ctx context.Context, pem []byte, proxies auth.RequestHeaderConfig) error {
	published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}}
	return f.createOrUpdate(ctx, "", "configmaps", published, func(obj scheme.Object) {
		published := obj.(*corev1.ConfigMap)
		if published.Data == nil {
			published.Data = map[string]string{}
		}
		if len(pem) > 0 {
			published.Data["client-ca-file"] = string(pem)
		}
		if len(proxies.Authorities) > 0 {
			publishProxies(published.Data, proxies)
		}
	})
}

// PublishAuthorities publishes the authorities that a server accepts, and logs errors. proxy is the
// client certificate for other servers, or nil if the server does not have a certificate.
func (f Initializer) PublishAuthorities(ctx context.Context, cfg *auth.Config, proxy *certs.FrontProxy) {
	pem, err := cfg.Authorities()
	proxies, problem := cfg.RequestHeader.Config()
	if proxy != nil {
		proxies = proxies.With(proxy.Authority(), certs.FrontProxyName)
	}
	if err = cmp.Or(err, problem); err == nil && (len(pem) > 0 || len(proxies.Authorities) > 0) {
		err = f.ClientAuthorities(ctx, pem, proxies)
	}
	if err != nil {
		f.Log.Error().Err(err).Msg("cannot publish the client CA")
	}
}

// publishProxies adds the missing values. It removes authorities that have expired.
func publishProxies(data map[string]string, proxies auth.RequestHeaderConfig) {
	const prefix = "requestheader-"
	told, ok := data[prefix+"allowed-names"]
	any := len(proxies.Names) == 0 || ok && len(listOf(told)) == 0 // an empty list allows any name
	data[prefix+"client-ca-file"] = mergedCertificates(data[prefix+"client-ca-file"], string(proxies.Authorities))
	names := map[string][]string{"allowed-names": proxies.Names, "username-headers": proxies.Users, "uid-headers": proxies.UIDs, "group-headers": proxies.Groups,
		"extra-headers-prefix": proxies.Extras}
	for key, wanted := range names {
		list := listOf(data[prefix+key])
		for _, value := range wanted {
			if !slices.Contains(list, value) {
				list = append(list, value)
			}
		}
		if key == "allowed-names" && any {
			list = nil
		}
		text, _ := json.Marshal(append([]string{}, list...)) // an empty list is encoded as [], not null
		data[prefix+key] = string(text)
	}
}

// listOf parses a published list. It returns nil if the text is invalid.
func listOf(text string) (list []string) {
	if json.Unmarshal([]byte(text), &list) != nil {
		return nil
	}
	return list
}

// mergedCertificates merges PEM bundles. It removes duplicates and expired certificates.
func mergedCertificates(bundles ...string) string {
	var merged []byte
	seen := map[string]bool{}
	for _, bundle := range bundles {
		for block, rest := pem.Decode([]byte(bundle)); block != nil; block, rest = pem.Decode(rest) {
			cert, err := x509.ParseCertificate(block.Bytes)
			if err != nil || seen[string(block.Bytes)] || cert.NotAfter.Before(time.Now()) {
				continue
			}
			seen[string(block.Bytes)] = true
			merged = append(merged, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes})...)
		}
	}
	return string(merged)
}

// ownService returns the Service through which pods reach the API server.
func ownService(address netip.Addr, port int) *corev1.Service {
	singleStack := corev1.IPFamilyPolicySingleStack
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes",
			Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"}},
		Spec: corev1.ServiceSpec{
			Ports:     []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt(port)}},
			ClusterIP: address.String(), IPFamilyPolicy: &singleStack, SessionAffinity: corev1.ServiceAffinityNone, Type: corev1.ServiceTypeClusterIP,
		},
	}
}
