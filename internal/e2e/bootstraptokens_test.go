package e2e

// The expected status codes, messages and users were verified with kube-apiserver.

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

const (
	clusterInfoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
	systemSecrets   = "/api/v1/namespaces/kube-system/secrets"
	joinToken       = "Authorization: Bearer abcdef.0123456789abcdef"
)

// A joinable is a server that accepts bootstrap tokens. Its client is an administrator.
type joinable struct {
	*testServer
	stranger *testServer // the same server, but the client does not use a certificate
	dir      string      // directory of its certificates
	config   string      // path of the administrator's kubeconfig
}

func startJoinable(t *testing.T, flags ...string) *joinable {
	t.Helper()
	dir := t.TempDir()
	j := &joinable{dir: filepath.Join(dir, "certs"), config: filepath.Join(dir, "config")}
	j.testServer = startTest(t, append(flags, "--enable-bootstrap-token-auth", "--cert-dir="+j.dir, "--kubeconfig="+j.config)...)
	admin, _ := kubetest.KubeconfigClient(t, j.config)
	// The client uses HTTP/1.1, as it does after a restart.
	j.client = &http.Client{Transport: &http.Transport{TLSClientConfig: admin.Transport.(*http.Transport).TLSClientConfig}}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(j.authority())
	unknown := *j.testServer
	unknown.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	j.stranger = &unknown
	t.Cleanup(j.client.CloseIdleConnections)
	t.Cleanup(unknown.client.CloseIdleConnections)
	return j
}

func (j *joinable) authority() []byte { return apitest.ReadFile(j.t, filepath.Join(j.dir, "ca.crt")) }

