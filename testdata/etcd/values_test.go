package etcd

// This file tests values in etcd that a server cannot simply use.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"apilet/apilettest"
)

// TestEncryptedValuesAreTold checks objects that kube-apiserver has encrypted. They are logged and
// can be deleted, and requests for them return the reason. They do not affect other objects and can
// still be read by kube-apiserver.
func TestEncryptedValuesAreTold(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	client, ctx := c.client(), context.Background()
	put := func(key, value string) {
		t.Helper()
		if _, err := client.Put(ctx, key, value); err != nil {
			t.Fatal(err)
		}
	}
	a, b := c.startServer(), c.startServer()
	b.Stop()
	// b will read a snapshot, and a the watch
	for _, file := range []string{b.data, b.data + ".replica"} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	define(a, "v1", true)
	const secrets, widgets = "/api/v1/namespaces/default/secrets", "/apis/a.example.com/v1/namespaces/default/widgets"
	put("/registry/secrets/default/before", "k8s:enc:aescbc:v1:key1:\x8f\x00\xffrubbish")
	put("/registry/a.example.com/widgets/default/w", "k8s:enc:kms:v2:vault:\x00\x01")
	for n := range 50 {
		put(fmt.Sprintf("/registry/secrets/other/s%02d", n), "k8s:enc:secretbox:v1:key1:x")
	}
	b.Launch()
	apilettest.Until(t, "a server starts with what it cannot read", func() error { return b.answers("/livez") })
	put("/registry/secrets/default/later", "k8s:enc:aesgcm:v1:key1:\x00")
	put("/registry/secrets/default/short", "k8s:enc:")
	for _, s := range []*server{a, b} {
		for path, how := range map[string]string{secrets + "/before": "k8s:enc:aescbc:v1:key1", secrets + "/later": "k8s:enc:aesgcm:v1:key1",
			secrets + "/short": "k8s:enc:unknown", widgets + "/w": "k8s:enc:kms:v2:vault"} {
			for _, request := range [][2]string{{"GET", ""}, {"PATCH", `{"metadata":{"labels":{"a":"b"}}}`}} {
				apilettest.Until(t, "the reason is told", func() error {
					code, text, err := s.try(request[0], path, request[1], patience)
					if err != nil || code != 500 || !strings.Contains(text, `"Status"`) || !strings.Contains(text, "kube-apiserver has encrypted it") || !strings.Contains(text, how) {
						return fmt.Errorf("%s %s: %d %s %v", request[0], path, code, text, err)
					}
					return nil
				})
			}
		}
		s.do(200, "GET", secrets, "")
		s.do(409, "POST", secrets, `{"metadata":{"name":"before"}}`)
		if _, text, _ := s.try("GET", "/readyz?verbose", "", patience); !strings.Contains(text, "unreadable") {
			t.Errorf("/readyz: %s", text)
		}
		if log := s.Log(); !strings.Contains(log, "kube-apiserver has encrypted it") || strings.Count(log, "an object in etcd cannot be read") > 10 {
			t.Errorf("the log: %s", log)
		}
	}
	b.do(200, "DELETE", secrets+"/later", "")
	a.do(404, "GET", secrets+"/later", "")
	put("/registry/secrets/default/before", `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"before","namespace":"default","uid":"u"},"data":{"k":"dg=="}}`)
	for _, s := range []*server{a, b} {
		if text := s.do(200, "GET", secrets+"/before", ""); !strings.Contains(text, `"dg=="`) {
			t.Errorf("written again in plain text: %s", text)
		}
	}
}

// define creates a definition with two versions.
func define(s *server, storage string, served bool) {
	s.t.Helper()
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	version := func(name string) string {
		return fmt.Sprintf(`{"name":%q,"served":%t,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}`,
			name, served && name == storage, name == storage)
	}
	versions := `"versions":[` + version("v1") + "," + version("v2") + `]`
	if code, _, _ := s.try("GET", path+"/widgets.a.example.com", "", patience); code == 200 {
		s.do(200, "PATCH", path+"/widgets.a.example.com", `{"spec":{`+versions+`}}`)
	} else {
		s.do(201, "POST", path, `{"metadata":{"name":"widgets.a.example.com"},"spec":{"group":"a.example.com","names":{"plural":"widgets","kind":"Widget"},"scope":"Namespaced",`+versions+`}}`)
	}
}

