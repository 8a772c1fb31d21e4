package e2e

// This file tests annotations and labels that affect the behavior of the server. The tests add,
// change and remove each annotation and label below. They use each kind of write, for objects and
// for subresources. testdata/metadata.txt.gz contains the responses of kube-apiserver 1.37, except
// for changes that are simply stored:
//
//	go test -run TestMetadataChangesAsInKubernetes -oracle URL -token TOKEN ./internal/e2e    records the file again

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
)

const metadataFile = "testdata/metadata.txt.gz"

// A noteKind is a type of objects and the notes to be changed in them.
type noteKind struct {
	path  string // of the collection
	title string
	body  string // an object without metadata
	subs  string // subresources, separated by spaces
	notes []string
}

// A note contains a key and two values, separated by spaces. "-" means the empty value. The prefix
// ":" marks a label. If the key starts with "!", all forms of writes and all subresources are used.
// Otherwise, only merge patches of the object and its status are used.
var (
	podNotes = []string{
		"!container.apparmor.security.beta.kubernetes.io/c unconfined runtime/default",
		"container.apparmor.security.beta.kubernetes.io/c localhost/foo unconfined",
		"container.apparmor.security.beta.kubernetes.io/c junk runtime/default",
		"container.apparmor.security.beta.kubernetes.io/c - junk",
		"container.apparmor.security.beta.kubernetes.io/c localhost/ runtime/junk",
		"container.apparmor.security.beta.kubernetes.io/i localhost/bar junk",
		"container.apparmor.security.beta.kubernetes.io/other runtime/default junk",
		"container.seccomp.security.alpha.kubernetes.io/c unconfined junk",
		"container.seccomp.security.alpha.kubernetes.io/c localhost/../x runtime/default",
		"seccomp.security.alpha.kubernetes.io/pod junk runtime/default",
		"seccomp.security.alpha.kubernetes.io/pod docker/default localhost/x",
		"!kubernetes.io/config.mirror a b", "kubernetes.io/config.source api file", "kubernetes.io/config.hash a b",
		"scheduler.alpha.kubernetes.io/critical-pod - x", "scheduler.alpha.kubernetes.io/tolerations junk []", "scheduler.alpha.kubernetes.io/affinity junk {}",
		"scheduler.alpha.kubernetes.io/node-selector a=b junk",
		"security.alpha.kubernetes.io/sysctls a=b junk", "security.alpha.kubernetes.io/unsafe-sysctls a=b junk",
		"controller.kubernetes.io/pod-deletion-cost 5 x", "controller.kubernetes.io/pod-deletion-cost 05 7", "controller.kubernetes.io/pod-deletion-cost - 99999999999",
		"kubernetes.io/limit-ranger a b", "pod.beta.kubernetes.io/init-containers [] junk", "pod.beta.kubernetes.io/hostname a b",
		"kubectl.kubernetes.io/last-applied-configuration a b", "cluster-autoscaler.kubernetes.io/safe-to-evict true junk",
		":apps.kubernetes.io/pod-index 1 x", ":statefulset.kubernetes.io/pod-name a b", ":topology.kubernetes.io/zone a b",
	}
	templateNotes = []string{
		"container.apparmor.security.beta.kubernetes.io/c unconfined runtime/default", "container.apparmor.security.beta.kubernetes.io/c junk localhost/x",
		"seccomp.security.alpha.kubernetes.io/pod junk runtime/default", "kubernetes.io/config.mirror a b", "controller.kubernetes.io/pod-deletion-cost x 5",
	}
	workloadNotes = []string{
		"deployment.kubernetes.io/revision 1 x", "deprecated.deployment.rollback.revision 1 x", "deprecated.daemonset.template.generation 5 7",
		"batch.kubernetes.io/job-tracking - x", "batch.kubernetes.io/cronjob-scheduled-timestamp 2020-01-01T00:00:00Z x", "kubernetes.io/change-cause a b",
		"scheduler.alpha.kubernetes.io/critical-pod - x", "container.apparmor.security.beta.kubernetes.io/c junk runtime/default",
	}
	commonNotes = []string{"!kubernetes.io/description a b", "!bad^key a b", ":kubernetes.io/metadata.name a b"}
)

