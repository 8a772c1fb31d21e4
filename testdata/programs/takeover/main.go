// Takeover runs kube-apiserver and apilet on the same etcd and compares the objects that are
// returned by both servers.
//
//	KUBE_APISERVER=… ETCD=… APILET=… go run ./testdata/programs/takeover | tee testdata/programs/takeover/transcript.txt
//
// The three are programs: kube-apiserver 1.36, etcd 3.6, and apilet. Takeover creates the objects
// of testdata/defaults (all built-in types) and objects.yaml (missing cases and custom resources),
// and prints a line for each claim. The exit code is 1 if a claim does not hold. transcript.txt is
// the last output. The argument fields runs the last chapter only.
package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	ready = 90 * time.Second
	// time until objects written by the servers themselves are visible
	settle  = 20 * time.Second
	token   = "takeover"
	mapPath = "/api/v1/namespaces/default/configmaps"
)

func main() {
	log.SetFlags(0)
	dir, err := os.MkdirTemp("", "takeover-")
	check(err)
	t := &takeover{dir: dir, client: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 64}}}
	defer os.RemoveAll(dir)
	defer t.stopAll()
	if !slices.Contains(os.Args, "fields") {
		t.run()
	}
	t.say("6. every field of every type")
	t.fields()
	if t.failed > 0 {
		fmt.Printf("%d claims do not hold\n", t.failed)
		t.stopAll()
		os.RemoveAll(dir)
		os.Exit(1)
	}
	fmt.Println("all claims hold")
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// A takeover holds the state of the test, including the running servers.
type takeover struct {
	dir     string
	etcd    string
	client  *http.Client
	failed  int
	running []*program
}

type program struct {
	name, url, log string
	command        *exec.Cmd
}

func (t *takeover) say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// claim reports the result of a check, including the problems that were found.
func (t *takeover) claim(what string, problems []string) {
	if len(problems) == 0 {
		t.say("  ok    %s", what)
		return
	}
	t.failed++
	t.say("  FAILS %s", what)
	for _, p := range problems[:min(len(problems), 20)] {
		t.say("        %s", p)
	}
}

func (t *takeover) run() {
	t.startEtcd()
	t.say("1. kube-apiserver alone makes objects of every type")
	kube := t.startKube()
	made := t.create(kube, "default", objects())
	t.say("        %d objects made", made)
	t.say("2. apilet beside it, on the same etcd")
	apilet := t.startApilet("beside")
	t.same("apilet shows what kube-apiserver made", kube, apilet)
	t.write(kube, apilet)
	t.services(kube, apilet)
	t.say("3. kube-apiserver goes: apilet alone")
	t.stop(kube)
	t.create(apilet, "again", renamed(objects()))
	t.say("4. kube-apiserver comes back, apilet goes")
	kube = t.startKube()
	t.same("kube-apiserver shows what apilet made", apilet, kube)
	t.write(apilet, kube)
	before := t.everything(apilet)
	t.stop(apilet)
	t.claim("and goes on alone", differences(before, t.everything(kube), true))
	t.say("5. one takes the other's place under load: kube-apiserver, apilet, kube-apiserver")
	t.rolling(kube)
}

// ---- Programs

func freePort() int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (t *takeover) start(name, env, url string, args ...string) *program {
	path := os.Getenv(env)
	if path == "" {
		log.Panicf("%s is not set: the path of %s", env, name)
	}
	p := &program{name: name, url: url, command: exec.Command(path, args...)}
	out, err := os.CreateTemp(t.dir, name+"-*.log")
	check(err)
	p.log = out.Name()
	p.command.Stdout, p.command.Stderr = out, out
	check(p.command.Start())
	t.running = append(t.running, p)
	return p
}

func (t *takeover) stop(p *program) {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	_, _ = p.command.Process.Wait()
	t.running = slices.DeleteFunc(t.running, func(other *program) bool { return other == p })
	t.client.CloseIdleConnections()
}

func (t *takeover) stopAll() {
	for _, p := range slices.Clone(t.running) {
		_ = p.command.Process.Kill()
		t.stop(p)
	}
}

