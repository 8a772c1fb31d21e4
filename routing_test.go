package main

// This file tries every door: each path that can be made of what discovery names, in each spelling, with each method, by users with
// different rights. What has to come of it is worked out from the rights alone, by a reading of them that is as simple as can be and knows
// nothing of the server's: who may not gets a 403; who may gets what the path names, and nothing else is shown or changed.

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"apilet/internal/apitest"
	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// ---- Who may what ----

// A right is one rule of a role. Its namespace is "" for everywhere; of resources and names none means all.
type right struct {
	namespace        string
	verbs            []string
	resources, names []string
}

// A tenant is a user with some rights.
type tenant struct {
	name   string
	master bool
	rights []right
}

// A deed is what a role is asked about.
type deed struct{ verb, resource, sub, namespace, name string }

func (u *tenant) may(d deed) bool {
	return u.master || slices.ContainsFunc(u.rights, func(r right) bool { return r.covers(d) })
}

func (r *right) covers(d deed) bool {
	resource := d.resource
	if d.sub != "" {
		resource += "/" + d.sub
	}
	return (r.namespace == "" || r.namespace == d.namespace) &&
		(slices.Contains(r.verbs, "*") || slices.Contains(r.verbs, d.verb)) &&
		(len(r.resources) == 0 || slices.Contains(r.resources, resource) || d.sub != "" && slices.Contains(r.resources, "*/"+d.sub)) &&
		(len(r.names) == 0 || slices.Contains(r.names, d.name))
}

var allVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// tenants are who tries. Everybody may ask about themselves.
func tenants(mains []string) []*tenant {
	all := []string{"*"}
	users := []*tenant{
		{name: "root", master: true}, {name: "nobody"},
		{name: "resident", rights: []right{{namespace: "a", verbs: all}}},
		{name: "visitor", rights: []right{{namespace: "a", verbs: []string{"get", "list", "watch"}}}},
		{name: "namesake", rights: []right{{namespace: "a", verbs: all, names: []string{"one"}}}},
		{name: "everynamesake", rights: []right{{verbs: all, names: []string{"one"}}}},
		{name: "mains", rights: []right{{namespace: "a", verbs: all, resources: mains}}},
		{name: "parts", rights: []right{{verbs: all, resources: []string{"*/status", "*/scale", "*/eviction"}}}},
	}
	for _, verb := range allVerbs {
		users = append(users, &tenant{name: "only-" + verb, rights: []right{{verbs: []string{verb}}}})
	}
	for _, u := range users {
		u.rights = append(u.rights, right{verbs: []string{"create"},
			resources: []string{"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}})
	}
	return users
}

// ---- What there is ----

// A servedType is a resource as discovery tells of it.
type servedType struct {
	root, apiVersion, kind, plural string
	namespaced, builtin            bool
	verbs                          []string
	subs                           map[string][]string // the verbs of each
	base                           string              // of its keys
	careful                        bool                // writes are dry runs: a real one would change the rules of the test, or start something
}

func (s *doorScene) discover(t *testing.T) {
	roots := []string{"/api/v1"}
	for _, v := range gjson.Get(s.try("root", "GET", "/apis", "", "").body.String(), "groups.#.versions.#.groupVersion|@flatten").Array() {
		roots = append(roots, "/apis/"+v.String())
	}
	for _, root := range roots {
		byName := map[string]*servedType{}
		list := gjson.Parse(s.try("root", "GET", root, "", "").body.String())
		for _, row := range list.Get("resources").Array() {
			var verbs []string
			for _, verb := range row.Get("verbs").Array() {
				verbs = append(verbs, verb.String())
			}
			plural, sub, part := strings.Cut(row.Get("name").String(), "/")
			if part {
				byName[plural].subs[sub] = verbs
				continue
			}
			group, version, ok := strings.Cut(list.Get("groupVersion").String(), "/")
			if !ok {
				group, version = "", group
			}
			res := s.reg.Lookup(group, version, plural)
			typ := &servedType{root: root, apiVersion: list.Get("groupVersion").String(), kind: row.Get("kind").String(), plural: plural,
				namespaced: row.Get("namespaced").Bool(), builtin: res.GoType != nil, verbs: verbs, subs: map[string][]string{"": nil, "nosuch": nil}, base: res.Base,
				careful: strings.HasPrefix(group, "rbac.") || strings.HasPrefix(group, "apiext") || strings.HasPrefix(group, "apireg") || strings.HasPrefix(group, "flow") ||
					strings.HasPrefix(group, "admission") || plural == "namespaces" || plural == "priorityclasses"}
			byName[plural] = typ
			s.types = append(s.types, typ)
			s.seed(t, res, strings.HasPrefix(group, "apiext") || strings.HasPrefix(group, "flow"))
		}
	}
}

// seed stores objects of a type that say where they are: in two namespaces, under two names.
func (s *doorScene) seed(t *testing.T, res *scheme.Resource, delicate bool) {
	if res.Virtual || res.Conversion != nil || delicate {
		return
	}
	namespaces := []string{""}
	if res.Namespaced {
		namespaces = []string{"a", "b"}
	}
	names := []string{"one", "two"}
	if res.Plural == "namespaces" {
		names = []string{"one", "two", "a", "b"}
	}
	for _, ns := range namespaces {
		for _, name := range names {
			obj := res.NewObject()
			if u, ok := obj.(*unstructured.Unstructured); ok {
				u.Object["spec"] = map[string]any{"n": int64(1)}
			}
			obj.SetNamespace(ns)
			obj.SetName(name)
			obj.SetUID(types.UID("uid-" + ns + "-" + name))
			obj.SetCreationTimestamp(metav1.Now())
			key := res.Key(ns, name)
			obj.SetAnnotations(map[string]string{"mark": "<" + key + ">"})
			json, revAt, err := res.EncodeStored(obj)
			if err != nil {
				t.Fatal(err)
			}
			s.seeds[key] = store.Change{Op: store.OpCreate, Key: key, JSON: json, RevAt: revAt}
			s.put(t, s.seeds[key])
		}
	}
}

// ---- The server ----

// A doorScene is a server whose handler is called without a network between: there are many doors.
type doorScene struct {
	*testServer
	doors http.Handler
	types []*servedType
	seeds map[string]store.Change // by key
}

// A reply keeps an answer, and ends a watch once that has shown what there is.
type reply struct {
	code   int
	header http.Header
	body   bytes.Buffer
	cancel context.CancelFunc
}

func (w *reply) Header() http.Header  { return w.header }
func (w *reply) WriteHeader(code int) { w.code = code }
func (w *reply) Flush()               {}
func (w *reply) Write(b []byte) (int, error) {
	if w.code == 0 {
		w.code = 200
	}
	w.body.Write(b)
	if bytes.Contains(b, []byte("initial-events-end")) {
		w.cancel()
	}
	return len(b), nil
}

func (s *doorScene) try(user, method, target, body, contentType string) *reply {
	return s.tryAt(s.doors, user, method, target, body, contentType)
}

func (s *doorScene) tryAt(doors http.Handler, user, method, target, body, contentType string) *reply {
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "https://127.0.0.1"+target, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+user)
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	if strings.Contains(target, "&table") {
		r.Header.Set("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1")
	}
	w := &reply{header: http.Header{}, cancel: cancel}
	doors.ServeHTTP(w, r)
	return w
}

func (s *doorScene) put(t *testing.T, c store.Change) {
	if _, err := s.st.Commit(context.Background(), c); err != nil && err != store.ErrExists {
		t.Fatal(c.Key, err)
	}
}

// mend puts back what was changed since a revision, and returns the changes.
func (s *doorScene) mend(t *testing.T, since int64) []store.Event {
	changed, _, err := s.st.Events(store.Everything, since, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range changed {
		seed, seeded := s.seeds[ev.Key]
		now, err := s.st.Get(ev.Key)
		switch {
		case err == nil && seeded:
			seed.Op, seed.Expect = store.OpUpdate, now.Rev
			s.put(t, seed)
		case err == nil:
			s.put(t, registry.Tombstone(&now))
		case seeded:
			s.put(t, seed)
		}
	}
	return changed
}

func openDoors(t *testing.T) (*doorScene, []*tenant) {
	mains := []string{"configmaps", "pods", "deployments", "serviceaccounts", "namespaces", "nodes", "widgets", "replicationcontrollers"}
	users := tenants(mains)
	var tokens strings.Builder
	for _, u := range users {
		fmt.Fprintf(&tokens, "%s,%s,,%s\n", u.name, u.name, map[bool]string{true: request.GroupMasters, false: ""}[u.master])
	}
	file := apitest.TempFile(t, "tokens.csv", tokens.String())
	server, _ := startTLS(t, func(c *config) { c.Auth.TokenFile, c.Validate, c.NamespaceDefaults = file, false, false })
	s := &doorScene{testServer: server, doors: server.http.Handler, seeds: map[string]store.Change{}}
	for _, plural := range []string{"widgets", "gadgets"} {
		s.make(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fmt.Sprintf(`{"metadata":{"name":"%[1]s.doors.io"},"spec":{"group":"doors.io",
			"scope":"%[3]s","names":{"plural":"%[1]s","singular":"%[2]s","kind":"%[2]s","listKind":"%[2]slist"},"versions":[{"name":"v1","served":true,"storage":true,
			"subresources":{"status":{},"scale":{"specReplicasPath":".spec.n","statusReplicasPath":".status.n"}},
			"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`,
			plural, strings.TrimSuffix(plural, "s"), map[bool]string{true: "Namespaced", false: "Cluster"}[plural == "widgets"]))
	}
	s.discover(t)
	for _, u := range users {
		for i, r := range u.rights {
			s.grant(t, fmt.Sprint(u.name, i), u.name, r)
		}
	}
	apitest.WaitFor(t, "the rights", func() bool {
		allowed, _ := s.auth.Decide(request.User{Name: users[len(users)-1].name}, request.Info{ResourceRequest: true, Verb: "deletecollection", Resource: "pods"})
		return allowed
	})
	apitest.WaitFor(t, "the APIService, which the server writes by itself", func() bool {
		return s.try("root", "GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1.doors.io", "", "").code == 200
	})
	s.rest() // what changes from now on a request has changed
	return s, users
}

func (s *doorScene) make(t *testing.T, path, body string) {
	t.Helper()
	if a := s.try("root", "POST", path, body, "application/json"); a.code != 201 {
		t.Fatalf("%s: %d %s", path, a.code, a.body.String())
	}
}

// grant writes a right as a role and its binding.
func (s *doorScene) grant(t *testing.T, name, user string, r right) {
	quoted := func(list []string) string { return strings.ReplaceAll(fmt.Sprintf("%q", list), `" "`, `","`) }
	path, kind := "/apis/rbac.authorization.k8s.io/v1/", "ClusterRole"
	if r.namespace != "" {
		path, kind = path+"namespaces/"+r.namespace+"/", "Role"
	}
	resources := r.resources
	if resources == nil {
		resources = []string{"*"}
	}
	s.make(t, path+strings.ToLower(kind)+"s", fmt.Sprintf(`{"metadata":{"name":%q},"rules":[{"apiGroups":["*"],"verbs":%s,"resources":%s,"resourceNames":%s}]}`,
		name, quoted(r.verbs), quoted(resources), quoted(r.names)))
	s.make(t, path+strings.ToLower(kind)+"bindings", fmt.Sprintf(`{"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":%q,"name":%q},
		"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%q}]}`, name, kind, name, user))
}

// ---- Every door ----

// A door is a path: of one type, one part of it, with or without a namespace and a name.
type door struct {
	typ                   *servedType
	watching              bool // by the deprecated path
	namespace, name, part string
}

func (d *door) path() string {
	path := d.typ.root
	if d.watching {
		path += "/watch"
	}
	if d.namespace != "" {
		path += "/namespaces/" + d.namespace
	}
	path += "/" + d.typ.plural
	for _, more := range []string{d.name, d.part} {
		if more != "" {
			path += "/" + more
		}
	}
	return path
}

// doorsOf lists the paths of a type.
func doorsOf(typ *servedType) (doors []*door) {
	for part := range typ.subs {
		for _, watching := range []bool{false, true} {
			for _, namespace := range []string{"", "a", "b"} {
				for _, name := range []string{"", "one", "two", "fresh", "a"} {
					own := typ.plural == "namespaces"
					if part != "" && name != "one" || name == "a" && !own || part == "nosuch" && own || namespace == "b" && (name == "two" || watching && !own) {
						continue
					}
					doors = append(doors, &door{typ, watching, namespace, name, part})
				}
			}
		}
	}
	return doors
}

// leads says whether kube-apiserver has such a path.
func (d *door) leads() bool {
	typ, question := d.typ, !slices.Contains(d.typ.verbs, "get")
	_, known := typ.subs[d.part]
	switch {
	case d.part == "nosuch" || !known || d.namespace != "" && !typ.namespaced:
		return false
	case d.watching:
		return slices.Contains(typ.verbs, "watch") && d.part == "" && (d.name == "" || !typ.namespaced || d.namespace != "" || !typ.builtin)
	case question:
		return d.name == "" && typ.namespaced == (d.namespace != "")
	}
	return !typ.namespaced || d.namespace != "" || d.name == ""
}

// A knock is a request at a door.
type knock struct {
	door
	method, query, body, contentType string
	asks                             deed
	selected                         string // the name that the field selector demands
	want                             int    // 0: what the door is for
	applies                          bool
}

func (d *door) knocks() (all []*knock) {
	const first = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=100"
	add := func(k knock) {
		k.door = *d
		k.judge()
		all = append(all, &k)
	}
	meta := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%%q,"annotations":{"touched":"yes"}}}`, d.typ.apiVersion, d.typ.kind)
	reads := []knock{{query: "pretty=false"}, {query: "fieldSelector=metadata.name%3Done", selected: "one"}, {query: "fieldSelector=metadata.name!%3Done&table"}, {query: first},
		{query: first + "&fieldSelector=metadata.name%3Dtwo", selected: "two"}}
	if d.part != "" {
		reads = reads[:1]
	}
	for _, k := range reads {
		if k.method = "GET"; d.watching {
			k.query += "&" + first
		}
		add(k)
	}
	dry := ""
	if d.typ.careful {
		dry = "&dryRun=All"
	}
	fresh := fmt.Sprintf(meta, "fresh")
	if d.part != "" {
		fresh = `{"metadata":{"name":"one"}}`
	}
	own := fmt.Sprintf(meta, d.name)
	add(knock{method: "POST", query: dry, body: fresh, contentType: "application/json"})
	add(knock{method: "PUT", query: dry, body: own, contentType: "application/json"})
	add(knock{method: "PATCH", query: dry, body: `{"metadata":{"annotations":{"touched":"yes"}}}`, contentType: "application/merge-patch+json"})
	add(knock{method: "PATCH", query: "fieldManager=m&force=true" + dry, body: own, contentType: "application/apply-patch+yaml", applies: true})
	add(knock{method: "DELETE", query: "propagationPolicy=Background" + dry})
	add(knock{method: "DELETE", query: "propagationPolicy=Background&fieldSelector=metadata.name%3Done" + dry, selected: "one"})
	add(knock{method: "HEAD"})
	add(knock{method: "OPTIONS"})
	return all
}

// judge says what the request asks for, and what is due to whoever may have it.
func (k *knock) judge() {
	listing := k.name == "" && (k.method == "GET" || k.method == "HEAD")
	verb := map[string]string{"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[k.method]
	k.asks = deed{verb, k.typ.plural, k.part, k.namespace, k.name}
	switch {
	case k.watching:
		k.asks.verb = "watch"
	case listing:
		if k.asks.verb, k.asks.name = "list", k.selected; strings.Contains(k.query, "watch=1") {
			k.asks.verb = "watch"
		}
	case verb == "delete" && k.name == "":
		k.asks.verb = "deletecollection"
	}
	if k.typ.plural == "namespaces" && k.namespace == "" {
		k.asks.namespace = k.name // a Namespace lies in itself
	}
	k.want = k.due()
}

func (k *knock) due() int {
	verbs, everywhere := k.typ.verbs, k.typ.namespaced && k.namespace == ""
	if k.part != "" {
		verbs = k.typ.subs[k.part]
	}
	proxied := k.part == "proxy" // which takes all methods
	served := slices.Contains(verbs, k.asks.verb) || proxied && k.method == "OPTIONS"
	switch {
	case !k.leads() || everywhere && !k.typ.builtin && k.asks.verb != "list" && k.asks.verb != "watch":
		return 404
	case k.method == "HEAD" && k.typ.builtin && !proxied, k.method == "OPTIONS" && !proxied, k.watching && k.method != "GET", everywhere && k.method != "GET" && k.method != "HEAD", !served:
		return 405
	case k.part == "" && (k.method == "POST") != (k.name == "") && (k.method == "POST" || k.method == "PUT" || k.method == "PATCH"):
		return 405
	case k.watching && k.name != "" && k.selected != "" && k.selected != k.name, k.watching && k.name != "" && strings.Contains(k.query, "!"):
		return 400
	}
	return 0
}

// spellings are other ways to write the same path.
func (k *knock) spellings() []string {
	path := k.path()
	return []string{path + "/", strings.Replace(path, "/"+k.typ.plural, fmt.Sprintf("/%%%02X%s", k.typ.plural[0], k.typ.plural[1:]), 1),
		strings.Replace(strings.Replace(path, "/one", "/%6Fne", 1), "/a/", "/%61/", 1)}
}

// misspellings look like the path, and lead nowhere.
func (k *knock) misspellings() []string {
	path, at := k.path(), "/"+k.typ.plural+"/"
	return []string{"/" + path, strings.Replace(path, at, at+"/", 1), strings.Replace(path, at, "/"+at, 1), path + "//status", path + "///one", path + "%2F", path + "%2Fstatus",
		path + "/status/one", strings.Replace(path, at, "%2F"+k.typ.plural+"/", 1), strings.Replace(path, k.typ.root, k.typ.root+"/proxy", 1),
		strings.Replace(path, at, "/../b"+at, 1), strings.Replace(path, k.typ.root, k.typ.root+"/", 1), strings.Replace(path, "/a/", "//", 1)}
}

var marks = regexp.MustCompile(`"mark":"(?:<|\\u003c)([^>\\]*)`)

// reaches says that the request is about the object with this key.
func (k *knock) reaches(key string) bool {
	base, namespace, name, _ := scheme.SplitKey(key)
	wanted := k.name
	if wanted == "" {
		wanted = k.selected
	}
	if k.method == "POST" && wanted == "" {
		wanted = "fresh"
	}
	return base == k.typ.base && (k.namespace == "" || namespace == k.namespace) && (wanted == "" || name == wanted)
}

// outcome counts what happened, so that a test in which nothing does is seen.
type outcome map[string]int

// check makes the request and holds what comes of it against what is due.
func (s *doorScene) check(t *testing.T, u *tenant, k *knock, path string, did outcome) {
	did["requests"]++
	before := s.st.Revision()
	a := s.try(u.name, k.method, path+"?"+k.query, k.body, k.contentType)
	text := a.body.String()
	changed := s.mendIf(t, before)
	denied := a.code == 403 && strings.Contains(text, "User \\\""+u.name+"\\\" cannot ")
	wrong := func(format string, args ...any) {
		did["wrong"]++
		t.Errorf("%s %s %s?%s: %s\n%d %.300s", u.name, k.method, path, k.query, fmt.Sprintf(format, args...), a.code, text)
	}
	create := k.asks
	create.verb = "create"
	nowhere := strings.Contains(text, "could not find the requested resource") || strings.HasPrefix(text, "404 page")
	connects := k.part == "exec" || k.part == "attach" || k.part == "portforward" // a GET takes the right to create besides
	switch may := u.may(k.asks); {
	case a.code >= 500 && !strings.Contains(text, "target.name: Required value") && // which kube-apiserver answers, too
		!strings.Contains(text, "no preferred addresses found") && !strings.Contains(text, "no endpoints available for service"):
		wrong("a failure")
	case !may && !denied, may && denied && (s.seeded(k) && !connects || u.may(create)):
		wrong("may is %v", may)
	case may && k.want != 0 && a.code != k.want:
		wrong("want %d", k.want)
	case may && k.want == 0 && (a.code == 405 || nowhere):
		wrong("want it served")
	case may && k.want == 0 && k.applies && !s.seeded(k) && k.part == "" && denied == u.may(create):
		wrong("may create is %v", u.may(create))
	}
	for _, ev := range changed {
		if strings.HasPrefix(ev.Key, "/networking.k8s.io/ipaddresses/") && strings.HasPrefix(k.typ.base, "//services/") {
			continue // what the Service has its address by
		}
		if did[k.method]++; a.code >= 400 || !k.reaches(ev.Key) || ev.PrevRev == 0 && !u.may(create) {
			wrong("it changed %s", ev.Key)
		}
	}
	var shown []string
	for _, found := range marks.FindAllStringSubmatch(text, -1) {
		if shown = append(shown, found[1]); a.code >= 400 || !k.reaches(found[1]) {
			wrong("it shows %s", found[1])
		}
	}
	if k.method == "GET" && a.code == 200 && k.part == "" {
		did["shown"] += len(shown)
		if want := s.reach(k); len(shown) != want {
			wrong("it shows %d of %d", len(shown), want)
		}
	}
}

func (s *doorScene) seeded(k *knock) bool {
	_, ok := s.seeds[k.typ.base+k.namespace+"/"+k.name]
	return ok
}

// reach counts the objects that a read is to show.
func (s *doorScene) reach(k *knock) (n int) {
	other := strings.Contains(k.query, "!") && k.name == ""
	for key := range s.seeds {
		if k.reaches(key) && !(other && strings.HasSuffix(key, "/one")) {
			n++
		}
	}
	return n
}

func (s *doorScene) mendIf(t *testing.T, before int64) []store.Event {
	if s.st.Revision() == before {
		return nil
	}
	return s.mend(t, before)
}

// checkAstray makes a request that must come to nothing.
func (s *doorScene) checkAstray(t *testing.T, u *tenant, k *knock, path string, did outcome) {
	did["requests"]++
	before := s.st.Revision()
	a := s.try(u.name, k.method, path+"?"+k.query, k.body, k.contentType)
	changed := s.mendIf(t, before)
	if ok := a.code >= 400 && a.code <= 415; !ok || len(changed) > 0 || marks.Match(a.body.Bytes()) {
		t.Errorf("%s %s %s?%s: %d, %d changes: %.300s", u.name, k.method, path, k.query, a.code, len(changed), a.body.String())
	}
}

// checkThen makes a request that would change something to what was: by the path of a moment, and to the API of a revision itself, as if nobody stood
// before it. That has no writer.
func (s *doorScene) checkThen(t *testing.T, u *tenant, k *knock, did outcome) {
	if k.method == "GET" || k.method == "HEAD" || k.method == "OPTIONS" {
		return
	}
	before := s.st.Revision()
	then := s.api.at(s.reg, before)
	for _, way := range []struct {
		doors http.Handler
		root  string
	}{
		{s.doors, fmt.Sprintf("/at/%d", before)},
		{s.api.instruments.record(s.auth.Authenticate(http.HandlerFunc(then.serveAPI))), ""},
	} {
		did["then"]++
		a := s.tryAt(way.doors, u.name, k.method, way.root+k.path()+"?"+k.query, k.body, k.contentType)
		changed := s.mendIf(t, before)
		if a.code < 400 || a.code > 415 || way.root != "" && a.code != 405 || len(changed) > 0 || marks.Match(a.body.Bytes()) {
			did["wrong"]++
			t.Errorf("%s %s %s%s?%s: %d, %d changes: %.300s", u.name, k.method, way.root, k.path(), k.query, a.code, len(changed), a.body.String())
		}
	}
}

// TestEveryDoor: what a user may do by the rules, and nothing else, whatever way the request is written. A master comes to every door, the
// others to every sixteenth, in turn; with APILET_DOORS=all everybody tries everything. What was is behind none of them to be changed.
func TestEveryDoor(t *testing.T) {
	t.Parallel()
	s, users := openDoors(t)
	did, turn, all := outcome{}, 0, os.Getenv("APILET_DOORS") == "all"
	for _, typ := range s.types {
		for _, d := range doorsOf(typ) {
			for _, k := range d.knocks() {
				turn++
				for i, u := range users {
					if all || i == 0 || (turn+i)%16 == 0 {
						s.check(t, u, k, k.path(), did)
					}
					if i == 0 {
						s.checkThen(t, u, k, did)
					}
					if all && i < 5 || i == turn%40 {
						s.respell(t, u, k, did)
					}
				}
				if did["wrong"] > 20 {
					t.Fatal("and so on")
				}
			}
		}
	}
	t.Logf("%d types: %v", len(s.types), did)
	for _, deed := range []string{"shown", "POST", "PUT", "PATCH", "DELETE", "then"} {
		if did[deed] < 50 {
			t.Errorf("%s: %d objects only", deed, did[deed])
		}
	}
}

// respell tries the other ways to write a path.
func (s *doorScene) respell(t *testing.T, u *tenant, k *knock, did outcome) {
	if k.name != "one" || k.part != "" || k.watching || k.namespace == "b" {
		return
	}
	for _, path := range k.spellings() {
		s.check(t, u, k, path, did)
	}
	for _, path := range k.misspellings() {
		if path != k.path() {
			s.checkAstray(t, u, k, path, did)
		}
	}
}

// A lookupCounter counts the lookups of the request's record in a context.
type lookupCounter struct {
	context.Context
	lookups *int
}

func (c lookupCounter) Value(key any) any {
	if key == (request.Key{}) {
		*c.lookups++
	}
	return c.Context.Value(key)
}

// TestRecordIsLookedUpOnce checks that each step of the chain looks the record of a request up at most once, and passes it on as a parameter.
func TestRecordIsLookedUpOnce(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const maps = "/api/v1/namespaces/default/configmaps"
	for _, c := range []struct{ method, path, body string }{
		{"POST", maps, `{"metadata":{"name":"a"}}`},
		{"PUT", maps + "/a", `{"metadata":{"name":"a"},"data":{"b":"c"}}`},
		{"GET", maps + "/a", ""},
		{"GET", maps, ""},
	} {
		lookups := 0
		steps := s.auth.Authenticate(s.auth.Impersonate(s.api.seated(s.api.throughTime(s.api.routes()))))
		counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			steps.ServeHTTP(w, r.WithContext(lookupCounter{r.Context(), &lookups}))
		})
		r := httptest.NewRequest(c.method, "http://127.0.0.1"+c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		s.api.instruments.record(counted).ServeHTTP(w, r)
		if w.Code >= 300 || lookups > 4 {
			t.Errorf("%s %s: %d, %d lookups, want at most 4", c.method, c.path, w.Code, lookups)
		}
	}
}
