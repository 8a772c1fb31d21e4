package webhook_test

import (
	"fmt"
	"syscall"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"apilet/internal/webhook"
)

// A Service has no address here. If the port is missing, the hint explains where it belongs. A hint
// never contains an address that is not in the configuration.
func ExampleHint() {
	fmt.Println(webhook.Hint(syscall.ECONNREFUSED, &admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "shop", Name: "hooks"}}))
	// Output:
	// nobody listens at port 443 of Service shop/hooks. clientConfig.service.port says where a manager beside this server listens, by default 9443 (docs/warnings.md)
}