func (t *takeover) startEtcd() {
	client, peer := fmt.Sprint("http://127.0.0.1:", freePort()), fmt.Sprint("http://127.0.0.1:", freePort())
	t.etcd = client
	t.start("etcd", "ETCD", client, "--data-dir", filepath.Join(t.dir, "etcd"), "--name", "o", "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "o="+peer, "--log-level", "error")
}

func (t *takeover) startKube() *program {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	check(err)
	keyFile, tokens := filepath.Join(t.dir, "sa.key"), filepath.Join(t.dir, "tokens.csv")
	check(os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600))
	check(os.WriteFile(tokens, []byte(token+",admin,1,\"system:masters\"\n"), 0o600))
	port := freePort()
	p := t.start("kube-apiserver", "KUBE_APISERVER", fmt.Sprint("https://127.0.0.1:", port), "--etcd-servers", t.etcd, "--secure-port", fmt.Sprint(port),
		"--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1", "--cert-dir", filepath.Join(t.dir, "certs"), "--token-auth-file", tokens,
		"--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.96.0.0/16", "--service-account-issuer", "https://takeover",
		"--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile, "--disable-admission-plugins", "ServiceAccount",
		"--allow-privileged")
	t.await(p)
	return p
}

func (t *takeover) startApilet(name string) *program {
	port := freePort()
	p := t.start("apilet", "APILET", fmt.Sprint("http://127.0.0.1:", port), "--data", filepath.Join(t.dir, name+".db"), "--etcd-servers", t.etcd,
		"--listen", fmt.Sprint("127.0.0.1:", port), "--service-cluster-ip-range", "10.96.0.0/16", "--disable-admission-plugins", "ServiceAccount",
		"--namespace-defaults=false")
	t.await(p)
	return p
}

func (t *takeover) await(p *program) {
	for end := time.Now().Add(ready); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		code, _, err := t.call(p, "GET", "/readyz", "", nil)
		if err == nil && code == 200 {
			if code, _, err = t.call(p, "GET", "/api/v1/namespaces/default", "", nil); err == nil && code == 200 {
				return
			}
		}
	}
	code, text, err := t.call(p, "GET", "/readyz?verbose", "", nil)
	out, _ := os.ReadFile(p.log)
	log.Panicf("%s is not ready within %v: %d %s %v\n%s", p.name, ready, code, text, err, out[max(0, len(out)-4000):])
}

// ---- Requests

func (t *takeover) call(p *program, method, path, contentType string, body []byte) (int, []byte, error) {
	req, err := http.NewRequest(method, p.url+path, bytes.NewReader(body))
	check(err)
	req.Header.Set("Authorization", "Bearer "+token)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := t.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}

func (t *takeover) get(p *program, path string) (doc map[string]any, ok bool) {
	code, text, err := t.call(p, "GET", path, "", nil)
	return doc, err == nil && code == 200 && json.Unmarshal(text, &doc) == nil
}

// ---- Objects

type object = map[string]any

func objects() (all []object) {
	for _, file := range []string{"testdata/defaults/objects.yaml", "testdata/programs/takeover/objects.yaml"} {
		text, err := os.ReadFile(file)
		check(err)
		for doc := range strings.SplitSeq("\n"+string(text), "\n---") {
			var o object
			check(yaml.Unmarshal([]byte(doc), &o))
			if o != nil {
				all = append(all, harmless(o))
			}
		}
	}
	return all
}

// harmless changes the rules of webhooks to make sure that the webhooks are not called, because
// they do not exist.
func harmless(o object) object {
	hooks, _ := o["webhooks"].([]any)
	for _, hook := range hooks {
		rules, _ := hook.(object)["rules"].([]any)
		for _, rule := range rules {
			rule.(object)["apiGroups"] = []any{"nobody.example.com"}
		}
	}
	return o
}

func meta(o object) map[string]any { return o["metadata"].(map[string]any) }

