package e2e

// These tests check that the server's own writes pass admission and that they are audited. The
// server uses the accounts of kube-controller-manager for these writes.

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
)

const (
	garbageCollector    = "system:serviceaccount:kube-system:generic-garbage-collector"
	namespaceController = "system:serviceaccount:kube-system:namespace-controller"
)

// If a webhook denies a delete of the collector, the object remains, and the collector tries again.
func TestCollectorPassesAdmission(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, "--audit-log-path="+log)
	owner := s.want(201, "POST", hookedMaps, hookedMap("owner")).get("metadata.uid").String()
	s.want(201, "POST", hookedMaps, fmt.Sprintf(`{"metadata":{"name":"owned","labels":{"hooked":"yes"},"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}]}}`, owner))
	var refusals atomic.Int32
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		own := q.Get("request.userInfo.username").String() == garbageCollector
		respondReview(w, q, !own || refusals.Add(1) > 1, "")
	})
	s.validatingBy(h.hookAt("a", "v", ""))
	s.want(200, "DELETE", hookedMaps+"/owner", "")
	apitest.WaitFor(t, "the dependent's end", func() bool { return s.send("GET", hookedMaps+"/owned", "").code == 404 })
	var asked []string
	for _, a := range h.take() {
		if q := a.review.Get("request"); q.Get("userInfo.username").String() == garbageCollector {
			asked = append(asked, fmt.Sprint(q.Get("operation"), " ", q.Get("name"), " ", q.Get("userInfo.groups")))
		}
	}
	want := `DELETE owned ["system:serviceaccounts","system:serviceaccounts:kube-system","system:authenticated"]`
	if len(asked) != 2 || asked[0] != want || asked[1] != want {
		t.Errorf("asked %q, want twice %s", asked, want)
	}
	codes := auditCodes(t, log, garbageCollector, "/api/v1/namespaces/default/configmaps/owned")
	if codes != "delete 400 delete 200 " {
		t.Errorf("audit events: %q", codes)
	}
}

// The writes of the namespace controller must pass admission. It deletes the objects and then
// updates the namespace.
func TestEmptyingPassesAdmission(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "audit.log")
	s := startTest(t, "--audit-log-path="+log)
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"shop"}}`)
	s.want(201, "POST", "/api/v1/namespaces/shop/configmaps", hookedMap("m"))
	var refusals atomic.Int32
	h := startHook(t, func(w http.ResponseWriter, r *http.Request, q gjson.Result) {
		own := q.Get("request.userInfo.username").String() == namespaceController && q.Get("request.name").String() == "m"
		respondReview(w, q, !own || refusals.Add(1) > 1, "")
	})
	s.validatingBy(h.hookAt("a", "v", ""))
	s.want(200, "DELETE", "/api/v1/namespaces/shop", "")
	apitest.WaitFor(t, "the namespace's end", func() bool { return s.send("GET", "/api/v1/namespaces/shop", "").code == 404 })
	if codes := auditCodes(t, log, namespaceController, "/api/v1/namespaces/shop/configmaps/m"); codes != "delete 400 delete 200 " {
		t.Errorf("audit events of the object: %q", codes)
	}
	if codes := auditCodes(t, log, namespaceController, "/api/v1/namespaces/shop/finalize"); codes != "update 200 " {
		t.Errorf("audit events of the finalizer: %q", codes)
	}
}

// auditCodes returns the verb and the status code of each event with the given user and path.
func auditCodes(t *testing.T, file, user, path string) (codes string) {
	t.Helper()
	var text []byte
	read := func() bool {
		var err error
		text, err = os.ReadFile(file)
		codes = ""
		for line := range strings.Lines(string(text)) {
			ev := gjson.Parse(line)
			if ev.Get("user.username").String() == user && ev.Get("requestURI").String() == path {
				codes += fmt.Sprint(ev.Get("verb"), " ", ev.Get("responseStatus.code"), " ")
			}
		}
		return err == nil && strings.Contains(codes, "200")
	}
	apitest.WaitFor(t, "audit events of "+path, read)
	return codes
}
