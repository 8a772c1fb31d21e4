package etcd

// This file tests that the permissions of a kubelet are updated on all servers immediately when a
// Pod is changed.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"apilet/apilettest"
)

const pods = "/api/v1/namespaces/default/pods"

// asNode sends a POST as the kubelet of node n1.
func (s *server) asNode(path, body string) (int, string) {
	s.t.Helper()
	return s.post(path, body, http.Header{"Impersonate-User": {"system:node:n1"}, "Impersonate-Group": {"system:nodes"}})
}

// post sends a POST and returns the status code and the body.
func (s *server) post(path, body string, header http.Header) (int, string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "POST", s.URL()+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header = header
	request.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text)
}

// TestNodesAreJudgedByWhatIsNewest deletes Pods and creates them again on another node. The kubelet
// requests the objects of these Pods from another server immediately.
func TestNodesAreJudgedByWhatIsNewest(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a := c.startServer()
	b := c.startServer("--enable-admission-plugins", "NodeRestriction")
	put := func(node string) string {
		return read(t, a.do(201, "POST", pods, fmt.Sprintf(`{"metadata":{"name":"p"},"spec":{"nodeName":%q,"terminationGracePeriodSeconds":0,"serviceAccountName":"default",
			"containers":[{"name":"c","image":"i"}]}}`, node))).Metadata.UID
	}
	remove := func() { a.do(200, "DELETE", pods+"/p?gracePeriodSeconds=0", "") }
	want := func(what string, code int, got int, text string) {
		t.Helper()
		if got != code {
			t.Fatalf("%s: got %d, want %d: %s", what, got, code, text)
		}
	}
	for range 30 {
		uid := put("n1")
		binding := fmt.Sprintf(`{"spec":{"boundObjectRef":{"apiVersion":"v1","kind":"Pod","name":"p","uid":%q}}}`, uid)
		got, text := b.asNode("/api/v1/namespaces/default/serviceaccounts/default/token", binding)
		want("a token for a new pod", 201, got, text)
		remove()
		got, text = b.asNode("/api/v1/namespaces/default/serviceaccounts/default/token", binding)
		want("a token for a pod that has gone", 404, got, text)
		put("n1")
		got, text = b.asNode(pods+"/p/eviction", `{"metadata":{"name":"p"}}`)
		want("a new pod is evicted", 201, got, text)
		put("n1")
		b.do(200, "GET", pods+"/p", "")
		remove()
		put("n2")
		got, text = b.asNode(pods+"/p/eviction", `{"metadata":{"name":"p"}}`)
		want("a pod that is another node's now", 403, got, text)
		remove()
	}
}

// TestTokensCountEverywhere creates and deletes accounts through one server. Their tokens must be
// valid on another server immediately, and only while the accounts exist.
func TestTokensCountEverywhere(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b := c.startServer(), c.startServer()
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	for range 30 {
		a.do(201, "POST", accounts, `{"metadata":{"name":"robot"}}`)
		var issued struct{ Status struct{ Token string } }
		if err := json.Unmarshal([]byte(a.do(201, "POST", accounts+"/robot/token", `{}`)), &issued); err != nil {
			t.Fatal(err)
		}
		code, text := b.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", `{}`, http.Header{"Authorization": {"Bearer " + issued.Status.Token}})
		if code != 201 || !strings.Contains(text, `"username":"system:serviceaccount:default:robot"`) {
			t.Fatalf("at the other server the token has %d %s", code, text)
		}
		secret := `{"metadata":{"name":"s","annotations":{"kubernetes.io/service-account.name":"robot"}},"type":"kubernetes.io/service-account-token"}`
		a.do(200, "DELETE", accounts+"/robot", "")
		a.do(201, "POST", accounts, `{"metadata":{"name":"robot"}}`)
		b.do(201, "POST", "/api/v1/namespaces/default/secrets", secret)
		apilettest.Until(t, "a token for the new account", func() error {
			if text := b.do(200, "GET", "/api/v1/namespaces/default/secrets/s", ""); !strings.Contains(text, `"token":`) {
				return errors.New(text)
			}
			return nil
		})
		a.do(200, "DELETE", "/api/v1/namespaces/default/secrets/s", "")
		a.do(200, "DELETE", accounts+"/robot", "")
	}
}
