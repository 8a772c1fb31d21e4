package swap

// This file implements the webhooks. They add a label, reject an object with a forbidden name, and
// convert Rockets. They listen on the loopback interface and count their calls.

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

const mark = "swap.example.com/marked"

// hooks are the servers of the webhooks.
type hooks struct {
	url                       string
	marked, judged, converted atomic.Int64
}

type review struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Request    *request       `json:"request,omitempty"`
	Response   map[string]any `json:"response,omitempty"`
}

type request struct {
	UID               string           `json:"uid"`
	Name              string           `json:"name"`
	Object            map[string]any   `json:"object"`
	DesiredAPIVersion string           `json:"desiredAPIVersion"`
	Objects           []map[string]any `json:"objects"`
}

func (w *world) startHooks() *hooks {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	h := &hooks{url: "https://" + listener.Addr().String()}
	mux := http.NewServeMux()
	mux.HandleFunc("/mark", h.answer(h.markOf))
	mux.HandleFunc("/judge", h.answer(h.judgeOf))
	mux.HandleFunc("/convert", h.answer(h.convert))
	server := &http.Server{Handler: mux, TLSConfig: w.certs.config(), ReadHeaderTimeout: time.Minute}
	go func() { _ = server.ServeTLS(listener, "", "") }()
	w.t.Cleanup(func() { _ = server.Close() })
	return h
}

func (h *hooks) answer(how func(*request) map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in review
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Request == nil {
			http.Error(w, fmt.Sprint("no review: ", err), http.StatusBadRequest)
			return
		}
		in.Response = how(in.Request)
		in.Response["uid"] = in.Request.UID
		in.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(in)
	}
}

func (h *hooks) markOf(r *request) map[string]any {
	h.marked.Add(1)
	meta, _ := r.Object["metadata"].(map[string]any)
	patch := []map[string]any{}
	if _, ok := meta["labels"].(map[string]any); !ok {
		patch = append(patch, map[string]any{"op": "add", "path": "/metadata/labels", "value": map[string]any{}})
	}
	patch = append(patch, map[string]any{"op": "add", "path": "/metadata/labels/" + strings.ReplaceAll(mark, "/", "~1"), "value": "yes"})
	text, _ := json.Marshal(patch)
	return map[string]any{"allowed": true, "patchType": "JSONPatch", "patch": text}
}

func (h *hooks) judgeOf(r *request) map[string]any {
	h.judged.Add(1)
	return map[string]any{"allowed": !strings.HasPrefix(r.Name, "forbidden"), "status": map[string]any{"code": 403, "message": "the name is forbidden"}}
}

// convert converts Rockets from v1 to v1beta1 and back. v1 has the number of engines, and v1beta1
// has the thrust.
func (h *hooks) convert(r *request) map[string]any {
	h.converted.Add(1)
	for _, o := range r.Objects {
		if o["apiVersion"] == r.DesiredAPIVersion {
			continue
		}
		spec, _ := o["spec"].(map[string]any)
		if engines, ok := spec["engines"].(float64); ok {
			o["spec"] = map[string]any{"thrust": fmt.Sprintf("%dx", int(engines))}
		} else if thrust, ok := spec["thrust"].(string); ok {
			var n int
			_, _ = fmt.Sscanf(thrust, "%dx", &n)
			o["spec"] = map[string]any{"engines": n}
		}
		o["apiVersion"] = r.DesiredAPIVersion
	}
	return map[string]any{"result": map[string]any{"status": "Success"}, "convertedObjects": r.Objects}
}

// manifests returns the webhook configurations and the definition of Rockets. The webhooks apply to
// namespaces with the label watched.
func (h *hooks) manifests(ca []byte) string {
	bundle, _ := json.Marshal(ca)
	return fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: mark}
webhooks:
- name: mark.swap.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 20
  namespaceSelector: {matchLabels: {watched: "yes"}}
  clientConfig: {url: "%[1]s/mark", caBundle: %[2]s}
  rules: [{apiGroups: ["", fleet.example.com, batch], apiVersions: ["*"], operations: [CREATE], resources: [configmaps, pods, rockets, jobs]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: judge}
webhooks:
- name: judge.swap.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 20
  namespaceSelector: {matchLabels: {watched: "yes"}}
  clientConfig: {url: "%[1]s/judge", caBundle: %[2]s}
  rules: [{apiGroups: [""], apiVersions: ["*"], operations: [CREATE], resources: [configmaps]}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: rockets.fleet.example.com}
spec:
  group: fleet.example.com
  scope: Namespaced
  names: {plural: rockets, singular: rocket, kind: Rocket}
  conversion:
    strategy: Webhook
    webhook: {conversionReviewVersions: [v1], clientConfig: {url: "%[1]s/convert", caBundle: %[2]s}}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {engines: {type: integer}}}}}}
  - name: v1beta1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {thrust: {type: string}}}}}}
`, h.url, bundle)
}
