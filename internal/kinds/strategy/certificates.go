package strategy

// This file prepares CertificateSigningRequests. It corresponds to
// k8s.io/kubernetes/pkg/registry/certificates/certificates/strategy.go.

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/request"
)

// createSigningRequest replaces the requester with the user of the context.
func createSigningRequest(ctx context.Context, obj runtime.Object) {
	csr := obj.(*certificatesv1.CertificateSigningRequest)
	csr.Status = certificatesv1.CertificateSigningRequestStatus{}
	spec := &csr.Spec
	spec.Username, spec.UID, spec.Groups, spec.Extra = "", "", nil, nil
	rec := request.From(ctx)
	if rec == nil {
		return
	}
	spec.Username, spec.UID, spec.Groups = rec.User.Name, rec.User.UID, rec.User.Groups
	for key, values := range rec.User.Extra {
		if spec.Extra == nil {
			spec.Extra = map[string]certificatesv1.ExtraValue{}
		}
		spec.Extra[key] = values
	}
}

func updateSigningRequest(csr, old *certificatesv1.CertificateSigningRequest) {
	csr.Spec, csr.Status = old.Spec, old.Status
}

func updateSigningRequestStatus(csr, old *certificatesv1.CertificateSigningRequest) {
	csr.Spec = old.Spec
	keepDecisions(csr, old, certificatesv1.CertificateApproved)
	keepDecisions(csr, old, certificatesv1.CertificateDenied)
	stampConditions(csr, old)
}

// approve only uses the conditions of the new status.
func approve(csr, old *certificatesv1.CertificateSigningRequest) {
	stampConditions(csr, old)
	conditions := csr.Status.Conditions
	csr.Spec, csr.Status = old.Spec, old.Status
	csr.Status.Conditions = conditions
}

// keepDecisions restores the conditions of a type. If their number differs, it leaves them for
// validation to refuse.
func keepDecisions(csr, old *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) {
	indices := func(conditions []certificatesv1.CertificateSigningRequestCondition) (found []int) {
		for i := range conditions {
			if conditions[i].Type == kind {
				found = append(found, i)
			}
		}
		return found
	}
	now, before := indices(csr.Status.Conditions), indices(old.Status.Conditions)
	if len(now) != len(before) {
		return
	}
	for i := range now {
		csr.Status.Conditions[now[i]] = old.Status.Conditions[before[i]]
	}
}

// stampConditions sets the times that are missing in the request. If old has the same condition,
// the transition time is kept.
func stampConditions(csr, old *certificatesv1.CertificateSigningRequest) {
	now := Now()
	for i := range csr.Status.Conditions {
		condition := &csr.Status.Conditions[i]
		if condition.LastUpdateTime.IsZero() {
			condition.LastUpdateTime = now
		}
		if condition.LastTransitionTime.IsZero() {
			condition.LastTransitionTime = lastTransition(condition, old.Status.Conditions, now)
		}
	}
}

// lastTransition returns the transition time of the same condition in old, or now.
func lastTransition(condition *certificatesv1.CertificateSigningRequestCondition, old []certificatesv1.CertificateSigningRequestCondition, now metav1.Time) metav1.Time {
	for i := range old {
		if old[i].Type == condition.Type && old[i].Status == condition.Status && !old[i].LastTransitionTime.IsZero() {
			return old[i].LastTransitionTime
		}
	}
	return now
}

func createPodCertificateRequest(req *certificatesv1.PodCertificateRequest) {
	req.Status = certificatesv1.PodCertificateRequestStatus{}
}

func updatePodCertificateRequest(req, old *certificatesv1.PodCertificateRequest) {
	req.Status = old.Status
}

func updatePodCertificateRequestStatus(req, old *certificatesv1.PodCertificateRequest) {
	req.Spec = old.Spec
	metav1.ResetObjectMetaForStatus(&req.ObjectMeta, &old.ObjectMeta)
}
