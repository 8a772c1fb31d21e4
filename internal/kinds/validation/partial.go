package validation

// This file: what the subresources that write one part of an object may make of it. strategy.PrepareForSubresource has taken the
// part from the request and the rest from the stored object; here the part is validated, in the light of what was there, as
// ValidatePodEphemeralContainersUpdate, ValidatePodResize and the certificates' ValidateXUpdate do in k8s.io/kubernetes.
//
//	pods/ephemeralcontainers                         containers to debug with come; none that is there changes or goes
//	pods/resize                                      cpu and memory of containers change, the QoS class does not
//	certificatesigningrequests/approval, /status     Approved and Denied exclude each other, come by /approval alone, and stay

import (
	"bytes"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/kinds/strategy"
)

// ValidatePart returns what is wrong with a write to a subresource; nothing for one that has no rules here.
func ValidatePart(sub string, obj, old runtime.Object) field.ErrorList {
	c := partChecker{&Checker{}}
	switch o := obj.(type) {
	case *corev1.Pod:
		before := old.(*corev1.Pod)
		if sub == "ephemeralcontainers" {
			checkPod(c.Checker, o)
			c.debuggers(o.Spec.EphemeralContainers, before.Spec.EphemeralContainers)
		} else if sub == "resize" {
			checkPod(c.Checker, o)
			c.resize(o, before)
		}
	case *certificatesv1.CertificateSigningRequest:
		c.conditions(o.Status.Conditions)
		c.approval(sub, o, old.(*certificatesv1.CertificateSigningRequest))
	}
	return c.Errs
}

// A partChecker checks one part.
type partChecker struct{ *Checker }

// ---- Pods ----

