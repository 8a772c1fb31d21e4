package e2e

// The expected status codes and messages were verified with kube-apiserver.

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

const (
	signingRequests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	bobToken        = "Authorization: Bearer bob-token"
)

// signingRequest returns the JSON of a CertificateSigningRequest. organization is a group in the
// certificate's subject.
func signingRequest(t testing.TB, name, signer, organization string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "x", Organization: []string{"dev", organization}}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":%q},"spec":{"signerName":%q,"usages":["client auth"],"request":%q}}`,
		name, signer, base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})))
}

// testCertificate returns a certificate in PEM.
func testCertificate(t testing.TB) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func certificateStatus(text []byte) string {
	return fmt.Sprintf(`{"status":{"certificate":%q}}`, base64.StdEncoding.EncodeToString(text))
}

// startSigning starts a server on which bob may write signing requests with all their subresources,
// and act for the given signers.
func startSigning(t *testing.T, signers ...string) *testServer {
	t.Helper()
	s, _ := startTLS(t)
	grant := func(name, rule string) {
		s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", kubetest.FromFlow(t, `{metadata: {name: `+name+`}, rules: [`+rule+`]}`), masterToken)
		s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", kubetest.FromFlow(t, `{metadata: {name: `+name+`}, roleRef:
			{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: `+name+`}, subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: bob}]}`), masterToken)
	}
	if len(signers) > 0 {
		grant("signers", fmt.Sprintf(`{apiGroups: [certificates.k8s.io], verbs: [approve, sign], resources: [signers], resourceNames: ["%s"]}`, strings.Join(signers, `", "`)))
	}
	grant("requests", `{apiGroups: [certificates.k8s.io], verbs: [get, create, update, patch], resources: [certificatesigningrequests,
		certificatesigningrequests/approval, certificatesigningrequests/status]}`)
	apitest.WaitFor(t, "bob's roles are in force", func() bool { return s.send("GET", signingRequests+"/none", "", bobToken).code == 404 })
	return s
}

// decisionWrites contains all kinds of writes to a subresource of a signing request. %s is replaced
// by the members of the status.
var decisionWrites = []struct{ method, query, body, contentType string }{
	{"PATCH", "", `{"status":{%s}}`, "application/merge-patch+json"},
	{"PATCH", "", `{"status":{%s}}`, "application/strategic-merge-patch+json"},
	{"PATCH", "", `[{"op":"replace","path":"/status","value":{%s}}]`, "application/json-patch+json"},
	{"PATCH", "?fieldManager=a&force=true", `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"r"},"status":{%s}}`, "application/apply-patch+yaml"},
	{"PUT", "", "", "application/json"},
	{"PATCH", "?dryRun=All", `{"status":{%s}}`, "application/merge-patch+json"},
	{"PUT", "?dryRun=All", "", "application/json"},
}

func (s *testServer) decide(i int, part, status string) answer {
	s.t.Helper()
	w := decisionWrites[i]
	body := fmt.Sprintf(w.body, status)
	if w.body == "" {
		whole := string(s.want(200, "GET", signingRequests+"/r", "", masterToken).body)
		body = whole[:strings.LastIndex(whole, `"status":`)] + `"status":{` + status + `}}`
	}
	return s.send(w.method, signingRequests+"/r/"+part+w.query, body, bobToken, "Content-Type: "+w.contentType)
}

// TestSigningRequestsAreDecidedByTheirSigners checks that the right to write /approval and /status
// is not sufficient, for any verb.
func TestSigningRequestsAreDecidedByTheirSigners(t *testing.T) {
	t.Parallel()
	approved, failed := `"conditions":[{"type":"Approved","status":"True"}]`, `"conditions":[{"type":"Failed","status":"True"}]`
	certificate := fmt.Sprintf(`"certificate":%q`, base64.StdEncoding.EncodeToString(testCertificate(t)))
	for title, c := range map[string]struct {
		signers []string
		allowed bool
	}{
		"no signer": {}, "another signer": {[]string{"example.com/other", "example.org/*", "example.com", "*", "example.com/ca/*"}, false},
		"the signer": {[]string{"example.com/ca"}, true}, "its domain": {[]string{"example.com/*"}, true},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			s := startSigning(t, c.signers...)
			s.want(201, "POST", signingRequests, signingRequest(t, "r", "example.com/ca", "ops"), masterToken)
			for i, w := range decisionWrites {
				for _, d := range [...]struct{ part, status, verb string }{
					{"approval", approved, "approve"}, {"approval", `"conditions":[]`, "approve"}, {"status", failed, "sign"}, {"status", certificate, "sign"},
				} {
					a := s.decide(i, d.part, d.status)
					refusal := `403 Forbidden certificatesigningrequests.certificates.k8s.io "r" is forbidden: user not permitted to ` + d.verb +
						` requests with signerName "example.com/ca"`
					if refused := a.failure() == refusal; refused == c.allowed || c.allowed && a.code >= 400 {
						t.Errorf("%s %s of %s with %.60s: %s", w.method, w.contentType+w.query, d.part, d.status, a.failure())
					}
					if c.allowed { // start again with a new request
						s.want(200, "DELETE", signingRequests+"/r", "", masterToken)
						s.want(201, "POST", signingRequests, signingRequest(t, "r", "example.com/ca", "ops"), masterToken)
					}
				}
			}
			// This does not sign anything.
			s.want(200, "PATCH", signingRequests+"/r/status", `{"metadata":{"labels":{"a":"b"}}}`, bobToken, asMergePatch)
			if got := s.want(200, "GET", signingRequests+"/r", "", masterToken).get("status").Raw; got != "{}" {
				t.Errorf("the status is %s", got)
			}
		})
	}
}

// TestNobodyAsksToBecomeAMaster checks that not even a member of system:masters can request a
// certificate for that group.
func TestNobodyAsksToBecomeAMaster(t *testing.T) {
	t.Parallel()
	s := startSigning(t)
	const client = "kubernetes.io/kube-apiserver-client"
	const refusal = `403 Forbidden certificatesigningrequests.certificates.k8s.io "r" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed`
	master := signingRequest(t, "r", client, "system:masters")
	for _, token := range []string{bobToken, masterToken} {
		for _, a := range []answer{
			s.send("POST", signingRequests, master, token), s.send("POST", signingRequests+"?dryRun=All", master, token),
			s.send("PATCH", signingRequests+"/r?fieldManager=a", master, token, "Content-Type: application/apply-patch+yaml"),
		} {
			if a.failure() != refusal {
				t.Errorf("got %s", a.failure())
			}
		}
	}
	s.want(201, "POST", signingRequests, signingRequest(t, "r", client, "ops"), bobToken)
	s.want(201, "POST", signingRequests, signingRequest(t, "other", "example.com/ca", "system:masters"), bobToken)
}

func TestCertificatesOfAStatusArePEM(t *testing.T) {
	t.Parallel()
	s := startSigning(t)
	good := testCertificate(t)
	encode := func(kind string, headers map[string]string, content []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Headers: headers, Bytes: content})
	}
	block, _ := pem.Decode(good)
	const path = signingRequests + "/r/status"
	s.want(201, "POST", signingRequests, signingRequest(t, "r", "example.com/ca", "ops"), masterToken)
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"text":            {[]byte("junk"), "must contain at least one CERTIFICATE PEM block"},
		"a key":           {encode("PRIVATE KEY", nil, []byte("x")), `only CERTIFICATE PEM blocks are allowed, found "PRIVATE KEY"`},
		"a key behind":    {append(good[:len(good):len(good)], encode("PRIVATE KEY", nil, []byte("x"))...), `only CERTIFICATE PEM blocks are allowed, found "PRIVATE KEY"`},
		"headers":         {encode("CERTIFICATE", map[string]string{"A": "b"}, block.Bytes), "no PEM block headers are permitted"},
		"no ASN.1":        {encode("CERTIFICATE", nil, []byte("ABC")), "x509: malformed certificate"},
		"an empty block":  {encode("CERTIFICATE", nil, nil), "found CERTIFICATE PEM block containing 0 certificates"},
		"two":             {append(good[:len(good):len(good)], good...), ""},
		"text around one": {append([]byte("before\n"), append(good[:len(good):len(good)], "after\n"...)...), ""},
	} {
		a := s.send("PATCH", path+"?dryRun=All", certificateStatus(c.text), masterToken, asMergePatch)
		want := `422 Invalid CertificateSigningRequest.certificates.k8s.io "r" is invalid: status.certificate: Invalid value: "<certificate data>": ` + c.want
		if c.want == "" && a.code != 200 || c.want != "" && a.failure() != want {
			t.Errorf("%s: %s", name, a.failure())
		}
	}
	s.want(200, "PATCH", path, certificateStatus(good), masterToken, asMergePatch)
	for _, other := range []string{`{"status":{"certificate":null}}`, certificateStatus(append(good, good...))} {
		if a := s.send("PATCH", path, other, masterToken, asMergePatch); !strings.HasSuffix(a.failure(), "status.certificate: Forbidden: updates may not modify existing certificate content") {
			t.Errorf("changing it: %s", a.failure())
		}
	}
}

// TestDecisionsAreKeptAndStamped checks that an update of the status cannot change a decision.
func TestDecisionsAreKeptAndStamped(t *testing.T) {
	t.Parallel()
	s := startSigning(t)
	s.want(201, "POST", signingRequests, signingRequest(t, "r", "example.com/ca", "ops"), masterToken)
	approved := s.want(200, "PATCH", signingRequests+"/r/approval",
		`{"status":{"certificate":"anVuaw==","conditions":[{"type":"Approved","status":"True","reason":"sent"}]}}`, masterToken, asMergePatch)
	if approved.get("status.certificate").Exists() || approved.get("status.conditions.0.lastUpdateTime").Time().IsZero() || approved.get("status.conditions.0.lastTransitionTime").Time().IsZero() {
		t.Errorf("approved: %s", approved.get("status"))
	}
	a := s.want(200, "PATCH", signingRequests+"/r/status",
		`{"status":{"conditions":[{"type":"Approved","status":"True","reason":"changed"},{"type":"Z","status":"Unknown"}]}}`, masterToken, asMergePatch)
	if a.get("status.conditions.0").Raw != approved.get("status.conditions.0").Raw || a.get("status.conditions.1.lastTransitionTime").Time().IsZero() {
		t.Errorf("by the signer: %s", a.get("status"))
	}
	if a := s.send("PATCH", signingRequests+"/r/status", `{"status":{"conditions":[]}}`, masterToken, asMergePatch); a.code != 422 || !strings.Contains(a.failure(), `updates may not remove a condition of type "Approved"`) {
		t.Errorf("taking it back: %s", a.failure())
	}
}
