package aggregation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/discovery"
	"apilet/internal/gc"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/webhook"
)

// A cluster is an Aggregator on a store that the test writes.
type cluster struct {
	*Aggregator
	t    *testing.T
	revs map[string]int64
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	types := scheme.NewRegistry()
	g := &Aggregator{Store: st, Types: types, Services: &webhook.ServiceResolver{Store: st, Types: types}, OnFirstUse: func() {}}
	if err := g.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &cluster{g, t, map[string]int64{}}
}

// write stores a document, or deletes the object if doc is "", and lets the aggregator follow.
func (c *cluster) write(key, doc string) {
	c.t.Helper()
	rev, known := c.revs[key]
	change := store.Change{Op: store.OpCreate, Key: key, Expect: rev, JSON: []byte(doc), RevAt: strings.Index(doc, `"resourceVersion":"`) + len(`"resourceVersion":"`)}
	switch {
	case doc == "":
		const last = `{"metadata":{"resourceVersion":""}}`
		change.Op, change.JSON, change.RevAt = store.OpDelete, []byte(last), strings.Index(last, `""`)+1
	case known:
		change.Op = store.OpUpdate
	}
	rec, err := c.Store.Commit(c.t.Context(), change)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.revs[key] = rec.Rev; doc == "" {
		delete(c.revs, key)
	}
	if err := c.catchUp(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// object stores an object of Kubernetes' types.
func (c *cluster) object(base, namespace, name string, obj scheme.Object) {
	c.t.Helper()
	obj.SetName(name)
	obj.SetNamespace(namespace)
	obj.SetResourceVersion("R")
	doc, err := json.Marshal(obj)
	if err != nil {
		c.t.Fatal(err)
	}
	c.write(base+namespace+"/"+name, strings.Replace(string(doc), `"resourceVersion":"R"`, `"resourceVersion":""`, 1))
}

const apiServices = "/apiregistration.k8s.io/apiservices/"

func (c *cluster) apiService(name string, available bool, spec apiregistrationv1.APIServiceSpec) {
	c.t.Helper()
	obj := &apiregistrationv1.APIService{Spec: spec}
	if available {
		obj.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue}}
	}
	c.object(apiServices, "", name, obj)
}

// to is a group version that a Service serves.
func to(group, service string) apiregistrationv1.APIServiceSpec {
	port := int32(443)
	return apiregistrationv1.APIServiceSpec{Group: group, Version: "v1", Service: &apiregistrationv1.ServiceReference{Namespace: "shop", Name: service, Port: &port}}
}

// served lists the group versions in the table, with the server's host, and a star if it is
// available.
func (c *cluster) served() string {
	t := c.table.Load()
	if t == nil {
		return "none"
	}
	var all []string
	for _, other := range t.others.All {
		s := t.servers[metav1.GroupVersion{Group: other.Group, Version: other.Version}]
		all = append(all, other.Group+"="+strings.TrimSuffix(s.route.host, ".shop.svc:443")+map[bool]string{true: "*"}[s.available])
	}
	return strings.Join(all, " ")
}

// TestTableIsWhatIsStored: requests go where the stored APIServices say at that moment, and never
// to another server for the core group or the group of APIServices itself.
func TestTableIsWhatIsStored(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	local := apiregistrationv1.APIServiceSpec{Group: "apps", Version: "v1"}
	portless := to("g", "b")
	portless.Service.Port = nil
	for i, step := range []struct {
		do   func()
		want string
	}{
		{func() { c.apiService("v1.apps", true, local) }, "none"},
		{func() { c.apiService("v1.", true, to("", "core")) }, "none"},
		{func() { c.apiService("v1.apiregistration.k8s.io", true, to("apiregistration.k8s.io", "own")) }, "none"},
		{func() { c.apiService("v1.g", false, to("g", "a")) }, "g=a"},
		{func() { c.apiService("v1.g", true, to("g", "a")) }, "g=a*"},
		{func() { c.apiService("v1.h", true, to("h", "a")) }, "g=a* h=a*"},
		{func() { c.apiService("v1.g", true, to("g", "b")) }, "g=b* h=a*"},
		{func() { c.apiService("v1.g", true, portless) }, "h=a*"},
		{func() { c.apiService("v1.g", true, to("g", "a")) }, "g=a* h=a*"},
		{func() {
			c.write(apiServices+"/v1.g", `{"metadata":{"resourceVersion":""},"spec":{"service":{"port":"x"}}}`)
		}, "h=a*"},
		{func() { c.apiService("v1.g", true, local) }, "h=a*"},
		{func() { c.write(apiServices+"/v1.h", "") }, "none"},
	} {
		if step.do(); c.served() != step.want {
			t.Errorf("%d: %s, want %s", i, c.served(), step.want)
		}
	}
}

