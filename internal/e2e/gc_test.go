package e2e

// These tests check the garbage collector and the deletion of namespaces over the API. No test
// sleeps to give the collector time. If a test expects that an object is not deleted, it waits
// until the collector deletes another object.

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/gc"
	"apilet/internal/registry"
)

// A cluster is a server under test. Its methods use short names for objects.
type cluster struct {
	testing.TB
	*testServer
}

// startCluster starts a server that stores its data in the given file, or in a temporary file if
// data is "".
func startCluster(t testing.TB, data string) *cluster {
	t.Helper()
	if data == "" {
		return &cluster{t, startTest(t)}
	}
	return &cluster{t, startTest(t, onFile(data))}
}

// idle restarts the server without the collector. The consequences of later deletions are left to
// the next server.
func (c *cluster) idle() {
	c.Helper()
	c.halt()
	c.flags = append(c.flags, "--controllers=false")
	c.start()
}

// defineFoos creates a custom resource. Its objects have the short names foo/NAME.
func (c *cluster) defineFoos() {
	c.Helper()
	c.do("POST", definitionsPath, kubetest.SimpleDefinition(c, "Foo", "x.io", "{type: object}", ""), 201)
}

// do sends a request and returns the response body. Any other status code ends the test.
func (c *cluster) do(method, path, body string, want int) string {
	c.Helper()
	req, _ := http.NewRequest(method, c.url+path, strings.NewReader(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
		if method == "PATCH" {
			req.Header.Set("Content-Type", "application/merge-patch+json")
		}
	}
	res, err := c.client.Do(req)
	if err != nil {
		c.Fatal(err)
	}
	defer res.Body.Close()
	answer, _ := io.ReadAll(res.Body)
	if res.StatusCode != want {
		c.Fatalf("%s %s %s: %d, want %d: %s", method, path, body, res.StatusCode, want, answer)
	}
	return string(answer)
}

// apiPath splits the short name KIND/NAME or KIND/NAMESPACE/NAME of an object into the path of its
// collection and its name.
func apiPath(short string) (collection, name string) {
	parts := strings.Split(short, "/")
	namespace, name := "default", parts[len(parts)-1]
	if len(parts) == 3 {
		namespace = parts[1]
	}
	switch parts[0] {
	case "ns":
		return "/api/v1/namespaces", name
	case "node":
		return "/api/v1/nodes", name
	case "job":
		return "/apis/batch/v1/namespaces/" + namespace + "/jobs", name
	case "rc":
		return "/api/v1/namespaces/" + namespace + "/replicationcontrollers", name
	case "pod":
		return "/api/v1/namespaces/" + namespace + "/pods", name
	case "foo":
		return "/apis/x.io/v1/namespaces/" + namespace + "/foos", name
	}
	return "/api/v1/namespaces/" + namespace + "/configmaps", name
}

func pathAt(short string) string {
	collection, name := apiPath(short)
	return collection + "/" + name
}

const podSpecJSON = `{"containers":[{"name":"c","image":"i"}]}`

var specs = map[string]string{
	"pod": `,"spec":` + podSpecJSON,
	"job": `,"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}`,
	"rc":  `,"spec":{"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":` + podSpecJSON + `}}`,
	"foo": `,"apiVersion":"x.io/v1","kind":"Foo"`,
}

// create creates an object with references to owners and returns its UID. more is added to its
// metadata.
func (c *cluster) create(short, more string, owners ...string) (uid string) {
	c.Helper()
	collection, name := apiPath(short)
	kind, _, _ := strings.Cut(short, "/")
	meta := `"name":"` + name + `"`
	if len(owners) > 0 {
		meta += `,"ownerReferences":[` + strings.Join(owners, ",") + `]`
	}
	answer := c.do("POST", collection, `{"metadata":{`+meta+more+`}`+specs[kind]+`}`, 201)
	return gjson.Get(answer, "metadata.uid").String()
}

// ref returns an owner reference to an object.
func ref(short, uid string) string { return reference(short, uid, false) }

// blocking returns an owner reference that blocks a foreground deletion of the owner.
func blocking(short, uid string) string { return reference(short, uid, true) }

func reference(short, uid string, blocks bool) string {
	_, name := apiPath(short)
	prefix, _, _ := strings.Cut(short, "/")
	kind := map[string][2]string{"ns": {"v1", "Namespace"}, "node": {"v1", "Node"}, "job": {"batch/v1", "Job"},
		"rc": {"v1", "ReplicationController"}, "pod": {"v1", "Pod"}, "foo": {"x.io/v1", "Foo"}, "cm": {"v1", "ConfigMap"}}[prefix]
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"blockOwnerDeletion":%t}`, kind[0], kind[1], name, uid, blocks)
}

// delete deletes an object. If policy is "", the request has no propagation policy.
func (c *cluster) delete(short, policy string) {
	c.Helper()
	body := ""
	if policy != "" {
		body = `{"propagationPolicy":"` + policy + `"}`
	}
	c.do("DELETE", pathAt(short), body, 200)
}

// get returns an object's JSON, or "" if it does not exist.
func (c *cluster) get(short string) string {
	c.Helper()
	res, err := c.client.Get(c.url + pathAt(short))
	if err != nil {
		c.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode == 404 {
		return ""
	}
	return string(body)
}

// owners returns the names of the owners of the given object.
func (c *cluster) owners(short string) string {
	var names []string
	for _, name := range gjson.Get(c.get(short), "metadata.ownerReferences.#.name").Array() {
		names = append(names, name.String())
	}
	return strings.Join(names, " ")
}

// await waits until holds returns true.
func (c *cluster) await(what string, holds func() bool) {
	c.Helper()
	apitest.WaitFor(c, what, holds)
}

func (c *cluster) awaitGone(shorts ...string) {
	c.Helper()
	for _, short := range shorts {
		c.await(short+" to go", func() bool { return c.get(short) == "" })
	}
}

func (c *cluster) awaitOwners(short, want string) {
	c.Helper()
	c.await(short+" to be owned by "+want, func() bool { return c.owners(short) == want })
}

// settle waits until the collector has processed all earlier writes. It creates an orphan and waits
// until it is deleted. It does so twice, so that the second orphan belongs to a later batch.
func (c *cluster) settle() {
	c.Helper()
	for range 2 {
		name := "cm/canary-" + uuid.NewString()
		c.create(name, "", ref("cm/nobody", uuid.NewString()))
		c.awaitGone(name)
	}
}

// stays checks that the objects still exist after the collector has processed all earlier writes.
func (c *cluster) stays(shorts ...string) {
	c.Helper()
	c.settle()
	for _, short := range shorts {
		if c.get(short) == "" {
			c.Errorf("%s is gone", short)
		}
	}
}

func TestDependentsGoWithTheirLastOwner(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	a, b := c.create("cm/a", ""), c.create("cm/b", "")
	c.create("cm/of-a", "", ref("cm/a", a))
	both := c.create("cm/of-both", "", ref("cm/a", a), ref("cm/b", b))
	c.create("cm/grandchild", "", ref("cm/of-both", both))
	c.delete("cm/a", "")
	c.awaitGone("cm/of-a")
	c.awaitOwners("cm/of-both", "b")
	c.stays("cm/of-both", "cm/grandchild")
	c.delete("cm/b", "Background")
	c.awaitGone("cm/of-both", "cm/grandchild")
}

func TestReferencesThatLeadNowhere(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.create("ns/other", "")
	a, node, far := c.create("cm/a", ""), c.create("node/n", ""), c.create("cm/other/far", "")
	never := uuid.NewString()
	c.create("cm/absent", "", ref("cm/nobody", never))
	c.create("cm/wrong-uid", "", ref("cm/a", never))
	c.create("cm/wrong-name", "", ref("cm/b", a))
	c.create("cm/wrong-kind", "", ref("pod/a", a))
	c.create("cm/wrong-namespace", "", ref("cm/far", far))
	c.create("cm/one-of-two", "", ref("cm/nobody", never), ref("cm/a", a))
	c.create("cm/of-node", "", ref("node/n", node))
	c.create("node/misplaced", "", ref("cm/nobody", never))
	unserved := `{"apiVersion":"no.such/v1","kind":"Thing","name":"x","uid":"` + never + `"}`
	c.create("cm/unserved", "", unserved, ref("cm/nobody", never))
	c.awaitGone("cm/absent", "cm/wrong-uid", "cm/wrong-name", "cm/wrong-kind", "cm/wrong-namespace")
	c.awaitOwners("cm/one-of-two", "a")
	c.stays("cm/of-node", "cm/unserved", "node/misplaced")
	c.delete("node/n", "")
	c.awaitGone("cm/of-node")
}

// TestOwnerInAnotherNamespaceIsReported checks that the server creates the same event as
// kube-controller-manager if the owner of an object is in another namespace. The event outlives the
// dependent. There is no event if the owner does not exist or the reference is correct. A dependent
// that remains does not get a second event after a restart.
func TestOwnerInAnotherNamespaceIsReported(t *testing.T) {
	t.Parallel()
	data := t.TempDir() + "/db"
	var want []string
	t.Run("reported", func(t *testing.T) {
		c := startCluster(t, data)
		c.create("ns/other", "")
		far, near, node := c.create("cm/other/far", ""), c.create("cm/near", ""), c.create("node/n", "")
		event := func(short, kind, namespace, uid string, count int) {
			text := fmt.Sprintf(`ownerRef [v1/ConfigMap, namespace: %s, name: far, uid: %s] does not exist in namespace %q`, namespace, far, namespace)
			want = append(want, fmt.Sprintf("%s %s %s %s Warning garbage-collector-controller %d: %s", kind, namespace, short, uid, count, text))
		}
		event("kept", "ConfigMap", "default", c.create("cm/kept", "", ref("cm/far", far), ref("cm/near", near), ref("cm/nobody", uuid.NewString())), 1)
		event("lost", "ConfigMap", "default", c.create("cm/lost", "", ref("cm/nobody", uuid.NewString()), ref("cm/far", far)), 1)
		event("wide", "Node", "", c.create("node/wide", "", ref("cm/far", far)), 2)
		c.create("cm/absent", "", ref("cm/nobody", uuid.NewString()))
		c.create("cm/wrong-uid", "", ref("cm/far", uuid.NewString()))
		c.create("cm/of-node", "", ref("node/n", node))
		c.create("cm/other/right", "", ref("cm/far", far))
		c.awaitGone("cm/lost", "cm/absent", "cm/wrong-uid")
		c.awaitOwners("cm/kept", "near")
		// The collector processes each change of the references, but must not create another event.
		for range 3 {
			c.do("PATCH", pathAt("node/wide"), `{"metadata":{"ownerReferences":[`+blocking("cm/far", far)+`]}}`, 200)
			c.do("PATCH", pathAt("node/wide"), `{"metadata":{"ownerReferences":[`+ref("cm/far", far)+`]}}`, 200)
		}
		c.stays("cm/kept", "node/wide", "cm/of-node", "cm/other/right")
	})
	t.Run("after a restart", func(t *testing.T) {
		c := startCluster(t, data)
		c.stays("node/wide")
		var got []string
		for _, e := range gjson.Get(c.do("GET", "/api/v1/events?fieldSelector=reason=OwnerRefInvalidNamespace", "", 200), "items").Array() {
			o := e.Get("involvedObject")
			got = append(got, fmt.Sprintf("%s %s %s %s %s %s %d: %s", o.Get("kind"), o.Get("namespace"), o.Get("name"), o.Get("uid"), e.Get("type"),
				e.Get("source.component"), e.Get("count").Int(), e.Get("message")))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestEventsAreNotCollected(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	event := `{"metadata":{"name":"e","ownerReferences":[` + ref("cm/nobody", "u") + `]},"involvedObject":{"namespace":"default"}}`
	c.do("POST", "/api/v1/namespaces/default/events", event, 201)
	c.settle()
	c.do("GET", "/api/v1/namespaces/default/events/e", "", 200)
}

func TestOwnerOfTheSameNameIsAnother(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.create("cm/child", "", ref("cm/a", c.create("cm/a", "")))
	c.delete("cm/a", "Orphan")
	c.awaitGone("cm/a")
	c.awaitOwners("cm/child", "")
	first := c.create("cm/a", "")
	c.create("cm/old-child", "", ref("cm/a", first))
	c.delete("cm/a", "")
	c.create("cm/new-child", "", ref("cm/a", c.create("cm/a", "")))
	c.awaitGone("cm/old-child")
	c.stays("cm/a", "cm/new-child", "cm/child")
}

func TestForegroundWaitsForBlockers(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	a := c.create("cm/a", "")
	hold := `,"finalizers":["test/hold"]`
	c.create("cm/blocker", hold, blocking("cm/a", a))
	c.create("cm/bystander", hold, ref("cm/a", a))
	c.create("cm/free", "", blocking("cm/a", a))
	b := c.create("cm/b", "")
	c.create("cm/shared", "", blocking("cm/a", a), blocking("cm/b", b))
	c.delete("cm/a", "Foreground")
	c.awaitGone("cm/free")
	c.awaitOwners("cm/shared", "b")
	c.await("the blocker to be deleting", func() bool { return gjson.Get(c.get("cm/blocker"), "metadata.deletionTimestamp").Exists() })
	c.create("cm/late", "", blocking("cm/a", a))
	c.awaitGone("cm/late")
	c.stays("cm/a", "cm/blocker", "cm/bystander", "cm/shared")
	c.do("PATCH", pathAt("cm/blocker"), `{"metadata":{"finalizers":null}}`, 200)
	c.awaitGone("cm/blocker", "cm/a")
	c.stays("cm/bystander")
	c.do("PATCH", pathAt("cm/bystander"), `{"metadata":{"finalizers":null}}`, 200)
	c.awaitGone("cm/bystander")
}

// TestStrangersHoldNoOwnerBack checks that the deletion of an owner is not blocked by references
// from another namespace or with a wrong kind, even if the UID is correct.
func TestStrangersHoldNoOwnerBack(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.create("ns/other", "")
	a, hold := c.create("cm/a", ""), `,"finalizers":["test/hold"]`
	foreign := blocking("cm/a", a)
	c.create("cm/other/unserved", hold, strings.Replace(foreign, `"v1"`, `"v9"`, 1))
	c.create("cm/other/served", hold, foreign)
	c.create("cm/kind", hold, strings.Replace(foreign, `"ConfigMap"`, `"Nonsense"`, 1))
	c.create("cm/both", hold, strings.Replace(foreign, `"ConfigMap"`, `"Nonsense"`, 1), ref("cm/a", a))
	c.delete("cm/a", "Foreground")
	c.awaitGone("cm/a")
	c.stays("cm/other/unserved", "cm/kind")

	node := c.create("node/n", "")
	c.create("cm/other/of-node", hold, blocking("node/n", node))
	c.delete("node/n", "Foreground")
	c.await("the blocker to be deleting", func() bool { return gjson.Get(c.get("cm/other/of-node"), "metadata.deletionTimestamp").Exists() })
	c.stays("node/n")
	c.do("PATCH", pathAt("cm/other/of-node"), `{"metadata":{"finalizers":null}}`, 200)
	c.awaitGone("cm/other/of-node", "node/n")
}

func TestWhoComesToAWaitingOwnerGoes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	a := c.create("cm/a", "")
	c.create("cm/blocker", `,"finalizers":["test/hold"]`, blocking("cm/a", a))
	c.delete("cm/a", "Foreground")
	c.await("the blocker to be deleting", func() bool { return gjson.Get(c.get("cm/blocker"), "metadata.deletionTimestamp").Exists() })
	c.create("cm/late", "", blocking("cm/a", a)) // uses the same reference as the first blocker
	c.awaitGone("cm/late")
	c.stays("cm/a", "cm/blocker")
}

func TestForegroundGoesDownTheChain(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	owner, uid := "cm/c0", c.create("cm/c0", "")
	for i := 1; i < 5; i++ {
		name, more := fmt.Sprintf("cm/c%d", i), ""
		if i == 4 {
			more = `,"finalizers":["test/hold"]`
		}
		owner, uid = name, c.create(name, more, blocking(owner, uid))
	}
	c.delete("cm/c0", "Foreground")
	c.await("the last to be deleting", func() bool { return gjson.Get(c.get("cm/c4"), "metadata.deletionTimestamp").Exists() })
	c.stays("cm/c0", "cm/c1", "cm/c2", "cm/c3")
	c.do("PATCH", pathAt("cm/c4"), `{"metadata":{"finalizers":null}}`, 200)
	c.awaitGone("cm/c4", "cm/c3", "cm/c2", "cm/c1", "cm/c0")
}

func TestUnblockingLetsTheOwnerGo(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	a := c.create("cm/a", "")
	c.create("cm/child", `,"finalizers":["test/hold"]`, blocking("cm/a", a))
	c.delete("cm/a", "Foreground")
	c.await("the child to be deleting", func() bool { return gjson.Get(c.get("cm/child"), "metadata.deletionTimestamp").Exists() })
	c.do("PATCH", pathAt("cm/child"), `{"metadata":{"ownerReferences":[`+ref("cm/a", a)+`]}}`, 200)
	c.awaitGone("cm/a")
	c.stays("cm/child")
}

func TestOrphansStay(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	for _, owner := range []string{"job/j", "rc/r", "cm/a"} {
		uid := c.create(owner, "")
		_, name := apiPath(owner)
		b := c.create("cm/beside-"+name, "")
		c.create("cm/child-of-"+name, "", blocking(owner, uid), ref("cm/beside-"+name, b))
		c.create("pod/child-of-"+name, "", blocking(owner, uid))
		c.delete(owner, map[string]string{"cm/a": "Orphan"}[owner])
		c.awaitGone(owner)
		if got := c.owners("cm/child-of-" + name); got != "beside-"+name {
			t.Errorf("%s left a child with owners %q", owner, got)
		}
		c.stays("cm/child-of-"+name, "pod/child-of-"+name)
	}
}

func TestCyclesGo(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"Background", "Foreground"} {
		t.Run(policy, func(t *testing.T) {
			c := startCluster(t, "")
			const n = 4
			var uids [n]string
			for i := range n {
				uids[i] = c.create(fmt.Sprintf("cm/c%d", i), "")
			}
			for i := range n {
				owner := (i + 1) % n
				c.do("PATCH", pathAt(fmt.Sprintf("cm/c%d", i)), `{"metadata":{"ownerReferences":[`+blocking(fmt.Sprintf("cm/c%d", owner), uids[owner])+`]}}`, 200)
			}
			self := c.create("cm/self", "")
			c.do("PATCH", pathAt("cm/self"), `{"metadata":{"ownerReferences":[`+blocking("cm/self", self)+`]}}`, 200)
			c.stays("cm/c0", "cm/self")
			c.delete("cm/c2", policy)
			c.delete("cm/self", policy)
			c.awaitGone("cm/c0", "cm/c1", "cm/c2", "cm/c3", "cm/self")
		})
	}
}

func TestCustomOwnersAndDependents(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.create("cm/early", "", ref("foo/a", "0b2c7a32-0000-0000-0000-000000000000"))
	c.stays("cm/early") // the owner's kind is not served
	c.defineFoos()
	a := c.create("foo/a", "")
	c.awaitGone("cm/early")
	c.create("foo/child", "", ref("foo/a", a))
	c.create("cm/child", "", ref("foo/a", a))
	c.stays("foo/child", "cm/child")
	c.delete("foo/a", "")
	c.awaitGone("foo/child", "cm/child")
	kept := c.create("foo/kept", `,"finalizers":["x/y"]`)
	c.create("foo/orphan", "", ref("foo/kept", kept))
	c.delete("foo/kept", "Orphan")
	c.awaitOwners("foo/orphan", "")
	c.stays("foo/kept", "foo/orphan")
}

// TestRestartAtEachStep restarts the server between the steps of a scenario. Each server must
// continue the work of the previous server.
func TestRestartAtEachStep(t *testing.T) {
	t.Parallel()
	data := t.TempDir() + "/db"
	var uids = map[string]string{}
	hold := `,"finalizers":["test/hold"]`
	release := `{"metadata":{"finalizers":null}}`
	steps := []func(c *cluster){
		func(c *cluster) {
			for _, name := range []string{"a", "b", "orphaning"} {
				uids[name] = c.create("cm/"+name, "")
			}
			c.create("ns/n", "")
			c.create("cm/n/x", hold)
		},
		func(c *cluster) {
			c.create("cm/child", hold, blocking("cm/a", uids["a"]))
			c.create("cm/of-b", "", ref("cm/b", uids["b"]))
			c.create("cm/orphan", "", ref("cm/orphaning", uids["orphaning"]))
		},
		func(c *cluster) {
			c.idle() // the collector is disabled, so the next server must process the deletes
			c.delete("cm/a", "Foreground")
			c.delete("cm/b", "")
			c.delete("cm/orphaning", "Orphan")
			c.delete("ns/n", "")
		},
		func(c *cluster) {
			c.awaitGone("cm/of-b", "cm/orphaning")
			c.awaitOwners("cm/orphan", "")
			c.stays("cm/orphan", "cm/a", "cm/child", "ns/n")
		},
		func(c *cluster) {
			c.idle()
			c.do("PATCH", pathAt("cm/child"), release, 200)
			c.do("PATCH", pathAt("cm/n/x"), release, 200)
		},
		func(c *cluster) { c.awaitGone("cm/a", "ns/n"); c.stays("cm/orphan") },
	}
	for i, step := range steps {
		t.Run(fmt.Sprint(i), func(t *testing.T) { step(startCluster(t, data)) })
	}
}

func TestNamespaceEmptiesAndGoes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.defineFoos()
	c.create("ns/n", "")
	for i := range 20 {
		c.create(fmt.Sprintf("cm/n/c%d", i), "")
		c.create(fmt.Sprintf("pod/n/p%d", i), "")
		c.create(fmt.Sprintf("foo/n/f%d", i), "")
	}
	c.create("cm/elsewhere", "")
	c.delete("ns/n", "")
	c.awaitGone("ns/n")
	for _, short := range []string{"cm/n/c0", "pod/n/p7", "foo/n/f19"} {
		if c.get(short) != "" {
			t.Errorf("%s has outlived its namespace", short)
		}
	}
	c.stays("cm/elsewhere")
	c.create("ns/n", "")
	c.stays("ns/n")
}

func conditions(ns string) map[string]string {
	said := map[string]string{}
	for _, c := range gjson.Get(ns, "status.conditions").Array() {
		said[c.Get("type").String()] = c.Get("status").String() + " " + c.Get("reason").String() + ": " + c.Get("message").String()
	}
	return said
}

func TestNamespaceSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.create("ns/n", "")
	c.create("pod/n/p", `,"finalizers":["test/hold"]`)
	c.create("cm/n/a", `,"finalizers":["test/hold","test/too"]`)
	c.create("cm/n/b", "")
	c.delete("ns/n", "")
	said := func(kind, want string) func() bool {
		return func() bool { return conditions(c.get("ns/n"))[kind] == want }
	}
	c.await("the pod to be named", said("NamespaceContentRemaining", "True SomeResourcesRemain: Some resources are remaining: pods. has 1 resource instances"))
	c.stays("ns/n", "cm/n/b") // pods are deleted first
	c.do("PATCH", pathAt("pod/n/p"), `{"metadata":{"finalizers":null}}`, 200)
	c.await("the other to be named", said("NamespaceContentRemaining", "True SomeResourcesRemain: Some resources are remaining: configmaps. has 1 resource instances"))
	c.awaitGone("cm/n/b", "pod/n/p")
	want := map[string]string{
		"NamespaceDeletionDiscoveryFailure":           "False ResourcesDiscovered: All resources successfully discovered",
		"NamespaceDeletionGroupVersionParsingFailure": "False ParsedGroupVersions: All legacy kube types successfully parsed",
		"NamespaceDeletionContentFailure":             "False ContentDeleted: All content successfully deleted, may be waiting on finalization",
		"NamespaceContentRemaining":                   "True SomeResourcesRemain: Some resources are remaining: configmaps. has 1 resource instances",
		"NamespaceFinalizersRemaining": "True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: " +
			"test/hold in 1 resource instances, test/too in 1 resource instances",
	}
	if got := conditions(c.get("ns/n")); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("conditions\n got %v\nwant %v", got, want)
	}
	c.do("PATCH", pathAt("cm/n/a"), `{"metadata":{"finalizers":["test/too"]}}`, 200)
	c.await("one finalizer less", said("NamespaceFinalizersRemaining",
		"True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: test/too in 1 resource instances"))
	c.do("PATCH", pathAt("cm/n/a"), `{"metadata":{"finalizers":null}}`, 200)
	c.awaitGone("cm/n/a", "ns/n")
}

func TestNamespaceWithItsOwnFinalizerWaits(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.create("ns/n", `,"finalizers":["test/hold"]`)
	c.create("cm/n/a", "")
	c.delete("ns/n", "")
	c.await("kubernetes to be done", func() bool { return !gjson.Get(c.get("ns/n"), "spec.finalizers").Exists() })
	if c.get("cm/n/a") != "" {
		t.Error("it is not empty")
	}
	c.do("PATCH", pathAt("ns/n"), `{"metadata":{"finalizers":null}}`, 200)
	c.awaitGone("ns/n")
}

// TestNamespaceGoesAfterItsGrace checks that a namespace is not deleted before the end of the grace
// period.
func TestNamespaceGoesAfterItsGrace(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", s.namespace("n"), configMap("a"))
	before := time.Now()
	s.want(200, "DELETE", "/api/v1/namespaces/n", "")
	apitest.WaitFor(t, "the namespace goes", func() bool { return s.send("GET", "/api/v1/namespaces/n", "").code == 404 })
	if took := time.Since(before); took < gc.NamespaceGrace {
		t.Errorf("gone after %v, want %v at least", took, gc.NamespaceGrace)
	}
	s.want(404, "GET", "/api/v1/namespaces/n/configmaps/a", "")
}

func TestPodsOfLostNodesDoNotHoldTheirNamespace(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.create("ns/n", "")
	c.create("node/there", "")
	for _, node := range []string{"there", "lost"} {
		pod := `{"metadata":{"name":"on-` + node + `"},"spec":{"nodeName":"` + node + `","containers":[{"name":"c","image":"i"}]}}`
		c.do("POST", "/api/v1/namespaces/n/pods", pod, 201)
	}
	c.delete("ns/n", "")
	c.awaitGone("pod/n/on-lost")
	c.stays("pod/n/on-there")
	c.do("DELETE", pathAt("pod/n/on-there"), `{"gracePeriodSeconds":0}`, 200)
	c.awaitGone("ns/n")
}

// TestQuietWhileWaiting checks that a waiting namespace does not cause any writes.
func TestQuietWhileWaiting(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.create("ns/n", "")
	c.create("cm/n/a", `,"finalizers":["test/hold"]`)
	c.create("cm/unserved", "", `{"apiVersion":"no.such/v1","kind":"Thing","name":"x","uid":"u"}`)
	c.delete("ns/n", "")
	c.await("the finalizer to be named", func() bool { return strings.Contains(c.get("ns/n"), "test/hold in 1 resource instances") })
	from := fmt.Sprintf("?watch=1&resourceVersion=%d", c.revision())
	namespaces, maps := c.watch("/api/v1/namespaces"+from), c.watch("/api/v1/configmaps"+from)
	// There is no condition to wait for, because nothing should happen.
	time.Sleep(2 * time.Second)
	c.create("ns/marker", "")
	c.create("cm/marker", "")
	namespaces.want("ADDED marker")
	maps.want("ADDED marker")
}

// TestManyNamespacesAtOnce deletes many namespaces. It removes the finalizers of the objects while
// the server is deleting them.
func TestManyNamespacesAtOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	const namespaces, each = 40, 5
	c.seed("/api/v1/namespaces", namespaces, func(i int) string { return fmt.Sprintf(`{"metadata":{"name":"n%d"}}`, i) })
	for n := range namespaces {
		c.seed(fmt.Sprintf("/api/v1/namespaces/n%d/configmaps", n), each, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"name":"c%d","finalizers":["test/hold"]}}`, i)
		})
	}
	for n := range namespaces {
		c.delete(fmt.Sprintf("ns/n%d", n), "")
	}
	for i := range namespaces * each {
		short := fmt.Sprintf("cm/n%d/c%d", i/each, i%each)
		c.await(short+" to be deleting", func() bool { return gjson.Get(c.get(short), "metadata.deletionTimestamp").Exists() })
		c.do("PATCH", pathAt(short), `{"metadata":{"finalizers":null}}`, 200)
	}
	c.awaitCount("/api/v1/namespaces", 4)
	c.awaitCount("/api/v1/configmaps", 0)
}

