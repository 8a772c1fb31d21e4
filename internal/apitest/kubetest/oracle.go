package kubetest

import (
	"bytes"
	"crypto/tls"
	"flag"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// With -oracle the recorded answers in testdata are asked for again, from a real kube-apiserver, with DryRun=All.
var (
	OracleURL   = flag.String("oracle", "", "record the answers of this kube-apiserver")
	OracleToken = flag.String("token", "", "bearer token for -oracle")
)

var oracleClient = http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// AskOracle sends one request and returns the answer.
func AskOracle(t testing.TB, method, path string, body []byte, headers ...string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, *OracleURL+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+*OracleToken)
	SetHeaders(req, headers)
	resp, err := oracleClient.Do(req)
	if err != nil {
		return 0, []byte(err.Error()) // some objects make kube-apiserver panic
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, answer
}

// SetHeaders gives a request headers, written as "Key: value".
func SetHeaders(r *http.Request, headers []string) {
	for _, line := range headers {
		switch key, value, _ := strings.Cut(line, ": "); key {
		case "":
		case "Host":
			r.Host = value
		default:
			r.Header.Set(key, value)
		}
	}
}

const clusterKinds = " Namespace Node PersistentVolume IngressClass ClusterRole ClusterRoleBinding StorageClass CSIDriver CSINode VolumeAttachment " +
	"VolumeAttributesClass PriorityClass RuntimeClass FlowSchema PriorityLevelConfiguration ValidatingWebhookConfiguration " +
	"MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding MutatingAdmissionPolicy " +
	"MutatingAdmissionPolicyBinding CertificateSigningRequest DeviceClass ServiceCIDR IPAddress "

// OfTheCluster says whether objects of a kind are in no namespace.
func OfTheCluster(kind string) bool { return strings.Contains(clusterKinds, " "+kind+" ") }

// CollectionPath is where objects of a kind are created.
func CollectionPath(gvk schema.GroupVersionKind) string {
	plural, _ := meta.UnsafeGuessKindToResource(gvk)
	resource := plural.Resource
	if gvk.Kind == "Endpoints" {
		resource = "endpoints"
	}
	root := "/apis/" + gvk.Group
	if gvk.Group == "" {
		root = "/api"
	}
	if OfTheCluster(gvk.Kind) {
		return root + "/" + gvk.Version + "/" + resource
	}
	return root + "/" + gvk.Version + "/namespaces/default/" + resource
}
