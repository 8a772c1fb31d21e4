package layout

// This file computes the keys of objects. value.go encodes their values.

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/encryption"
	"apilet/internal/scheme"
	"apilet/internal/scheme/internalversion"
)

// A Layout holds the paths and versions of the built-in types. It looks up those of custom
// resources in the registry.
type Layout struct {
	prefix string // "/registry/"
	reg    *scheme.Registry
	byBase map[string]*storedType // by key prefix in the store: "//pods/"
	byPath map[string]*storedType // by path relative to the prefix in etcd: "pods", "services/specs"

	custom atomic.Pointer[customRows] // cache for the registry's latest catalog

	// Encryption encrypts values if it is not nil. It must be set before the layout is used.
	Encryption *encryption.Providers
}

// A storedType describes how a built-in type is stored in etcd.
type storedType struct {
	path         string
	namespaced   bool
	storeVersion *scheme.Resource            // the version used in the store
	etcdVersion  *scheme.Resource            // the storage version of kube-apiserver
	versions     map[string]*scheme.Resource // all versions that can be decoded, by apiVersion
	in, out      convert                     // from etcdVersion to storeVersion, and back; nil if they have the same shape
}

type convert func(scheme.Object) (scheme.Object, error)

// customRows maps key prefixes to the rows of custom resources in the given catalog.
type customRows struct {
	catalog *scheme.Catalog
	rows    map[string]*scheme.Resource
}

const (
	definitionBase = "/" + apiextensionsv1.GroupName + "/customresourcedefinitions/"
	// rangeBase is the key prefix for the range of node ports, which kube-apiserver stores as an
	// object without a name. It is never served.
	rangeBase = "//rangeallocations/"
)

// storageVersions returns the storage versions of kube-apiserver 1.37 that differ from the versions
// which scheme keeps. If the Go type is that of the kept version, the fields have the same names
// and numbers.
func storageVersions() []*scheme.Resource {
	return slices.Concat(
		scheme.GroupVersion(certificatesv1.GroupName, "v1beta1",
			scheme.Row[certificatesv1.ClusterTrustBundle](0, "clustertrustbundles", ""),
			scheme.Row[certificatesv1beta1.PodCertificateRequest](scheme.Namespaced, "podcertificaterequests", "")),
		scheme.GroupVersion(resourcev1.GroupName, "v1beta2",
			scheme.Row[resourcev1.DeviceTaintRule](0, "devicetaintrules", "")),
		scheme.GroupVersion(storagemigrationv1.GroupName, "v1beta1",
			scheme.Row[storagemigrationv1.StorageVersionMigration](0, "storageversionmigrations", "")),
		scheme.GroupVersion(apiextensionsv1.GroupName, "v1beta1",
			scheme.Row[apiextensionsv1beta1.CustomResourceDefinition](0, "customresourcedefinitions", "")))
}

// formerVersions returns the versions that earlier kube-apiservers stored and 1.37 can still read,
// but does not serve. They have the fields of the kept versions.
func formerVersions() []*scheme.Resource {
	return append(
		scheme.GroupVersion(networkingv1.GroupName, "v1beta1",
			scheme.Row[networkingv1.IPAddress](0, "ipaddresses", ""),
			scheme.Row[networkingv1.ServiceCIDR](0, "servicecidrs", "")),
		scheme.GroupVersion(storagev1.GroupName, "v1beta1",
			scheme.Row[storagev1.VolumeAttributesClass](0, "volumeattributesclasses", ""))...)
}

// New returns the layout below prefix, which is kube-apiserver's --etcd-prefix: "/registry".
func New(prefix string, reg *scheme.Registry) *Layout {
	l := &Layout{prefix: strings.TrimSuffix(path.Join("/", prefix), "/") + "/", reg: reg, byBase: map[string]*storedType{}, byPath: map[string]*storedType{}}
	for _, row := range slices.Concat(scheme.Builtins, scheme.Optional, formerVersions()) {
		l.addRow(row)
	}
	l.addRow(scheme.GroupVersion(apiextensionsv1.GroupName, "v1",
		scheme.Row[apiextensionsv1.CustomResourceDefinition](0, "customresourcedefinitions", ""))[0])
	l.addRow(scheme.GroupVersion("", "v1", scheme.Row[corev1.RangeAllocation](0, "rangeallocations", ""))[0])
	for _, row := range storageVersions() {
		l.addRow(row)
		l.byBase[row.Base].etcdVersion = row
	}
	definitions := l.byBase[definitionBase]
	definitions.in, definitions.out = definitionFromV1beta1, definitionToV1beta1
	requests := l.byBase["/"+certificatesv1.GroupName+"/podcertificaterequests/"]
	requests.in, requests.out = convertTo(certificatesv1.SchemeGroupVersion), convertTo(certificatesv1beta1.SchemeGroupVersion)
	return l
}

// convertTo returns a conversion through the internal type.
func convertTo(gv schema.GroupVersion) convert {
	return func(obj scheme.Object) (scheme.Object, error) {
		converted := internalversion.To(gv, internalversion.From(obj)).(scheme.Object)
		converted.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		return converted, nil
	}
}