// renamed returns the objects with different names. It skips objects whose name must not be
// changed.
func renamed(all []object) (out []object) {
	for _, o := range all {
		name, _ := meta(o)["name"].(string)
		switch o["kind"] {
		case "Event": // belongs to the namespace of its object
			continue
		case "CustomResourceDefinition", "APIService", "IPAddress", "ServiceCIDR", "Node", "CSINode", "CSIDriver", "Namespace":
			continue
		case "Service":
			spec := o["spec"].(object)
			if delete(spec, "healthCheckNodePort"); spec["clusterIP"] != "None" {
				delete(spec, "clusterIP")
				delete(spec, "clusterIPs")
			}
			ports, _ := spec["ports"].([]any)
			for _, port := range ports {
				delete(port.(object), "nodePort")
			}
		}
		if name != "" {
			meta(o)["name"] = name + "-again"
			out = append(out, o)
		}
	}
	return out
}

// A resource is a resource that can be listed.
type resource struct {
	path, name, kind string
	namespaced       bool
}

func (t *takeover) resources(p *program) map[string]resource {
	found := map[string]resource{}
	groups, ok := t.get(p, "/apis")
	if !ok {
		return nil
	}
	versions := []string{"/api/v1"}
	for _, g := range groups["groups"].([]any) {
		for _, v := range g.(object)["versions"].([]any) {
			versions = append(versions, "/apis/"+v.(object)["groupVersion"].(string))
		}
	}
	for _, version := range versions {
		list, ok := t.get(p, version)
		if !ok {
			continue
		}
		for _, one := range list["resources"].([]any) {
			r := one.(object)
			name, verbs := r["name"].(string), fmt.Sprint(r["verbs"])
			if strings.Contains(name, "/") || !strings.Contains(verbs, "list") || !strings.Contains(verbs, "create") {
				continue
			}
			found[version+"/"+name] = resource{version + "/" + name, name, r["kind"].(string), r["namespaced"].(bool)}
		}
	}
	return found
}

// create creates objects. Custom resources are created after their types are served. It returns the
// number of created objects.
func (t *takeover) create(p *program, namespace string, all []object) (made int) {
	var refused []string
	body := fmt.Sprintf(`{"metadata":{"name":%q}}`, namespace)
	if code, text, err := t.call(p, "POST", "/api/v1/namespaces", "application/json", []byte(body)); err != nil || code != 201 && code != 409 {
		refused = append(refused, fmt.Sprintf("the namespace: %d %s", code, text))
	}
	for _, o := range all {
		var code int
		var text []byte
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(200 * time.Millisecond) {
			path, ok := t.pathOf(p, o, namespace)
			if ok {
				body, err := json.Marshal(o)
				check(err)
				if code, text, err = t.call(p, "POST", path, "application/json", body); err == nil && code == 201 {
					made++
					break
				}
			}
			if ok && code != 404 || time.Now().After(end) {
				break
			}
		}
		if code != 201 && !strings.Contains(string(text), "already exists") {
			refused = append(refused, fmt.Sprintf("%s %s: %d %.200s", o["kind"], meta(o)["name"], code, text))
		}
	}
	t.claim(p.name+" makes objects", refused)
	return made
}

func (t *takeover) pathOf(p *program, o object, in string) (string, bool) {
	version := "/apis/" + o["apiVersion"].(string)
	if o["apiVersion"] == "v1" {
		version = "/api/v1"
	}
	list, ok := t.get(p, version)
	if !ok {
		return "", false
	}
	for _, one := range list["resources"].([]any) {
		r := one.(object)
		if name := r["name"].(string); r["kind"] == o["kind"] && !strings.Contains(name, "/") {
			namespace, _ := meta(o)["namespace"].(string)
			if r["namespaced"] != true {
				return version + "/" + name, true
			}
			if namespace == "" {
				namespace = in
			}
			return version + "/namespaces/" + namespace + "/" + name, true
		}
	}
	return "", false
}

// everything returns all objects of the server by resource, namespace and name.
func (t *takeover) everything(p *program) map[string]object {
	all := map[string]object{}
	for _, r := range t.resources(p) {
		list, ok := t.get(p, r.path)
		if !ok {
			all[r.path] = nil
			continue
		}
		items, _ := list["items"].([]any)
		for _, item := range items {
			o := item.(object)
			all[fmt.Sprint(r.path, " ", meta(o)["namespace"], "/", meta(o)["name"])] = o
		}
		all[r.path] = object{}
	}
	return all
}