// TestRoutesAreMadeAnew if anything changes by which a server is known, and kept otherwise.
func TestRoutesAreMadeAnew(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	spec := to("g", "a")
	c.apiService("v1.g", true, spec)
	for i, change := range []struct {
		do   func()
		anew bool
	}{
		{func() { spec.GroupPriorityMinimum = 7 }, false},
		{func() { spec.CABundle = []byte("x") }, true},
		{func() { spec.InsecureSkipTLSVerify = true }, true},
		{func() { spec.Service = to("g", "b").Service }, true},
		{func() { *spec.Service.Port = 444 }, true},
	} {
		before := c.known["v1.g"].route
		change.do()
		c.apiService("v1.g", true, spec)
		if anew := c.known["v1.g"].route != before; anew != change.anew {
			t.Errorf("%d: made anew %v, want %v", i, anew, change.anew)
		}
	}
	if r := c.known["v1.g"].route; r.err == nil || !r.plain.TLSClientConfig.InsecureSkipVerify || r.host != "b.shop.svc:444" {
		t.Errorf("the last route goes to %s, error %v", r.host, r.err)
	}
	spec = to("g", "a")
	c.apiService("v1.g", true, spec)
	if secured := c.known["v1.g"].route.plain.TLSClientConfig; secured.InsecureSkipVerify || secured.ServerName != "a.shop.svc" {
		t.Errorf("the certificate of %q is verified: %v", secured.ServerName, !secured.InsecureSkipVerify)
	}
}

// TestNothingIsPassedOnAfterAReset: an aggregator that could not read the log where it stood reads
// all that is stored. Nothing tells it of an APIService that was deleted in between.
func TestNothingIsPassedOnAfterAReset(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.apiService("v1.g", true, to("g", "a"))
	if c.served() != "g=a*" {
		t.Fatal(c.served())
	}
	c.log = c.Store.Follow(apiServices) // as after a reset, when the next read forgets everything
	const last = `{"metadata":{"resourceVersion":""}}`
	if _, err := c.Store.Commit(t.Context(), store.Change{Op: store.OpDelete, Key: apiServices + "/v1.g", Expect: c.revs[apiServices+"/v1.g"], JSON: []byte(last), RevAt: strings.Index(last, `""`) + 1}); err != nil {
		t.Fatal(err)
	}
	if err := c.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c.served() != "none" {
		t.Errorf("requests go to %s", c.served())
	}
}

