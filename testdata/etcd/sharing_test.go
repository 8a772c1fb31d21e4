package etcd

// This file tests several servers on one cluster from the clients' view.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/apilettest"
)

func TestServersShareTheirObjects(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b := c.startServer(), c.startServer()
	since := read(t, b.do(200, "GET", maps, "")).Metadata.ResourceVersion
	watching := b.watch(t, maps, since)
	var want []string
	made := read(t, a.do(201, "POST", maps, aMap("o", "0", "")))
	want = append(want, "ADDED o")
	for n := range 50 { // read the last write of the other server, and write again
		from, to := a, b
		if n%2 == 1 {
			from, to = b, a
		}
		o := read(t, to.do(200, "GET", maps+"/o", ""))
		if o.Data["v"] != fmt.Sprint(n) {
			t.Fatalf("read %q after %d was written through another server", o.Data["v"], n)
		}
		to.do(200, "PUT", maps+"/o", aMap("o", fmt.Sprint(n+1), o.Metadata.ResourceVersion))
		from.do(409, "PUT", maps+"/o", aMap("o", "late", o.Metadata.ResourceVersion))
		want = append(want, "MODIFIED o")
	}
	a.do(409, "POST", maps, aMap("o", "again", ""))
	b.do(200, "PATCH", maps+"/o", `{"data":{"w":"1"}}`)
	if o := read(t, a.do(200, "PATCH", maps+"/o", `{"data":{"x":"1"}}`)); len(o.Data) != 3 || o.Metadata.UID != made.Metadata.UID {
		t.Errorf("two patches through two servers make %v", o)
	}
	a.do(200, "DELETE", maps+"/o", "")
	b.do(404, "GET", maps+"/o", "")
	b.do(404, "DELETE", maps+"/o", "")
	want = append(want, "MODIFIED o", "MODIFIED o", "DELETED o")
	apilettest.Until(t, "the watch tells everything", func() error {
		if story := watching.story(); !slices.Equal(story, want) {
			return fmt.Errorf("it tells %v", story)
		}
		return nil
	})
	// If a namespace is deleted, its objects are deleted no matter which server created them.
	a.do(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"short"}}`)
	b.do(201, "POST", "/api/v1/namespaces/short/configmaps", aMap("in", "1", ""))
	a.do(200, "DELETE", "/api/v1/namespaces/short", "")
	if code, text, err := b.try("POST", "/api/v1/namespaces/short/configmaps", aMap("more", "1", ""), patience); err != nil || code != 403 && code != 404 {
		t.Errorf("a create in a namespace that goes: %d %s %v", code, text, err)
	}
	apilettest.Until(t, "the namespace is gone", func() error {
		if code, text, err := b.try("GET", "/api/v1/namespaces/short", "", patience); code != 404 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
}

func TestOneCreateOfManyWins(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	servers := []*server{c.startServer(), c.startServer()}
	for n := range 20 {
		var racing sync.WaitGroup
		codes := make([]int, 8)
		for i := range codes {
			racing.Go(func() {
				codes[i], _, _ = servers[i%2].try("POST", maps, aMap(fmt.Sprint("r", n), fmt.Sprint(i), ""), patience)
			})
		}
		racing.Wait()
		slices.Sort(codes)
		if codes[0] != 201 || codes[1] != 409 || codes[7] != 409 {
			t.Errorf("codes of one create and seven late ones: %v", codes)
		}
	}
}

// TestDefinitionsAreInForceEverywhere checks that both servers serve a definition, and that both
// apply a role.
func TestDefinitionsAreInForceEverywhere(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b := c.startServer(), c.startServer()
	a.do(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"metadata":{"name":"widgets.a.example.com"},"spec":{"group":"a.example.com",
		"names":{"plural":"widgets","kind":"Widget"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,
		"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`)
	const path = "/apis/a.example.com/v1/namespaces/default/widgets"
	apilettest.Until(t, "the other server serves it", func() error {
		if code, text, err := b.try("GET", path, "", patience); code != 200 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
	b.do(201, "POST", path, `{"apiVersion":"a.example.com/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"n":1}}`)
	if text := a.do(200, "GET", path+"/w", ""); !strings.Contains(text, `"n":1`) {
		t.Errorf("got %s", text)
	}
	a.do(200, "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.a.example.com", "")
	client := c.client()
	apilettest.Until(t, "its objects are gone", func() error {
		kept, err := client.Get(context.Background(), "/registry/a.example.com/", clientv3.WithPrefix())
		if err != nil || len(kept.Kvs) > 0 {
			return fmt.Errorf("%v %v", kept, err)
		}
		return nil
	})
	// The quota must be enforced by the other server once it has been received.
	a.do(201, "POST", "/api/v1/namespaces/default/resourcequotas", `{"metadata":{"name":"q"},"spec":{"hard":{"count/secrets":"1"}}}`)
	a.do(201, "POST", "/api/v1/namespaces/default/secrets", `{"metadata":{"name":"s0"}}`)
	apilettest.Until(t, "the quota holds on the other server", func() error {
		code, text, err := b.try("POST", "/api/v1/namespaces/default/secrets?dryRun=All", `{"metadata":{"name":"s1"}}`, patience)
		if code != 403 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
}

// TestNothingIsLeftOfADefinition repeatedly deletes a definition while its objects are created on
// both servers. No object without a type may remain.
func TestNothingIsLeftOfADefinition(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	servers, client := []*server{c.startServer(), c.startServer()}, c.client()
	const definitions, path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/b.example.com/v1/namespaces/default/things"
	const definition = `{"metadata":{"name":"things.b.example.com"},"spec":{"group":"b.example.com","names":{"plural":"things","kind":"Thing"},
		"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
	for round := range 10 {
		servers[0].do(201, "POST", definitions, definition)
		created, ending := make(chan struct{}, 100), make(chan struct{})
		var creating sync.WaitGroup
		for n, s := range servers {
			creating.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-ending:
						return
					default:
					}
					code, _, _ := s.try("POST", path, fmt.Sprintf(`{"apiVersion":"b.example.com/v1","kind":"Thing","metadata":{"name":"t-%d-%d"}}`, n, i), patience)
					if code == 201 {
						select {
						case created <- struct{}{}:
						default:
						}
					}
				}
			})
		}
		<-created
		servers[round%2].do(200, "DELETE", definitions+"/things.b.example.com", "")
		apilettest.Until(t, "the definition is gone", func() error {
			if code, text, err := servers[round%2].try("GET", definitions+"/things.b.example.com", "", patience); code != 404 {
				return fmt.Errorf("%d %s %v", code, text, err)
			}
			return nil
		})
		close(ending)
		creating.Wait()
		if left, err := client.Get(context.Background(), "/registry/b.example.com/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || left.Count != 0 {
			t.Fatalf("round %d: %d objects have no type, %v", round, left.Count, err)
		}
	}
}

// TestClientsMoveFromServerToServer checks that lists and watches can be continued on another
// server.
func TestClientsMoveFromServerToServer(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b := c.startServer(), c.startServer()
	for n := range 30 {
		a.do(201, "POST", maps, aMap(fmt.Sprintf("o%02d", n), "1", ""))
	}
	servers, path, names, rev := []*server{a, b}, maps+"?limit=7", []string(nil), ""
	for n := 0; ; n++ {
		page := read(t, servers[n%2].do(200, "GET", path, ""))
		for _, o := range page.Items {
			names = append(names, o.Metadata.Name)
		}
		if rev == "" {
			rev = page.Metadata.ResourceVersion
		}
		if page.Metadata.ResourceVersion != rev {
			t.Fatalf("page %d is of revision %s, the first of %s", n, page.Metadata.ResourceVersion, rev)
		}
		if page.Metadata.Continue == "" {
			break
		}
		// is in none of the pages
		servers[n%2].do(201, "POST", maps, aMap(fmt.Sprintf("late%d", n), "1", ""))
		path = maps + "?limit=7&continue=" + page.Metadata.Continue
	}
	if len(names) != 30 || names[0] != "o00" || names[29] != "o29" {
		t.Errorf("the pages hold %v", names)
	}
	since := rev
	for n := range 40 { // watch for a while, then move
		s, other := servers[n%2], servers[(n+1)%2]
		want := read(t, s.do(200, "PATCH", maps+"/o00", fmt.Sprintf(`{"data":{"v":"%d"}}`, n+2)))
		w := other.watch(t, maps, since)
		apilettest.Until(t, "the watch tells of the write", func() error {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, ev := range w.events {
				if ev.Object.Metadata.ResourceVersion == want.Metadata.ResourceVersion {
					return nil
				}
			}
			return fmt.Errorf("it has told %d events", len(w.events))
		})
		w.cancel()
		since = want.Metadata.ResourceVersion
		if story := w.story(); n > 0 && len(story) != 1 {
			t.Errorf("after %s: %v", since, story)
		}
		if o := read(t, other.do(200, "GET", maps+"/o00?resourceVersion="+since, "")); o.Data["v"] != fmt.Sprint(n+2) {
			t.Errorf("not older than %s: %v", since, o)
		}
	}
	code, text, err := a.try("GET", maps+"?resourceVersion=999999999", "", patience)
	if code != 504 || !strings.Contains(text, "ResourceVersionTooLarge") || !strings.Contains(text, `"retryAfterSeconds":1`) {
		t.Errorf("the future: %d %s %v", code, text, err)
	}
}

// TestSecretsAreShared checks that data in etcd other than objects cannot be read through a server.
func TestSecretsAreShared(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a := c.startServer()
	kept, err := c.client().Get(context.Background(), "/registry/.apilet/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, kv := range kept.Kvs {
		names = append(names, string(kv.Key))
	}
	if !slices.Contains(names, "/registry/.apilet/secrets/continue-key") || !slices.Contains(names, "/registry/.apilet/lineage") {
		t.Errorf("etcd keeps %v", names)
	}
	a.do(404, "GET", "/apis/.apilet/v1/secrets", "")
}

// TestAnotherServerTakesOver checks that the background work is continued by another server if the
// leader is gone.
func TestAnotherServerTakesOver(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	servers := []*server{c.startServer(), c.startServer()}
	leads := func(s *server) bool { return strings.Contains(s.Log(), "this server is the leader") }
	apilettest.Until(t, "somebody leads", func() error {
		if !leads(servers[0]) && !leads(servers[1]) {
			return fmt.Errorf("nobody")
		}
		return nil
	})
	first, second := servers[0], servers[1]
	if leads(second) {
		first, second = second, first
	}
	first.Kill()
	second.do(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"short"}}`)
	second.do(200, "DELETE", "/api/v1/namespaces/short", "")
	begin := time.Now()
	apilettest.Until(t, "the namespace is gone", func() error {
		if code, text, err := second.try("GET", "/api/v1/namespaces/short", "", patience); code != 404 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
	t.Logf("another server took over after %v", time.Since(begin).Round(time.Millisecond))
	first.Launch()
	first.ready()
}

// TestForeignTransactions checks that unusual transactions of other etcd clients are handled, such
// as multiple changes in a revision or invalid values.
func TestForeignTransactions(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, "--max-txn-ops", "10000")
	a := c.startServer()
	client, ctx := c.client(), context.Background()
	put := func(name, value string) clientv3.Op {
		return clientv3.OpPut("/registry/configmaps/default/"+name, fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":"default","uid":"u-%s"},"data":{"v":%q}}`, name, name, value))
	}
	since := read(t, a.do(200, "GET", maps, "")).Metadata.ResourceVersion
	w := a.watch(t, maps, since)
	txn := func(ops ...clientv3.Op) int64 {
		answer, err := client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			t.Fatal(err)
		}
		return answer.Header.Revision
	}
	var ops []clientv3.Op
	for n := range 600 { // more than fit into a single message of the watch
		ops = append(ops, put(fmt.Sprintf("t%03d", n), "1"))
	}
	rev := txn(ops...)
	changed := txn(put("t000", "2"), put("t001", "2"), clientv3.OpDelete("/registry/configmaps/default/t002"), clientv3.OpPut("/registry/nonsense", "x"))
	if list := read(t, a.do(200, "GET", maps+fmt.Sprintf("?resourceVersionMatch=Exact&resourceVersion=%d", rev), "")); len(list.Items) != 600 {
		t.Errorf("%d objects at the revision that made 600", len(list.Items))
	}
	o := read(t, a.do(200, "GET", maps+"/t001", ""))
	// not rev+1, because the server also writes
	if o.Data["v"] != "2" || o.Metadata.ResourceVersion != fmt.Sprint(changed) {
		t.Errorf("got %v, written at %d", o, changed)
	}
	a.do(200, "PUT", maps+"/t001", aMap("t001", "3", o.Metadata.ResourceVersion))
	a.do(404, "GET", maps+"/t002", "")
	apilettest.Until(t, "the watch tells of each", func() error {
		if story := w.story(); len(story) != 604 || story[0] != "ADDED t000" || story[599] != "ADDED t599" || story[603] != "MODIFIED t001" {
			return fmt.Errorf("it tells %d events", len(story))
		}
		return nil
	})
	late := a.watch(t, maps, since)
	apilettest.Until(t, "a late watch tells of each", func() error {
		if story := late.story(); len(story) != 604 {
			return fmt.Errorf("it tells %d events", len(story))
		}
		return nil
	})
	ops = nil
	for n := range 5000 {
		ops = append(ops, put(fmt.Sprintf("m%04d", n), "1"))
	}
	txn(ops...)
	if _, err := client.Delete(ctx, "/registry/configmaps/default/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if list := read(t, a.do(200, "GET", maps, "")); len(list.Items) != 0 {
		t.Errorf("%d objects after all were deleted", len(list.Items))
	}
	if _, err := client.Put(ctx, "/registry/configmaps/default/rubbish", "rubbish"); err != nil {
		t.Fatal(err)
	}
	apilettest.Until(t, "rubbish is told, and in nobody's way", func() error {
		code, text, err := a.try("GET", maps+"/rubbish", "", patience)
		if code != 500 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
	a.do(200, "DELETE", maps+"/rubbish", "")
	a.do(201, "POST", maps, aMap("after", "1", ""))
	a.Kill()
	a.Launch()
	a.ready()
	a.do(200, "GET", maps+"/after", "")
	a.Stop()
	if report, err := check(a); err != nil || !strings.Contains(report, "objects") {
		t.Errorf("apilet check: %s %v", report, err)
	}
}