// same compares all objects of two servers. It waits for objects that are written by the servers
// themselves.
func (t *takeover) same(what string, a, b *program) {
	var problems []string
	n := 0
	for end := time.Now().Add(settle); ; time.Sleep(time.Second) {
		one, other := t.everything(a), t.everything(b)
		n = 0
		for key := range one {
			if _, both := other[key]; both && strings.Contains(key, " ") {
				n++
			}
		}
		if problems = differences(one, other, false); len(problems) == 0 || time.Now().After(end) {
			break
		}
	}
	t.claim(fmt.Sprintf("%s: %d objects are equal, revisions and all", what, n), problems)
}

// differences compares two servers' objects of the types that both serve. goesOn excludes objects
// that servers update all the time.
func differences(a, b map[string]object, goesOn bool) (problems []string) {
	for key, o := range a {
		resource, name, isObject := strings.Cut(key, " ")
		other, there := b[key]
		switch _, served := b[resource]; {
		case !isObject || !served:
		case goesOn && (strings.Contains(resource, "leases") || strings.HasSuffix(name, "default/kubernetes")):
		case !there:
			problems = append(problems, "only the first has "+key)
		case !reflect.DeepEqual(o, other):
			problems = append(problems, key+": "+strings.Join(unequal("", o, other), "; "))
		}
	}
	for key := range b {
		resource, name, isObject := strings.Cut(key, " ")
		if _, served := a[resource]; isObject && served && a[key] == nil && !(goesOn && (strings.Contains(resource, "leases") || strings.Contains(name, "kube"))) {
			problems = append(problems, "only the second has "+key)
		}
	}
	slices.Sort(problems)
	return problems
}

func unequal(at string, a, b any) (out []string) {
	if one, ok := a.([]any); ok {
		if other, ok := b.([]any); ok && len(one) == len(other) {
			for i := range one {
				if !reflect.DeepEqual(one[i], other[i]) {
					out = append(out, unequal(fmt.Sprintf("%s[%d]", at, i), one[i], other[i])...)
				}
			}
			return out
		}
	}
	x, isMap := a.(object)
	y, too := b.(object)
	if !isMap || !too {
		one, _ := json.Marshal(a)
		other, _ := json.Marshal(b)
		return []string{fmt.Sprintf("%s is %.150s and %.150s", at, one, other)}
	}
	for name := range x {
		if !reflect.DeepEqual(x[name], y[name]) {
			out = append(out, unequal(at+"."+name, x[name], y[name])...)
		}
	}
	for name := range y {
		if _, ok := x[name]; !ok {
			out = append(out, fmt.Sprintf("%s.%s is only in the second", at, name))
		}
	}
	return out
}

// ---- Concurrent writes

