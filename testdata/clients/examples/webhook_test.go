package examples

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"apilet/apilettest"
)

// TestWebhook serves a webhook in the test. It refuses each ConfigMap.
func TestWebhook(t *testing.T) {
	t.Parallel()
	hook := httptest.NewTLSServer(http.HandlerFunc(refuse))
	t.Cleanup(hook.Close)
	s := apilettest.Start(t)
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Kubeconfig())
	check(t, err)
	clients, err := kubernetes.NewForConfig(config)
	check(t, err)

	none := registrationv1.SideEffectClassNone
	rule := registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}
	_, err = clients.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "refuse"},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: "refuse.example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registrationv1.WebhookClientConfig{URL: &hook.URL, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})},
			Rules:        []registrationv1.RuleWithOperations{{Operations: []registrationv1.OperationType{registrationv1.Create}, Rule: rule}},
		}},
	}, metav1.CreateOptions{})
	check(t, err)

	_, err = clients.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "not today") {
		t.Errorf("got %v, want the webhook's refusal", err)
	}
}

// refuse is the handler of the webhook.
func refuse(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "not today"}}
	_ = json.NewEncoder(w).Encode(review) // the server sees a response that ends early
}
