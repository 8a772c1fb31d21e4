package e2e

// These tests run `apilet node-bootstrap` against a server and use the certificates that it writes.

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	kubelet "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
)

// A nodeServer is a server with a directory for the output of node-bootstrap.
type nodeServer struct {
	*testServer
	certDir, kubeconfig, dir string
}

func startForNodes(t *testing.T, flags ...string) *nodeServer {
	t.Helper()
	work := t.TempDir()
	n := &nodeServer{certDir: filepath.Join(work, "certs"), kubeconfig: filepath.Join(work, "admin"), dir: filepath.Join(work, "node")}
	n.testServer = startTest(t, append([]string{"--cert-dir=" + n.certDir, "--kubeconfig=" + n.kubeconfig}, flags...)...)
	return n
}

func (n *nodeServer) bootstrap(more ...string) run {
	n.t.Helper()
	return runAs(n.t, "apilet", append([]string{"node-bootstrap", "--kubeconfig=" + n.kubeconfig, "--cert-dir=" + n.certDir,
		"--node-name=n1", "--node-ip=192.0.2.1", n.dir}, more...)...)
}

// as makes all following requests use the given kubeconfig.
func (n *nodeServer) as(name string) {
	n.t.Helper()
	config := apitest.ReadFile(n.t, filepath.Join(n.dir, name+".kubeconfig"))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(apitest.ReadFile(n.t, filepath.Join(n.dir, gjson.GetBytes(config, "clusters.0.cluster.certificate-authority").String())))
	part := func(field string) []byte {
		user := gjson.GetBytes(config, "users.0.user")
		if data := user.Get(field + "-data").String(); data != "" {
			content, err := base64.StdEncoding.DecodeString(data)
			if err != nil {
				n.t.Fatal(err)
			}
			return content
		}
		return apitest.ReadFile(n.t, filepath.Join(n.dir, user.Get(field).String()))
	}
	pair, err := tls.X509KeyPair(part("client-certificate"), part("client-key"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.url = gjson.GetBytes(config, "clusters.0.cluster.server").String()
	n.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}}
}