// write updates each object through both servers and then compares the objects.
func (t *takeover) write(a, b *program) {
	var problems []string
	n := 0
	for key, r := range t.resources(a) {
		if _, both := t.resources(b)[key]; !both || strings.Contains(key, "leases") || r.name == "events" {
			continue
		}
		list, _ := t.get(a, r.path)
		items, _ := list["items"].([]any)
		for _, item := range items[:min(len(items), 3)] {
			o := item.(object)
			path := r.path
			if r.namespaced {
				path = strings.TrimSuffix(r.path, r.name) + "namespaces/" + meta(o)["namespace"].(string) + "/" + r.name
			}
			for i, p := range []*program{a, b, a} {
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"takeover.example.com/%s":"%d"}}}`, p.name, i)
				code, text, err := t.call(p, "PATCH", path+"/"+meta(o)["name"].(string), "application/merge-patch+json", []byte(patch))
				if err != nil || code != 200 {
					problems = append(problems, fmt.Sprintf("%s, PATCH %s/%s: %d %.200s", p.name, path, meta(o)["name"], code, text))
				}
				n++
			}
		}
	}
	t.claim(fmt.Sprintf("%d patches of the same objects, by %s and %s in turn", n, a.name, b.name), problems)
	t.same("then", a, b)
}

// services creates Services with many node ports through both servers concurrently.
func (t *takeover) services(a, b *program) {
	const clients, each = 16, 8
	var mu sync.Mutex // guards the variables below
	addresses := map[any]string{}
	var problems []string
	var running sync.WaitGroup
	for i := range clients {
		running.Go(func() {
			for j := range each {
				p := []*program{a, b}[(i+j)%2]
				name := fmt.Sprintf("many-%d-%d", i, j)
				body := fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"type":"NodePort","ports":[{"port":1,"name":"a"},{"port":2,"name":"b"}]}}`, name)
				code, text, err := t.call(p, "POST", "/api/v1/namespaces/default/services", "application/json", []byte(body))
				var svc struct {
					Spec struct {
						ClusterIP string
						Ports     []struct{ NodePort int }
					}
				}
				mu.Lock()
				if err != nil || code != 201 || json.Unmarshal(text, &svc) != nil {
					problems = append(problems, fmt.Sprintf("%s: %s: %d %.200s", p.name, name, code, text))
				} else {
					for _, given := range append([]any{svc.Spec.ClusterIP}, svc.Spec.Ports[0].NodePort, svc.Spec.Ports[1].NodePort) {
						if other := addresses[given]; other != "" {
							problems = append(problems, fmt.Sprintf("%s and %s have %v", other, name, given))
						}
						addresses[given] = name
					}
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	t.claim(fmt.Sprintf("%d Services of two node ports, through both at once: %d addresses and ports, none twice", clients*each, len(addresses)), problems)
	var claims []string
	list, _ := t.get(b, "/apis/networking.k8s.io/v1/ipaddresses")
	items, _ := list["items"].([]any)
	claimed := map[string]bool{}
	for _, item := range items {
		claimed[meta(item.(object))["name"].(string)] = true
	}
	for given, name := range addresses {
		if address, ok := given.(string); ok && !claimed[address] {
			claims = append(claims, name+" has "+address+" without an IPAddress")
		}
	}
	t.claim("each address has its IPAddress", claims)
	var left []string
	for i := range clients {
		for j := range each {
			p := []*program{a, b}[(i+j+1)%2] // the server that did not create it
			if code, text, err := t.call(p, "DELETE", fmt.Sprintf("/api/v1/namespaces/default/services/many-%d-%d", i, j), "", nil); err != nil || code != 200 {
				left = append(left, fmt.Sprintf("%s: %d %.200s", p.name, code, text))
			}
		}
	}
	list, _ = t.get(a, "/apis/networking.k8s.io/v1/ipaddresses")
	items, _ = list["items"].([]any)
	for _, item := range items {
		if parent := fmt.Sprint(item.(object)["spec"]); strings.Contains(parent, "many-") {
			left = append(left, "left behind: "+parent)
		}
	}
	t.claim("each deleted by the server that did not make it, with its IPAddress", left)
}

// ---- Replacing the server