// published returns the only cluster in the kubeconfig of the ConfigMap cluster-info.
func (j *joinable) published() (server string, authority []byte) {
	j.t.Helper()
	var config struct {
		Clusters []struct {
			Name    string `json:"name"`
			Cluster struct {
				Server    string `json:"server"`
				Authority []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []any
	}
	text := j.want(200, "GET", clusterInfoPath, "").get("data.kubeconfig").String()
	if err := yaml.Unmarshal([]byte(text), &config); err != nil || len(config.Clusters) != 1 || config.Clusters[0].Name != "" || len(config.Users) > 0 {
		j.t.Fatalf("%v, published is %s", err, text)
	}
	return config.Clusters[0].Cluster.Server, config.Clusters[0].Cluster.Authority
}

// createToken creates the Secret of a token with kubectl, like an administrator.
func (j *joinable) createToken(id string, values ...string) {
	j.t.Helper()
	args := []string{"create", "secret", "generic", "bootstrap-token-" + id, "--namespace=kube-system", "--type=bootstrap.kubernetes.io/token",
		"--from-literal=token-id=" + id, "--from-literal=token-secret=0123456789abcdef"}
	for _, value := range values {
		args = append(args, "--from-literal="+value)
	}
	kubectls := apitest.Kubectls(j.t)
	cmd := exec.Command(kubectls[len(kubectls)-1], append(args, "--kubeconfig="+j.config, "--cache-dir="+j.dir)...)
	cmd.Env = append(os.Environ(), "HOME="+j.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		j.t.Fatalf("%v: %s", err, out)
	}
}

// TestNodesJoinWithABootstrapToken performs a TLS bootstrap. With only a token, a node gets the CA
// of the server and requests a client certificate. The test signs the certificate in place of
// kube-controller-manager.
func TestNodesJoinWithABootstrapToken(t *testing.T) {
	t.Parallel()
	j := startJoinable(t)
	j.createToken("abcdef", "usage-bootstrap-authentication=true", "auth-extra-groups=system:bootstrappers:kubeadm:default-node-token")
	if server, authority := j.published(); server != j.url || !bytes.Equal(authority, j.authority()) {
		t.Errorf("published are %s and %s, want %s and %s", server, authority, j.url, j.authority())
	}
	j.stranger.want(200, "GET", clusterInfoPath, "")

	const whoami = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	user := j.stranger.want(201, "POST", whoami, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, joinToken).get("status.userInfo").Raw
	if want := `{"username":"system:bootstrap:abcdef","groups":["system:bootstrappers","system:bootstrappers:kubeadm:default-node-token","system:authenticated"]}`; user != want {
		t.Errorf("the user is %s, want %s", user, want)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	subject := pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr := fmt.Sprintf(`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":"n1"},
		"spec":{"signerName":"kubernetes.io/kube-apiserver-client-kubelet","usages":["digital signature","client auth"],"request":%q}}`,
		base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})))
	refusal := j.stranger.want(403, "POST", signingRequests, csr, joinToken).failure()
	if want := `403 Forbidden certificatesigningrequests.certificates.k8s.io is forbidden: User "system:bootstrap:abcdef" cannot create resource ` +
		`"certificatesigningrequests" in API group "certificates.k8s.io" at the cluster scope`; refusal != want {
		t.Errorf("without a binding: %s, want %s", refusal, want)
	}
	j.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"bootstrap"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:node-bootstrapper"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"system:bootstrappers:kubeadm:default-node-token"}]}`)
	made := j.stranger.want(201, "POST", signingRequests, csr, joinToken)
	if got := made.get("spec.username").String(); got != "system:bootstrap:abcdef" {
		t.Errorf("the request is by %q", got)
	}
	j.stranger.want(200, "GET", signingRequests+"/n1", "", joinToken)
	j.stranger.want(403, "GET", systemSecrets, "", joinToken)

	j.want(200, "PATCH", signingRequests+"/n1/approval", `{"status":{"conditions":[{"type":"Approved","status":"True","reason":"Test"}]}}`, "Content-Type: application/merge-patch+json")
	authority, err := tls.LoadX509KeyPair(filepath.Join(j.dir, "ca.crt"), filepath.Join(j.dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, authority.Leaf, key.Public(), authority.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	j.want(200, "PATCH", signingRequests+"/n1/status", certificateStatus(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), "Content-Type: application/merge-patch+json")
	j.stranger.want(200, "GET", signingRequests+"/n1", "", joinToken)

	node := *j.stranger
	config := node.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.Certificates = []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	node.client = &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	t.Cleanup(node.client.CloseIdleConnections)
	if got := node.want(201, "POST", whoami, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`).get("status.userInfo.username").String(); got != "system:node:n1" {
		t.Errorf("the certificate is of %q", got)
	}

	j.want(200, "DELETE", systemSecrets+"/bootstrap-token-abcdef", "")
	j.stranger.want(401, "GET", signingRequests+"/n1", "", joinToken) // takes effect for the next request
}

func TestBadBootstrapTokensAreUnauthorized(t *testing.T) {
	t.Parallel()
	j := startJoinable(t)
	secret := func(namespace, id, kind string, more ...string) {
		t.Helper()
		doc := fmt.Sprintf(`{"metadata":{"name":"bootstrap-token-%s"},"type":%q,"stringData":{"token-id":%[1]q,"token-secret":"0123456789abcdef"`, id, kind)
		for _, pair := range more {
			key, value, _ := strings.Cut(pair, "=")
			doc += fmt.Sprintf(",%q:%q", key, value)
		}
		j.want(201, "POST", "/api/v1/namespaces/"+namespace+"/secrets", doc+"}}")
	}
	const usable, kind = "usage-bootstrap-authentication=true", "bootstrap.kubernetes.io/token"
	secret("kube-system", "aaaaaa", kind, usable)
	secret("kube-system", "bbbbbb", kind, usable, "expiration=2020-01-01T00:00:00Z")
	secret("kube-system", "cccccc", kind, "usage-bootstrap-signing=true")
	secret("kube-system", "dddddd", kind, usable, "auth-extra-groups=system:masters")
	secret("kube-system", "eeeeee", "Opaque", usable)
	secret("default", "ffffff", kind, usable)

	review := func(token string) string {
		return j.want(201, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","spec":{"token":"`+token+`"}}`).get("status").Raw
	}
	j.stranger.want(200, "GET", "/api", "", "Authorization: Bearer aaaaaa.0123456789abcdef")
	if got := j.want(201, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview",
		"spec":{"token":"aaaaaa.0123456789abcdef","audiences":["others"]}}`).get("status").Raw; got != `{"user":{},"error":"invalid bearer token"}` {
		t.Errorf("the review for other audiences is %s", got)
	}
	if got := review("aaaaaa.0123456789abcdef"); gjson.Get(got, "user.username").String() != "system:bootstrap:aaaaaa" || !gjson.Get(got, "authenticated").Bool() {
		t.Errorf("the review of a good token is %s", got)
	}
	for token, why := range map[string]string{"aaaaaa.0123456789abcdee": "another secret", "bbbbbb.0123456789abcdef": "expired", "cccccc.0123456789abcdef": "another usage",
		"dddddd.0123456789abcdef": "a group of others", "eeeeee.0123456789abcdef": "another type", "ffffff.0123456789abcdef": "another namespace", "gggggg.0123456789abcdef": "no Secret"} {
		if got := j.stranger.want(401, "GET", "/api", "", "Authorization: Bearer "+token).failure(); got != "401 Unauthorized Unauthorized" {
			t.Errorf("%s: %s", why, got)
		}
		if got := review(token); got != `{"user":{},"error":"invalid bearer token"}` {
			t.Errorf("%s: the review is %s", why, got)
		}
	}
}

func TestBootstrapTokensAreOffByDefault(t *testing.T) {
	t.Parallel()
	s, _ := startTLS(t)
	root := "Authorization: Bearer root-token"
	s.want(201, "POST", systemSecrets, `{"metadata":{"name":"bootstrap-token-abcdef"},"type":"bootstrap.kubernetes.io/token",
		"stringData":{"token-id":"abcdef","token-secret":"0123456789abcdef","usage-bootstrap-authentication":"true"}}`, root)
	s.want(401, "GET", "/api", "", joinToken)
	s.want(404, "GET", clusterInfoPath, "", root)
	s.want(403, "GET", clusterInfoPath, "")
}

// TestStrangersReadClusterInfoOnly checks that anonymous users can read cluster-info if the
// RoleBinding exists, and no other object.
func TestStrangersReadClusterInfoOnly(t *testing.T) {
	t.Parallel()
	j := startJoinable(t, onSomeFile(t))
	const binding = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public/rolebindings/kubeadm:bootstrap-signer-clusterinfo"
	j.stranger.want(200, "GET", clusterInfoPath, "")
	for _, path := range []string{"/api/v1/namespaces/kube-public/configmaps", "/api/v1/namespaces/kube-public/configmaps?fieldSelector=metadata.name=cluster-info",
		"/api/v1/namespaces/kube-public/configmaps/kube-root-ca.crt", "/api/v1/watch/namespaces/kube-public/configmaps/cluster-info", "/api/v1/namespaces/kube-system/configmaps/cluster-info",
		"/at/-1s" + clusterInfoPath, binding} {
		j.stranger.want(403, "GET", path, "")
	}
	j.stranger.want(403, "PATCH", clusterInfoPath, `{"data":{"kubeconfig":""}}`, "Content-Type: application/merge-patch+json")
	j.stranger.want(403, "DELETE", clusterInfoPath, "")

	before := j.url
	j.restart()
	j.stranger.url = j.url
	if server, _ := j.published(); server != j.url || j.url == before {
		t.Errorf("after a restart %s is published, the server was at %s and is at %s", server, before, j.url)
	}
	edited := strings.Replace(j.want(200, "GET", clusterInfoPath, "").get("data.kubeconfig").String(), j.url, "https://balancer.example:6443", 1)
	j.want(200, "PATCH", clusterInfoPath, fmt.Sprintf(`{"data":{"kubeconfig":%q,"jws-kubeconfig-abcdef":"x"}}`, edited), "Content-Type: application/merge-patch+json")
	j.want(200, "DELETE", binding, "")
	j.restart()
	j.stranger.url = j.url
	if server, _ := j.published(); server != "https://balancer.example:6443" {
		t.Errorf("after a change and a restart %s is published", server)
	}
	if got := j.want(200, "GET", clusterInfoPath, "").get("data.jws-kubeconfig-abcdef").String(); got != "x" {
		t.Errorf("the signature is %q", got)
	}
	j.stranger.want(403, "GET", clusterInfoPath, "")
	j.want(200, "DELETE", clusterInfoPath, "")
	j.restart()
	j.stranger.url = j.url
	if server, _ := j.published(); server != j.url {
		t.Errorf("after its deletion and a restart %s is published", server)
	}
	j.stranger.want(200, "GET", clusterInfoPath, "")
}
