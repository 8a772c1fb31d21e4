package scheme

// This file has the versions that kube-apiserver serves only where --runtime-config asks for them, and reads that flag. Each is an older version of a type
// that has a stable one: its objects are stored as the stable version's, so a version that is switched off again takes nothing along. All but
// those of devices.go have the same fields.
// Left out are the types of 1.36 that have no stable version: LeaseCandidate, StorageVersion, DeviceTaintRule, ResourcePoolStatusRequest.

import (
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	admissionregistrationv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	admissionregistrationv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	storagev1 "k8s.io/api/storage/v1"
	storagev1beta1 "k8s.io/api/storage/v1beta1"
)

// Optional is the table of the rows that are off by default.
var Optional = slices.Concat(
	GroupVersion("networking.k8s.io", "v1beta1",
		asIn[networkingv1beta1.IPAddress, networkingv1.IPAddress](0, "networking.k8s.io", "ipaddresses ip", ""),
		asIn[networkingv1beta1.ServiceCIDR, networkingv1.ServiceCIDR](0, "networking.k8s.io", "servicecidrs", "status")),
	GroupVersion("storage.k8s.io", "v1beta1",
		asIn[storagev1beta1.VolumeAttributesClass, storagev1.VolumeAttributesClass](0, "storage.k8s.io", "volumeattributesclasses vac", "")),
	GroupVersion("admissionregistration.k8s.io", "v1beta1",
		asIn[admissionregistrationv1beta1.MutatingAdmissionPolicy, admissionregistrationv1.MutatingAdmissionPolicy](
			InExtensions|Counted, "admissionregistration.k8s.io", "mutatingadmissionpolicies", ""),
		asIn[admissionregistrationv1beta1.MutatingAdmissionPolicyBinding, admissionregistrationv1.MutatingAdmissionPolicyBinding](
			InExtensions|Counted, "admissionregistration.k8s.io", "mutatingadmissionpolicybindings", "")),
	GroupVersion("admissionregistration.k8s.io", "v1alpha1",
		asIn[admissionregistrationv1alpha1.MutatingAdmissionPolicy, admissionregistrationv1.MutatingAdmissionPolicy](
			InExtensions|Counted, "admissionregistration.k8s.io", "mutatingadmissionpolicies", ""),
		asIn[admissionregistrationv1alpha1.MutatingAdmissionPolicyBinding, admissionregistrationv1.MutatingAdmissionPolicyBinding](
			InExtensions|Counted, "admissionregistration.k8s.io", "mutatingadmissionpolicybindings", "")),
	GroupVersion("resource.k8s.io", "v1beta2",
		asIn[resourcev1beta2.DeviceClass, resourcev1.DeviceClass](Counted, "resource.k8s.io", "deviceclasses", ""),
		asIn[resourcev1beta2.ResourceClaim, resourcev1.ResourceClaim](Namespaced, "resource.k8s.io", "resourceclaims", "status"),
		asIn[resourcev1beta2.ResourceClaimTemplate, resourcev1.ResourceClaimTemplate](Namespaced, "resource.k8s.io", "resourceclaimtemplates", ""),
		asIn[resourcev1beta2.ResourceSlice, resourcev1.ResourceSlice](Counted, "resource.k8s.io", "resourceslices", "")),
	ofDevices(),
)

// asIn is the row of a version that has the fields of the stable one.
func asIn[Served, Stored any](traits Trait, group, names, subresources string) *Resource {
	return Row[Served](traits, names, subresources).storedIn(group, sameShape[Stored](nil, nil))
}

// known are all rows: of what a body may be, whether or not it is served.
var known = slices.Concat(Builtins, Optional)

// Served reads the value of --runtime-config, "networking.k8s.io/v1beta1=true,api/alpha=false": the rows to be served. Of two entries that speak of a row
// the more specific one counts: group/version/resource, then group/version, then api/beta or api/alpha, then api/all. A version without "=" is switched on.
// As in kube-apiserver a group has to be known, a version need not be. What is on by default and not deprecated cannot be switched off: the server
// itself needs it.
func Served(config string) ([]*Resource, error) {
	wanted := map[string]bool{}
	for _, entry := range strings.FieldsFunc(config, func(r rune) bool { return r == ',' }) {
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