// rolling writes and watches continuously while one server replaces the other, repeatedly. The
// watcher must receive each version once, in order.
func (t *takeover) rolling(kube *program) {
	const maps = 4
	var mu sync.Mutex // guards now
	now := kube
	current := func() *program { mu.Lock(); defer mu.Unlock(); return now }
	end, stopped := make(chan struct{}), make(chan struct{})
	var written sync.WaitGroup
	last := make([]int, maps)
	for i := range maps {
		body := fmt.Sprintf(`{"metadata":{"name":"load-%d"},"data":{"n":"0"}}`, i)
		code, text, err := t.call(kube, "POST", mapPath, "application/json", []byte(body))
		if err != nil || code != 201 {
			log.Panicf("%d %s %v", code, text, err)
		}
	}
	list, _ := t.get(kube, mapPath)
	w := &follower{t: t, revision: meta(list)["resourceVersion"].(string), seen: map[string][]int{}}
	for i := range maps {
		written.Go(func() {
			for n := 1; ; n++ {
				select {
				case <-end:
					return
				default:
				}
				last[i] = t.increment(current, fmt.Sprint("load-", i), n)
				n = last[i]
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	go func() { w.follow(current, end); close(stopped) }()
	time.Sleep(3 * time.Second)
	apilet := t.startApilet("rolling")
	mu.Lock()
	now = apilet
	mu.Unlock()
	t.stop(kube)
	time.Sleep(3 * time.Second)
	again := t.startKube()
	mu.Lock()
	now = again
	mu.Unlock()
	t.stop(apilet)
	time.Sleep(3 * time.Second)
	close(end)
	written.Wait()
	w.until(last)
	<-stopped
	t.claim(fmt.Sprintf("%d writes; the watch has moved %d times, at its revision", last[0]+last[1]+last[2]+last[3], w.moves-1), w.problems(last))
}

// increment repeats writing the number n into a ConfigMap until it succeeds, through the current
// server. It returns the stored number.
func (t *takeover) increment(current func() *program, name string, n int) int {
	for {
		p := current()
		o, ok := t.get(p, mapPath+"/"+name)
		if !ok {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		var had int
		fmt.Sscan(o["data"].(object)["n"].(string), &had)
		if had >= n { // the response of an earlier write was lost
			return had
		}
		o["data"].(object)["n"] = fmt.Sprint(n)
		body, _ := json.Marshal(o)
		if code, _, err := t.call(p, "PUT", mapPath+"/"+name, "application/json", body); err == nil && code == 200 {
			return n
		}
	}
}

// A follower is a client with a watch.
type follower struct {
	t        *takeover
	revision string
	from     string // the server that it watches
	moves    int

	mu     sync.Mutex // guards the fields below
	seen   map[string][]int
	errors []string
}

// follow watches from the revision of its last event, on the current server.
func (w *follower) follow(current func() *program, end <-chan struct{}) {
	for {
		p := current()
		req, err := http.NewRequest("GET", p.url+mapPath+"?watch=1&allowWatchBookmarks=true&timeoutSeconds=30&resourceVersion="+w.revision, nil)
		check(err)
		req.Header.Set("Authorization", "Bearer "+token)
		if resp, err := w.t.client.Do(req); err == nil {
			w.moves++
			w.from = p.name
			// the server closes its watches when it stops, but a client should not have to wait for
			// this
			go func() {
				for current() == p {
					select {
					case <-end:
						time.Sleep(2 * time.Second)
						resp.Body.Close()
						return
					case <-time.After(50 * time.Millisecond):
					}
				}
				time.Sleep(time.Second)
				resp.Body.Close()
			}()
			w.read(resp.Body)
		}
		select {
		case <-end:
			return
		default:
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func (w *follower) read(body io.Reader) {
	for events := json.NewDecoder(body); ; {
		var ev struct {
			Type   string
			Object struct {
				Metadata struct{ Name, ResourceVersion string }
				Data     map[string]string
				Message  string
			}
		}
		if events.Decode(&ev) != nil {
			return
		}
		w.mu.Lock()
		switch {
		case ev.Type == "ERROR":
			w.errors = append(w.errors, fmt.Sprintf("%s, from %s: %s", w.from, w.revision, ev.Object.Message))
		case strings.HasPrefix(ev.Object.Metadata.Name, "load-"):
			var n int
			fmt.Sscan(ev.Object.Data["n"], &n)
			w.seen[ev.Object.Metadata.Name] = append(w.seen[ev.Object.Metadata.Name], n)
		}
		if rev := ev.Object.Metadata.ResourceVersion; rev != "" {
			w.revision = rev
		}
		w.mu.Unlock()
	}
}

// until waits for the last writes.
func (w *follower) until(last []int) {
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && len(w.problems(last)) > 0; time.Sleep(20 * time.Millisecond) {
	}
}

func (w *follower) problems(last []int) (problems []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	problems = slices.Clone(w.errors)
	for i, n := range last {
		name := fmt.Sprint("load-", i)
		seen := w.seen[name]
		if len(seen) != n {
			problems = append(problems, fmt.Sprintf("%s: %d events of %d writes", name, len(seen), n))
		}
		for j, got := range seen {
			if got != j+1 {
				problems = append(problems, fmt.Sprintf("%s: event %d shows %d", name, j+1, got))
				break
			}
		}
	}
	return problems
}
