package swap

// This file starts etcd, the servers and the other programs. It moves the clients between the
// servers. Both servers have the same port on two loopback addresses, like kube-apiservers on
// several machines.

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"apilet-harness"
	"apilet-harness/proxy"
	"apilet/apilettest"
)

const (
	together = 3 * time.Second // both servers run and are used
	alone    = 4 * time.Second
	settling = 3 * time.Minute // time for controllers to finish
	token    = "swap"
)

// A side is one of the servers.
type side struct {
	name, addr string
	server     *apilettest.Server
}

// A world is the cluster.
type world struct {
	t      *testing.T
	dir    string
	etcd   string
	certs  *authority
	sides  [2]*side // the serving one comes first
	door   *proxy.Proxy
	client dynamic.Interface // through the proxy
	over   context.Context   // done when no new work may start
}

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// newWorld starts etcd and both servers. The proxy leads to kube-apiserver.
func newWorld(t *testing.T) *world {
	t.Helper()
	if os.Getenv("KUBE_APISERVER") == "" || os.Getenv("ETCD") == "" {
		t.Skip("KUBE_APISERVER and ETCD name no programs")
	}
	w := &world{t: t, dir: t.TempDir(), certs: newAuthority(t)}
	w.certs.save(t, w.dir)
	harness.SigningKey(t, w.dir)
	w.save("tokens", token+`,admin,1,"system:masters"`+"\n")
	w.save("encryption", encryption)
	w.startEtcd()
	port := apilettest.FreePort(t)
	flags := []string{"--etcd-servers", w.etcd, "--tls-cert-file", w.path("server.crt"), "--tls-private-key-file", w.path("server.key"),
		"--client-ca-file", w.path("ca.crt"), "--token-auth-file", w.path("tokens"), "--authorization-mode", "Node,RBAC",
		"--service-cluster-ip-range", "10.96.0.0/24", "--service-account-issuer", "https://swap", "--service-account-key-file", w.path("sa.key"),
		"--service-account-signing-key-file", w.path("sa.key"), "--encryption-provider-config", w.path("encryption")}
	w.sides[0] = w.kube("127.0.0.1", "10.9.9.1", port, flags)
	if os.Getenv("BASELINE") != "" {
		w.sides[1] = w.kube("127.0.0.2", "10.9.9.2", port, flags)
	} else {
		w.sides[1] = w.apilet("127.0.0.2", "10.9.9.2", port, flags)
	}
	var err error
	if w.door, err = proxy.Start(w.sides[0].addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.door.Close)
	w.client = w.at(w.door.Addr())
	return w
}

func (w *world) kube(host, advertised string, port int, flags []string) *side {
	at := fmt.Sprint(host, ":", port)
	return &side{"kube-apiserver", at, w.start(at, os.Getenv("KUBE_APISERVER"), append([]string{"--bind-address", host, "--secure-port", fmt.Sprint(port),
		"--advertise-address", advertised, "--cert-dir", w.dir}, flags...))}
}

func (w *world) apilet(host, advertised string, port int, flags []string) *side {
	at := fmt.Sprint(host, ":", port)
	return &side{"apilet", at, w.start(at, apilettest.Program(w.t), append([]string{"--data", w.path("replica"), "--listen", at, "--advertise-address", advertised,
		"--controllers=false"}, flags...))}
}

// start starts an API server that listens on addr.
func (w *world) start(addr, program string, args []string) *apilettest.Server {
	s := apilettest.New(w.t, program, args...)
	s.Ready = harness.Readyz("https://" + addr)
	if err := s.Run(); err != nil {
		w.t.Fatal(err)
	}
	return s
}

const encryption = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aesgcm: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
  - identity: {}
`

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) save(name, text string) string {
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return w.path(name)
}

func (w *world) startEtcd() {
	w.etcd = harness.StartEtcd(w.t, harness.EtcdOptions{}).URLs[0]
	apilettest.Until(w.t, "etcd is ready", func() error {
		_, err := harness.Readyz(w.etcd)()
		return err
	})
}

// config returns a client configuration for the server at an address. Its dialer prevents sharing
// of connections.
func (w *world) config(addr string) *rest.Config {
	return &rest.Config{Host: "https://" + addr, BearerToken: token, QPS: -1, Dial: (&net.Dialer{}).DialContext, TLSClientConfig: rest.TLSClientConfig{CAData: w.certs.pem}}
}

// at returns a client of the server with the given address.
func (w *world) at(addr string) dynamic.Interface {
	client, err := dynamic.NewForConfig(w.config(addr))
	if err != nil {
		w.t.Fatal(err)
	}
	return client
}

// kubeconfig writes a kubeconfig for other programs, which use the proxy.
func (w *world) kubeconfig() string {
	return w.save("kubeconfig", fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"clusters": [{"name": "c", "cluster": {"server": "https://%s", "certificate-authority": %q}}],
		"users": [{"name": "u", "user": {"token": %q}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}`,
		w.door.Addr(), w.path("ca.crt"), token))
}

// ---- Programs of the cluster ----

