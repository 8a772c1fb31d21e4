package kubetest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"apilet/internal/apitest"
)

// With -oracle, tests record the responses in testdata again from a real kube-apiserver, with
// DryRun=All.
var (
	OracleURL   = flag.String("oracle", "", "record the answers of this kube-apiserver")
	OracleToken = flag.String("token", "", "bearer token for -oracle")
)

var oracleClient = http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// AskOracle sends one request and returns the response.
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

// FixedUID replaces the UIDs that servers generate.
const FixedUID = "11111111-2222-3333-4444-555555555555"

// AnyUID matches generated UIDs.
var AnyUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// RecordedWords returns the first line of a message, truncated to 240 bytes. Further lines may
// contain a diff.
func RecordedWords(message string) string {
	message, _, _ = strings.Cut(message, "\n")
	return strings.TrimSpace(strings.ToValidUTF8(message[:min(len(message), 240)], ""))
}

// SetHeaders sets the headers of a request, written as "Key: value".
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

const clusterKinds = " ResourceSlice Namespace Node PersistentVolume IngressClass ClusterRole ClusterRoleBinding StorageClass CSIDriver CSINode VolumeAttachment " +
	"VolumeAttributesClass PriorityClass RuntimeClass FlowSchema PriorityLevelConfiguration ValidatingWebhookConfiguration " +
	"MutatingWebhookConfiguration ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding MutatingAdmissionPolicy " +
	"MutatingAdmissionPolicyBinding CertificateSigningRequest DeviceClass DeviceTaintRule ServiceCIDR IPAddress " +
	"ClusterTrustBundle StorageVersionMigration "

// OfTheCluster reports whether a kind is cluster-scoped.
func OfTheCluster(kind string) bool { return strings.Contains(clusterKinds, " "+kind+" ") }

// CollectionPath returns the path at which objects of a kind are created.
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

// KubeconfigClient returns a client with the CA and the certificate of a kubeconfig. It also
// returns the certificate.
func KubeconfigClient(t *testing.T, path string) (*http.Client, *x509.Certificate) {
	t.Helper()
	text := apitest.ReadFile(t, path)
	decoded := func(at string) []byte {
		var content []byte
		if err := json.Unmarshal([]byte(gjson.GetBytes(text, at).Raw), &content); err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		return content
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(decoded("clusters.0.cluster.certificate-authority-data"))
	pair, err := tls.X509KeyPair(decoded("users.0.user.client-certificate-data"), decoded("users.0.user.client-key-data"))
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}}}, pair.Leaf
}

// AuditedAs returns the audit events with an ID in a short form: stage, verb, user, impersonated
// user, object, status, annotations.
func AuditedAs(t *testing.T, path, id string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var events []string
	for line := range strings.Lines(string(data)) {
		ev := gjson.Parse(line)
		if ev.Get("auditID").String() != id {
			continue
		}
		who := ev.Get("user.username").String()
		if as := ev.Get("impersonatedUser.username"); as.Exists() {
			who += " as " + as.String() + " by " + ev.Get("authenticationMetadata.impersonationConstraint").String()
		}
		var object []string
		ev.Get("objectRef").ForEach(func(key, value gjson.Result) bool {
			object = append(object, key.String()+"="+value.String())
			return true
		})
		status := map[string]any{}
		_ = json.Unmarshal([]byte(ev.Get("responseStatus").Raw), &status)
		var told []string
		for _, key := range []string{"status", "reason", "code", "message"} {
			if status[key] != nil {
				told = append(told, fmt.Sprint(status[key]))
			}
		}
		var notes []string
		annotations := ev.Get("annotations").Map()
		for _, key := range slices.Sorted(maps.Keys(annotations)) {
			if key != "authorization.k8s.io/reason" {
				notes = append(notes, key[strings.LastIndex(key, "/")+1:]+"="+annotations[key].String())
			}
		}
		events = append(events, strings.Join([]string{ev.Get("stage").String(), ev.Get("verb").String(), who, strings.Join(object, " "),
			strings.Join(told, " "), strings.Join(notes, " ")}, "; "))
	}
	return strings.Join(events, "\n")
}