// content returns the content of all files in the directory.
func (n *nodeServer) content() map[string]string {
	n.t.Helper()
	entries, err := os.ReadDir(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	files := map[string]string{}
	for _, entry := range entries {
		files[entry.Name()] = string(apitest.ReadFile(n.t, filepath.Join(n.dir, entry.Name())))
	}
	return files
}

func TestNodeBootstrapMakesUsersOfANode(t *testing.T) {
	t.Parallel()
	n := startForNodes(t, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	if r := n.bootstrap(); r.code != 0 || r.errs != "" || !strings.Contains(r.out, "kubelet-client.crt: issued for system:node:n1") {
		t.Fatalf("%d %s\n%s", r.code, r.errs, r.out)
	}
	n.as("kubelet")
	n.want(201, "POST", "/api/v1/nodes", `{"metadata":{"name":"n1"}}`)
	n.want(403, "POST", "/api/v1/nodes", `{"metadata":{"name":"n2"}}`)
	n.want(403, "GET", "/api/v1/secrets", "")
	n.as("kube-proxy")
	n.want(200, "GET", "/apis/discovery.k8s.io/v1/endpointslices", "")
	n.want(403, "GET", "/api/v1/secrets", "")
	n.as("kube-scheduler")
	n.want(200, "GET", "/api/v1/pods", "")
	n.want(403, "GET", "/api/v1/secrets", "")
	n.as("kube-controller-manager")
	n.want(201, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"x"}}`)
	n.want(200, "GET", "/api/v1/secrets", "")
	for name := range n.content() {
		info, err := os.Stat(filepath.Join(n.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if secret := strings.HasSuffix(name, ".key") || strings.HasSuffix(name, ".kubeconfig"); secret && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o", name, info.Mode().Perm())
		}
	}
}

// TestNodeBootstrapBindsTheGroupsOfTLSBootstrap sends the SubjectAccessReviews that
// kube-controller-manager sends before it approves a certificate signing request.
func TestNodeBootstrapBindsTheGroupsOfTLSBootstrap(t *testing.T) {
	t.Parallel()
	n := startForNodes(t, "--authorization-mode=Node,RBAC")
	if r := n.bootstrap(); r.code != 0 {
		t.Fatal(r.errs)
	}
	n.as("kube-controller-manager")
	for _, c := range []struct {
		group, subresource string
		allowed            bool
	}{
		{"system:bootstrappers", "", true},
		{"system:bootstrappers", "nodeclient", true},
		{"system:bootstrappers", "selfnodeclient", false},
		{"system:nodes", "selfnodeclient", true},
		{"system:nodes", "nodeclient", false},
		{"system:authenticated", "nodeclient", false},
	} {
		review := `{"spec":{"user":"someone","groups":["` + c.group + `"],"resourceAttributes":{"verb":"create","group":"certificates.k8s.io",
			"resource":"certificatesigningrequests","subresource":"` + c.subresource + `"}}}`
		a := n.want(201, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
		if got := gjson.GetBytes(a.body, "status.allowed").Bool(); got != c.allowed {
			t.Errorf("%s creates %q: %v, want %v", c.group, c.subresource, got, c.allowed)
		}
	}
}

func TestNodeBootstrapMayBeRepeated(t *testing.T) {
	t.Parallel()
	n := startForNodes(t, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	n.bootstrap()
	edited := filepath.Join(n.dir, "kubelet.yaml")
	before := n.content()
	apitest.WriteFile(t, edited, append([]byte("maxPods: 20\n"), before["kubelet.yaml"]...))
	before = n.content()
	r := n.bootstrap()
	if r.code != 0 {
		t.Fatal(r.errs)
	}
	for name, content := range n.content() {
		if before[name] != content {
			t.Errorf("%s has changed", name)
		}
	}
	for line := range strings.Lines(r.out) {
		wanted := []string{": unchanged\n", ": exists\n"}
		if strings.HasPrefix(line, edited) {
			wanted = []string{"not overwritten"}
		}
		if !slices.ContainsFunc(wanted, func(want string) bool { return strings.Contains(line, want) }) {
			t.Errorf("the second run prints %q", line)
		}
	}
	// A new address only changes the serving certificate.
	n.bootstrap("--node-ip=192.0.2.7")
	for name, content := range n.content() {
		if changed := before[name] != content; changed != strings.HasPrefix(name, "kubelet-serving.") {
			t.Errorf("%s has changed: %v", name, changed)
		}
	}
}

func TestNodeBootstrapReplacesExposedKeys(t *testing.T) {
	t.Parallel()
	apitest.NeedsModes(t)
	n := startForNodes(t, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	n.bootstrap()
	for name, exposed := range map[string][]string{
		"kubelet.kubeconfig": {"kubelet.kubeconfig", "kubelet-client.crt", "kubelet-client.key"},
		"kube-proxy.key":     {"kube-proxy.crt", "kube-proxy.key"},
	} {
		before := n.content()
		apitest.Chmod(t, filepath.Join(n.dir, name), 0o644)
		if r := n.bootstrap(); r.code != 0 {
			t.Fatal(r.errs)
		}
		for file, content := range n.content() {
			if changed := content != before[file]; changed != slices.Contains(exposed, file) {
				t.Errorf("%s was exposed, and %s has changed: %v", name, file, changed)
			}
		}
		if info, err := os.Stat(filepath.Join(n.dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

func TestNodeBootstrapConfiguresTheKubelet(t *testing.T) {
	t.Parallel()
	n := startForNodes(t, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction")
	if r := n.bootstrap("--cluster-dns=10.96.0.20", "--cgroup-driver=cgroupfs", "--control-plane=false"); r.code != 0 {
		t.Fatal(r.errs)
	}
	files := n.content()
	for name := range files {
		if strings.HasPrefix(name, "kube-controller-manager") || strings.HasPrefix(name, "kube-scheduler") {
			t.Errorf("there is %s despite --control-plane=false", name)
		}
	}
	var config kubelet.KubeletConfiguration
	if err := yaml.UnmarshalStrict([]byte(files["kubelet.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	auth := config.Authentication
	if *auth.Anonymous.Enabled || !*auth.Webhook.Enabled || auth.X509.ClientCAFile != "ca.crt" || config.Authorization.Mode != "Webhook" {
		t.Errorf("access to the kubelet: %+v, %+v", auth, config.Authorization)
	}
	if !config.RotateCertificates || config.CgroupDriver != "cgroupfs" || !slices.Equal(config.ClusterDNS, []string{"10.96.0.20"}) {
		t.Errorf("%+v", config)
	}
	if files["ca.crt"] != string(apitest.ReadFile(t, filepath.Join(n.certDir, "ca.crt"))) {
		t.Error("ca.crt is not the server's")
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(n.dir, config.TLSCertFile), filepath.Join(n.dir, config.TLSPrivateKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"n1", "192.0.2.1"} {
		if err := pair.Leaf.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
}

// TestNodeBootstrapExplainsItself tests mistakes that would otherwise only appear in the kubelet's
// log.
func TestNodeBootstrapExplainsItself(t *testing.T) {
	t.Parallel()
	right := startForNodes(t, "--authorization-mode=RBAC")
	other := startForNodes(t, "--authorization-mode=AlwaysAllow", "--enable-admission-plugins=NodeRestriction")
	plain := startTest(t, "--kubeconfig="+filepath.Join(t.TempDir(), "plain"))
	for name, c := range map[string]struct {
		flags []string
		want  string
	}{
		"no Node authorizer":       {nil, "--authorization-mode Node,RBAC"},
		"another server's folder":  {[]string{"--cert-dir=" + other.certDir}, "cannot reach the server"},
		"no authority":             {[]string{"--cert-dir=" + t.TempDir()}, "there is no CA"},
		"a plain port":             {[]string{"--kubeconfig=" + plain.flag("kubeconfig")}, "does not use https"},
		"no kubeconfig":            {[]string{"--kubeconfig="}, "--kubeconfig is required"},
		"a name that no node has":  {[]string{"--node-name=N_1"}, "not the name of a node"},
		"no address":               {[]string{"--node-ip=localhost"}, "not the IP address"},
		"no range of Pods":         {[]string{"--cluster-cidr=10.244.0.0"}, "--cluster-cidr"},
		"an unknown cgroup driver": {[]string{"--cgroup-driver=none"}, "neither systemd nor cgroupfs"},
	} {
		if r := right.bootstrap(c.flags...); r.code != 1 || !strings.Contains(r.errs, c.want) {
			t.Errorf("%s: %d %s", name, r.code, r.errs)
		}
	}
	if r := other.bootstrap(); r.code != 0 || r.errs != "" {
		t.Errorf("AlwaysAllow: %d %s", r.code, r.errs)
	}
	loose := startForNodes(t, "--authorization-mode=Node,RBAC")
	if r := loose.bootstrap(); r.code != 0 || !strings.Contains(r.errs, "--enable-admission-plugins NodeRestriction") {
		t.Errorf("without NodeRestriction: %d %s", r.code, r.errs)
	}
}