const (
	plainPod  = `{"spec":{"initContainers":[{"name":"i","image":"i"}],"containers":[{"name":"c","image":"i"}]}}`
	plainSpec = `"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`
)

// noteKinds returns the types that have notes with a meaning.
func noteKinds(request string) []noteKind {
	group := func(group, plural, body, subs string, notes ...string) noteKind {
		return noteKind{"/apis/" + group + "/" + plural, "", body, subs, append(notes, commonNotes...)}
	}
	core := func(plural, body, subs string, notes ...string) noteKind {
		return noteKind{"/api/v1/" + plural, "", body, subs, append(notes, commonNotes...)}
	}
	const in = "namespaces/default/"
	return []noteKind{
		core(in+"pods", plainPod, "status ephemeralcontainers resize binding", podNotes...),
		core(in+"podtemplates", `{"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}`, ""),
		core("namespaces", `{}`, "status finalize", ":pod-security.kubernetes.io/enforce baseline junk", ":pod-security.kubernetes.io/enforce-version latest v1.999",
			":pod-security.kubernetes.io/warn junk restricted", ":pod-security.kubernetes.io/enforce - junk", ":pod-security.kubernetes.io/audit-version junk v1.20",
			"scheduler.alpha.kubernetes.io/node-selector a=b junk===", "scheduler.alpha.kubernetes.io/defaultTolerations junk []"),
		core("nodes", `{}`, "status", "node.alpha.kubernetes.io/ttl 0 x", "volumes.kubernetes.io/controller-managed-attach-detach true x",
			"scheduler.alpha.kubernetes.io/preferAvoidPods junk {}", "scheduler.alpha.kubernetes.io/taints junk []", "alpha.kubernetes.io/provided-node-ip x 1.2.3.4",
			`scheduler.alpha.kubernetes.io/preferAvoidPods {"preferAvoidPods":[{}]} {"preferAvoidPods":[]}`,
			":beta.kubernetes.io/os linux x", ":kubernetes.io/hostname a b", ":node-role.kubernetes.io/x - y", ":node.kubernetes.io/exclude-disruption - x"),
		core(in+"services", `{"spec":{"ports":[{"port":80}]}}`, "status", "service.kubernetes.io/topology-mode Auto junk", "service.kubernetes.io/topology-aware-hints auto junk",
			"service.alpha.kubernetes.io/tolerate-unready-endpoints true junk", "service.beta.kubernetes.io/load-balancer-source-ranges 10.0.0.0/8 junk",
			"service.beta.kubernetes.io/load-balancer-source-ranges - 10.0.0.0/33", "service.kubernetes.io/load-balancer-cleanup - x",
			":service.kubernetes.io/headless - x", ":service.kubernetes.io/service-proxy-name a b"),
		core(in+"services", `{"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`, "status", "service.beta.kubernetes.io/load-balancer-source-ranges 10.0.0.0/8 junk",
			"service.beta.kubernetes.io/load-balancer-source-ranges - 10.0.0.0/33", "service.beta.kubernetes.io/load-balancer-source-ranges 010.0.0.0/8 0.0.0.0/0"),
		core(in+"endpoints", `{"subsets":[]}`, "", "endpoints.kubernetes.io/over-capacity truncated junk", "endpoints.kubernetes.io/last-change-trigger-time junk 2020-01-01T00:00:00Z"),
		core("persistentvolumes", `{"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`, "status",
			"volume.beta.kubernetes.io/storage-class a b", "volume.beta.kubernetes.io/mount-options a b", "pv.kubernetes.io/provisioned-by a b", "volume.alpha.kubernetes.io/node-affinity junk {}"),
		core("persistentvolumes", `{"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"nfs":{"path":"/x","server":"s"}}}`, "", "volume.beta.kubernetes.io/mount-options a b"),
		core(in+"persistentvolumeclaims", `{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`, "status",
			"volume.beta.kubernetes.io/storage-class a b", "volume.beta.kubernetes.io/storage-class - Bad^", "pv.kubernetes.io/bind-completed yes x", "volume.kubernetes.io/selected-node a b",
			"volume.beta.kubernetes.io/storage-provisioner a b", "volume.kubernetes.io/storage-resizer a b"),
		core(in+"persistentvolumeclaims", `{"spec":{"storageClassName":"a","accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`, "",
			"volume.beta.kubernetes.io/storage-class a b", "volume.beta.kubernetes.io/storage-class - a"),
		core(in+"replicationcontrollers", `{"spec":{"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, "status", workloadNotes...),
		core(in+"serviceaccounts", `{}`, "", "kubernetes.io/enforce-mountable-secrets true junk", ":kubernetes.io/legacy-token-last-used 2020-01-01 junk"),
		core(in+"secrets", `{}`, "", "kubernetes.io/service-account.name a b", ":kubernetes.io/legacy-token-last-used 2020-01-01 junk"),
		core(in+"secrets", `{"type":"kubernetes.io/service-account-token"}`, "", "kubernetes.io/service-account.name a b", "kubernetes.io/service-account.name - b"),
		core(in+"configmaps", `{}`, "", "control-plane.alpha.kubernetes.io/leader a b", "endpoints.kubernetes.io/over-capacity junk truncated"),
		core(in+"resourcequotas", `{"spec":{"hard":{"pods":"5"}}}`, "status"),
		group("apps/v1", in+"deployments", `{"spec":{`+plainSpec+`}}`, "status", workloadNotes...),
		group("apps/v1", in+"replicasets", `{"spec":{`+plainSpec+`}}`, "status", workloadNotes...),
		group("apps/v1", in+"statefulsets", `{"spec":{`+plainSpec+`,"serviceName":"s"}}`, "status", workloadNotes...),
		group("apps/v1", in+"daemonsets", `{"spec":{`+plainSpec+`}}`, "status", workloadNotes...),
		group("apps/v1", in+"controllerrevisions", `{"revision":1}`, "", workloadNotes...),
		group("batch/v1", in+"jobs", `{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`, "status", workloadNotes...),
		group("batch/v1", in+"cronjobs", `{"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}}}`, "status", workloadNotes...),
		group("autoscaling/v1", in+"horizontalpodautoscalers", `{"spec":{"maxReplicas":3,"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"}}}`, "status",
			"autoscaling.alpha.kubernetes.io/metrics junk []", "autoscaling.alpha.kubernetes.io/behavior junk {}", "autoscaling.alpha.kubernetes.io/conditions junk []", "autoscaling.alpha.kubernetes.io/current-metrics junk []"),
		group("policy/v1", in+"poddisruptionbudgets", `{"spec":{"minAvailable":1}}`, "status"),
		group("networking.k8s.io/v1", in+"ingresses", `{"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`, "status", "kubernetes.io/ingress.class a b"),
		group("networking.k8s.io/v1", in+"ingresses", `{"spec":{"ingressClassName":"a","defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`, "", "kubernetes.io/ingress.class a b", "kubernetes.io/ingress.class Bad^ a"),
		group("networking.k8s.io/v1", "ingressclasses", `{"spec":{"controller":"a/b"}}`, "", "ingressclass.kubernetes.io/is-default-class true junk"),
		group("storage.k8s.io/v1", "storageclasses", `{"provisioner":"a/b"}`, "", "storageclass.kubernetes.io/is-default-class true junk", "storageclass.beta.kubernetes.io/is-default-class true junk"),
		group("storage.k8s.io/v1", "csinodes", `{"spec":{"drivers":[]}}`, "", "storage.alpha.kubernetes.io/migrated-plugins a b"),
		group("discovery.k8s.io/v1", in+"endpointslices", `{"addressType":"IPv4","endpoints":[]}`, "", "endpoints.kubernetes.io/last-change-trigger-time junk 2020-01-01T00:00:00Z",
			":kubernetes.io/service-name a b", ":endpointslice.kubernetes.io/managed-by a b"),
		group("rbac.authorization.k8s.io/v1", "clusterroles", `{"rules":[]}`, "", "rbac.authorization.kubernetes.io/autoupdate true junk", ":rbac.authorization.k8s.io/aggregate-to-view true x"),
		group("flowcontrol.apiserver.k8s.io/v1", "flowschemas", `{"spec":{"priorityLevelConfiguration":{"name":"exempt"}}}`, "status", "apf.kubernetes.io/autoupdate-spec false junk"),
		group("scheduling.k8s.io/v1", "priorityclasses", `{"value":5}`, ""),
		group("certificates.k8s.io/v1", "certificatesigningrequests", `{"spec":{"signerName":"example.com/x","usages":["client auth"],"request":"`+request+`"}}`, "status approval"),
		group("coordination.k8s.io/v1", in+"leases", `{"spec":{"holderIdentity":"a"}}`, "", "coordination.k8s.io/x a b"),
	}
}

// A noteCase is a test case that changes a note.
type noteCase struct {
	kind           *noteKind
	sub, form, op  string
	key            string
	label, every   bool
	before, after  string
	exists, stays  bool // whether the note exists before and after the change
	template, name string
}

func (c *noteCase) String() string {
	place := c.template + map[bool]string{true: "label ", false: ""}[c.label]
	return fmt.Sprintf("%s %s %s %s%s %q>%q", c.kind.title, strings.TrimPrefix(c.sub+" ", " ")+c.form, c.op, place, c.key, c.before, c.after)
}

// noteCases returns all cases in a stable order.
func noteCases(request string) (cases []*noteCase) {
	seen := map[string]int{}
	for _, kind := range noteKinds(request) {
		seen[kind.path]++
		kind.title = strings.TrimPrefix(strings.TrimPrefix(kind.path, "/apis/"), "/api/v1/") + strings.Repeat("'", seen[kind.path]-1)
		for _, note := range kind.notes {
			words := strings.Fields(note)
			for i, word := range words {
				if word == "-" {
					words[i] = ""
				}
			}
			key, every := strings.CutPrefix(words[0], "!")
			key, label := strings.CutPrefix(key, ":")
			one := noteCase{kind: &kind, every: every, key: key, label: label}
			for _, sub := range append([]string{""}, strings.Fields(kind.subs)...) {
				if every || sub == "" || sub == "status" {
					cases = append(cases, one.changes(sub, words[1], words[2])...)
				}
			}
		}
		// For ReplicationControllers, kube-apiserver also warns of the existing template.
		if kind.has("spec.template") && !strings.HasSuffix(kind.path, "replicationcontrollers") {
			cases = append(cases, templateCases(&kind)...)
		}
	}
	for i, c := range cases {
		c.name = fmt.Sprintf("note-%d", i)
	}
	return cases
}

func (k *noteKind) has(path string) bool { return gjson.Get(k.body, path).Exists() }

func templateCases(kind *noteKind) (cases []*noteCase) {
	for _, note := range templateNotes {
		words := strings.Fields(note)
		one := noteCase{kind: kind, key: words[0], template: "template "}
		cases = append(cases, one.changes("", words[1], words[2])...)
	}
	return cases
}

var kindsInEveryForm = regexp.MustCompile("/(pods|namespaces|nodes|jobs|certificatesigningrequests)$")

// changes returns the cases that write a note by a subresource.
func (c noteCase) changes(sub, one, other string) (cases []*noteCase) {
	add := func(op, form, before, after string, exists, stays bool) {
		next := c
		next.sub, next.op, next.form, next.before, next.after, next.exists, next.stays = sub, op, form, before, after, exists, stays
		cases = append(cases, &next)
	}
	switch {
	case sub == "binding" && c.key == "bad^key": // kube-apiserver stores such a key
		return nil
	case sub == "binding":
		add("add", "post", "", one, false, true)
		add("change", "post", one, other, true, true)
		return cases
	case sub == "":
		add("create", "post", "", one, false, true)
		add("create", "post", "", other, false, true)
	}
	forms := []string{"merge"}
	if c.every && kindsInEveryForm.MatchString(c.kind.path) {
		forms = []string{"merge", "put", "apply"}
	}
	for _, form := range forms {
		add("add", form, "", one, false, true)
		add("change", form, one, other, true, true)
		add("change", form, other, one, true, true)
		if form != "apply" { // apply only removes the fields that it owns
			add("remove", form, one, "", true, false)
		}
	}
	return cases
}

// A noteServer is the server that receives the requests.
type noteServer struct {
	t       *testing.T
	url     string
	headers []string
	client  *http.Client
}

func (s *noteServer) send(method, path, contentType string, body []byte) (int, http.Header, []byte) {
	r, err := http.NewRequest(method, s.url+path, bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", contentType)
	kubetest.SetHeaders(r, s.headers)
	response, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(response.Body); err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, response.Header, answer.Bytes()
}

// object returns an object of the kind, with the note if with is set.
func (c *noteCase) object(value string, with bool) map[string]any {
	var obj map[string]any
	_ = json.Unmarshal([]byte(c.kind.body), &obj)
	meta := map[string]any{"name": c.name}
	if strings.Contains(c.kind.body, "service-account-token") && c.key != "kubernetes.io/service-account.name" {
		meta["annotations"] = map[string]any{"kubernetes.io/service-account.name": "a"}
	}
	obj["metadata"] = meta
	if with {
		c.note(obj, value)
	}
	return obj
}

// note sets the note in an object. If value is nil, the note is removed by a merge patch.
func (c *noteCase) note(obj map[string]any, value any) {
	path := []string{"metadata", c.notesField()}
	if c.template != "" {
		path = slices.Concat([]string{"spec", "template"}, path)
	}
	for _, step := range path {
		next, _ := obj[step].(map[string]any)
		if next == nil {
			next = map[string]any{}
			obj[step] = next
		}
		obj = next
	}
	obj[c.key] = value
}

func (c *noteCase) notesField() string {
	return map[bool]string{true: "labels", false: "annotations"}[c.label]
}

// do makes the change and returns its outcome, or "" if it was simply stored.
func (s *noteServer) do(c *noteCase) string {
	create, _ := json.Marshal(c.object(c.before, c.exists))
	if c.op == "create" {
		create, _ = json.Marshal(c.object(c.after, true))
	}
	one := c.kind.path + "/" + c.name
	defer s.send("DELETE", one+"?gracePeriodSeconds=0&propagationPolicy=Background", "application/json", nil)
	code, header, answer := s.send("POST", c.kind.path, "application/json", create)
	if c.op == "create" {
		return c.outcome(code, header, answer)
	}
	if code != http.StatusCreated {
		return "not made"
	}
	made := answer
	if c.sub != "" {
		one += "/" + c.sub
	}
	code, header, answer = s.send(c.request(one, made))
	if c.sub == "binding" && code == http.StatusCreated {
		_, _, answer = s.send("GET", strings.TrimSuffix(one, "/binding"), "application/json", nil)
	}
	return c.outcome(code, header, answer)
}

// request returns the method, path, content type and body of the change.
func (c *noteCase) request(path string, made []byte) (string, string, string, []byte) {
	obj := map[string]any{}
	value := any(c.after)
	if !c.stays {
		value = nil
	}
	marshal := func() []byte {
		c.note(obj, value)
		body, _ := json.Marshal(obj)
		return body
	}
	switch c.form {
	case "post":
		obj = map[string]any{"metadata": map[string]any{"name": c.name}, "target": map[string]any{"kind": "Node", "name": "n"}}
		return "POST", path, "application/json", marshal()
	case "put":
		_ = json.Unmarshal(made, &obj)
		if value == nil {
			marshal()
			delete(obj["metadata"].(map[string]any)[c.notesField()].(map[string]any), c.key)
			body, _ := json.Marshal(obj)
			return "PUT", path, "application/json", body
		}
		return "PUT", path, "application/json", marshal()
	case "apply":
		obj = map[string]any{"apiVersion": gjson.GetBytes(made, "apiVersion").String(), "kind": gjson.GetBytes(made, "kind").String(), "metadata": map[string]any{"name": c.name}}
		return "PATCH", path + "?fieldManager=applier&force=true", "application/apply-patch+yaml", marshal()
	}
	return "PATCH", path, "application/merge-patch+json", marshal()
}

// outcome returns a response as one line.
func (c *noteCase) outcome(code int, header http.Header, answer []byte) string {
	words := []string{}
	for _, warning := range header["Warning"] {
		words = append(words, "warning: "+strings.TrimPrefix(warning, "299 - "))
	}
	doc := gjson.ParseBytes(answer)
	if code >= 400 {
		message := ownWords.ReplaceAllString(doc.Get("message").String(), "NAME")
		return strings.Join(append([]string{fmt.Sprint(code, " ", kubetest.RecordedWords(message))}, words...), "; ")
	}
	meta := doc.Get("metadata")
	if c.template != "" {
		meta = doc.Get("spec.template.metadata")
	}
	notes := meta.Get("annotations").Map()
	if c.label {
		notes = meta.Get("labels").Map()
	}
	value, found := notes[c.key]
	if found != c.stays || value.String() != c.after {
		words = append(words, fmt.Sprintf("%v %q", found, value.String()))
	}
	for _, key := range []string{"spec", "spec.template.spec", "template.spec"} {
		for _, path := range []string{"securityContext", "containers.#.securityContext", "initContainers.#.securityContext"} {
			if context := doc.Get(key + "." + path).Raw; len(context) > 2 {
				words = append(words, path+" "+context)
			}
		}
	}
	return strings.Join(words, "; ")
}

// ownWords matches the parts of a response that depend on the server.
var ownWords = regexp.MustCompile(`note-[0-9]+|` + kubetest.AnyUID.String())

func TestMetadataChangesAsInKubernetes(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--controllers=false")
	server := &noteServer{t, s.url, nil, s.client}
	if *kubetest.OracleURL != "" {
		server.url, server.headers = *kubetest.OracleURL, []string{"Authorization: Bearer " + *kubetest.OracleToken}
		server.client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	}
	want := map[string]string{}
	if *kubetest.OracleURL == "" {
		want = readOutcomes(t)
	}
	var recorded strings.Builder
	cases := noteCases(gjson.Get(signingRequest(t, "x", "example.com/x", "x"), "spec.request").String())
	for i, c := range cases {
		if i%apitest.Every(5) > 0 && *kubetest.OracleURL == "" {
			continue
		}
		got := ownWords.ReplaceAllString(server.do(c), "NAME")
		switch {
		case *kubetest.OracleURL == "" && got != want[c.String()]:
			t.Errorf("%v:\n got %s\nwant %s", c, got, want[c.String()])
		case got != "":
			fmt.Fprintf(&recorded, "%v = %s\n", c, got)
		}
	}
	if *kubetest.OracleURL != "" {
		writeOutcomes(t, recorded.String())
	}
}

// readOutcomes returns the recorded outcomes by case.
func readOutcomes(t *testing.T) map[string]string {
	unzipped, err := gzip.NewReader(bytes.NewReader(apitest.ReadFile(t, metadataFile)))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unzipped)
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, outcome, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " = ")
		outcomes[name] = outcome
	}
	return outcomes
}

func writeOutcomes(t *testing.T, text string) {
	var zipped bytes.Buffer
	z, _ := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	if err := os.WriteFile(metadataFile, zipped.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