// TestConditionsAreOfTheServerThatWasAsked: the finding about a server is not written to an
// APIService that names another one by now, and the metric counts only changes from available.
func TestConditionsAreOfTheServerThatWasAsked(t *testing.T) {
	t.Parallel()
	available := func(status apiregistrationv1.ConditionStatus, reason string) *apiregistrationv1.APIServiceCondition {
		return &apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: status, Reason: reason}
	}
	const yes, no = apiregistrationv1.ConditionTrue, apiregistrationv1.ConditionFalse
	refused := errors.New("refused")
	for i, c := range []struct {
		stored         apiregistrationv1.APIServiceSpec
		before, is     *apiregistrationv1.APIServiceCondition
		err            error
		written, count bool
	}{
		{to("g", "a"), available(yes, "Passed"), available(no, "FailedDiscoveryCheck"), nil, true, true},
		{to("g", "a"), available(no, "ServiceNotFound"), available(no, "FailedDiscoveryCheck"), nil, true, false},
		{to("g", "a"), available(no, "ServiceNotFound"), available(yes, "Passed"), nil, true, false},
		{to("g", "a"), nil, available(no, "ServiceNotFound"), nil, true, false},
		{to("g", "a"), available(yes, "Passed"), available(yes, "Passed"), nil, false, false},
		{to("g", "b"), available(yes, "Passed"), available(no, "FailedDiscoveryCheck"), nil, false, false},
		{apiregistrationv1.APIServiceSpec{Group: "g", Version: "v1"}, available(yes, "Passed"), available(no, "FailedDiscoveryCheck"), nil, false, false},
		{to("g", "a"), available(yes, "Passed"), available(no, "FailedDiscoveryCheck"), refused, true, false},
	} {
		spec, counted := to("g", "a"), false
		stored := &apiregistrationv1.APIService{Spec: c.stored}
		if c.before != nil {
			stored.Status.Conditions = append(stored.Status.Conditions, *c.before)
		}
		g := &Aggregator{OnUnavailable: func(string, string) { counted = true }, SaveStatus: func(_ context.Context, _ string, change func(*apiregistrationv1.APIService)) error {
			change(stored)
			return c.err
		}}
		err := g.save(t.Context(), "v1.g", &route{spec: routeSpec(&spec)}, c.before, *c.is)
		written := len(stored.Status.Conditions) > 0 && stored.Status.Conditions[0].Reason == c.is.Reason && (c.before == nil || c.before.Reason != c.is.Reason)
		if !errors.Is(err, c.err) || written != c.written || counted != c.count {
			t.Errorf("%d: written %v, counted %v, %v; want %v, %v", i, written, counted, err, c.written, c.count)
		}
	}
}

// behind starts a server, and returns a route to it.
func behind(t *testing.T, handle http.HandlerFunc) *route {
	t.Helper()
	back := httptest.NewUnstartedServer(handle)
	back.Config.ErrorLog = log.New(io.Discard, "", 0) // attempts that another one has made needless
	back.StartTLS()
	t.Cleanup(back.Close)
	transport := back.Client().Transport.(*http.Transport)
	return &route{host: back.Listener.Addr().String(), plain: transport, upgrades: transport}
}

