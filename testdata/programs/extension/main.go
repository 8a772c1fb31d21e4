// Extension is an extension API server behind apilet. It serves the type Star of
// stars.example.com/v1 from memory. It trusts the user names that a front proxy sends if the
// proxy's certificate is signed by the authority in the ConfigMap
// kube-system/extension-apiserver-authentication.
//
//	go run ./testdata/programs/extension -server http://127.0.0.1:8080 > extension.yaml 2> extension.log &
//	kubectl apply -f extension.yaml        a Service that leads here, and the APIService that names it
//	kubectl create -f star.yaml            {apiVersion: stars.example.com/v1, kind: Star, metadata: {name: sun}}
//
// It shows how to implement an extension API server with discovery, the verbs of a type, and
// authentication of the front proxy. Most extension API servers are based on k8s.io/apiserver,
// which implements all of this (kubernetes/sample-apiserver).
package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	gv   = "stars.example.com/v1"
	name = "stars.infra.svc" // the name in the certificate that apilet verifies
)

// stars contains the objects by namespace and name.
type stars struct {
	// the API server that publishes the front proxies' authority
	server string

	mu   sync.Mutex // guards the fields below
	all  map[string]map[string]any
	next int
}

func main() {
	server := flag.String("server", "http://127.0.0.1:8080", "the `URL` of apilet")
	flag.Parse()
	certificate, authority, err := makeCertificate()
	if err != nil {
		log.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert})
	if err != nil {
		log.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	fmt.Printf(manifest, port, port, base64.StdEncoding.EncodeToString(authority))
	log.Fatal(http.Serve(listener, &stars{server: *server, all: map[string]map[string]any{}}))
}

const manifest = `apiVersion: v1
kind: Namespace
metadata: {name: infra}
---
apiVersion: v1
kind: Service
metadata: {name: stars, namespace: infra}
spec: {type: ExternalName, externalName: localhost, ports: [{port: %d}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.stars.example.com}
spec:
  group: stars.example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  service: {name: stars, namespace: infra, port: %d}
  caBundle: %s
`

// makeCertificate returns a self-signed certificate.
func makeCertificate() (pair tls.Certificate, authority []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair, nil, err
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// believes checks that the request was sent by the front proxy. Its certificate must be signed by
// the published authority and have a published name.
func (s *stars) believes(r *http.Request) error {
	if len(r.TLS.PeerCertificates) == 0 {
		return errors.New("no certificate")
	}
	a, err := http.Get(s.server + "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication")
	if err != nil {
		return err
	}
	defer a.Body.Close()
	var published struct {
		Data struct {
			Authority string `json:"requestheader-client-ca-file"`
			Names     string `json:"requestheader-allowed-names"`
		}
	}
	if err := json.NewDecoder(a.Body).Decode(&published); err != nil {
		return err
	}
	pool, names := x509.NewCertPool(), []string{}
	if !pool.AppendCertsFromPEM([]byte(published.Data.Authority)) || json.Unmarshal([]byte(published.Data.Names), &names) != nil {
		return errors.New("nothing is published")
	}
	shown := r.TLS.PeerCertificates[0]
	if len(names) > 0 && !slices.Contains(names, shown.Subject.CommonName) {
		return fmt.Errorf("%s is none of %s", shown.Subject.CommonName, names)
	}
	_, err = shown.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

func (s *stars) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := s.believes(r); err != nil {
		fail(w, http.StatusUnauthorized, "Unauthorized", err.Error())
		return
	}
	rest, ours := strings.CutPrefix(strings.Trim(r.URL.Path, "/"), "apis/"+gv)
	// namespaces, NAMESPACE, stars, NAME; or stars
	parts := strings.Split(strings.Trim(rest, "/"), "/")
	switch {
	case !ours:
		fail(w, http.StatusNotFound, "NotFound", "nothing else is here")
	case rest == "":
		send(w, 200, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": gv, "resources": []any{map[string]any{
			"name": "stars", "singularName": "star", "namespaced": true, "kind": "Star", "verbs": []string{"create", "delete", "get", "list"}}}})
	case parts[0] == "stars":
		s.serve(w, r, "", "")
	case len(parts) >= 3 && parts[2] == "stars":
		log.Printf("%s asks to %s in %s", r.Header.Get("X-Remote-User"), r.Method, parts[1])
		s.serve(w, r, parts[1], strings.Join(parts[3:], "/"))
	default:
		fail(w, http.StatusNotFound, "NotFound", "there are only stars")
	}
}

func (s *stars) serve(w http.ResponseWriter, r *http.Request, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := namespace + "/" + name
	switch {
	case r.Method == http.MethodPost:
		var star map[string]any
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&star); err != nil {
			fail(w, http.StatusBadRequest, "BadRequest", err.Error())
			return
		}
		meta, _ := star["metadata"].(map[string]any)
		called, _ := meta["name"].(string)
		if s.next++; called == "" || s.all[namespace+"/"+called] != nil {
			fail(w, http.StatusConflict, "AlreadyExists", "a star has a name, and it alone")
			return
		}
		star["apiVersion"], star["kind"], meta["namespace"] = gv, "Star", namespace
		meta["resourceVersion"], meta["uid"], meta["creationTimestamp"] = fmt.Sprint(s.next), fmt.Sprintf("star-%d", s.next), time.Now().UTC().Format(time.RFC3339)
		s.all[namespace+"/"+called] = star
		send(w, http.StatusCreated, star)
	case name != "" && s.all[key] == nil:
		fail(w, http.StatusNotFound, "NotFound", fmt.Sprintf("stars.stars.example.com %q not found", name))
	case r.Method == http.MethodDelete && name != "":
		star := s.all[key]
		delete(s.all, key)
		send(w, 200, star)
	case r.Method == http.MethodGet && name != "":
		send(w, 200, s.all[key])
	case r.Method == http.MethodGet:
		items := []any{}
		for _, key := range slices.Sorted(maps.Keys(s.all)) {
			if namespace == "" || strings.HasPrefix(key, namespace+"/") {
				items = append(items, s.all[key])
			}
		}
		send(w, 200, map[string]any{"apiVersion": gv, "kind": "StarList", "metadata": map[string]any{"resourceVersion": fmt.Sprint(s.next)}, "items": items})
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed", "the server does not allow this method on the requested resource")
	}
}

func send(w http.ResponseWriter, code int, value any) {
	var b bytes.Buffer
	_ = json.NewEncoder(&b).Encode(value) // contains only JSON values
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes()) // otherwise the client is gone
}

func fail(w http.ResponseWriter, code int, reason, message string) {
	send(w, code, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message, "code": code})
}