func (c partChecker) debuggers(now, old []corev1.EphemeralContainer) {
	p := field.NewPath("spec", "ephemeralContainers")
	places := map[string]int{} // of the first of a name
	for i := range slices.Backward(now) {
		places[now[i].Name] = i
	}
	for i := range old {
		at, found := places[old[i].Name]
		switch {
		case !found:
			c.Add(field.Forbidden(p, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", old[i].Name)))
		case !equality.Semantic.DeepEqual(old[i], now[at]):
			c.Add(field.Forbidden(p, fmt.Sprintf("existing ephemeral containers %q may not be changed\n%s", old[i].Name, DifferenceOf(old[i], now[at]))))
		}
	}
}

func (c partChecker) resize(pod, old *corev1.Pod) {
	p := field.NewPath("spec")
	if class := old.Status.QOSClass; strategy.QosClass(&pod.Spec) != class {
		c.Invalid(p, "", class, "Pod QOS Class may not change as a result of resizing")
	}
	running := slices.IndexFunc(old.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
	c.Forbid(p, "", running >= 0 && old.Status.ContainerStatuses[running].Resources == nil, "Pod running on node without support for resize")
	if !c.sameOrder(p, "containers", pod.Spec.Containers, old.Spec.Containers) ||
		!c.sameOrder(p, "initContainers", pod.Spec.InitContainers, old.Spec.InitContainers) {
		return
	}
	for i := range pod.Spec.InitContainers {
		c.resizeInit(p.Child("initContainers").Index(i), &pod.Spec.InitContainers[i], &old.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		c.resizeContainer(p.Child("containers").Index(i), &pod.Spec.Containers[i], &old.Spec.Containers[i])
		c.Forbid(p, "", !onlyComputeChanged(&pod.Spec.Containers[i], &old.Spec.Containers[i]), "only cpu and memory resources are mutable")
	}
}

func (c partChecker) resizeInit(p *field.Path, now, old *corev1.Container) {
	c.resizeContainer(p, now, old)
	c.Forbid(p, "", !onlyComputeChanged(now, old), "only cpu and memory resources for init or sidecar containers are mutable")
	if sidecar := now.RestartPolicy != nil && *now.RestartPolicy == corev1.ContainerRestartPolicyAlways; sidecar || equality.Semantic.DeepEqual(now, old) {
		return
	}
	for _, policy := range now.ResizePolicy {
		c.Forbid(p, "", policy.RestartPolicy == corev1.RestartContainer,
			"non-sidecar init containers with a resize policy of RestartContainer cannot be resized")
	}
}

// sameOrder is false when containers were added, removed, renamed or moved: then nothing else can be compared.
func (c partChecker) sameOrder(p *field.Path, name string, now, old []corev1.Container) bool {
	if len(now) != len(old) {
		c.Forbid(p, name, true, name+" may not be added or removed on resize")
		return false
	}
	same := true
	for i := range old {
		c.Forbid(p.Child(name).Index(i), "name", now[i].Name != old[i].Name, name+" may not be renamed or reordered on resize")
		same = same && now[i].Name == old[i].Name
	}
	return same
}

func (c partChecker) resizeContainer(p *field.Path, now, old *corev1.Container) {
	c.Forbid(p.Child("resources"), "requests", removesResource(now.Resources.Requests, old.Resources.Requests), "resource requests cannot be removed")
	c.Forbid(p.Child("resources"), "limits", removesResource(now.Resources.Limits, old.Resources.Limits), "resource limits cannot be removed")
}

func removesResource(now, old corev1.ResourceList) bool {
	for name := range old {
		if _, ok := now[name]; !ok {
			return true
		}
	}
	return false
}

// onlyComputeChanged compares two containers apart from their CPU and memory.
func onlyComputeChanged(now, old *corev1.Container) bool {
	a, b := now.DeepCopy(), old.DeepCopy()
	for _, list := range []corev1.ResourceList{a.Resources.Requests, a.Resources.Limits, b.Resources.Requests, b.Resources.Limits} {
		delete(list, corev1.ResourceCPU)
		delete(list, corev1.ResourceMemory)
	}
	return equality.Semantic.DeepEqual(a, b)
}

// ---- Requests for certificates ----

func (c partChecker) conditions(conditions []certificatesv1.CertificateSigningRequestCondition) {
	p, seen := field.NewPath("status", "conditions"), set{}
	for i, condition := range conditions {
		c.Need(p.Index(i), "type", condition.Type != "", "")
		allowed := conditionStatuses
		switch condition.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
			allowed = []string{string(corev1.ConditionTrue)}
		}
		c.Known(p.Index(i), "status", string(condition.Status), allowed)
		both := condition.Type == certificatesv1.CertificateApproved && seen[string(certificatesv1.CertificateDenied)] ||
			condition.Type == certificatesv1.CertificateDenied && seen[string(certificatesv1.CertificateApproved)]
		if both {
			c.Invalid(p, "", condition.Type, "Approved and Denied conditions are mutually exclusive")
		}
		c.unique(p.Index(i), "type", seen, string(condition.Type))
	}
}

// approval compares with what was decided before; the certificate is for the signer, who writes the status.
func (c partChecker) approval(sub string, now, old *certificatesv1.CertificateSigningRequest) {
	p := field.NewPath("status")
	of := func(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) (found []certificatesv1.CertificateSigningRequestCondition) {
		for _, condition := range csr.Status.Conditions {
			if condition.Type == kind {
				found = append(found, condition)
			}
		}
		return found
	}
	for _, kind := range [...]certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
		are, were := of(now, kind), of(old, kind)
		deciding := kind != certificatesv1.CertificateFailed && sub != "approval"
		c.Forbid(p, "conditions", len(are) < len(were), fmt.Sprintf("updates may not remove a condition of type %q", kind))
		c.Forbid(p, "conditions", deciding && len(are) > len(were), fmt.Sprintf("updates may not add a condition of type %q", kind))
		if deciding && len(are) == len(were) && !equality.Semantic.DeepEqual(are, were) {
			c.Forbid(p, "conditions", true, fmt.Sprintf("updates may not modify a condition of type %q\n%s", kind, DifferenceOf(were, are)))
		}
	}
	c.certificate(p, now.Status.Certificate, old.Status.Certificate)
}

// certificate comes once. One that was no good when this was not asked for yet may stay, and what follows it need be no better.
func (c partChecker) certificate(p *field.Path, now, old []byte) {
	if bytes.Equal(now, old) {
		return
	}
	if err := checkCertificate(now); err != nil && checkCertificate(old) == nil {
		c.Invalid(p, "certificate", "<certificate data>", err.Error())
	}
	c.Forbid(p, "certificate", len(old) > 0, "updates may not modify existing certificate content")
}
