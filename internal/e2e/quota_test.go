package e2e

// These tests use quotas on a running server. They check that responses match kube-apiserver, run
// concurrent clients, and kill the server.

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

// TestQuotaScenes replays testdata/quota/*.txtar. Each section runs in its own namespace. It
// consists of these lines:
//
//	quota NAME SPEC      creates a ResourceQuota
//	used NAME LIST       waits until its status.used is LIST
//	METHOD PATH BODY     a request, in YAML's short form; * in the path is the namespace, and without it the path is one of core/v1
//	  CODE REASON MESS.  the response
//
// The responses were recorded from a kube-apiserver 1.37 with -update -oracle URL -token TOKEN. It
// ran with --disable-admission-plugins=ServiceAccount and without controllers. Therefore a "used"
// line writes the quota's status on that server, as kube-controller-manager would.
func TestQuotaScenes(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/quota/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenes", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := quotaServer(t)
			for i := range archive.Files {
				t.Run(strings.ReplaceAll(archive.Files[i].Name, " ", "-"), func(t *testing.T) {
					scene := &quotaScene{testServer: &testServer{t: t, url: s.url, client: s.client, headers: s.headers}, ns: fmt.Sprintf("%s-%d", strings.TrimSuffix(filepath.Base(file), ".txtar"), i)}
					archive.Files[i].Data = scene.play(string(archive.Files[i].Data))
				})
			}
			if *update {
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// quotaServer returns a new server, or the kube-apiserver to record from.
func quotaServer(t *testing.T) *testServer {
	if *kubetest.OracleURL == "" {
		return startTest(t)
	}
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return &testServer{t: t, url: *kubetest.OracleURL, client: client, headers: []string{"Authorization: Bearer " + *kubetest.OracleToken}}
}

type quotaScene struct {
	*testServer
	ns string
}

var quotaRandomName = regexp.MustCompile(`"(\w+-)[a-z0-9]{5}"`)

// play runs the scene and returns it with the actual responses.
func (sc *quotaScene) play(text string) []byte {
	var out bytes.Buffer
	sc.ask("POST", "/api/v1/namespaces", "{metadata: {name: "+sc.ns+"}}")
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		fmt.Fprintln(&out, line)
		verb, rest, _ := strings.Cut(line, " ")
		what, body, _ := strings.Cut(rest, " ")
		switch verb {
		case "", "#":
			continue
		case "quota":
			if code, message := sc.ask("POST", sc.path("resourcequotas"), "{metadata: {name: "+what+"}, spec: "+body+"}"); code != 201 {
				sc.t.Fatalf("%s: %d %s", line, code, message)
			}
			continue
		case "used":
			sc.used(what, body)
			continue
		}
		code, message := sc.ask(verb, sc.path(what), body)
		got := strings.TrimSpace(fmt.Sprintf("%d %s", code, quotaRandomName.ReplaceAllString(message, `"${1}NAME"`)))
		fmt.Fprintf(&out, "  %s\n", got)
		if want := strings.TrimSpace(lines[min(i+1, len(lines)-1)]); !*update && got != want {
			sc.t.Errorf("%s\n got %s\nwant %s", line, got, want)
		}
	}
	return out.Bytes()
}

func (sc *quotaScene) path(of string) string {
	if !strings.Contains(of, "*") && !strings.HasPrefix(of, "apis/") {
		of = "api/v1/*/" + of
	}
	return "/" + strings.ReplaceAll(of, "*", "namespaces/"+sc.ns)
}

// ask sends a request and returns the status code. For an error it also returns the reason and
// message.
func (sc *quotaScene) ask(method, path, body string) (int, string) {
	document, err := yaml.YAMLToJSON([]byte(body))
	if err != nil {
		sc.t.Fatal(body, err)
	}
	var headers []string
	if method == "PATCH" {
		headers = []string{"Content-Type: application/merge-patch+json"}
	}
	if body == "" {
		document = nil
	}
	a := sc.send(method, path, string(document), headers...)
	if a.code < 300 {
		return a.code, ""
	}
	status := gjson.ParseBytes(a.body)
	return a.code, strings.TrimSpace(status.Get("reason").Str + " " + status.Get("message").Str)
}

// used waits until the status of the quota contains the given values. If the server is
// kube-apiserver, it writes them.
func (sc *quotaScene) used(name, text string) {
	sc.t.Helper()
	var want corev1.ResourceList
	if err := yaml.Unmarshal([]byte(text), &want); err != nil {
		sc.t.Fatal(text, err)
	}
	path := sc.path("resourcequotas/" + name)
	if *kubetest.OracleURL != "" {
		hard := gjson.GetBytes(sc.send("GET", path, "").body, "spec.hard").Raw
		list, _ := json.Marshal(want)
		if a := sc.send("PATCH", path+"/status", `{"status":{"hard":`+hard+`,"used":`+string(list)+`}}`, "Content-Type: application/merge-patch+json"); a.code != 200 {
			sc.t.Fatalf("%s: %d %s", text, a.code, a.body)
		}
		time.Sleep(300 * time.Millisecond) // kube-apiserver needs some time to notice the change
		return
	}
	sc.waitForUsed(path, want)
}

// TestQuotaRace runs 64 clients that concurrently create objects with a quota of 50. Some clients
// also send dry runs or invalid objects.
func TestQuotaRace(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/api/v1/namespaces/default/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"configmaps":"50","count/configmaps":"60"}}}`)
	for round := range 3 {
		var created, refused, other atomic.Int64
		var clients sync.WaitGroup
		for i := range 64 {
			clients.Go(func() {
				path := "/api/v1/namespaces/default/configmaps"
				if i%2 == 0 {
					s.send("POST", path+"?dryRun=All", `{"metadata":{"generateName":"dry-"}}`)
				}
				if i%4 == 0 {
					// This is rejected by the store after the quota has been charged.
					s.send("POST", path, `{"metadata":{"name":"r","resourceVersion":"7"}}`)
				}
				switch a := s.send("POST", path, fmt.Sprintf(`{"metadata":{"generateName":"r%d-"}}`, i)); a.code {
				case 201:
					created.Add(1)
				case 403:
					refused.Add(1)
				default:
					other.Add(1)
					t.Errorf("%d %s", a.code, a.body)
				}
			})
		}
		clients.Wait()
		if created.Load() != 50 || refused.Load() != 14 {
			t.Errorf("round %d: %d created, %d refused, want 50 and 14", round, created.Load(), refused.Load())
		}
		s.waitForUsed("/api/v1/namespaces/default/resourcequotas/q", corev1.ResourceList{"configmaps": resource.MustParse("50"), "count/configmaps": resource.MustParse("50")})
		s.want(200, "DELETE", "/api/v1/namespaces/default/configmaps", "")
	}
}

// TestQuotaOutlivesKill kills the server several times while clients use up a quota. At the end
// there must be exactly as many objects as the quota permits. The status must be correct, even
// though a killed server may have written it last.
func TestQuotaOutlivesKill(t *testing.T) {
	t.Parallel()
	const hard = 400
	path := filepath.Join(t.TempDir(), "a.db")
	for round := range 4 {
		s := startTest(t, onFile(path))
		if round == 0 {
			s.want(201, "POST", "/api/v1/namespaces/default/resourcequotas", fmt.Sprintf(`{"metadata":{"name":"q"},"spec":{"hard":{"secrets":"%d"}}}`, hard))
		}
		var created, refused atomic.Int64
		var clients sync.WaitGroup
		for range 16 {
			clients.Go(func() {
				for refused.Load() == 0 {
					a, err := s.try("POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"generateName":"s-"}}`)
					if err != nil {
						return // the server was killed
					}
					if a.code == 403 {
						refused.Add(1)
					} else if n := created.Add(1); n == 100 && round < 3 {
						s.process.Process.Kill()
					}
				}
			})
		}
		clients.Wait()
		s.kill()
		if round < 3 && refused.Load() > 0 {
			t.Errorf("round %d: refused before the quota was full", round)
		}
	}
	s := startTest(t, onFile(path))
	if n := gjson.GetBytes(s.send("GET", "/api/v1/namespaces/default/secrets", "").body, "items.#").Int(); n != hard {
		t.Errorf("%d secrets, want %d", n, hard)
	}
	s.waitForUsed("/api/v1/namespaces/default/resourcequotas/q", corev1.ResourceList{"secrets": resource.MustParse(fmt.Sprint(hard))})
}

