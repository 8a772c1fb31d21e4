package plugins

// This file controls which users may obtain certificates. The spec of a CertificateSigningRequest
// names a signer. A user or a controller approves the request, and the signer writes the
// certificate to its status. The owner of a certificate can act as its subject, so permission to
// write these objects is not sufficient. As in kube-apiserver, three admission plug-ins check
// more:
//
//	PUT or PATCH …/NAME/approval                 the verb approve on the signer      CertificateApproval
//	… /NAME/status, certificate or conditions    the verb sign on the signer         CertificateSigning
//	POST, kubernetes.io/kube-apiserver-client    not for the group system:masters    CertificateSubjectRestriction
//
// PodCertificateRequests also require the verb sign. A ClusterTrustBundle that names a signer
// requires the verb attest (ClusterTrustBundleAttest).
//
// A signer is a name of the resource signers, which is used only in roles: example.com/foo, or
// example.com/* for all signers of the domain. All these plug-ins run after the object has been
// validated by the rules of its type.

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/request"
)

// signers implements the plug-ins.
type signers struct {
	authorize func(request.User, request.Info) (bool, string)
}

// approval implements CertificateApproval. It covers approvals and denials alike.
func (s signers) approval(_ context.Context, a *admission.Attributes) error {
	return s.check(a, "approve")
}

// signing implements CertificateSigning. It is only checked when the certificate or the conditions
// change.
func (s signers) signing(_ context.Context, a *admission.Attributes) error {
	csr, old := a.Object.(*certificatesv1.CertificateSigningRequest), a.Old.(*certificatesv1.CertificateSigningRequest)
	if bytes.Equal(old.Status.Certificate, csr.Status.Certificate) && equality.Semantic.DeepEqual(old.Status.Conditions, csr.Status.Conditions) {
		return nil
	}
	return s.check(a, "sign")
}

// podSigning checks that the user may sign for the signer when the status of a
// PodCertificateRequest changes. In kube-apiserver the check is part of validation and cannot be
// disabled.
func (s signers) podSigning(_ context.Context, a *admission.Attributes) error {
	req, old := a.Object.(*certificatesv1.PodCertificateRequest), a.Old.(*certificatesv1.PodCertificateRequest)
	signer := old.Spec.SignerName
	if equality.Semantic.DeepEqual(old.Status, req.Status) || s.isAuthorized(a, "sign", signer) {
		return nil
	}
	return apierror.Invalid(a.Resource.GroupKind(), a.Name(), field.ErrorList{field.Forbidden(field.NewPath("spec", "signerName"),
		fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", a.Request.User.Name, signer))})
}

// attest implements ClusterTrustBundleAttest. No permission is needed if only the owners or
// finalizers have changed.
func (s signers) attest(_ context.Context, a *admission.Attributes) error {
	bundle := a.Object.(*certificatesv1.ClusterTrustBundle)
	signer := bundle.Spec.SignerName
	if signer == "" || a.Operation == admission.OpUpdate && sameContent(bundle, a.Old.(*certificatesv1.ClusterTrustBundle)) || s.isAuthorized(a, "attest", signer) {
		return nil
	}
	return a.Forbidden(fmt.Errorf("user not permitted to attest for signerName %q", signer))
}

// sameContent reports whether two bundles differ only in owners, finalizers and managed fields.
func sameContent(bundle, old *certificatesv1.ClusterTrustBundle) bool {
	changed := bundle.DeepCopy()
	changed.OwnerReferences, changed.Finalizers, changed.ManagedFields = old.OwnerReferences, old.Finalizers, old.ManagedFields
	changed.ResourceVersion = old.ResourceVersion
	return equality.Semantic.DeepEqual(changed, old)
}

// check returns an error unless the user has the verb on the signer of a
// CertificateSigningRequest.
func (s signers) check(a *admission.Attributes, verb string) error {
	signer := a.Old.(*certificatesv1.CertificateSigningRequest).Spec.SignerName
	if s.isAuthorized(a, verb, signer) {
		return nil
	}
	return a.Forbidden(fmt.Errorf("user not permitted to %s requests with signerName %q", verb, signer))
}

// isAuthorized reports whether the user is allowed to use the verb on the signer or on all signers
// of its domain. The server itself has all permissions.
func (s signers) isAuthorized(a *admission.Attributes, verb, signer string) bool {
	if a.Request == nil {
		return true
	}
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		asked := request.Info{ResourceRequest: true, Verb: verb, Group: certificatesv1.GroupName, Version: "*", Resource: "signers", Name: name}
		if allowed, _ := s.authorize(a.Request.User, asked); allowed {
			return true
		}
	}
	return false
}

// restrictSubject implements CertificateSubjectRestriction. A certificate of this signer is a
// client credential for this server, so it must not make its owner an administrator.
func restrictSubject(_ context.Context, a *admission.Attributes) error {
	csr := a.Object.(*certificatesv1.CertificateSigningRequest)
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName || a.Request == nil {
		return nil
	}
	parsed, err := certificatesapi.ParseCSR(csr.Spec.Request)
	if err != nil {
		return a.Forbidden(fmt.Errorf("failed to parse CSR: %v", err))
	}
	if slices.Contains(parsed.Subject.Organization, request.GroupMasters) {
		return a.Forbidden(fmt.Errorf("use of %s signer with %s group is not allowed", certificatesv1.KubeAPIServerClientSignerName, request.GroupMasters))
	}
	return nil
}
