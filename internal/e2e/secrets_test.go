package e2e

// This file searches for confidential data where it must not appear: tokens, the data of Secrets,
// and text that clients can choose freely in metrics. The tests send such text in all kinds of
// requests. Then they read the log at a high verbosity, the audit log, and /metrics.

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	// hush is included in all confidential values. It is valid base64, so that a Secret can have it
	// as data.
	hush = "Zm9yYmlkZGVu"
	// guess is included in all values that a client can choose freely.
	guess = "unheard-of-xq"
)

// telling starts a server with a verbose log and an audit log.
func telling(t *testing.T) (s *testServer, auditPath string) {
	t.Helper()
	auditPath = filepath.Join(t.TempDir(), "audit")
	s, _ = startTLS(t, "--v=3", "--audit-log-path="+auditPath)
	s.headers = []string{"Authorization: Bearer root-token"}
	return s, auditPath
}

func TestSecretsAreNotTold(t *testing.T) {
	t.Parallel()
	s, auditPath := telling(t)
	const secrets = "/api/v1/namespaces/default/secrets"
	encoded := base64.StdEncoding.EncodeToString([]byte(hush))
	good := `{"metadata":{"name":"s"},"data":{"k":"` + hush + `"},"stringData":{"l":"` + hush + `"}}`
	s.want(201, "POST", secrets, good)
	for _, c := range []struct{ method, path, body, header string }{
		{"POST", secrets, good, ""}, {"POST", secrets + "?dryRun=All", good, ""},
		{"POST", secrets, `{"metadata":{"name":"t"},"data":{"k":"` + hush + `!"}}`, ""},
		{"POST", secrets, `{"metadata":{"name":"t"},"data":"` + hush + `"}`, ""},
		{"POST", secrets, `{"metadata":{"name":"t"},"data":{"k":"` + hush + `"`, ""},
		{"POST", secrets, `{"metadata":{"name":"t"},"data":{"k":["` + hush + `"]}}`, ""},
		{"POST", secrets, `{"metadata":{"name":"t"},"data":{"` + hush + ` /":"` + hush + `"}}`, ""},
		{"POST", secrets, `{"metadata":{"name":"t"},"type":"kubernetes.io/dockerconfigjson","stringData":{".dockerconfigjson":"` + hush + `"}}`, ""},
		{"POST", secrets, "metadata: {name: t}\ndata: {k: " + hush, "Content-Type: application/yaml"},
		{"POST", secrets + "?fieldValidation=Strict", `{"metadata":{"name":"t"},"data":{},"` + hush + `":"` + hush + `"}`, ""},
		{"POST", secrets, "k8s\x00" + hush, asProtobuf},
		{"PUT", secrets + "/s", `{"metadata":{"name":"s","resourceVersion":"1"},"data":{"k":"` + encoded + `"}}`, ""},
		{"PUT", secrets + "/s", `{"metadata":{"name":"s"},"type":"` + hush + `","data":{"k":"` + encoded + `"}}`, ""},
		{"PATCH", secrets + "/s", `{"data":{"k":"` + hush + `!"}}`, jsonMerge},
		{"PATCH", secrets + "/s", `{"data":{"k":"` + hush + `"},"data":"` + hush + `"}`, "Content-Type: application/strategic-merge-patch+json"},
		{"PATCH", secrets + "/s", `[{"op":"test","path":"/data/k","value":"` + hush + `x"}]`, jsonSteps},
		{"PATCH", secrets + "/s", `[{"op":"add","path":"/data/k","value":{"` + hush + `":1}}]`, jsonSteps},
		{"PATCH", secrets + "/s?fieldManager=m", `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{"k":"` + encoded + `"}}`, "Content-Type: application/apply-patch+yaml"},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":"` + hush + `"}}`, ""},
		{"POST", "/apis/authentication.k8s.io/v1/tokenreviews", `{"spec":{"token":["` + hush + `"]}}`, ""},
		{"POST", "/api/v1/namespaces/default/serviceaccounts/default/token", `{"spec":{"audiences":["` + hush + `"]}}`, ""},
		{"GET", secrets + "/s", "", ""}, {"GET", secrets, "", ""}, {"GET", secrets + "?watch=1&timeoutSeconds=-1", "", ""},
		{"DELETE", secrets + "/s", `{"preconditions":{"uid":"other"}}`, ""},
		{"GET", "/api/v1/pods?token=" + hush, "", ""}, {"GET", "/api?access_token=" + hush + "&x=%zz", "", ""},
		{"GET", "/nowhere?password=" + hush + "&client%5fsecret=" + hush, "", ""}, {"GET", "/api/v1/pods?watch=1&timeoutSeconds=-1&id_token=" + hush, "", ""},
		{"GET", "/api", "", "Authorization: Bearer " + hush}, {"GET", "/api", "", "Authorization: Basic " + hush},
		{"GET", "/api", "", "Cookie: session=" + hush}, {"GET", "/api", "", "X-Auth-Token: " + hush},
		{"GET", "/api", "", "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io." + hush},
	} {
		s.send(c.method, c.path, c.body, c.header)
	}
	plain, err := http.Get(strings.Replace(s.url, "https", "http", 1) + "/" + hush) // without TLS, which the listener logs
	if err == nil {
		plain.Body.Close()
	}
	s.expectSilence(auditPath, hush, "root-token", encoded)
}