// ---- Many objects ----

// seed creates n objects with 16 concurrent clients.
func (c *cluster) seed(collection string, n int, build func(i int) string) {
	c.Helper()
	next := make(chan int)
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for i := range next {
				if a, err := c.testServer.try("POST", collection, build(i), "Content-Type: application/json"); err != nil || a.code != 201 {
					c.Errorf("POST %s: %d, %v: %s", collection, a.code, err, a.body)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	clients.Wait()
	if c.Failed() {
		c.FailNow()
	}
}

func podName(i int) string { return fmt.Sprintf("application-7d4b9c6f8d-%06d", i) }

// pod returns the JSON of a pod with these owner references.
func pod(i int, owners string) string {
	return `{"metadata":{"name":"` + podName(i) + `","ownerReferences":[` + owners + `]},"spec":` + podSpecJSON + `}`
}

// awaitCount waits until the collection has want objects.
func (c *cluster) awaitCount(collection string, want int64) {
	c.Helper()
	c.await(fmt.Sprintf("%d objects in %s", want, collection), func() bool {
		list := gjson.Parse(c.do("GET", collection+"?limit=1", "", 200))
		return list.Get("items.#").Int()+list.Get("metadata.remainingItemCount").Int() == want
	})
}

const allPods = "/api/v1/pods"

func TestThousandDependents(t *testing.T) {
	t.Parallel()
	const n = 1000
	for _, policy := range []string{"Background", "Foreground", "Orphan"} {
		t.Run(policy, func(t *testing.T) {
			c := startCluster(t, "")
			uid := cascade(c, "cm/a", n)
			c.delete("cm/a", policy)
			c.awaitGone("cm/a")
			if policy == "Orphan" {
				c.stays("pod/" + podName(n-1))
				if left := c.get("pod/" + podName(0)); left == "" || strings.Contains(left, uid) {
					t.Errorf("an orphan is gone, or still names its owner: %s", left)
				}
				return
			}
			c.awaitCount(allPods, 0)
		})
	}
}

// cascade creates an owner with n pods and returns its UID.
func cascade(c *cluster, short string, n int) (uid string) {
	c.Helper()
	uid = c.create(short, "")
	c.seed("/api/v1/namespaces/default/pods", n, func(i int) string { return pod(i, blocking(short, uid)) })
	return uid
}

func TestNamespaceOfThousandsGoes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	c.create("ns/n", "")
	c.seed("/api/v1/namespaces/n/pods", 2000, func(i int) string { return pod(i, "") })
	c.delete("ns/n", "")
	c.awaitGone("ns/n")
}

func BenchmarkCascade(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		c := startCluster(b, b.TempDir()+"/db")
		cascade(c, "cm/a", 10_000)
		commits := func() float64 { return metricValue(c.testServer, "apilet_store_commit_duration_seconds_count") }
		writes := func() float64 { return metricValue(c.testServer, "apilet_store_committed_changes_total") }
		commitsBefore, writesBefore, start := commits(), writes(), time.Now()
		b.StartTimer()
		c.delete("cm/a", "")
		c.awaitCount(allPods, 0)
		b.StopTimer()
		b.ReportMetric(commits()-commitsBefore, "commits")
		b.ReportMetric(writes()-writesBefore, "writes")
		b.ReportMetric(time.Since(start).Seconds(), "s")
		b.StartTimer()
	}
}

