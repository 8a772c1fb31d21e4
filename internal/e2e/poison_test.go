package e2e

// These tests put bad objects of every type that a background worker processes into the file of a
// stopped server. Then they start a server with this file and check that each worker still
// processes the other objects. The log must report each bad object once, and DELETE must remove it.
//
//	go test -run TestOneBadObjectStopsNothingElse -v ./internal/e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
	"go.etcd.io/bbolt"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/history"
	"apilet/internal/scheme"
	"apilet/internal/store"
	"apilet/internal/store/storetest"
)

// A victim is an object that a test will damage.
type victim struct{ collection, body, key string }

const (
	shopPath  = "/api/v1/namespaces/shop/"
	rbacPath  = "/apis/rbac.authorization.k8s.io/v1/"
	hooksPath = "/apis/admissionregistration.k8s.io/v1/"
)

// victims returns objects of all types with a background worker. The name of the poison is appended
// to their names. There are also sound objects of the same types. The Namespace is named
// "doomed-..." and contains one of the other victims.
func (s *poisoned) victims(poison string) []victim {
	const meta = `{"metadata":{"name":"bad"}`
	all := []victim{
		{"/api/v1/namespaces", `{"metadata":{"name":"doomed"}}`, "//namespaces//doomed"},
		{"/api/v1/namespaces/doomed/configmaps", configMap("bad", "a", "b"), "//configmaps/doomed/bad"},
		{shopPath + "configmaps", configMap("bad", "a", "b"), "//configmaps/shop/bad"},
		{shopPath + "secrets", accountSecret("bad", "sound"), "//secrets/shop/bad"},
		{shopPath + "serviceaccounts", meta + "}", "//serviceaccounts/shop/bad"},
		{shopPath + "pods", `{"metadata":{"name":"bad"},"spec":{"nodeName":"n1","containers":[{"name":"c","image":"i"}]}}`, "//pods/shop/bad"},
		{shopPath + "services", meta + `,"spec":{"ports":[{"port":80}]}}`, "//services/shop/bad"},
		{shopPath + "resourcequotas", meta + `,"spec":{"hard":{"count/leases.coordination.k8s.io":"5"}}}`, "//resourcequotas/shop/bad"},
		{"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices", meta + `,"addressType":"IPv4","endpoints":[]}`, "/discovery.k8s.io/endpointslices/shop/bad"},
		{rbacPath + "namespaces/shop/roles", meta + "}", "/rbac.authorization.k8s.io/roles/shop/bad"},
		{rbacPath + "clusterroles", meta + "}", "/rbac.authorization.k8s.io/clusterroles//bad"},
		{rbacPath + "clusterrolebindings", meta + `,"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"}}`,
			"/rbac.authorization.k8s.io/clusterrolebindings//bad"},
		{"/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", meta + `,"spec":{"priorityLevelConfiguration":{"name":"catch-all"}}}`,
			"/flowcontrol.apiserver.k8s.io/flowschemas//bad"},
		{"/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations", meta + `,"spec":{"type":"Limited","limited":{"limitResponse":{"type":"Reject"}}}}`,
			"/flowcontrol.apiserver.k8s.io/prioritylevelconfigurations//bad"},
		{"/apis/scheduling.k8s.io/v1/priorityclasses", meta + `,"value":7}`, "/scheduling.k8s.io/priorityclasses//bad"},
		{"/apis/apiregistration.k8s.io/v1/apiservices", `{"metadata":{"name":"v1.bad.example"},"spec":{"group":"bad.example","version":"v1","groupPriorityMinimum":9,"versionPriority":9,"service":{"namespace":"a","name":"b"}}}`,
			"/apiregistration.k8s.io/apiservices//v1.bad.example"},
		{hooksPath + "mutatingwebhookconfigurations", meta + "}", "/admissionregistration.k8s.io/mutatingwebhookconfigurations//bad"},
		{hooksPath + "validatingadmissionpolicies", meta + `,"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["nodes"]}]},"validations":[{"expression":"true"}]}}`,
			"/admissionregistration.k8s.io/validatingadmissionpolicies//bad"},
		{"/api/v1/nodes", meta + "}", "//nodes//bad"},
		{definitionsPath, kubetest.SimpleDefinition(s.t, "Bad", "example.org", "{type: object}", ""), "/apiextensions.k8s.io/customresourcedefinitions//bads.example.org"},
		{widgets, widget("bad", ""), "/example.org/widgets/default/bad"},
	}
	if s.what == "damaged" { // the others would be deleted, because they are old
		all = append(all, victim{shopPath + "events", meta + `,"involvedObject":{"namespace":"shop"}}`, "//events/shop/bad"})
	}
	named := strings.NewReplacer("doomed", "doomed-"+poison, "bads", "bads"+poison, "bad", "bad-"+poison, "Bad", "Bads"+poison)
	for i := range all {
		v := &all[i]
		v.collection, v.body, v.key = named.Replace(v.collection), named.Replace(v.body), named.Replace(v.key)
	}
	return all
}

