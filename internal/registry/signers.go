package registry

// This file: who may have a certificate made. A CertificateSigningRequest asks a signer, named in its spec, for a certificate; somebody
// approves it and the signer writes the certificate into its status. Whoever holds a certificate of the right signer is whom it names, so
// the right to write these objects is not enough. kube-apiserver has three admission plug-ins for that, and so has this file:
//
//	PUT or PATCH …/NAME/approval                 the verb approve on the signer      CertificateApproval
//	… /NAME/status, certificate or conditions    the verb sign on the signer         CertificateSigning
//	POST, kubernetes.io/kube-apiserver-client    not for the group system:masters    CertificateSubjectRestriction
//
// A signer is a name of the resource signers, which exists in roles alone: example.com/foo, or example.com/* for all of that domain.
// All three ask at the same moment: when the object has been judged and before the validating webhooks hear of it.

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/auth"
	"apilet/internal/registry/validation"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// checkSigner refuses a write to a request for a certificate that its writer may not make. old is nil for a create. The server's own
// writes have no request.
func (wr *Writer) checkSigner(ctx context.Context, t *Target, obj, old scheme.Object) error {
	csr, ok := obj.(*certificatesv1.CertificateSigningRequest)
	rec := request.From(ctx)
	if !ok || rec == nil {
		return nil
	}
	var err error
	if old == nil {
		err = checkSubject(csr)
	} else {
		err = checkDecision(wr.Auth, rec.User, t.Subresource, csr, old.(*certificatesv1.CertificateSigningRequest))
	}
	if err != nil {
		return apierrors.NewForbidden(t.Resource.GroupResource(), csr.Name, err)
	}
	return nil
}

// checkSubject: a certificate of this signer is a credential of this server, and nobody becomes its administrator by one.
func checkSubject(csr *certificatesv1.CertificateSigningRequest) error {
	if csr.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
		return nil
	}
	parsed, err := validation.ParseSigningRequest(csr.Spec.Request)
	if err != nil {
		return fmt.Errorf("failed to parse CSR: %v", err)
	}
	if slices.Contains(parsed.Subject.Organization, request.GroupMasters) {
		return fmt.Errorf("use of %s signer with %s group is not allowed", certificatesv1.KubeAPIServerClientSignerName, request.GroupMasters)
	}
	return nil
}

// checkDecision asks for the right to approve, whatever is written there, and to sign, if anything of that is.
func checkDecision(auth *auth.Authenticator, by request.User, sub string, csr, old *certificatesv1.CertificateSigningRequest) error {
	verb := ""
	switch {
	case sub == "approval":
		verb = "approve"
	case sub == "status" && !(bytes.Equal(old.Status.Certificate, csr.Status.Certificate) &&
		equality.Semantic.DeepEqual(old.Status.Conditions, csr.Status.Conditions)):
		verb = "sign"
	}
	if signer := old.Spec.SignerName; verb != "" && !mayAct(auth, by, verb, signer) {
		return fmt.Errorf("user not permitted to %s requests with signerName %q", verb, signer)
	}
	return nil
}

// mayAct asks for the signer, then for all of its domain.
func mayAct(auth *auth.Authenticator, by request.User, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	return slices.ContainsFunc([]string{signer, domain + "/*"}, func(name string) bool {
		allowed, _ := auth.Decide(by, request.Info{ResourceRequest: true, Verb: verb, Group: certificatesv1.GroupName, Version: "*", Resource: "signers", Name: name})
		return allowed
	})
}

// ---- Conditions ----