// ---- Random graphs against an ownerModel ----

// An ownerModel predicts which objects remain if objects own each other. It maps the name of each
// object to the names of its owners. A name is never used again, so it identifies an object like a
// UID.
type ownerModel map[string][]string

// settle applies the rules until nothing changes. If all owners of an object have been deleted, the
// object is deleted. Otherwise, the references to deleted owners are removed.
func (m ownerModel) settle() {
	for changed := true; changed; {
		changed = false
		for name, owners := range m {
			alive := slices.DeleteFunc(slices.Clone(owners), func(owner string) bool { _, there := m[owner]; return !there })
			if len(alive) == len(owners) {
				continue
			}
			changed = true
			if m[name] = alive; len(alive) == 0 {
				delete(m, name)
			}
		}
	}
}

func (m ownerModel) remove(name, policy string) {
	delete(m, name)
	if policy == "Orphan" {
		for other, owners := range m {
			m[other] = slices.DeleteFunc(owners, func(owner string) bool { return owner == name })
		}
	}
}

// A graphTest applies random steps to a server and to an ownerModel.
type graphTest struct {
	*cluster
	random *rand.Rand
	want   ownerModel
	uids   map[string]string
	names  []string // of all objects that were ever created
}

// TestRandomGraphs compares the server and the model after each step. It restarts the server
// several times.
func TestRandomGraphs(t *testing.T) {
	t.Parallel()
	for round := range apitest.Rounds(5) {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Logf("seed %d", seed)
			data := t.TempDir() + "/db"
			g := &graphTest{random: rand.New(rand.NewPCG(seed, 1)), want: ownerModel{}, uids: map[string]string{"never": uuid.NewString()}, names: []string{"never"}}
			for life := range 3 {
				t.Run(fmt.Sprint(life), func(t *testing.T) {
					g.cluster = startCluster(t, data)
					for range 25 {
						g.step()
						g.want.settle()
						g.compare()
					}
					g.idle() // the next server must process the last steps
					for range 3 {
						g.remove([]string{"Background", "Foreground"}[g.random.IntN(2)])
					}
				})
				g.want.settle()
			}
		})
	}
}

