package scheme

// This file has the versions that kube-apiserver serves only where --runtime-config asks for them, and reads that flag. Each is an older version of a type
// that has a stable one, with the same fields, in whose Go types its objects live: so it costs the binary nothing, and a version that is switched off
// again takes nothing along. Left out are the types of 1.37 that have no stable version (LeaseCandidate, StorageVersion,
// ResourcePoolStatusRequest), and those whose fields are others: resource.k8s.io/v1beta1, and PodCertificateRequests of certificates.k8s.io/v1beta1.

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
)

const (
	certificates = "certificates.k8s.io"
	registration = "admissionregistration.k8s.io"
	devices      = "resource.k8s.io"
	migration    = "storagemigration.k8s.io"
)

// Optional is the table of the rows that are off by default. The lifecycles are those of the types of k8s.io/api.
var Optional = slices.Concat(
	GroupVersion(certificates, "v1beta1",
		older[certificatesv1.ClusterTrustBundle](0, certificates, "clustertrustbundles", "", 37).replacedByStable()),
	GroupVersion(registration, "v1beta1",
		older[admissionregistrationv1.MutatingAdmissionPolicy](InExtensions|Counted, registration, "mutatingadmissionpolicies", "", 37).replacedByStable(),
		older[admissionregistrationv1.MutatingAdmissionPolicyBinding](InExtensions|Counted, registration, "mutatingadmissionpolicybindings", "", 37).replacedByStable()),
	GroupVersion(registration, "v1alpha1",
		older[admissionregistrationv1.MutatingAdmissionPolicy](InExtensions|Counted, registration, "mutatingadmissionpolicies", "", 35),
		older[admissionregistrationv1.MutatingAdmissionPolicyBinding](InExtensions|Counted, registration, "mutatingadmissionpolicybindings", "", 35).
			defaulting(denyMissingParams)),
	GroupVersion(devices, "v1beta2",
		older[resourcev1.DeviceClass](Counted, devices, "deviceclasses", "", 36),
		older[resourcev1.DeviceTaintRule](Counted, devices, "devicetaintrules", "status", 39),
		older[resourcev1.ResourceClaim](Namespaced, devices, "resourceclaims", "status", 36),
		older[resourcev1.ResourceClaimTemplate](Namespaced, devices, "resourceclaimtemplates", "", 36),
		older[resourcev1.ResourceSlice](Counted, devices, "resourceslices", "", 36)),
	GroupVersion(devices, "v1alpha3",
		older[resourcev1.DeviceTaintRule](Counted, devices, "devicetaintrules", "status", 36)),
	GroupVersion(migration, "v1beta1",
		older[storagemigrationv1.StorageVersionMigration](0, migration, "storageversionmigrations", "status", 37).replacedByStable()),
)

// older is the row of a version with the fields of the stable one, deprecated since a minor version and to go three later.
func older[Stable any](traits Trait, group, names, subresources string, deprecated int) *Resource {
	t := reflect.TypeFor[Stable]()
	res := Row[Stable](traits, names, subresources).storedIn(group, &Conversion{wire: t, stored: t})
	res.Deprecation = &Deprecation{Deprecated: [2]int{1, deprecated}, Removed: [2]int{1, deprecated + 3}}
	return res
}

// defaulting sets the default values that only this version has.
func (res *Resource) defaulting(set func(Object)) *Resource {
	res.Conversion.in = func(obj Object) Object { set(obj); return obj }
	return res
}

// denyMissingParams sets the default of parameterNotFoundAction, which is required in other versions.
func denyMissingParams(obj Object) {
	ref := obj.(*admissionregistrationv1.MutatingAdmissionPolicyBinding).Spec.ParamRef
	if ref != nil && ref.ParameterNotFoundAction == nil {
		ref.ParameterNotFoundAction = new(admissionregistrationv1.DenyAction)
	}
}

// replacedByStable says that the warning names the stable version.
func (res *Resource) replacedByStable() *Resource {
	res.Deprecation.ReplacementGroup, res.Deprecation.ReplacementVersion, res.Deprecation.Replaced = res.StorageGroup, "v1", res.Kind
	return res
}

// known are all rows: of what a body may be, whether or not it is served.
var known = slices.Concat(Builtins, Optional)

// Served reads the entries of --runtime-config, "networking.k8s.io/v1beta1=true" or "api/alpha=false": the rows to be served. Of two entries that speak of a row
// the more specific one counts: group/version/resource, then group/version, then api/beta or api/alpha, then api/all. A version without "=" is switched on.
// As in kube-apiserver a group has to be known, a version need not be. What is on by default and not deprecated cannot be switched off: the server
// itself needs it.
func Served(config []string) ([]*Resource, error) {
	wanted := map[string]bool{}
	for _, entry := range config {
		name, value, given := strings.Cut(strings.TrimSpace(entry), "=")
		if given && value != "true" && value != "false" {
			return nil, fmt.Errorf("%q is neither true nor false", entry)
		}
		if err := nameable(name); err != nil {
			return nil, err
		}
		wanted[name] = value != "false"
	}
	var rows []*Resource
	for i, res := range known {
		byDefault := i < len(Builtins)
		on := byDefault
		for _, name := range []string{"api/all", maturity(res.Version), res.APIVersion(), res.APIVersion() + "/" + res.Plural} {
			if value, ok := wanted[name]; ok {
				on = value
			}
		}
		if !on && byDefault && res.Deprecation == nil {
			return nil, fmt.Errorf("%s is always served", res.APIVersion())
		}
		if on {
			rows = append(rows, res)
		}
	}
	return rows, nil
}

// nameable refuses what names no version, or one of a group that there is not, in kube-apiserver's words.
func nameable(name string) error {
	group, _, ok := strings.Cut(name, "/")
	switch {
	case name == "v1" || group == "api" || group == "apiextensions.k8s.io":
		return nil
	case !ok:
		return fmt.Errorf("runtime-config invalid key %s", name)
	case !slices.ContainsFunc(known, func(res *Resource) bool { return res.Group == group }):
		return fmt.Errorf("unknown api groups %s", name)
	}
	return nil
}

// maturity is the name of all versions of this one's kind.
func maturity(version string) string {
	for _, kind := range []string{"alpha", "beta"} {
		if strings.Contains(version, kind) {
			return "api/" + kind
		}
	}
	return "api/ga"
}