// TestDefinitionsChangeTheirVersions changes a definition's storage version back and forth, and
// finally serves no version. Its objects can be changed and deleted on both servers. Their stored
// version does not change.
func TestDefinitionsChangeTheirVersions(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b, client := c.startServer(), c.startServer(), c.client()
	path := func(version string) string { return "/apis/a.example.com/" + version + "/namespaces/default/widgets" }
	inEtcd := func(want ...string) {
		t.Helper()
		apilettest.Until(t, "etcd holds it", func() error {
			kept, err := client.Get(context.Background(), "/registry/a.example.com/widgets/default/w")
			if err != nil || len(kept.Kvs) == 0 {
				return fmt.Errorf("%v %v", kept, err)
			}
			for _, part := range want {
				if !strings.Contains(string(kept.Kvs[0].Value), part) {
					return fmt.Errorf("%s lacks %s", kept.Kvs[0].Value, part)
				}
			}
			return nil
		})
	}
	served := func(s *server, version string) {
		t.Helper()
		apilettest.Until(t, version+" is served", func() error {
			if code, text, err := s.try("GET", path(version), "", patience); code != 200 {
				return fmt.Errorf("%d %s %v", code, text, err)
			}
			return nil
		})
	}
	define(a, "v1", true)
	a.do(201, "POST", path("v1"), `{"apiVersion":"a.example.com/v1","kind":"Widget","metadata":{"name":"w","finalizers":["example.com/hold"]},"spec":{"n":1}}`)
	inEtcd(`"apiVersion":"a.example.com/v1"`, `"kind":"Widget"`)
	for n, version := range []string{"v2", "v1", "v2"} {
		writer, other := []*server{a, b}[n%2], []*server{b, a}[n%2]
		define(writer, version, true)
		served(other, version)
		inEtcd(`"apiVersion":"a.example.com/` + []string{"v1", "v2", "v1"}[n] + `"`)
		other.do(200, "PATCH", path(version)+"/w", fmt.Sprintf(`{"spec":{"m%d":true}}`, n))
		inEtcd(`"apiVersion":"a.example.com/`+version+`"`, fmt.Sprintf(`"m%d":true`, n))
	}
	define(a, "v2", false)
	apilettest.Until(t, "nothing is served", func() error {
		if code, text, err := b.try("GET", path("v2"), "", patience); code != 404 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
	b.do(200, "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.a.example.com", "")
	inEtcd(`"apiVersion":"a.example.com/v2"`, `"kind":"Widget"`, `"deletionTimestamp"`)
	define(a, "v2", true)
	served(a, "v2")
	// remove the last finalizer; the response contains the deleted object
	a.do(200, "PATCH", path("v2")+"/w", `{"metadata":{"finalizers":null}}`)
	apilettest.Until(t, "the definition is gone", func() error {
		if code, text, err := b.try("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.a.example.com", "", patience); code != 404 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
}

// TestNodePortsAreTakenEverywhere checks that a port cannot be allocated if it was already
// allocated on another server.
func TestNodePortsAreTakenEverywhere(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	servers := []*server{c.startServer(), c.startServer()}
	const path = "/api/v1/namespaces/default/services"
	service := func(name string, health, port int) string {
		return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"type":"LoadBalancer","externalTrafficPolicy":"Local","healthCheckNodePort":%d,"ports":[{"port":80,"nodePort":%d}]}}`, name, health, port)
	}
	servers[0].do(201, "POST", path, service("a", 31000, 31001))
	if text := servers[1].do(500, "POST", path, service("b", 31000, 31002)); !strings.Contains(text, "failed to allocate requested HealthCheck NodePort 31000: provided port is already allocated") {
		t.Errorf("got %s", text)
	}
	servers[1].do(500, "POST", path, service("b", 31001, 31002))
	servers[1].do(422, "POST", path, service("b", 31003, 31000))
	for n := range 20 { // both concurrently
		codes := make(chan int, len(servers))
		for i, s := range servers {
			go func() {
				code, _, _ := s.try("POST", path, service(fmt.Sprintf("r%d-%d", n, i), 31100+n, 31200+2*n+i), patience)
				codes <- code
			}()
		}
		if one, other := <-codes, <-codes; one+other != 201+500 {
			t.Errorf("one health port asked for by two: %d, %d", one, other)
		}
	}
	servers[0].do(200, "DELETE", path+"/a", "")
	apilettest.Until(t, "the ports are free again", func() error {
		code, text, err := servers[1].try("POST", path, service("b", 31000, 31001), patience)
		if code != 201 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
}

// TestDamagedReplicaIsFilledAnew checks that a replica with damaged pages is discarded and filled
// again, at the start or when the damage is found, because etcd has all data.
func TestDamagedReplicaIsFilledAnew(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a := c.startServer()
	for n := range 40 {
		a.do(201, "POST", maps, aMap(fmt.Sprintf("o%02d", n), strings.Repeat("x", 3000), ""))
	}
	a.Stop()
	whole, err := os.ReadFile(a.data)
	if err != nil {
		t.Fatal(err)
	}
	const page = 4096
	for range 25 {
		damaged := append([]byte(nil), whole...)
		at := rand.IntN(len(whole) / page)
		clear(damaged[at*page : (at+1)*page])
		if err := os.WriteFile(a.data, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		a.Launch()
		a.ready()
		// the server may find the damage later and fill the replica again
		apilettest.Until(t, "the object is read and written", func() error {
			if err := a.answers(maps + fmt.Sprintf("/o%02d", rand.IntN(40))); err != nil {
				return err
			}
			code, text, err := a.try("PATCH", maps+"/o07", fmt.Sprintf(`{"data":{"page":"%d"}}`, at), patience)
			if code != 200 {
				return fmt.Errorf("%d %s %v", code, text, err)
			}
			return nil
		})
		a.Stop()
	}
	// Also while it is in use.
	a.Launch()
	a.ready()
	file, err := os.OpenFile(a.data, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before := a.filled()
	for at := int64(4); at < int64(len(whole)/page); at++ {
		if _, err := file.WriteAt(make([]byte, page), at*page); err != nil {
			t.Fatal(err)
		}
	}
	apilettest.Until(t, "the damage is found, and a new replica filled", func() error {
		_, _, _ = a.try("GET", maps+"?resourceVersion=0", "", patience)
		_, _, _ = a.try("PATCH", maps+"/o07", `{"data":{"again":"yes"}}`, patience)
		if a.filled() == before {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	apilettest.Until(t, "all objects are there", func() error {
		code, text, err := a.try("GET", maps, "", patience)
		if code != 200 || len(read(t, text).Items) < 40 {
			return fmt.Errorf("%d %.200s %v", code, text, err)
		}
		return nil
	})
}