func accountSecret(name, account string) string {
	return `{"type":"kubernetes.io/service-account-token","metadata":{"name":"` + name + `","annotations":{"kubernetes.io/service-account.name":"` + account + `"}}}`
}

// A poison modifies the objects in a stopped file whose names end with the name of the poison.
type poison struct {
	name string
	only []string // plurals of types; nil means all

	// Either alter or rewrite is set. alter changes the data that is stored under a key whose
	// newest version is rev.
	alter func(rev, key []byte, tx *bbolt.Tx) error
	// rewrite returns another document.
	rewrite func(json []byte) []byte
}

// damages are bytes that cannot be reconstructed.
var damages = []poison{
	{name: "record", alter: func(rev, _ []byte, tx *bbolt.Tx) error { return flip(tx.Bucket([]byte("rev")), rev) }},
	{name: "entry", alter: func(_, key []byte, tx *bbolt.Tx) error { return flip(tx.Bucket([]byte("keys")), key) }},
	{name: "missing", alter: func(rev, _ []byte, tx *bbolt.Tx) error { return tx.Bucket([]byte("rev")).Delete(rev) }},
}

// flip changes one bit of a value.
func flip(b *bbolt.Bucket, key []byte) error {
	value := bytes.Clone(b.Get(key))
	value[len(value)/2] ^= 4
	return b.Put(key, value)
}

// unreadables are documents that cannot be decoded.
var unreadables = []poison{
	{name: "half", rewrite: func(json []byte) []byte { return json[:bytes.Index(json, []byte(`"uid"`))+3] }},
	{name: "rubbish", rewrite: func([]byte) []byte { return []byte("\x00 no JSON \xff") }},
	{name: "deep", rewrite: func(json []byte) []byte { return append([]byte(`{"deep":`+nested(12_000)+","), json[1:]...) }},
	{name: "late", rewrite: func(json []byte) []byte {
		return bytes.Replace(json, []byte(`"metadata":{`), []byte(`"metadata":{"deletionTimestamp":"10000-01-01T00:59:59Z",`), 1)
	}},
}

// oddities are unusual documents that can be decoded.
var oddities = []poison{
	{name: "owner", only: []string{"configmaps"}, rewrite: func(json []byte) []byte { // owns itself
		owners := fmt.Sprintf(`"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":%q,"blockOwnerDeletion":true}],`,
			gjson.GetBytes(json, "metadata.name"), gjson.GetBytes(json, "metadata.uid"))
		return bytes.Replace(json, []byte(`"metadata":{`), []byte(`"metadata":{`+owners), 1)
	}},
	{name: "enormous", only: []string{"configmaps/doomed-enormous", "widgets"}, rewrite: func(json []byte) []byte {
		return bytes.Replace(json, []byte(`"metadata":{`), []byte(`"metadata":{"annotations":{"pad":"`+strings.Repeat("x", 9<<20-2000)+`"},`), 1)
	}},
}

func TestOneBadObjectStopsNothingElse(t *testing.T) {
	t.Parallel()
	for what, poisons := range map[string][]poison{"damaged": damages, "unreadable": unreadables, "odd": oddities} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := poisonedServer(t, what, poisons)
			s.workOnOthers()
			s.checkTold()
			s.removeBad()
		})
	}
}

