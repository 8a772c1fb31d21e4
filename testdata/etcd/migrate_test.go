package etcd

// This file migrates objects from a file into etcd and back, and interrupts migrations. It also
// tests that servers with shared ranges do not allocate a value twice.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/apilettest"
)

// startOnFile starts a server that stores its data in a file.
func startOnFile(t *testing.T, data string) *server {
	t.Helper()
	s := aServer(t, data)
	s.run()
	return s
}

// migrate runs the command. problem is its standard error if it fails.
func (c *cluster) migrate(data string, more ...string) (said, problem string) {
	c.t.Helper()
	var out, errors bytes.Buffer
	command := exec.Command(apilettest.Program(c.t), append([]string{"migrate", "--data", data, "--etcd-servers", strings.Join(c.urls, ",")}, more...)...)
	command.Stdout, command.Stderr = &out, &errors
	if command.Run() != nil {
		problem = errors.String()
	}
	return out.String(), problem
}

var kinds = []string{"/api/v1/configmaps", "/api/v1/services", "/api/v1/secrets", "/api/v1/namespaces", "/api/v1/serviceaccounts",
	"/apis/networking.k8s.io/v1/ipaddresses", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/example.com/v1/things", "/apis/example.com/v2/things",
	"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"}

// shown returns the JSON of the objects without their revisions.
func (s *server) shown() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	for _, path := range kinds {
		var list struct{ Items []map[string]any }
		if err := json.Unmarshal([]byte(s.do(200, "GET", path, "")), &list); err != nil {
			s.t.Fatal(err)
		}
		for _, item := range list.Items {
			meta := item["metadata"].(map[string]any)
			delete(meta, "resourceVersion")
			text, _ := json.Marshal(item)
			all[fmt.Sprint(path, " ", meta["namespace"], "/", meta["name"])] = string(text)
		}
	}
	return all
}

func same(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	for _, key := range sortedKeys(want) {
		if got[key] != want[key] {
			t.Errorf("%s: %s is\n%s\nand was\n%s", what, key, got[key], want[key])
		}
	}
	for key := range got {
		if want[key] == "" {
			t.Errorf("%s: %s is new", what, key)
		}
	}
}