// expectSilence checks that the logs, the metrics and the deprecations do not contain any of the
// words.
func (s *testServer) expectSilence(auditPath string, words ...string) {
	s.t.Helper()
	audit, err := os.ReadFile(auditPath)
	if err != nil || !strings.Contains(string(audit), "/secrets") || !strings.Contains(s.log.String(), "/secrets") {
		s.t.Fatal("the logs have nothing to tell", err)
	}
	for place, text := range map[string]string{
		"audit log": string(audit), "log": s.log.String(), "metrics": string(s.want(200, "GET", "/metrics", "").body),
		"deprecations": string(s.want(200, "GET", "/debug/deprecations", "").body),
		"dump":         string(s.want(200, "GET", "/debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1", "").body),
	} {
		for line := range strings.Lines(text) {
			for _, word := range words {
				if strings.Contains(line, word) {
					s.t.Errorf("the %s tells %s: %s", place, word, line)
				}
			}
		}
	}
}

// TestMetricsHaveNoNamesOfClients sends requests with random names in every part, and counts the
// metrics.
func TestMetricsHaveNoNamesOfClients(t *testing.T) {
	t.Parallel()
	s, _ := telling(t)
	round := func(word string) {
		for _, c := range []struct{ method, path, body, header string }{
			{strings.ToUpper(word), "/api/v1/pods", "", ""}, {"GET", "/" + word, "", ""}, {"GET", "/api/" + word, "", ""}, {"GET", "/metrics/" + word, "", ""},
			{"GET", "/api/v1/" + word, "", ""}, {"GET", "/apis/" + word + "/v1/pods", "", ""}, {"GET", "/apis/apps/" + word + "/deployments", "", ""},
			{"GET", "/apis/apps/v1/" + word, "", ""}, {"GET", "/api/v1/namespaces/" + word + "/pods", "", ""}, {"GET", "/api/v1/namespaces/" + word, "", ""},
			{"GET", "/api/v1/namespaces/default/pods/" + word, "", ""}, {"GET", "/api/v1/namespaces/default/pods/x/" + word, "", ""},
			{"DELETE", "/api/v1/namespaces/default/pods/x?dryRun=" + word, "", ""}, {"GET", "/api/v1/pods?labelSelector=" + word + "&fieldManager=" + word, "", ""},
			{"POST", "/api/v1/namespaces/default/pods", "x", "Content-Type: " + word + "/x"}, {"GET", "/api/v1/pods", "", "Accept: " + word + "/x"},
			{"PATCH", "/api/v1/namespaces/default/pods/x", "x", "Content-Type: application/" + word}, {"GET", "/readyz/" + word, "", ""},
			{"GET", "/api/v1/pods", "", "User-Agent: " + word}, {"GET", "/api/v1/pods", "", "Impersonate-User: " + word},
			{"GET", "/apis/batch/v1beta1/cronjobs", "", "User-Agent: " + word}, {"GET", "/openapi/v3/" + word, "", ""}, {"GET", "/debug/" + word, "", ""},
			{"GET", "/api/v1/watch/" + word, "", ""}, {"GET", "/api/v1/proxy/" + word, "", ""}, {"GET", "/api/v1/pods", "", "Audit-Id: " + word},
		} {
			s.send(c.method, c.path, c.body, c.header)
		}
	}
	series := func() int {
		text := string(s.want(200, "GET", "/metrics", "").body)
		if at := strings.Index(strings.ToLower(text), guess); at >= 0 {
			t.Errorf("/metrics has %.300s", text[max(0, at-200):])
		}
		return strings.Count(text, "\n")
	}
	round(guess + "-0")
	before := series()
	for i := range 20 {
		round(fmt.Sprint(guess, "-", i+1))
	}
	// Buckets for slower or larger requests can appear in the meantime.
	if after := series(); after > before+40 {
		t.Errorf("%d lines of metrics have become %d", before, after)
	}
}