// A program is a process that is running until the test ends.
type program struct {
	name string
	*apilettest.Server
}

// run starts a program that must not exit before the test ends.
func (w *world) run(name, binary string, args ...string) *program {
	p := &program{name, apilettest.New(w.t, binary, args...)}
	p.Env = append(os.Environ(), "HOME="+w.dir)
	if folder := os.Getenv("LOGS"); folder != "" {
		w.t.Cleanup(func() {
			if err := os.WriteFile(filepath.Join(folder, name+".log"), []byte(p.Log()), 0o600); err != nil {
				w.t.Error(err)
			}
		})
	}
	p.Launch()
	return p
}

// exited returns a message for each program that has exited.
func exited(all []*program) (problems []string) {
	for _, p := range all {
		if log := p.Log(); !p.Process().Running() {
			problems = append(problems, fmt.Sprintf("%s has exited: %s", p.name, log[max(0, len(log)-2000):]))
		}
	}
	return problems
}

// cluster starts the other programs of the cluster.
func (w *world) cluster() (all []*program) {
	kubeconfig := w.kubeconfig()
	access := []string{"--kubeconfig", kubeconfig, "--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig, "--secure-port", "0"}
	all = append(all, w.run("kube-controller-manager", os.Getenv("KUBE_CONTROLLER_MANAGER"), append(access, "--use-service-account-credentials",
		"--root-ca-file", w.path("ca.crt"), "--service-account-private-key-file", w.path("sa.key"), "--allocate-node-cidrs", "--cluster-cidr", "10.244.0.0/16",
		"--resource-quota-sync-period", "1h")...))
	all = append(all, w.run("kube-scheduler", os.Getenv("KUBE_SCHEDULER"), access...))
	all = append(all, w.run("kwok", os.Getenv("KWOK"), "--kubeconfig", kubeconfig, "--manage-all-nodes", "--node-lease-duration-seconds", "40", "--config",
		filepath.Join("..", "plane", "kwok.yaml")))
	controller := os.Getenv("CONTROLLER")
	if controller == "" {
		controller = w.path("controller")
		build := exec.Command("go", "build", "-o", controller, "./controller")
		build.Dir = filepath.Join("..", "clients")
		if out, err := build.CombinedOutput(); err != nil {
			w.t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	return append(all, w.run("controller", controller, "--kubeconfig", kubeconfig))
}

// ---- Moves ----

// move switches all clients to the other server. Both are used for a while. Then the other server
// is stopped, either by SIGTERM or by SIGKILL.
func (w *world) move(n int) {
	old, next := w.sides[0], w.sides[1]
	w.awake(next)
	w.door.Lead(old.addr, next.addr)
	w.door.Drop()
	time.Sleep(together)
	w.door.Lead(next.addr)
	how := syscall.SIGKILL
	if n%4 > 1 { // both servers are stopped in both ways
		how = syscall.SIGTERM
	}
	begin := time.Now()
	old.server.Terminate(how)
	w.t.Logf("move %d: from %s, which ended by %v in %v, to %s", n+1, old.name, how, time.Since(begin).Round(time.Millisecond), next.name)
	slices.Reverse(w.sides[:])
	time.Sleep(alone)
}

// awake starts a stopped server. A kube-apiserver may exit after a minute if Services were created
// during its start, because it has seen a Service before the IPAddress and cannot repair this. In
// this case the server is started again.
func (w *world) awake(s *side) {
	for tries := 1; !s.server.Process().Running(); tries++ {
		err := s.server.Run()
		if err == nil {
			return
		}
		text := err.Error()
		if tries == 3 || s.name != "kube-apiserver" || !strings.Contains(text, "unable to perform initial IP and Port allocation check") {
			w.t.Fatal(text[max(0, len(text)-5000):])
		}
		w.t.Log("kube-apiserver ended at its start: unable to perform initial IP and Port allocation check")
	}
}

// ---- Certificates ----

// An authority signs all certificates of the test.
type authority struct {
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	pem    []byte
	server tls.Certificate
	parts  [2][]byte // certificate and key of server, in PEM
}

func newAuthority(t *testing.T) *authority {
	a := &authority{key: newKey(t)}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "swap"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key := newKey(t)
	der, err = x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2), net.IPv4(10, 96, 0, 1)}}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	a.parts = [2][]byte{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})}
	if a.server, err = tls.X509KeyPair(a.parts[0], a.parts[1]); err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) save(t *testing.T, dir string) {
	for name, text := range map[string][]byte{"ca.crt": a.pem, "server.crt": a.parts[0], "server.key": a.parts[1]} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (a *authority) config() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{a.server}}
}

// ---- Objects ----

// objects returns the documents of a YAML text.
func objects(t *testing.T, text string) (all []map[string]any) {
	for doc := range strings.SplitSeq("\n"+text, "\n---") {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		if o != nil {
			all = append(all, o)
		}
	}
	return all
}

// file returns the text of a file in a sibling directory.
func file(t *testing.T, name ...string) string {
	text, err := os.ReadFile(filepath.Join(append([]string{".."}, name...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.TrimSpace(text))
}