// addRow adds a row to its type. The first version that does not need to be converted for storage
// is the one used in the store.
func (l *Layout) addRow(row *scheme.Resource) {
	if row.Virtual {
		return
	}
	t := l.byBase[row.Base]
	if t == nil {
		t = &storedType{path: row.EtcdFolder(), namespaced: row.Namespaced, versions: map[string]*scheme.Resource{}}
		l.byBase[row.Base], l.byPath[t.path] = t, t
	}
	t.versions[row.APIVersion()] = row
	if t.storeVersion == nil && row.ServesStorageVersion() {
		t.storeVersion, t.etcdVersion = row, row
	}
}

// Prefix returns the common prefix of all keys, including the trailing slash.
func (l *Layout) Prefix() string { return l.prefix }

// EtcdKey returns the key of an object in etcd.
func (l *Layout) EtcdKey(key string) (string, error) {
	base, namespace, name, ok := scheme.SplitKey(key)
	if !ok {
		return "", fmt.Errorf("%q is not the key of an object", key)
	}
	place := strings.Trim(base, "/")
	if t := l.byBase[base]; t != nil {
		place = t.path
		if t.namespaced != (namespace != "") {
			return "", fmt.Errorf("%q is not a key of its type: its namespace is missing or unexpected", key)
		}
	} else if group, _, _ := strings.Cut(place, "/"); !strings.Contains(group, ".") {
		return "", fmt.Errorf("%q: there is no such type", key)
	}
	if namespace != "" {
		place += "/" + namespace
	}
	return l.prefix + place + "/" + name, nil
}

// StoreKey returns the store's key for a key in etcd. It returns false for keys that do not
// represent known objects, such as the leases of servers and objects of unknown types. Any key with
// the form of a custom resource's key is accepted, because its definition may be created later.
func (l *Layout) StoreKey(etcdKey string) (string, bool) {
	rest, ok := strings.CutPrefix(etcdKey, l.prefix)
	if !ok {
		return "", false
	}
	place, rest, _ := strings.Cut(rest, "/")
	dotted := strings.Contains(place, ".")
	if dotted || place == "services" {
		second, after, _ := strings.Cut(rest, "/")
		place, rest = place+"/"+second, after
	}
	namespace, name, namespaced := strings.Cut(rest, "/")
	if !namespaced {
		namespace, name = "", rest
	}
	if name == "" || namespaced && namespace == "" || strings.Contains(name, "/") {
		return "", false
	}
	switch t := l.byPath[place]; {
	case t != nil && t.namespaced == namespaced:
		return t.storeVersion.Key(namespace, name), true
	case t != nil || !dotted || strings.HasPrefix(place, ".") || strings.HasSuffix(place, "/"):
		return "", false
	}
	return "/" + place + "/" + namespace + "/" + name, true
}

// IsHidden reports whether the key belongs to data that is not visible to clients.
func (l *Layout) IsHidden(key string) bool { return strings.HasPrefix(key, rangeBase) }

// AddResources registers rows of custom resources. It is used by commands that run without a
// server, where definitions are not loaded automatically.
func (l *Layout) AddResources(rows []*scheme.Resource) { l.reg.ReplaceCustom(rows) }

// customRow returns a row for the custom resources with a key prefix, or nil if no definition is in
// effect. It also finds definitions without a served version, because their objects are still
// updated and deleted.
func (l *Layout) customRow(base string) *scheme.Resource {
	catalog, known := l.reg.Current.Load(), l.custom.Load()
	if known == nil || known.catalog != catalog {
		known = &customRows{catalog: catalog, rows: map[string]*scheme.Resource{}}
		for _, row := range slices.Concat(catalog.Unserved, catalog.Sorted) {
			if row.GoType == nil && row.Custom != nil {
				known.rows[row.Base] = row
			}
		}
		l.custom.Store(known)
	}
	return known.rows[base]
}

func definitionFromV1beta1(obj scheme.Object) (scheme.Object, error) {
	old, inner, out := obj.(*apiextensionsv1beta1.CustomResourceDefinition), &apiextensions.CustomResourceDefinition{}, &apiextensionsv1.CustomResourceDefinition{}
	apiextensionsv1beta1.SetObjectDefaults_CustomResourceDefinition(old)
	if err := apiextensionsv1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(old, inner, nil); err != nil {
		return nil, err
	}
	return out, apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(inner, out, nil)
}

func definitionToV1beta1(obj scheme.Object) (scheme.Object, error) {
	inner, out := &apiextensions.CustomResourceDefinition{}, &apiextensionsv1beta1.CustomResourceDefinition{}
	now := obj.(*apiextensionsv1.CustomResourceDefinition)
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(now, inner, nil); err != nil {
		return nil, err
	}
	return out, apiextensionsv1beta1.Convert_apiextensions_CustomResourceDefinition_To_v1beta1_CustomResourceDefinition(inner, out, nil)
}
