package main

// This file generates the requests of the family "clients". They use ports and schemes in proxy
// paths, request evictions under unusual budgets, apply {} and null over larger configurations,
// resume expired watches, and send forged headers and tokens. Some of them are proxied to an
// aggregated server, the backend, which runs in this process and sends invalid HTTP.

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"time"
)

// detours are the productions of the family.
var detours = []func(*generator, card) *request{(*generator).behind, (*generator).behind, (*generator).throughProxy, (*generator).evicting, (*generator).emptying,
	(*generator).resuming, (*generator).pretending, (*generator).critical}

// pick returns one of the values.
func pick[T any](g *generator, values ...T) T { return values[g.rng.IntN(len(values))] }

// ---- The backend ----

const behindPath = "/apis/siege.behind/v1"

// foreign contains the responses of the backend by the last segment of the path.
var foreign = map[string]string{
	"early-hints":  "HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\nSet-Cookie: a=b\r\n\r\n" + plainAnswer,
	"many-hints":   strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 4) + plainAnswer,
	"endless-hint": strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 10_000) + plainAnswer,
	"continue":     "HTTP/1.1 100 Continue\r\n\r\n" + plainAnswer,
	"199":          "HTTP/1.1 199 X\r\n\r\n" + plainAnswer,
	"hint-alone":   "HTTP/1.1 103 Early Hints\r\n\r\n",
	"switching":    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
	"000":          "HTTP/1.1 000 X\r\nContent-Length: 0\r\n\r\n", "099": "HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n",
	"600": "HTTP/1.1 600 X\r\nContent-Length: 0\r\n\r\n", "999": "HTTP/1.1 999 X\r\nContent-Length: 0\r\n\r\n",
	"1000": "HTTP/1.1 1000 X\r\nContent-Length: 0\r\n\r\n", "minus": "HTTP/1.1 -200 X\r\nContent-Length: 0\r\n\r\n",
	"refresh":  "HTTP/1.1 300 X\r\nRefresh: 0; url=https://example.com\r\nContent-Length: 0\r\n\r\n",
	"trailer":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Set-Cookie, Audit-Id\r\n\r\n2\r\n{}\r\n0\r\nSet-Cookie: a=b\r\nAudit-Id: c\r\n\r\n",
	"short":    "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{}",
	"negative": "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
	"nothing":  "",
	"twice":    plainAnswer + plainAnswer,
	"headers":  "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 900) + "Content-Length: 0\r\n\r\n",
}

const plainAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"

