package scheme

// This file contains the versions that are only served if they are enabled by --runtime-config,
// and parses the flag. They are older versions of types that also have a stable version with the
// same fields, and they use the Go types of the stable version. Therefore they do not increase
// the size of the binary, and no data is lost if the version is disabled again.
//
// The types of 1.37 without a stable version are not included (LeaseCandidate, StorageVersion,
// ResourcePoolStatusRequest). Versions with different fields are not included either
// (resource.k8s.io/v1beta1, and PodCertificateRequest in certificates.k8s.io/v1beta1).

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/features"
)

const (
	certificates = "certificates.k8s.io"
	registration = "admissionregistration.k8s.io"
	devices      = "resource.k8s.io"
	migration    = "storagemigration.k8s.io"
)

// Optional contains the rows that are off by default. Their lifecycles are those of k8s.io/api.
var Optional = slices.Concat(
	GroupVersion(certificates, "v1beta1",
		older[certificatesv1.ClusterTrustBundle](0, certificates, "clustertrustbundles", "", 33, 37).replacedByStable()),
	GroupVersion(registration, "v1beta1",
		older[admissionregistrationv1.MutatingAdmissionPolicy](InExtensions|HasGeneration, registration, "mutatingadmissionpolicies", "", 34, 37).replacedByStable(),
		older[admissionregistrationv1.MutatingAdmissionPolicyBinding](InExtensions|HasGeneration, registration, "mutatingadmissionpolicybindings", "", 34, 37).replacedByStable()),
	GroupVersion(registration, "v1alpha1",
		older[admissionregistrationv1.MutatingAdmissionPolicy](InExtensions|HasGeneration, registration, "mutatingadmissionpolicies", "", 32, 35),
		older[admissionregistrationv1.MutatingAdmissionPolicyBinding](InExtensions|HasGeneration, registration, "mutatingadmissionpolicybindings", "", 32, 35).
			defaulting(denyMissingParams)),
	GroupVersion(devices, "v1beta2",
		older[resourcev1.DeviceClass](HasGeneration, devices, "deviceclasses", "", 33, 36),
		older[resourcev1.DeviceTaintRule](HasGeneration, devices, "devicetaintrules", "status", 36, 39),
		older[resourcev1.ResourceClaim](Namespaced, devices, "resourceclaims", "status", 33, 36),
		older[resourcev1.ResourceClaimTemplate](Namespaced, devices, "resourceclaimtemplates", "", 33, 36),
		older[resourcev1.ResourceSlice](HasGeneration, devices, "resourceslices", "", 33, 36)),
	GroupVersion(devices, "v1alpha3",
		older[resourcev1.DeviceTaintRule](HasGeneration, devices, "devicetaintrules", "status", 33, 36)),
	GroupVersion(migration, "v1beta1",
		older[storagemigrationv1.StorageVersionMigration](0, migration, "storageversionmigrations", "status", 35, 37).replacedByStable()),
)

// older returns the row of a version with the same fields as the stable version. introduced and
// deprecated are minor versions; the version is removed three minor versions after deprecated.
func older[Stable any](traits Trait, group, names, subresources string, introduced, deprecated int) *Resource {
	t := reflect.TypeFor[Stable]()
	res := Row[Stable](traits, names, subresources).storedIn(group, &Conversion{wire: t, stored: t})
	res.Deprecation = &Deprecation{Deprecated: [2]int{1, deprecated}, Removed: [2]int{1, deprecated + 3}}
	res.Introduced = introduced
	return res
}

// defaulting adds the default values that only this version has.
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

// replacedByStable adds the stable version to the deprecation warning.
func (res *Resource) replacedByStable() *Resource {
	res.Deprecation.ReplacementGroup, res.Deprecation.ReplacementVersion, res.Deprecation.Replaced = res.StorageGroup, "v1", res.Kind
	return res
}

// known contains the rows that are used to decode a body, even if they are not served.
var known = slices.Concat(Builtins, Optional)

// Served parses the entries of --runtime-config, as in "networking.k8s.io/v1beta1=true" or
// "api/alpha=false", and returns the rows to serve. If several entries apply to a row, the most
// specific one wins: group/version/resource, then group/version, then api/beta or api/alpha, then
// api/all. An entry without "=" enables the version. As in kube-apiserver the group must exist,
// but the version need not. If a version is on by default and not deprecated, it cannot be
// disabled, because it is used by the server.
func Served(config []string) ([]*Resource, error) {
	wanted := map[string]bool{}
	for _, entry := range config {
		name, value, given := strings.Cut(strings.TrimSpace(entry), "=")
		if given && value != "true" && value != "false" {
			return nil, fmt.Errorf("%q is neither true nor false", entry)
		}
		if err := checkRuntimeConfigName(name); err != nil {
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

// EffectiveVersion returns the version of Kubernetes that the server emulates. By default, this is its
// own version. It belongs to the process, like the feature gates, and package options sets it.
func EffectiveVersion() basecompatibility.EffectiveVersion {
	return compatibility.DefaultComponentGlobalsRegistry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent)
}

// ServedBy returns the rows that kube-apiserver serves if it emulates a minor version. It omits the
// types that were introduced later, the types that were removed before or in that version, and the
// types whose feature gate is disabled. config contains the entries of --runtime-config. An entry
// that enables a later type is an error, as in kube-apiserver.
func ServedBy(minor int, rows []*Resource, config []string) ([]*Resource, error) {
	var served []*Resource
	versions := map[string]bool{} // whether a type of the group version is served
	for _, res := range rows {
		switch {
		case res.Deprecation.removedIn(minor), isDisabled(res):
			continue
		case res.Introduced <= minor:
			served, versions[res.APIVersion()] = append(served, res), true
		case enables(config, res.APIVersion()+"/"+res.Plural):
			return nil, fmt.Errorf("cannot enable resource %s/%s, Resource=%s in runtime-config because it is introduced at 1.%d after the current version 1.%d",
				res.Group, res.Version, res.Plural, res.Introduced, minor)
		default:
			versions[res.APIVersion()] = versions[res.APIVersion()]
		}
	}
	for _, version := range slices.Sorted(maps.Keys(versions)) {
		if !versions[version] && enables(config, version) {
			return nil, fmt.Errorf("cannot enable version %s in runtime-config because all the resources have been introduced after the current version 1.%d", version, minor)
		}
	}
	return served, nil
}

// gates contains the feature gates without which a type is not served, by plural name. They are
// enabled by default in 1.37.
var gates = map[string]featuregate.Feature{"clustertrustbundles": features.ClusterTrustBundle, "storageversionmigrations": features.StorageVersionMigrator}

// isDisabled reports whether the feature gate of a type is disabled.
func isDisabled(res *Resource) bool {
	gate, ok := gates[res.Plural]
	return ok && !utilfeature.DefaultFeatureGate.Enabled(gate)
}

// enables reports whether --runtime-config names a version or a resource and enables it.
func enables(config []string, name string) bool {
	return slices.ContainsFunc(config, func(entry string) bool {
		entry = strings.TrimSpace(entry)
		return entry == name || entry == name+"=true"
	})
}

// checkRuntimeConfigName rejects entries without a version and entries with an unknown group. The
// errors are kube-apiserver's.
func checkRuntimeConfigName(name string) error {
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

// maturity returns the entry that applies to all versions of this maturity, as in api/beta.
func maturity(version string) string {
	for _, kind := range []string{"alpha", "beta"} {
		if strings.Contains(version, kind) {
			return "api/" + kind
		}
	}
	return "api/ga"
}