func sortedKeys(all map[string]string) (keys []string) {
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

const thingsDefinition = `{"metadata":{"name":"things.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
	"names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},"versions":[%s]}}`

const thingsVersion = `{"name":%q,"served":true,"storage":%v,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`

// TestMigration migrates from a file into etcd, where servers must return the same objects, and
// back into a file.
func TestMigration(t *testing.T) {
	t.Parallel()
	c, data := startCluster(t, 1), filepath.Join(t.TempDir(), "data.db")
	s := startOnFile(t, data)
	s.do(201, "POST", maps, aMap("a", "1", ""))
	s.do(201, "POST", maps, `{"metadata":{"name":"goes","finalizers":["example.com/wait"]}}`)
	s.do(200, "DELETE", maps+"/goes", "")
	s.do(201, "POST", "/api/v1/namespaces/default/services", `{"metadata":{"name":"web"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`)
	s.do(201, "POST", "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies", `{"metadata":{"name":"p"},"spec":{"reinvocationPolicy":"Never",
		"matchConstraints":{"resourceRules":[{"apiGroups":["no.example.com"],"apiVersions":["*"],"operations":["*"],"resources":["*"]}]},
		"mutations":[{"patchType":"JSONPatch","jsonPatch":{"expression":"[JSONPatch{op: \"remove\", path: \"/x\"}]"}}]}}`)
	s.do(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		fmt.Sprintf(thingsDefinition, fmt.Sprintf(thingsVersion, "v1", true)+","+fmt.Sprintf(thingsVersion, "v2", false)))
	thing := `{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":%q},"spec":{"n":1},"above":true}`
	apilettest.Until(t, "things are served", func() error {
		if code, text, err := s.try("POST", "/apis/example.com/v1/namespaces/default/things", fmt.Sprintf(thing, "first"), patience); err != nil || code != 201 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
	s.do(200, "PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com",
		`{"spec":{"versions":[`+fmt.Sprintf(thingsVersion, "v1", false)+","+fmt.Sprintf(thingsVersion, "v2", true)+`]}}`)
	later := 0
	apilettest.Until(t, "things are stored in v2", func() error {
		later++
		s.do(201, "POST", "/apis/example.com/v1/namespaces/default/things", fmt.Sprintf(thing, fmt.Sprint("later-", later)))
		if text := s.do(200, "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com", ""); !strings.Contains(text, `"storedVersions":["v1","v2"]`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
	account := s.do(201, "POST", "/api/v1/namespaces/default/serviceaccounts/default/token", `{"spec":{}}`)
	before := s.shown()
	s.Stop()

	if said, problem := c.migrate(data); problem != "" || !strings.Contains(said, "objects are below /registry/") {
		t.Fatalf("%s%s", said, problem)
	}
	if _, problem := c.migrate(data); !strings.Contains(problem, "this file has been migrated there") {
		t.Errorf("once more: %s", problem)
	}
	one, other := c.startServer(), c.startServer()
	same(t, "in etcd", one.shown(), before)
	same(t, "at another server", other.shown(), before)
	var token struct{ Status struct{ Token string } }
	if err := json.Unmarshal([]byte(account), &token); err != nil {
		t.Fatal(err)
	}
	review := one.do(201, "POST", "/apis/authentication.k8s.io/v1/tokenreviews", fmt.Sprintf(`{"spec":{"token":%q}}`, token.Status.Token))
	if !strings.Contains(review, `"authenticated":true`) && !strings.Contains(review, `"authenticated": true`) {
		t.Errorf("a token of before: %s", review)
	}
	one.Stop()
	other.Stop()
	if _, problem := c.migrate(filepath.Join(t.TempDir(), "missing.db")); !strings.Contains(problem, "no such file") {
		t.Errorf("a file that is not there: %s", problem)
	}

	back := filepath.Join(t.TempDir(), "back.db")
	if said, problem := c.migrate(back, "--to-file"); problem != "" || !strings.Contains(said, "objects;") {
		t.Fatalf("%s%s", said, problem)
	}
	if _, problem := c.migrate(back, "--to-file"); !strings.Contains(problem, "file already exists") {
		t.Errorf("onto a file that is there: %s", problem)
	}
	if _, problem := c.migrate(back, "--to-file", "--etcd-prefix", "/nothing"); problem == "" {
		t.Error("from nothing")
	}
	last := startOnFile(t, back)
	same(t, "in a file again", last.shown(), before)
}

// TestInterruptedMigration checks that the migration can be resumed after it was killed. Until it
// is complete, servers must not start and other files must not be migrated.
func TestInterruptedMigration(t *testing.T) {
	t.Parallel()
	c, data := startCluster(t, 1), filepath.Join(t.TempDir(), "data.db")
	s := startOnFile(t, data)
	var writers sync.WaitGroup
	const objects, clients = 6000, 24
	for i := range clients {
		writers.Go(func() {
			for j := i; j < objects; j += clients {
				if code, text, err := s.try("POST", maps, aMap(fmt.Sprint("m-", j), strings.Repeat("v", 2000), ""), patience); err != nil || code != 201 {
					t.Errorf("%d %s %v", code, text, err)
					return
				}
			}
		})
	}
	writers.Wait()
	s.Stop()
	client := c.client()
	behind, proxies := c.through()
	proxies[0].Slow(20 * time.Millisecond) // so that there is time to kill it
	interrupted := 0
	for try := 0; interrupted == 0 && try < 20; try++ {
		prefix := fmt.Sprint("/try", try)
		underWay := func() bool {
			found, err := client.Get(t.Context(), prefix+"/.apilet/migration")
			if err != nil {
				t.Fatal(err)
			}
			return len(found.Kvs) > 0 && strings.Contains(string(found.Kvs[0].Value), "under way")
		}
		copied := func() int64 {
			found, err := client.Get(t.Context(), prefix+"/configmaps/", clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				t.Fatal(err)
			}
			return found.Count
		}
		p := newProcess(t, apilettest.Program(t), "migrate", "--data", data, "--etcd-servers", behind.urls[0], "--etcd-prefix", prefix)
		p.Launch()
		for ended := false; !ended && copied() == 0; {
			select {
			case <-p.Process().Done:
				ended = true
			default:
			}
		}
		p.Kill()
		if !underWay() { // it was complete before it was killed
			continue
		}
		interrupted++
		server := exec.Command(apilettest.Program(t), "--data", filepath.Join(t.TempDir(), "r.db"), "--etcd-servers", c.urls[0], "--etcd-prefix", prefix, "--listen", "127.0.0.1:0")
		if text, err := server.CombinedOutput(); err == nil || !strings.Contains(string(text), "is not finished") {
			t.Errorf("a server has started: %s", text)
		}
		empty := filepath.Join(t.TempDir(), "other.db")
		startOnFile(t, empty).Stop()
		if _, problem := c.migrate(empty, "--etcd-prefix", prefix); !strings.Contains(problem, "another file is under way") {
			t.Errorf("another file: %s", problem)
		}
		if said, problem := c.migrate(data, "--etcd-prefix", prefix); problem != "" {
			t.Fatalf("%s%s", said, problem)
		}
		one := c.startServer("--etcd-prefix", prefix)
		if list := read(t, one.do(200, "GET", maps+"?limit=1", "")); list.Metadata.RemainingItemCount < objects-1 {
			t.Errorf("%d objects and one, want %d", list.Metadata.RemainingItemCount, objects)
		}
	}
	if interrupted == 0 {
		t.Error("no copy was interrupted")
	}
}

// fewServices is a range with so few addresses that concurrent allocations collide.
var fewServices = []string{"--service-cluster-ip-range", "10.96.0.0/23,fd00:10::/119"}

// TestNothingIsGivenTwice creates Services with two address families by 64 clients through three
// servers.
func TestNothingIsGivenTwice(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	givenOnce(t, c.startServer(fewServices...), c.startServer(fewServices...), c.startServer(fewServices...))
}

// TestNothingIsGivenTwiceBesideKubernetes uses a kube-apiserver as one of the servers.
func TestNothingIsGivenTwiceBesideKubernetes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	kube := c.startKubernetes(append([]string{"--advertise-address", "10.9.9.9"}, fewServices...)...)
	givenOnce(t, c.startServer(fewServices...), kube, c.startServer(fewServices...))
}

// givenOnce creates Services through all servers and compares the allocated values with the claims.
// Each Service is deleted through another server.
func givenOnce(t *testing.T, servers ...*server) {
	t.Helper()
	const each, path = 4, "/api/v1/namespaces/default/services"
	var mu sync.Mutex // guards given
	given := map[string]string{}
	var clients sync.WaitGroup
	for i := range 64 {
		clients.Go(func() {
			for j := range each {
				s, name := servers[(i+j)%len(servers)], fmt.Sprintf("s-%d-%d", i, j)
				code, text, err := s.try("POST", path,
					fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"type":"NodePort","ipFamilyPolicy":"RequireDualStack","ports":[{"port":80}]}}`, name), patience)
				var svc struct {
					Spec struct {
						ClusterIPs []string
						Ports      []struct{ NodePort int }
					}
				}
				if err != nil || code != 201 || json.Unmarshal([]byte(text), &svc) != nil || len(svc.Spec.ClusterIPs) != 2 {
					t.Errorf("%d %s %v", code, text, err)
					return
				}
				mu.Lock()
				for _, one := range append(svc.Spec.ClusterIPs, fmt.Sprint(svc.Spec.Ports[0].NodePort)) {
					if other := given[one]; other != "" {
						t.Errorf("%s and %s have %s", other, name, one)
					}
					given[one] = name
				}
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	taken := claims(t, servers[0])
	for address, name := range taken {
		if name != "kubernetes" && given[address] != name {
			t.Errorf("%s is claimed for %s, and %s has it", address, name, given[address])
		}
	}
	if len(given) != 64*each*3 || len(taken) != 64*each*2+1 {
		t.Errorf("%d addresses and ports, %d claims", len(given), len(taken))
	}
	for i := range 64 {
		clients.Go(func() {
			for j := range each {
				if code, text, err := servers[(i+j+1)%len(servers)].try("DELETE", fmt.Sprintf("%s/s-%d-%d", path, i, j), "", patience); err != nil || code != 200 {
					t.Errorf("%d %s %v", code, text, err)
				}
			}
		})
	}
	clients.Wait()
	if left := claims(t, servers[0]); len(left) != 1 {
		t.Errorf("claims that were left: %v", left)
	}
}

// claims returns the owner of each IPAddress.
func claims(t *testing.T, s *server) map[string]string {
	t.Helper()
	var taken struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ ParentRef struct{ Name string } }
		}
	}
	if err := json.Unmarshal([]byte(s.do(200, "GET", "/apis/networking.k8s.io/v1/ipaddresses", "")), &taken); err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{}
	for _, address := range taken.Items {
		owners[address.Metadata.Name] = address.Spec.ParentRef.Name
	}
	return owners
}