// TestRandomGraphsAtOnce deletes objects while the consequences of earlier deletions are still
// being processed.
func TestRandomGraphsAtOnce(t *testing.T) {
	t.Parallel()
	for round := range apitest.Rounds(5) {
		seed := rand.Uint64()
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Logf("seed %d", seed)
			g := &graphTest{cluster: startCluster(t, ""), random: rand.New(rand.NewPCG(seed, 1)), want: ownerModel{},
				uids: map[string]string{"never": uuid.NewString()}, names: []string{"never"}}
			for range 80 {
				g.add()
			}
			for range 25 {
				g.remove([]string{"Background", "Foreground"}[g.random.IntN(2)])
			}
			g.want.settle()
			g.compare()
		})
	}
}

func (g *graphTest) step() {
	switch g.random.IntN(8) {
	case 0, 1, 2, 3:
		g.add()
	case 4:
		g.rewire()
	default:
		g.remove([]string{"Background", "Foreground", "Orphan"}[g.random.IntN(3)])
	}
}

// pickOwners returns up to three names, of existing and of deleted objects.
func (g *graphTest) pickOwners() (owners, refs []string) {
	for range g.random.IntN(4) {
		owner := g.names[max(0, len(g.names)-1-g.random.IntN(15))]
		if !slices.Contains(owners, owner) {
			owners = append(owners, owner)
			refs = append(refs, reference("cm/"+owner, g.uids[owner], g.random.IntN(2) == 0))
		}
	}
	return owners, refs
}

