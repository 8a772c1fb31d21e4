package webhook

// This file says what is missing where a call has failed. The error has kube-apiserver's words, which know of a cluster with pods; most who see it
// here run their manager as a program beside the server.

import (
	"crypto/x509"
	"errors"
	"fmt"
	"syscall"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// unreachable is a Service that leads nowhere: in kube-apiserver's words, and in ours.
type unreachable struct{ text, why string }

func (u *unreachable) Error() string { return u.text }

// Hint says what is missing that a call has failed with err, and how to add it; "" when nothing is known of that. It tells no address that the
// configuration does not have.
func Hint(err error, config *admissionv1.WebhookClientConfig) string {
	s := config.Service
	if s == nil {
		return ""
	}
	var nowhere *unreachable
	var stranger x509.UnknownAuthorityError
	switch name := s.Name + "." + s.Namespace + ".svc"; {
	case errors.As(err, &nowhere):
		return fmt.Sprintf("%s. A manager that runs beside this server is reached by `kubectl -n %s create service externalname %s --external-name=localhost` "+
			"and its port in clientConfig.service.port (docs/webhooks.md)", nowhere.why, s.Namespace, s.Name)
	case errors.Is(err, syscall.ECONNREFUSED) && servicePort(s) == 443:
		return fmt.Sprintf("nobody listens at port 443 of Service %s/%s. clientConfig.service.port says where a manager beside this server listens, by default 9443 (docs/webhooks.md)", s.Namespace, s.Name)
	case errors.As(err, &stranger) && len(config.CABundle) == 0:
		return fmt.Sprintf("clientConfig.caBundle is empty. It has to have the certificate of who vouches for the webhook's own, which is for %s (docs/webhooks.md)", name)
	}
	return ""
}

func servicePort(s *admissionv1.ServiceReference) int32 {
	if s.Port == nil {
		return 443
	}
	return *s.Port
}
