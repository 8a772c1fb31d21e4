package validation

// This file chooses the IP families of a Service. It must run before addresses are allocated and
// before all other rules of Services, so it both sets and validates the fields:
//
//	policy        families named   addresses named   a cluster of IPv4 and IPv6      a cluster of IPv4
//	none          none             none              SingleStack, IPv4               the same
//	Prefer        none             an IPv6           PreferDualStack, IPv6 and IPv4  422: IPv6 is not configured
//	Prefer        none             none              both                            PreferDualStack, IPv4
//	Require       none             none              both                            422: not configured for dual-stack
//	none          none             None, no selector RequireDualStack, both          the same, because the client manages the endpoints
//
// The number of families of a Service can only be changed by changing its policy. A Service with
// PreferDualStack stays unchanged if the cluster gets another family later. The rules, their order
// and the messages match pkg/registry/core/service/storage/alloc.go in k8s.io/kubernetes.

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/utils/ptr"

	"apilet/internal/scheme/internalversion"
)

// SetIPFamilies sets the IP family policy and the families of a Service if they are missing, or
// returns the errors. offered are the families of the cluster, the default first. old is nil for a
// create.
func SetIPFamilies(svc, old *corev1.Service, offered []corev1.IPFamily) field.ErrorList {
	spec := &svc.Spec
	if spec.Type == corev1.ServiceTypeExternalName || old != nil && prefersAsBefore(svc, old) {
		return nil
	}
	k := familyChecker{&Checker{}}
	openEnded := spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0
	fillPolicy(spec, old, openEnded)
	p := field.NewPath("spec")
	if errs := validateClusterIPs(svc, old); len(errs) > 0 {
		return errs
	}
	if old != nil {
		k.release(p, spec, &old.Spec)
	}
	k.singleStackHasOne(p, spec)
	if k.familiesOfAddresses(p, spec, offered); len(k.Errs) > 0 {
		return k.Errs
	}
	if !openEnded {
		if k.offered(p, spec, offered); len(k.Errs) > 0 {
			return k.Errs
		}
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{offered[0]}
	}
	if *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 && (openEnded || len(offered) == 2) {
		spec.IPFamilies = []corev1.IPFamily{spec.IPFamilies[0], otherFamily(spec.IPFamilies[0])}
	}
	return nil
}

// validateClusterIPs validates the addresses, families and policy of a Service.
func validateClusterIPs(svc, old *corev1.Service) field.ErrorList {
	var before *core.Service
	if old != nil {
		before = internalversion.From(old).(*core.Service)
	}
	return corevalidation.ValidateServiceClusterIPsRelatedFields(internalversion.From(svc).(*core.Service), before)
}

// A familyChecker collects errors for the families of a Service.
type familyChecker struct{ *Checker }

// prefersAsBefore reports whether an update leaves the families of a Service with PreferDualStack
// unchanged. Such a Service keeps its families, even if the cluster now offers others.
func prefersAsBefore(svc, old *corev1.Service) bool {
	now, before := &svc.Spec, &old.Spec
	prefers := func(policy *corev1.IPFamilyPolicy) bool {
		return policy != nil && *policy == corev1.IPFamilyPolicyPreferDualStack
	}
	return now.Type == before.Type && prefers(now.IPFamilyPolicy) && (prefers(before.IPFamilyPolicy) || before.IPFamilyPolicy == nil) &&
		slices.Equal(now.ClusterIPs, before.ClusterIPs) && slices.Equal(now.IPFamilies, before.IPFamilies)
}

// fillPolicy sets a missing policy. An update keeps the old policy. The default is SingleStack.
// For headless Services without a selector, it is RequireDualStack, since the endpoints may have
// any family.
func fillPolicy(spec *corev1.ServiceSpec, old *corev1.Service, openEnded bool) {
	switch {
	case spec.IPFamilyPolicy != nil:
	case old != nil && old.Spec.IPFamilyPolicy != nil:
		spec.IPFamilyPolicy = old.Spec.IPFamilyPolicy
	case openEnded:
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	default:
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	}
}

// release drops the secondary address and family when a Service becomes SingleStack and the update
// does not change them. Removing them with another policy is an error.
func (k familyChecker) release(p *field.Path, now, before *corev1.ServiceSpec) {
	if *now.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack {
		if len(now.ClusterIPs) > 1 && slices.Equal(now.ClusterIPs, before.ClusterIPs) {
			now.ClusterIPs = now.ClusterIPs[:1:1]
		}
		if len(now.IPFamilies) > 1 && slices.Equal(now.IPFamilies, before.IPFamilies) {
			now.IPFamilies = now.IPFamilies[:1:1]
		}
		return
	}
	if n := len(now.ClusterIPs); n > 0 && n < len(before.ClusterIPs) {
		k.Invalid(p, "ipFamilyPolicy", *now.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP")
	}
	if n := len(now.IPFamilies); n > 0 && n < len(before.IPFamilies) {
		k.Invalid(p, "ipFamilyPolicy", *now.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family")
	}
}

func (k familyChecker) singleStackHasOne(p *field.Path, spec *corev1.ServiceSpec) {
	const must = "must be 'RequireDualStack' or 'PreferDualStack' when multiple "
	if *spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack {
		return
	}
	if len(spec.ClusterIPs) == 2 {
		k.Invalid(p, "ipFamilyPolicy", *spec.IPFamilyPolicy, must+"cluster IPs are specified")
	}
	if len(spec.IPFamilies) == 2 {
		k.Invalid(p, "ipFamilyPolicy", *spec.IPFamilyPolicy, must+"IP families are specified")
	}
}

// familiesOfAddresses appends the families of the addresses in the spec.
func (k familyChecker) familiesOfAddresses(p *field.Path, spec *corev1.ServiceSpec, offered []corev1.IPFamily) {
	for i, ip := range spec.ClusterIPs {
		if ip == corev1.ClusterIPNone {
			return
		}
		if i < len(spec.IPFamilies) {
			continue
		}
		if family := familyOf(ip); slices.Contains(offered, family) {
			spec.IPFamilies = append(slices.Clip(spec.IPFamilies), family)
		} else {
			k.Invalid(p.Child("clusterIPs").Index(i), "", spec.ClusterIPs, string(family)+" is not configured on this cluster")
		}
	}
}

// offered adds errors for families that the cluster does not have.
func (k familyChecker) offered(p *field.Path, spec *corev1.ServiceSpec, offered []corev1.IPFamily) {
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(offered) < 2 {
		k.Invalid(p, "ipFamilyPolicy", *spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services")
	}
	for i, family := range spec.IPFamilies {
		if !slices.Contains(offered, family) {
			k.Invalid(p.Child("ipFamilies").Index(i), "", family, "not configured on this cluster")
		}
	}
}

// familyOf returns the family of a valid address.
func familyOf(ip string) corev1.IPFamily {
	if strings.Contains(ip, ":") {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

func otherFamily(family corev1.IPFamily) corev1.IPFamily {
	if family == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}