func (g *graphTest) add() {
	name := fmt.Sprintf("o%d", len(g.names))
	owners, refs := g.pickOwners()
	g.uids[name] = g.create("cm/"+name, "", refs...)
	g.want[name], g.names = owners, append(g.names, name)
}

// rewire replaces the owners of an object. This may create a cycle.
func (g *graphTest) rewire() {
	name := g.names[g.random.IntN(len(g.names))]
	if _, there := g.want[name]; !there {
		return
	}
	owners, refs := g.pickOwners()
	g.do("PATCH", pathAt("cm/"+name), `{"metadata":{"ownerReferences":[`+strings.Join(refs, ",")+`]}}`, 200)
	g.want[name] = owners
}

// remove deletes an object if the collector has not already deleted it.
func (g *graphTest) remove(policy string) {
	name := g.names[g.random.IntN(len(g.names))]
	if err := g.try("DELETE", pathAt("cm/"+name), `{"propagationPolicy":"`+policy+`"}`); err != nil {
		g.Fatal(err)
	}
	g.want.remove(name, policy)
}

// compare waits until the state of the server is equal to the ownerModel. Then it checks that the
// state remains the same.
func (g *graphTest) compare() {
	g.Helper()
	got := ""
	matches := func() bool { got = g.state(); return got == fmt.Sprint(g.want) }
	defer func() {
		if g.Failed() {
			g.Logf("\n got %v\nwant %v", got, g.want)
		}
	}()
	g.await("the ownerModel's state", matches)
	g.settle()
	if !matches() {
		g.Fatal("it did not stay as the ownerModel says")
	}
}