// A poisoned is a server with bad objects in its data file.
type poisoned struct {
	*testServer
	what   string
	bad    []victim
	doomed []string // paths of the doomed namespaces
}

func poisonedServer(t *testing.T, what string, poisons []poison) *poisoned {
	served, _ := startTLS(t, onFile(filepath.Join(t.TempDir(), "a.db")))
	s := &poisoned{testServer: served, what: what}
	s.headers = []string{"Authorization: Bearer root-token"}
	s.namespace("shop")
	s.defineWidgets()
	s.want(201, "POST", shopPath+"serviceaccounts", `{"metadata":{"name":"sound"}}`)
	s.want(201, "POST", shopPath+"events", `{"metadata":{"name":"old"},"involvedObject":{"namespace":"shop"}}`)
	planted := map[*poison][]victim{}
	for i := range poisons {
		p := &poisons[i]
		s.doomed = append(s.doomed, "/api/v1/namespaces/doomed-"+p.name)
		for _, v := range s.victims(p.name) {
			// A sound APIService would be unavailable and block the deletion of namespaces.
			if p.only != nil && strings.Contains(v.key, "/apiservices/") {
				continue
			}
			s.want(201, "POST", v.collection, v.body)
			if p.only == nil || slices.ContainsFunc(p.only, func(plural string) bool { return strings.Contains(v.key, "/"+plural+"/") }) {
				planted[p] = append(planted[p], v)
				s.bad = append(s.bad, v)
			}
		}
	}
	for _, poison := range s.doomed { // add an object to each definition that becomes bad
		_, name, _ := strings.Cut(poison, "doomed-")
		s.want(201, "POST", "/apis/example.org/v1/namespaces/default/bads"+name, fmt.Sprintf(`{"apiVersion":"example.org/v1","kind":"Bads%s","metadata":{"name":"inside"}}`, name))
	}
	s.halt()
	for p, bad := range planted {
		s.plant(p, bad)
	}
	s.plantForgotten()
	s.flags = append(s.flags, "--event-ttl=1ns", "--compaction-interval=1s", "--history=1h") // old Events are deleted every second
	s.start()
	return s
}

