package strategy

// This file: what PrepareForStatusUpdate and the approval of a CertificateSigningRequest keep of it (in Kubernetes
// pkg/registry/certificates/certificates/strategy.go).

import (
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/request"
)

func createSigningRequest(csr *certificatesv1.CertificateSigningRequest) {
	csr.Status = certificatesv1.CertificateSigningRequestStatus{}
}

func updateSigningRequest(csr, old *certificatesv1.CertificateSigningRequest) { csr.Spec = old.Spec }

func updateSigningRequestStatus(csr, old *certificatesv1.CertificateSigningRequest) {
	keepDecision(csr, old)
	stampConditions(csr, old)
}

// approve takes the conditions, and what metadata an update may change.
func approve(sent, csr *certificatesv1.CertificateSigningRequest) {
	stampConditions(sent, csr)
	csr.ObjectMeta, csr.Status.Conditions = sent.ObjectMeta, sent.Status.Conditions
}

// nameRequester writes into a request for a certificate who makes it, whatever the request says.
func nameRequester(csr *certificatesv1.CertificateSigningRequest, by *request.User) {
	csr.Spec.Username, csr.Spec.UID, csr.Spec.Groups, csr.Spec.Extra = by.Name, by.UID, by.Groups, nil
	for key, values := range by.Extra {
		if csr.Spec.Extra == nil {
			csr.Spec.Extra = map[string]certificatesv1.ExtraValue{}
		}
		csr.Spec.Extra[key] = values
	}
}

// keepDecision puts back what was decided: a signer repeats it with its status. Where the number of decisions differs, validation says so.
func keepDecision(csr, old *certificatesv1.CertificateSigningRequest) {
	for _, kind := range [...]certificatesv1.RequestConditionType{certificatesv1.CertificateApproved, certificatesv1.CertificateDenied} {
		are, were := conditionsAt(csr, kind), conditionsAt(old, kind)
		if len(are) != len(were) {
			continue
		}
		for i := range are {
			csr.Status.Conditions[are[i]] = old.Status.Conditions[were[i]]
		}
	}
}

func conditionsAt(csr *certificatesv1.CertificateSigningRequest, kind certificatesv1.RequestConditionType) (at []int) {
	for i := range csr.Status.Conditions {
		if csr.Status.Conditions[i].Type == kind {
			at = append(at, i)
		}
	}
	return at
}

// stampConditions fills in the times that a writer has left out. A condition that was there has changed when it did.
func stampConditions(csr, old *certificatesv1.CertificateSigningRequest) {
	stamp := Now()
	for i := range csr.Status.Conditions {
		condition := &csr.Status.Conditions[i]
		if condition.LastUpdateTime.IsZero() {
			condition.LastUpdateTime = stamp
		}
		if condition.LastTransitionTime.IsZero() {
			condition.LastTransitionTime = lastTransition(condition, old.Status.Conditions, stamp)
		}
	}
}

func lastTransition(condition *certificatesv1.CertificateSigningRequestCondition, old []certificatesv1.CertificateSigningRequestCondition, otherwise metav1.Time) metav1.Time {
	for i := range old {
		if old[i].Type == condition.Type && old[i].Status == condition.Status && !old[i].LastTransitionTime.IsZero() {
			return old[i].LastTransitionTime
		}
	}
	return otherwise
}