// TestAvailabilityHasAReason checks each finding about a server, in the order in which they are
// looked for.
func TestAvailabilityHasAReason(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var code atomic.Int32 // the handler reads it on another goroutine
	code.Store(http.StatusOK)
	r := behind(t, func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/apis/g/v1" || q.Header.Get("X-Remote-User") != "system:kube-aggregator" {
			t.Errorf("asked %s as %s", q.URL, q.Header.Get("X-Remote-User"))
		}
		w.WriteHeader(int(code.Load()))
	})
	spec := to("g", "a")
	service := func(port int32) {
		c.object("//services/", "shop", "a", &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{{Name: "web", Port: port}}}})
	}
	slice := func(port string, addresses ...string) {
		number := int32(8443)
		obj := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "a"}},
			Ports: []discoveryv1.EndpointPort{{Name: &port, Port: &number}}}
		for _, address := range addresses {
			obj.Endpoints = append(obj.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
		}
		c.object("/discovery.k8s.io/endpointslices/", "shop", "a-1", obj)
	}
	for i, step := range []struct {
		do     func()
		status apiregistrationv1.ConditionStatus
		reason string
	}{
		{func() {}, apiregistrationv1.ConditionFalse, "ServiceNotFound"},
		{func() { c.write("//services/shop/a", `{"metadata":{"resourceVersion":""},"spec":[]}`) }, apiregistrationv1.ConditionUnknown, "ServiceAccessError"},
		{func() { service(80) }, apiregistrationv1.ConditionFalse, "ServicePortError"},
		{func() { service(443) }, apiregistrationv1.ConditionFalse, "EndpointsNotFound"},
		{func() { slice("web") }, apiregistrationv1.ConditionFalse, "MissingEndpoints"},
		{func() { slice("other", "10.0.0.1") }, apiregistrationv1.ConditionFalse, "MissingEndpoints"},
		{func() { slice("web", "10.0.0.1") }, apiregistrationv1.ConditionTrue, "Passed"},
		{func() { c.write("//endpoints/shop/a", `{"metadata":{"resourceVersion":""},"subsets":{}}`) }, apiregistrationv1.ConditionUnknown, "EndpointsAccessError"},
		{func() { c.write("//endpoints/shop/a", "") }, apiregistrationv1.ConditionTrue, "Passed"},
		{func() { code.Store(http.StatusForbidden) }, apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck"},
		{func() { code.Store(http.StatusFound) }, apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck"},
		{func() { code.Store(http.StatusOK); r.err = errors.New("no certificate") }, apiregistrationv1.ConditionFalse, "FailedDiscoveryCheck"},
	} {
		step.do()
		if is := c.check(t.Context(), &spec, r); is.Status != step.status || is.Reason != step.reason || len(is.Message) > 2*maxText {
			t.Errorf("%d: %s %s %.200s; want %s %s", i, is.Status, is.Reason, is.Message, step.status, step.reason)
		}
	}
}

// TestLessonsAreBounded: a document that is too long, of another kind or of another dialect than it
// says is not taken.
func TestLessonsAreBounded(t *testing.T) {
	t.Parallel()
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	group := `{"items":[{"metadata":{"name":"other"},"versions":[{"version":"v1","resources":[{"resource":"others"}]}]},
		{"metadata":{"name":"g"},"versions":[{"version":"v2","resources":[{"resource":"twos"}]},{"version":"v1","resources":[{"resource":"things","subresources":[{"subresource":"status"}]}]}]}]}`
	legacy := `{"resources":[{"name":"olds","kind":"Old","namespaced":true}]}`
	swagger := `{"swagger":"2.0","info":{"title":"x","version":"1"},"paths":{},"definitions":{"io.g.v1.Thing":{"type":"object","x-kubernetes-group-version-kind":[{"group":"g","version":"v1","kind":"Thing"}]}}}`
	for name, c := range map[string]struct {
		kind, apis, list, v2 string
		listCode             int
		resource, err        string // what was learned
		described            bool
	}{
		"aggregated":           {kind: aggregated, apis: group, v2: swagger, resource: "things", described: true},
		"nothing of ours":      {kind: aggregated, apis: `{"items":[]}`, v2: swagger, described: true},
		"legacy":               {kind: "application/json", apis: `{}`, list: legacy, resource: "olds"},
		"another dialect":      {kind: strings.Replace(aggregated, "v2", "v3", 1), apis: group, list: legacy, resource: "olds"},
		"no discovery":         {kind: "application/json", apis: `{}`, listCode: 403, err: "failed to download legacy discovery for /apis/g/v1: 403"},
		"too long":             {kind: aggregated, apis: `{"items":[]` + strings.Repeat(" ", maxDiscovery) + `}`, err: "is longer than"},
		"too deep":             {kind: aggregated, apis: strings.Repeat(`{"items":[`, 1<<16), err: "x"},
		"not JSON":             {kind: aggregated, apis: `<html>`, err: "x"},
		"legacy, not JSON":     {kind: "text/html", apis: ``, list: `<html>`, err: "x"},
		"description too deep": {kind: aggregated, apis: group, v2: `{"swagger":"2.0","paths":` + strings.Repeat(`{"a":`, 2000) + `1` + strings.Repeat(`}`, 2001), resource: "things"},
		"description too long": {kind: aggregated, apis: group, v2: `{"swagger":"2.0"` + strings.Repeat(" ", maxOpenAPI) + `}`, resource: "things"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := behind(t, func(w http.ResponseWriter, q *http.Request) {
				switch q.URL.Path {
				case "/apis":
					w.Header().Set("Content-Type", c.kind)
					fmt.Fprint(w, c.apis)
				case "/apis/g/v1":
					if c.listCode != 0 {
						w.WriteHeader(c.listCode)
					}
					fmt.Fprint(w, c.list)
				case "/openapi/v2":
					w.Header().Set("Etag", `"e"`)
					if q.Header.Get("If-None-Match") != "" {
						w.WriteHeader(http.StatusNotModified)
						return
					}
					fmt.Fprint(w, c.v2)
				case "/openapi/v3":
					fmt.Fprint(w, `{"paths":{"apis/other/v1":{"serverRelativeURL":"/openapi/v3/x?hash=1"},"apis/g/v1":{"serverRelativeURL":"/openapi/v3/apis/g/v1?hash=2"}}}`)
				}
			})
			is, err := describeVersion(t.Context(), r, metav1.GroupVersion{Group: "g", Version: "v1"}, versionDescription{})
			if (err != nil) != (c.err != "") || err != nil && c.err != "x" && !strings.Contains(err.Error(), c.err) {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			if err != nil {
				return
			}
			resource := ""
			for i := range is.resources {
				if resource += is.resources[i].Resource; is.resources[i].ResponseKind == nil {
					t.Errorf("%s has no kind, which ends old clients", resource)
				}
				for _, sub := range is.resources[i].Subresources {
					if sub.ResponseKind == nil {
						t.Errorf("%s/%s has no kind", resource, sub.Subresource)
					}
				}
			}
			if resource != c.resource || is.openAPIHash != "2" || (is.swagger != nil) != c.described {
				t.Errorf("learned %q, hash %q, described %v; want %q, 2, %v", resource, is.openAPIHash, is.swagger != nil, c.resource, c.described)
			}
			if next, err := describeVersion(t.Context(), r, metav1.GroupVersion{Group: "g", Version: "v1"}, is); err != nil || c.described && next.swagger != is.swagger {
				t.Errorf("a description that has not changed was not kept: %v", err)
			}
		})
	}
}

// TestNamespacesAreEmptiedOneByOne where a server deletes no collections. What is left is counted,
// and what was refused is told.
func TestNamespacesAreEmptiedOneByOne(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // guards what follows
	var deleted []string
	left := map[string]string{"a": `["f"]`, "b/../c": `[]`, "kept": `[]`}
	r := behind(t, func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if q.Header.Get("X-Remote-User") != "system:serviceaccount:kube-system:namespace-controller" {
			t.Errorf("deleted as %s", q.Header.Get("X-Remote-User"))
		}
		const collection = "/apis/g/v1/namespaces/n%2F../things"
		path := q.URL.EscapedPath()
		switch {
		case q.Method == http.MethodGet && path == "/apis/g/v1/namespaces/n%2F../none":
			w.WriteHeader(http.StatusNotFound)
		case q.Method == http.MethodGet && path == collection:
			var items []string
			for name, finalizers := range left {
				items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"finalizers":%s}}`, name, finalizers))
			}
			fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(items, ","))
		case q.Method == http.MethodDelete && path == collection+"/b%2F..%2Fc":
			delete(left, "b/../c")
			deleted = append(deleted, path)
		case q.Method == http.MethodDelete && path == collection+"/a":
			deleted = append(deleted, path)
		case q.Method == http.MethodDelete && path == collection+"/kept":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"message":"not you"}`)
		default:
			t.Errorf("asked %s %s", q.Method, path)
		}
	})
	namespaced := apidiscoveryv2.ScopeNamespace
	tab := &table{servers: map[metav1.GroupVersion]*server{{Group: "g", Version: "v1"}: {name: "v1.g", route: r, available: true}},
		others: &discovery.RemoteVersions{All: []discovery.RemoteVersion{{Group: "g", Version: "v1", Resources: []apidiscoveryv2.APIResourceDiscovery{
			{Resource: "things", Scope: namespaced, Verbs: []string{"list", "delete"}},
			{Resource: "none", Scope: namespaced, Verbs: []string{"list", "deletecollection"}},
			{Resource: "globals", Scope: apidiscoveryv2.ScopeCluster, Verbs: []string{"list", "delete"}},
			{Resource: "reviews", Scope: namespaced, Verbs: []string{"create"}},
			{Resource: "readonly", Scope: namespaced, Verbs: []string{"list"}},
		}}}}}
	rest := tab.emptyNamespace(t.Context(), "n/..")
	want := gc.Remaining{Objects: map[string]int{"things.g": 2}, Finalizers: map[string]int{"f": 1}}
	if fmt.Sprint(rest.Objects, rest.Finalizers) != fmt.Sprint(want.Objects, want.Finalizers) || len(rest.Errors) != 1 || !strings.Contains(fmt.Sprint(rest.Errors), "things.g of APIService v1.g: not you") {
		t.Errorf("left %v, held by %v, failed %v", rest.Objects, rest.Finalizers, rest.Errors)
	}
	if len(deleted) != 2 {
		t.Errorf("deleted %q", deleted)
	}
}
