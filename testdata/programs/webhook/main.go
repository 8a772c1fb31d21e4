// Webhook is an admission webhook for experiments. It creates a certificate, listens on a loopback
// port, and prints a configuration for the API server. Only two commands are needed:
//
//	go run ./testdata/programs/webhook > webhook.yaml &        # in the project's folder; it logs requests to stderr
//	kubectl apply -f webhook.yaml                     # once the file is there
//
// After that, in all namespaces except for kube-system:
//
//	kubectl create configmap a                        # gets the label webhook.example.com/seen: "true"
//	kubectl create configmap forbidden                # is rejected
//	kubectl run web --image nginx:latest              # is accepted with a warning
//	kubectl delete configmap a                        # is also sent to the webhook
//
// To remove the configuration:
//
//	kubectl delete -f webhook.yaml
//
// If -certs is set, the certificate is read from a directory that contains tls.crt and tls.key, as
// in a controller manager. With -service NAMESPACE/NAME it prints the configuration that
// controller-gen generates, which refers to a Service; the Service must lead to this program.
// docs/warnings.md shows an example.
//
// If -delay is set, the responses are delayed to show the effects of timeoutSeconds and
// failurePolicy. If -policy is Ignore, the webhook can be killed. The failed calls are only visible
// in the log and the audit log of the server. The program is an example. In production, a webhook
// should keep its certificate and verify the certificate of the caller.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	label     = "webhook.example.com/seen"
	forbidden = "forbidden"
)

// A review contains the used fields of an AdmissionReview.
type review struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Request    *request  `json:"request,omitempty"`
	Response   *response `json:"response,omitempty"`
}

type request struct {
	UID       string `json:"uid"`
	Operation string `json:"operation"`
	Resource  struct {
		Resource string `json:"resource"`
	} `json:"resource"`
	SubResource string `json:"subResource"`
	Namespace   string `json:"namespace"`
	Name        string `json:"name"`
	UserInfo    struct {
		Username string `json:"username"`
	} `json:"userInfo"`
	Object struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Spec struct {
			Containers []struct {
				Name  string `json:"name"`
				Image string `json:"image"`
			} `json:"containers"`
		} `json:"spec"`
	} `json:"object"`
}

type response struct {
	UID     string  `json:"uid"`
	Allowed bool    `json:"allowed"`
	Status  *status `json:"status,omitempty"`
	// encoding/json encodes it in base64
	Patch            []byte            `json:"patch,omitempty"`
	PatchType        string            `json:"patchType,omitempty"`
	Warnings         []string          `json:"warnings,omitempty"`
	AuditAnnotations map[string]string `json:"auditAnnotations,omitempty"`
}

type status struct {
	Message string `json:"message"`
	Reason  string `json:"reason"`
	Code    int    `json:"code"`
}

// mutate adds a label to objects without it.
func mutate(asked *request) *response {
	answer := &response{Allowed: true, AuditAnnotations: map[string]string{"seen": "yes"}}
	if _, ok := asked.Object.Metadata.Labels[label]; ok || asked.Operation == "DELETE" {
		return answer
	}
	var patch []map[string]any
	if asked.Object.Metadata.Labels == nil {
		patch = append(patch, map[string]any{"op": "add", "path": "/metadata/labels", "value": map[string]string{}})
	}
	path := "/metadata/labels/" + strings.ReplaceAll(label, "/", "~1")
	patch = append(patch, map[string]any{"op": "add", "path": path, "value": "true"})
	answer.Patch, _ = json.Marshal(patch) // cannot fail for strings
	answer.PatchType = "JSONPatch"
	return answer
}

// validate rejects a certain name and returns a warning for images with a tag that may change.
func validate(asked *request) *response {
	answer := &response{Allowed: true}
	if asked.Name == forbidden {
		answer.Allowed = false
		answer.Status = &status{Code: http.StatusForbidden, Reason: "Forbidden", Message: "nothing may be called " + forbidden}
	}
	for _, c := range asked.Object.Spec.Containers {
		if _, tag, _ := strings.Cut(c.Image, ":"); tag == "" || tag == "latest" {
			answer.Warnings = append(answer.Warnings, fmt.Sprintf("container %q runs %s, which is another image tomorrow", c.Name, c.Image))
		}
	}
	return answer
}

// handler answers each review with the result of judge.
func handler(delay time.Duration, judge func(*request) *response) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var asked review
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Request == nil {
			http.Error(w, "no AdmissionReview", http.StatusBadRequest)
			return
		}
		q := asked.Request
		log.Printf("%s %s: %s asks to %s %s %s/%s", r.URL.Path, r.URL.RawQuery, q.UserInfo.Username, q.Operation,
			strings.TrimSuffix(q.Resource.Resource+"/"+q.SubResource, "/"), q.Namespace, q.Name)
		select {
		case <-time.After(delay):
		case <-r.Context().Done():
			return
		}
		answer := judge(q)
		answer.UID = q.UID
		w.Header().Set("Content-Type", "application/json")
		// the client may already be disconnected
		_ = json.NewEncoder(w).Encode(&review{APIVersion: asked.APIVersion, Kind: asked.Kind, Response: answer})
	}
}

// certificate creates a self-signed certificate for loopback. It also returns the certificate in
// PEM.
func certificate() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "webhook"},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().AddDate(0, 0, 7),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

const configuration = `apiVersion: admissionregistration.k8s.io/v1
kind: %sWebhookConfiguration
metadata:
  name: example
webhooks:
- name: %s.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: %s
  timeoutSeconds: 5
  clientConfig:
%s
  rules:
  - operations: [CREATE, UPDATE, DELETE]
    apiGroups: [""]
    apiVersions: [v1]
    resources: [configmaps, pods]
  namespaceSelector:
    matchExpressions:
    - {key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system]}
`

// byAddress refers to a program on this machine, byService to a Service.
const (
	byAddress = "    url: https://%s/%s\n    caBundle: %s"
	byService = "    service: {namespace: %s, name: %s, path: /%s}"
)

// printConfigurations prints the webhook configurations for this program.
func printConfigurations(policy string, where func(path string) string) error {
	fmt.Printf(configuration, "Mutating", "mutate", policy, where("mutate"))
	fmt.Print("---\n")
	fmt.Printf(configuration, "Validating", "validate", policy, where("validate"))
	return os.Stdout.Close() // kubectl apply -f - waits for the end of the output
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "where to serve; port 0 picks a free one")
	delay := flag.Duration("delay", 0, "how long to think about each question")
	policy := flag.String("policy", "Fail", "the failurePolicy of the configuration: Fail or Ignore")
	certs := flag.String("certs", "", "a folder with tls.crt and tls.key, instead of a certificate of its own")
	service := flag.String("service", "", "NAMESPACE/NAME of the Service that the configuration names, instead of the address")
	flag.Parse()
	own, authority, err := certificate()
	if *certs != "" {
		own, err = tls.LoadX509KeyPair(filepath.Join(*certs, "tls.crt"), filepath.Join(*certs, "tls.key"))
	}
	if err != nil {
		log.Fatal(err)
	}
	listener, err := tls.Listen("tcp", *listen, &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		log.Fatal(err)
	}
	where := func(path string) string {
		if namespace, name, ok := strings.Cut(*service, "/"); ok {
			return fmt.Sprintf(byService, namespace, name, path)
		}
		return fmt.Sprintf(byAddress, listener.Addr(), path, base64.StdEncoding.EncodeToString(authority))
	}
	if err := printConfigurations(*policy, where); err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /mutate", handler(*delay, mutate))
	mux.HandleFunc("POST /validate", handler(*delay, validate))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.Serve(listener))
}