// plantForgotten adds objects without a definition for their type and without an existing owner.
func (s *poisoned) plantForgotten() {
	s.t.Helper()
	st, err := store.Open(s.flag("data"), store.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer st.Close()
	for _, namespace := range []string{"shop", strings.TrimPrefix(s.doomed[0], "/api/v1/namespaces/")} {
		json, at := scheme.WithoutRevision([]byte(`{"metadata":{"name":"x","namespace":"` + namespace + `","uid":"8","resourceVersion":"1",` +
			`"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"9"}]}}`))
		if _, err := st.Commit(context.Background(), store.Change{Op: store.OpCreate, Key: "/gone.example.org/things/" + namespace + "/x", JSON: json, RevAt: at}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// plant makes the objects bad in the stopped file.
func (s *poisoned) plant(p *poison, bad []victim) {
	s.t.Helper()
	st, err := store.Open(s.flag("data"), store.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	newest := map[string]int64{}
	for _, v := range bad {
		rec, err := st.Get(v.key)
		if err == nil && p.rewrite != nil {
			json, at := p.rewrite(rec.JSON), 1
			if gjson.GetBytes(json, "metadata.resourceVersion").Type == gjson.String {
				json, at = scheme.WithoutRevision(json)
			}
			_, err = st.Commit(context.Background(), store.Change{Op: store.OpUpdate, Key: v.key, Expect: rec.Rev, JSON: json, RevAt: at})
		}
		if err != nil {
			s.t.Fatal(v.key, err)
		}
		newest[v.key] = rec.Rev
	}
	if err := st.Close(); err != nil {
		s.t.Fatal(err)
	}
	if p.alter == nil {
		return
	}
	db, err := bbolt.Open(s.flag("data"), 0o600, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	if err := db.Update(func(tx *bbolt.Tx) (err error) {
		for key, rev := range newest {
			err = errors.Join(err, p.alter(binary.BigEndian.AppendUint64(nil, uint64(rev)), []byte(key), tx))
		}
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
}

// workOnOthers causes work for each worker, in the namespace of the bad objects and elsewhere.
func (s *poisoned) workOnOthers() {
	s.t.Helper()
	gone := func(paths ...string) {
		s.t.Helper()
		for _, path := range paths {
			apitest.WaitFor(s.t, path+" is gone", func() bool { return s.send("GET", path, "").code == 404 })
		}
	}
	for _, namespace := range []string{"shop", "default"} {
		maps := "/api/v1/namespaces/" + namespace + "/configmaps"
		child := func(name string, owner answer) string {
			return fmt.Sprintf(`{"metadata":{"name":%q,"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":%q,"uid":%q,"blockOwnerDeletion":true}]}}`, name,
				owner.get("metadata.name"), owner.get("metadata.uid"))
		}
		for _, policy := range []string{"Background", "Foreground", "Orphan"} {
			owner := s.want(201, "POST", maps, configMap("owner"))
			s.want(201, "POST", maps, child("child", owner))
			s.want(201, "POST", "/api/v1/namespaces/"+namespace+"/secrets", child("child", owner))
			s.want(200, "DELETE", maps+"/owner?propagationPolicy="+policy, "")
			gone(maps + "/owner")
			if policy == "Orphan" {
				apitest.WaitFor(s.t, "the child is free", func() bool { return !s.want(200, "GET", maps+"/child", "").get("metadata.ownerReferences").Exists() })
				continue
			}
			gone(maps+"/child", "/api/v1/namespaces/"+namespace+"/secrets/child")
		}
		s.want(201, "POST", maps, configMap("sound"))
	}

	brief := s.namespace("brief")
	s.want(201, "POST", brief, configMap("a"))
	apitest.WaitFor(s.t, "the first objects are there", func() bool { return s.send("GET", "/api/v1/namespaces/brief/serviceaccounts/default", "").code == 200 })
	s.want(200, "DELETE", "/api/v1/namespaces/brief/serviceaccounts/default", "")
	s.want(200, "DELETE", shopPath+"serviceaccounts/default", "")
	apitest.WaitFor(s.t, "the first objects are back", func() bool { return s.send("GET", shopPath+"serviceaccounts/default", "").code == 200 })
	s.want(200, "DELETE", "/api/v1/namespaces/brief", "")
	gone("/api/v1/namespaces/brief")

	gone(shopPath + "events/old")

	s.want(201, "POST", shopPath+"resourcequotas", `{"metadata":{"name":"sound"},"spec":{"hard":{"count/podtemplates":"1"}}}`)
	s.want(201, "POST", shopPath+"podtemplates", `{"metadata":{"name":"a"},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`)
	s.want(403, "POST", shopPath+"podtemplates", `{"metadata":{"name":"b"},"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`)
	apitest.WaitFor(s.t, "what is used is told", func() bool {
		return s.want(200, "GET", shopPath+"resourcequotas/sound", "").get(`status.used.count/podtemplates`).String() == "1"
	})

	if a := s.want(201, "POST", shopPath+"services", `{"metadata":{"name":"sound"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`); a.get("spec.clusterIP").String() == "" || a.get("spec.ports.0.nodePort").Int() == 0 {
		s.t.Errorf("a Service gets %s", a.body)
	}
	s.want(201, "POST", shopPath+"pods", `{"metadata":{"name":"sound"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	s.want(201, "POST", shopPath+"secrets", accountSecret("sound", "sound"))
	apitest.WaitFor(s.t, "the Secret has its token", func() bool { return s.want(200, "GET", shopPath+"secrets/sound", "").get("data.token").Exists() })

	const fines = "/apis/fine.example.org/v1/namespaces/default/fines"
	s.want(201, "POST", definitionsPath, kubetest.SimpleDefinition(s.t, "Fine", "fine.example.org", "{type: object}", ""))
	s.want(201, "POST", fines, `{"apiVersion":"fine.example.org/v1","kind":"Fine","metadata":{"name":"f"}}`)
	apitest.WaitFor(s.t, "its APIService is there", func() bool {
		return s.send("GET", "/apis/apiregistration.k8s.io/v1/apiservices/v1.fine.example.org", "").code == 200
	})
	s.want(200, "DELETE", definitionsPath+"/fines.fine.example.org", "")
	gone(definitionsPath+"/fines.fine.example.org", "/apis/apiregistration.k8s.io/v1/apiservices/v1.fine.example.org")

	s.want(201, "POST", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", `{"metadata":{"name":"sound"},"spec":{"priorityLevelConfiguration":{"name":"catch-all"}}}`)
	apitest.WaitFor(s.t, "the flow schema has its condition", func() bool {
		return s.want(200, "GET", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/sound", "").get("status.conditions.0.type").String() == "Dangling"
	})
	const bob = "Authorization: Bearer bob-token"
	s.want(403, "GET", shopPath+"configmaps/sound", "", bob)
	s.want(201, "POST", rbacPath+"namespaces/shop/roles", `{"metadata":{"name":"sound"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}]}`)
	s.want(201, "POST", rbacPath+"namespaces/shop/rolebindings", `{"metadata":{"name":"sound"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"sound"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"bob"}]}`)
	s.want(200, "GET", shopPath+"configmaps/sound", "", bob)

	s.want(201, "POST", hooksPath+"validatingadmissionpolicies", `{"metadata":{"name":"sound"},"spec":{"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]},"validations":[{"expression":"object.metadata.name != 'refused'"}]}}`)
	s.want(201, "POST", hooksPath+"validatingadmissionpolicybindings", `{"metadata":{"name":"sound"},"spec":{"policyName":"sound","validationActions":["Deny"]}}`)
	s.want(422, "POST", shopPath+"configmaps", configMap("refused"))
	apitest.WaitFor(s.t, "the policy's types are checked", func() bool {
		return s.want(200, "GET", hooksPath+"validatingadmissionpolicies/sound", "").get("status.observedGeneration").Int() > 0
	})
}

// path returns the object's API path.
func (v *victim) path() string { return v.collection + v.key[strings.LastIndex(v.key, "/"):] }

// checkTold requests the bad objects twice. The log must report each of them once, and must not
// repeat any other error.
func (s *poisoned) checkTold() {
	s.t.Helper()
	list, get := 200, map[string]int{"damaged": 500, "unreadable": 500, "odd": 200}[s.what]
	if s.what == "damaged" {
		list = 500
	}
	for range 2 {
		for _, v := range s.bad {
			s.want(list, "GET", v.collection, "")
			// The server does not decode the times of custom resources.
			if s.what != "unreadable" || !strings.HasSuffix(v.key, "-late") || !strings.HasPrefix(v.key, "/example.org/") {
				s.want(get, "GET", v.path(), "")
			}
		}
	}
	metric, check := "apilet_store_damaged_places", "[-]damage failed"
	if s.what == "unreadable" {
		metric, check = "apilet_store_unreadable_objects", "[-]unreadable failed"
	}
	if s.what != "odd" {
		apitest.WaitFor(s.t, "all are counted", func() bool { return metricValue(s.testServer, metric) == float64(len(s.bad)) })
		if a := s.send("GET", "/readyz?verbose", ""); a.code != 500 || !strings.Contains(string(a.body), check) {
			s.t.Errorf("/readyz: %d %s", a.code, a.body)
		}
	}
	// The checks of /readyz are not counted in places. They log one line per problem.
	said, places := map[string]int{}, ""
	for line := range strings.Lines(s.log.errors()) {
		if !strings.HasPrefix(gjson.Get(line, "what").String(), "/readyz/") {
			places += strings.ReplaceAll(line, `\"`, `"`)
		}
		said[gjson.Get(line, "place").String()+gjson.Get(line, "key").String()+gjson.Get(line, "what").String()]++
	}
	for what, times := range said {
		if times > 1 {
			s.t.Errorf("the log says %d times: %s", times, what)
		}
	}
	for _, v := range s.bad {
		if told := strings.Count(places, `"`+v.key+`"`); told != 1 && s.what != "odd" {
			s.t.Errorf("the log names %s %d times", v.key, told)
		}
	}
}

// removeBad deletes the bad objects individually or with their collection, namespace or definition.
// Afterwards, the server must be healthy.
func (s *poisoned) removeBad() {
	s.t.Helper()
	w := s.watch(shopPath+"configmaps?watch=1&timeoutSeconds=60&resourceVersion="+fmt.Sprint(int64(s.wantMetric("apilet_store_revision"))), s.headers...)
	s.want(200, "DELETE", shopPath+"configmaps", "")
	s.want(200, "DELETE", definitionsPath+"/widgets.example.org", "")
	for _, path := range s.doomed {
		s.want(200, "DELETE", path+"?dryRun=All", "")
		s.want(200, "DELETE", path, "")
	}
	for _, v := range s.bad {
		if strings.HasPrefix(v.key, "//configmaps/") || strings.HasPrefix(v.key, "/example.org/") || strings.HasPrefix(v.key, "//namespaces/") {
			continue
		}
		if s.what == "damaged" {
			s.want(409, "DELETE", v.path(), `{"preconditions":{"uid":"8"}}`)
			s.want(200, "DELETE", v.path()+"?dryRun=All", "")
			s.want(500, "GET", v.path(), "")
		}
		s.want(200, "DELETE", v.path(), "")
	}
	for _, v := range s.bad {
		apitest.WaitFor(s.t, v.key+" is gone", func() bool {
			a, err := s.try("GET", v.path(), "") // the response may be truncated if a large object is being deleted
			return err == nil && a.code == 404
		})
		if !strings.HasPrefix(v.key, "/example.org/") {
			s.want(200, "GET", v.collection, "")
		}
	}
	for _, path := range s.doomed {
		apitest.WaitFor(s.t, path+" is gone", func() bool { return s.send("GET", path, "").code == 404 })
	}
	apitest.WaitFor(s.t, "the definition is gone", func() bool { return s.send("GET", definitionsPath+"/widgets.example.org", "").code == 404 })
	if s.what == "damaged" {
		for f := range w.frames { // the watch may first return events of earlier deletions
			if f.kind == "ERROR" && f.object.Get("code").Int() == 410 {
				w = nil
				break
			}
		}
		if w != nil {
			s.t.Error("the watch is not told to begin anew")
		}
	}
	maps := s.namespace(strings.TrimPrefix(s.doomed[0], "/api/v1/namespaces/")) // the names are available again
	s.want(201, "POST", maps, configMap("new"))
	if a := s.want(200, "GET", maps, ""); a.names() != "new" {
		s.t.Errorf("the new namespace has %s", a.names())
	}
	if a := s.want(200, "GET", history.Path+"?resource=configmaps", ""); s.what == "damaged" && !strings.Contains(string(a.body), "bad-missing") {
		s.t.Errorf("the history tells no deletion of what was damaged: %.900s", a.body)
	}
	copied := storetest.WriteFile(s.t, s.want(200, "GET", "/debug/backup", "").body)
	if told := runAs(s.t, "apilet", "check", "--data", copied); told.code != 0 {
		s.t.Errorf("the backup: %s%s", told.out, told.errs)
	}
	s.compactNow(s.revision())
	s.halt()
	s.checkStopped()
	s.start()
	s.want(200, "GET", "/readyz?exclude=scrub", "")
}

// checkStopped checks the file of the stopped server. It must not have any damage, or any objects
// of deleted definitions.
func (s *poisoned) checkStopped() {
	s.t.Helper()
	report, err := store.Check(s.flag("data"))
	for _, problem := range report.Problems {
		if !strings.Contains(problem, "missing") { // there is no way to find the history of such a record
			err = errors.Join(err, errors.New(problem))
		}
	}
	if err != nil {
		s.t.Errorf("after all a check finds %v", err)
	}
	openTestStore(s.t, s.flag("data"), func(st *store.Store) (none struct{}) {
		for _, path := range s.doomed {
			_, name, _ := strings.Cut(path, "doomed-")
			if n, _, _ := st.Count("/example.org/bads" + name + "/"); n > 0 && s.what != "odd" {
				s.t.Errorf("%d objects of the deleted definition bads%s are left", n, name)
			}
		}
		return none
	})
}