// state returns the objects and their owners in the form of the ownerModel.
func (g *graphTest) state() string {
	have := ownerModel{}
	for _, item := range gjson.Get(g.do("GET", "/api/v1/configmaps", "", 200), "items").Array() {
		owners := []string(nil)
		for _, owner := range item.Get("metadata.ownerReferences.#.name").Array() {
			owners = append(owners, owner.String())
		}
		have[item.Get("metadata.name").String()] = owners
	}
	return fmt.Sprint(have)
}

// TestClientsAtOnce runs clients that concurrently create and delete owners and dependents.
// Therefore, some dependents are created while their owner is being deleted. At the end, there must
// not be any reference to a missing owner. Objects with an existing owner must not be deleted.
func TestClientsAtOnce(t *testing.T) {
	t.Parallel()
	c := startCluster(t, "")
	const clients, roots = 8, 40
	kept := c.create("cm/kept", "")
	uids := make([]string, roots)
	for i := range uids {
		uids[i] = c.create(fmt.Sprintf("cm/root%d", i), "")
	}
	keepers := make([][]string, clients)
	err := registry.Parallel([]int{0, 1, 2, 3, 4, 5, 6, 7}, clients, func(client int) error {
		random := rand.New(rand.NewPCG(uint64(client), 7))
		for i := range 120 {
			root := random.IntN(roots)
			if random.IntN(6) == 0 {
				_ = c.try("DELETE", pathAt(fmt.Sprintf("cm/root%d", root)), `{"propagationPolicy":"`+[]string{"Background", "Foreground"}[random.IntN(2)]+`"}`)
				continue
			}
			short := fmt.Sprintf("cm/c%d-%d", client, i)
			refs := []string{reference(fmt.Sprintf("cm/root%d", root), uids[root], random.IntN(2) == 0)}
			if random.IntN(3) == 0 {
				refs = append(refs, blocking("cm/kept", kept))
				keepers[client] = append(keepers[client], short)
			}
			_, name := apiPath(short)
			if err := c.try("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"`+name+`","ownerReferences":[`+strings.Join(refs, ",")+`]}}`); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var dangling string
	defer func() {
		if t.Failed() {
			t.Log(dangling)
		}
	}()
	c.await("all references to lead somewhere", func() bool { dangling = c.dangling(); return dangling == "" })
	c.stays(slices.Concat(keepers...)...)
}

// dangling returns the name of an object that has a missing owner, or "".
func (c *cluster) dangling() (found string) {
	uids, owned := map[string]bool{}, map[string]string{}
	for _, item := range gjson.Get(c.do("GET", "/api/v1/configmaps", "", 200), "items").Array() {
		uids[item.Get("metadata.uid").String()] = true
		for _, uid := range item.Get("metadata.ownerReferences.#.uid").Array() {
			owned[uid.String()] = item.Get("metadata.name").String()
		}
	}
	for uid, name := range owned {
		if !uids[uid] {
			found = name + " is owned by " + uid
		}
	}
	return found
}

// try sends a request. It returns an error if the response has a 5xx status code.
func (c *cluster) try(method, path, body string) error {
	req, _ := http.NewRequest(method, c.url+path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	res, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if answer, _ := io.ReadAll(res.Body); res.StatusCode >= 500 {
		return fmt.Errorf("%s %s: %d: %s", method, path, res.StatusCode, answer)
	}
	return nil
}
