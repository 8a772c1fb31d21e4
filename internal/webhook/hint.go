package webhook

// This file explains failed calls. The errors have kube-apiserver's texts, which assume a cluster
// with Pods, but most users of apilet run their manager as a program on the same machine.

import (
	"crypto/x509"
	"errors"
	"fmt"
	"syscall"

	admissionv1 "k8s.io/api/admissionregistration/v1"
)

// unreachable is the error for a Service without an address. text is kube-apiserver's text, and why
// explains the cause.
type unreachable struct{ text, why string }

func (u *unreachable) Error() string { return u.text }

// Hint explains a failed call and how to fix its cause. It returns "" if the cause is unknown. It
// reveals no address that is not in the configuration.
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
			"and its port in clientConfig.service.port (docs/warnings.md)", nowhere.why, s.Namespace, s.Name)
	case errors.Is(err, syscall.ECONNREFUSED) && servicePort(s) == 443:
		return fmt.Sprintf("nobody listens at port 443 of Service %s/%s. clientConfig.service.port says where a manager beside this server listens, by default 9443 (docs/warnings.md)", s.Namespace, s.Name)
	case errors.As(err, &stranger) && len(config.CABundle) == 0:
		return fmt.Sprintf("clientConfig.caBundle is empty. It has to have the certificate of who vouches for the webhook's own, which is for %s (docs/warnings.md)", name)
	}
	return ""
}

func servicePort(s *admissionv1.ServiceReference) int32 {
	if s.Port == nil {
		return 443
	}
	return *s.Port
}