// TestQuotaFollowsTheCollector checks that the quota is also released for objects that the garbage
// collector deletes.
func TestQuotaFollowsTheCollector(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	quota, maps := "/api/v1/namespaces/default/resourcequotas/q", "/api/v1/namespaces/default/configmaps"
	s.want(201, "POST", "/api/v1/namespaces/default/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"configmaps":"2"}}}`)
	owner := s.want(201, "POST", maps, `{"metadata":{"name":"owner"}}`)
	s.want(201, "POST", maps, `{"metadata":{"name":"dependent","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"`+
		gjson.GetBytes(owner.body, "metadata.uid").Str+`"}]}}`)
	s.want(403, "POST", maps, `{"metadata":{"name":"third"}}`)
	s.waitForUsed(quota, corev1.ResourceList{"configmaps": resource.MustParse("2")})
	s.want(200, "DELETE", maps+"/owner", "")
	s.waitForUsed(quota, corev1.ResourceList{"configmaps": resource.MustParse("0")})
	s.want(200, "PATCH", quota+"/status", `{"status":{"used":{"configmaps":"7"}}}`, "Content-Type: application/merge-patch+json")
	s.waitForUsed(quota, corev1.ResourceList{"configmaps": resource.MustParse("0")})
}

// TestQuotaHoldsForTheServerItself checks that a quota also applies to objects that the server
// restores. The server continues with the other namespaces.
func TestQuotaHoldsForTheServerItself(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/api/v1/namespaces/default/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"count/serviceaccounts":"0"}}}`)
	s.waitForUsed("/api/v1/namespaces/default/resourcequotas/q", corev1.ResourceList{"count/serviceaccounts": resource.MustParse("1")})
	s.want(200, "DELETE", "/api/v1/namespaces/default/serviceaccounts/default", "")
	public := "/api/v1/namespaces/kube-public/serviceaccounts/default"
	s.want(200, "DELETE", public, "")
	apitest.WaitFor(t, "the account of another namespace to come back", func() bool { return s.send("GET", public, "").code == 200 })
	s.waitForUsed("/api/v1/namespaces/default/resourcequotas/q", corev1.ResourceList{"count/serviceaccounts": resource.MustParse("0")})
	s.want(404, "GET", "/api/v1/namespaces/default/serviceaccounts/default", "")
}

// TestQuotaSwitchedOff checks that the flag that disables the plug-in also disables the server's
// updates of the status.
func TestQuotaSwitchedOff(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--disable-admission-plugins=ResourceQuota")
	s.want(201, "POST", "/api/v1/namespaces/default/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"configmaps":"0"}}}`)
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"c"}}`)
}

// TestQuotaOfCustomResources checks that a quota can be created before the definition of its
// resource.
func TestQuotaOfCustomResources(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	quota, widgets := "/api/v1/namespaces/default/resourcequotas/q", "/apis/example.com/v1/namespaces/default/widgets"
	s.want(201, "POST", "/api/v1/namespaces/default/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"count/widgets.example.com":"1"}}}`)
	s.waitForUsed(quota, nil)
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":"widgets","kind":"Widget"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	body := `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"generateName":"w-"}}`
	s.want(201, "POST", widgets, body)
	refusal := s.want(403, "POST", widgets, body)
	if message := gjson.GetBytes(refusal.body, "message").Str; !strings.HasSuffix(message,
		"exceeded quota: q, requested: count/widgets.example.com=1, used: count/widgets.example.com=1, limited: count/widgets.example.com=1") {
		t.Error(message)
	}
	s.waitForUsed(quota, corev1.ResourceList{"count/widgets.example.com": resource.MustParse("1")})
	s.want(200, "DELETE", widgets, "")
	s.want(201, "POST", widgets, body)
}

// waitForUsed waits until the status of the quota contains the given values.
func (s *testServer) waitForUsed(path string, want corev1.ResourceList) {
	s.t.Helper()
	var got corev1.ResourceQuota
	apitest.WaitFor(s.t, fmt.Sprintf("status.used of %s to be %v", path, want), func() bool {
		got = corev1.ResourceQuota{}
		if err := json.Unmarshal(s.send("GET", path, "").body, &got); err != nil {
			s.t.Fatal(err)
		}
		return equality.Semantic.DeepEqual(got.Status.Used, want) && equality.Semantic.DeepEqual(got.Status.Hard, got.Spec.Hard)
	}, func() any { return got.Status.Used })
}