// newBackend starts the backend. It sends one of the invalid responses if the path names it, and
// closes the connection.
func newBackend() *httptest.Server {
	return httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, odd := foreign[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
		if !odd {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"siege.behind/v1","resources":[]}`)
			return
		}
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_, _ = fmt.Fprint(conn, answer)
			_ = conn.Close()
		}
	}))
}

// register adds the API group siege.behind to the server and waits until it is available.
func register(s *server, backend *httptest.Server) error {
	at, err := url.Parse(backend.URL)
	if err != nil {
		return err
	}
	for _, f := range [][2]string{
		{"/api/v1/namespaces/" + otherPlace + "/services", `{"metadata":{"name":"behind"},"spec":{"type":"ExternalName","externalName":"localhost"}}`},
		{"/apis/apiregistration.k8s.io/v1/apiservices", `{"metadata":{"name":"v1.siege.behind"},"spec":{"group":"siege.behind","version":"v1","groupPriorityMinimum":100,"versionPriority":10,
			"insecureSkipTLSVerify":true,"service":{"name":"behind","namespace":"` + otherPlace + `","port":` + at.Port() + `}}}`},
	} {
		if code, answer, err := s.ask("administrator", "POST", f[0], []byte(f[1])); err != nil || code != 201 && code != 409 {
			return fmt.Errorf("POST %s: %d %.300s %v", f[0], code, answer, err)
		}
	}
	for deadline := time.Now().Add(startLimit); time.Now().Before(deadline); time.Sleep(5 * tick) {
		if code, _, err := s.ask("administrator", "GET", behindPath, nil); err != nil || code == http.StatusOK {
			return err
		}
	}
	return errors.New("the server behind is not served")
}

// behind requests an invalid response from the backend.
func (g *generator) behind(c card) *request {
	name := pick(g, slices.Sorted(maps.Keys(foreign))...)
	q := &request{As: "administrator", Method: pick(g, "GET", "GET", "POST", "DELETE"), Path: behindPath + "/things/" + name, Tags: []string{"answer " + name}}
	if q.Method == "POST" {
		q.ContentType, q.Body = "application/json", parsed(`{}`)
	}
	return q
}

// ---- Detours to stored objects ----

// throughProxy requests a proxy path with a port, a scheme, or an invalid name.
func (g *generator) throughProxy(c card) *request {
	name := pick(g, "siege", "n1", "none", "", "a%2Fb")
	name = pick(g, "", "", "https:", "http:", ":", "ftp:", "HTTPS:", "::") + name + pick(g, "", ":80", ":web", ":10250", ":0", ":-1", ":99999999999", ":", "::", ":a:b")
	path := pick(g, "/api/v1/namespaces/"+namespace+"/services/", "/api/v1/namespaces/"+namespace+"/pods/", "/api/v1/nodes/") + name + "/proxy"
	q := &request{As: pick(g, "tenant", "administrator"), Method: pick(g, "GET", "POST", "DELETE"), Path: path + pick(g, "", "/", "/a/../b", "//", "/%2e%2e/%2e%2e/api"), Tags: []string{"proxy path"}}
	if g.rng.IntN(4) == 0 {
		q.Header = [][2]string{{"Connection", "Upgrade"}, {"Upgrade", pick(g, "websocket", "SPDY/3.1", "h2c")}}
	}
	return q
}

// evicting requests an eviction under a budget with impossible numbers.
func (g *generator) evicting(c card) *request {
	name := fmt.Sprintf("siege-%d", g.rng.Uint32())
	in := "/api/v1/namespaces/" + namespace + "/pods"
	budgets := "/apis/policy/v1/namespaces/" + namespace + "/poddisruptionbudgets"
	count := pick(g, "-1", "0", "1", "2147483647", "-2147483648")
	disrupted := ""
	if g.rng.IntN(2) == 0 {
		var pods []string
		for i := range pick(g, 1, 1999, 2001, 20_000) {
			pods = append(pods, fmt.Sprintf(`"p%d":"2026-01-01T00:00:00Z"`, i))
		}
		disrupted = `,"disruptedPods":{` + strings.Join(pods, ",") + `}`
	}
	rule := pick(g, `"minAvailable":1`, `"minAvailable":"100%"`, `"maxUnavailable":0`, `"maxUnavailable":2147483647`, `"minAvailable":"0%"`, `"maxUnavailable":"99999999999%"`)
	before := []*request{
		{As: "tenant", Method: "POST", Path: in, Body: parsed(`{"metadata":{"name":"` + name + `","labels":{"app":"` + name + `"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`)},
		{As: "administrator", Method: "PATCH", Path: in + "/" + name + "/status", ContentType: "application/merge-patch+json",
			Body: parsed(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)},
		{As: "tenant", Method: "POST", Path: budgets, Body: parsed(`{"metadata":{"name":"` + name + `"},"spec":{` + rule + `,"selector":{"matchLabels":{"app":"` + name + `"}}}}`)},
		{As: "administrator", Method: "PATCH", Path: budgets + "/" + name + "/status", ContentType: "application/merge-patch+json",
			Body: parsed(`{"status":{"observedGeneration":1,"disruptionsAllowed":` + count + `,"currentHealthy":` + pick(g, "-1", "0", "2", "2147483647") + `,"desiredHealthy":1,"expectedPods":1` + disrupted + `}}`)},
	}
	for _, b := range before {
		if b.ContentType == "" {
			b.ContentType = "application/json"
		}
	}
	options := pick(g, `{}`, `{"gracePeriodSeconds":0}`, `{"gracePeriodSeconds":-1}`, `{"preconditions":{"resourceVersion":"1"}}`, `{"dryRun":["All"]}`)
	return &request{As: "tenant", Method: "POST", Path: in + "/" + name + "/eviction", ContentType: "application/json", Before: before,
		Body: parsed(`{"apiVersion":"` + pick(g, "policy/v1", "policy/v1beta1") + `","kind":"Eviction","metadata":{"name":"` + name + `"},"deleteOptions":` + options + `}`), Tags: []string{"eviction"}}
}

// emptying applies {}, null or empty lists over a larger configuration.
func (g *generator) emptying(c card) *request {
	name := fmt.Sprintf("siege-%d", g.rng.Uint32())
	path := "/apis/siege.example/v1/namespaces/" + namespace + "/blobs/" + name
	apply := func(spec string) *request {
		return &request{As: "tenant", Method: "PATCH", Path: path, ContentType: "application/apply-patch+yaml", Query: [][2]string{{"fieldManager", pick(g, "a", "a", "b")}, {"force", "true"}},
			Body: parsed(`{"apiVersion":"siege.example/v1","kind":"Blob","metadata":{"name":"` + name + `"},"spec":` + spec + `}`), Tags: []string{"apply over more"}}
	}
	more := []string{`{"free":{"a":{"b":1}},"by":{"x":"y"},"parts":[{"name":"p","size":1}],"set":["s"]}`, `{"free":{"a":1}}`, `{"by":{"a":"b"}}`}
	less := []string{`{}`, `null`, `{"free":{}}`, `{"free":null}`, `{"by":{}}`, `{"by":null}`, `{"parts":[]}`, `{"parts":[{}]}`, `{"parts":null,"set":[null]}`, `{"free":{"a":{}}}`, `[]`, `{"set":["s","s"]}`}
	q := apply(pick(g, less...))
	q.Before = []*request{apply(pick(g, more...))}
	if g.rng.IntN(2) == 0 {
		q.Before = append(q.Before, apply(pick(g, less...)))
	}
	return q
}

// resuming starts a watch at a revision that is too old or does not exist yet.
func (g *generator) resuming(c card) *request {
	k := c.owner.kinds[0]
	q := &request{As: g.persona(k), Method: "GET", Path: k.collection, Query: [][2]string{{"watch", "true"}, {"resourceVersion", pick(g, "1", "2", "30", "100", "99999999")}, {"timeoutSeconds", "1"}},
		Tags: []string{"old watch"}}
	q.Accept = pick(g, "", "", "application/vnd.kubernetes.protobuf;stream=watch", "application/json;as=Table;g=meta.k8s.io;v=v1", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")
	if g.rng.IntN(3) == 0 {
		q.Query = append(q.Query, [2]string{"sendInitialEvents", pick(g, "true", "false")}, [2]string{"resourceVersionMatch", "NotOlderThan"}, [2]string{"allowWatchBookmarks", "true"})
	}
	return q
}

// ---- Pretending to be somebody else ----

// pretending sends headers that a trusted proxy might send, also with underscores.
func (g *generator) pretending(c card) *request {
	k := c.owner.kinds[0]
	q := &request{As: pick(g, "stranger", "tenant"), Method: pick(g, "GET", "POST"), Path: pick(g, k.collection, behindPath+"/things/x"), Tags: []string{"pretending"}}
	for range 1 + g.rng.IntN(4) {
		name := pick(g, "X_Remote_User", "X-Remote-User", "X_Remote_Group", "X-Remote-Extra-A%2fb", "Impersonate_User", "Impersonate-User", "Impersonate-Group", "Impersonate-Extra-A", "X-HTTP-Method-Override",
			"X-HTTP-Method", "X-Original-URL", "X-Forwarded-For", "X-Forwarded-Host", "Audit-Id", "Proxy-Authorization", "Connection", "Warning")
		q.Header = append(q.Header, [2]string{name, pick(g, "siege-administrator", "system:masters", "DELETE", "/api/v1/secrets", "127.0.0.1", "X-Remote-User", strings.Repeat("a", 60_000), "")})
	}
	return q
}

// critical sends a JSON Web Token with an unknown critical header and an invalid signature.
func (g *generator) critical(c card) *request {
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	head := pick(g, `{"alg":"RS256","crit":["b64"],"b64":false}`, `{"alg":"ES256","crit":["exp"],"kid":"x"}`, `{"alg":"none","crit":[]}`, `{"alg":"RS256","crit":"x"}`,
		`{"alg":"HS256","crit":[`+strings.Repeat(`"a",`, 9000)+`"b"]}`, `{"alg":"RS256","kid":"`+strings.Repeat("k", 40_000)+`"}`)
	claims := pick(g, `{"iss":"https://kubernetes.default.svc.cluster.local","sub":"system:serviceaccount:siege-a:default","aud":["https://kubernetes.default.svc.cluster.local"],"exp":9999999999}`,
		`{"iss":"kubernetes/serviceaccount","exp":1e400}`, `{"iss":"https://example.com","AUD":"x","exp":"never"}`, strings.Repeat("[", 20_000))
	token := encode(head) + "." + encode(claims) + "." + encode(strings.Repeat("\x01", pick(g, 1, 64, 256, 2048)))
	return &request{As: "stranger", Method: "GET", Path: c.owner.kinds[0].collection, Header: [][2]string{{"Authorization", "Bearer " + token}}, Tags: []string{"critical token"}}
}
