package etcd

// This file tests that a ResourceQuota is enforced across several servers.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/apilettest"
)

// TestQuotaHoldsAcrossServers runs 64 concurrent clients on three servers with a quota of 50
// objects, and repeats this while one of the servers is killed.
func TestQuotaHoldsAcrossServers(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	client := c.client()
	servers := []*server{c.startServer(), c.startServer(), c.startServer()}
	q := limited(t, servers[0], "few", 50)
	for _, s := range servers {
		q.known(s)
	}
	since := q.revision(client)
	through, refused := q.race(64, func(n int) *server { return servers[n%3] })
	if through != 50 || refused != 14 {
		t.Errorf("%d through, %d refused", through, refused)
	}
	q.settles(servers[1], 50)

	// quota freed by a deletion through one server is available on the others
	for n := range 30 {
		path := fmt.Sprintf("%s/%s", q.maps, q.names(servers[n%3])[0])
		servers[n%3].do(200, "DELETE", path, "")
		servers[(n+1)%3].do(201, "POST", q.maps, aMap(fmt.Sprint("again-", n), "1", ""))
	}
	q.settles(servers[2], 50)
	q.never(client, since, 50)
}

func TestQuotaHoldsWhileServersAreKilled(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	client := c.client()
	servers := []*server{c.startServer(), c.startServer(), c.startServer()}
	q := limited(t, servers[0], "few", 50)
	for _, s := range servers {
		q.known(s)
	}
	since := q.revision(client)
	for victim := range 3 {
		others := []*server{servers[(victim+1)%3], servers[(victim+2)%3]}
		var killing sync.Once
		var came atomic.Int64
		var dead sync.WaitGroup
		dead.Add(1)
		var clients sync.WaitGroup
		for n := range 64 {
			clients.Go(func() {
				s := servers[n%3]
				code, _, err := s.try("POST", q.maps, aMap(fmt.Sprintf("k%d-%d", victim, n), "1", ""), patience)
				if err == nil && code == 201 && came.Add(1) == 10 {
					killing.Do(func() {
						servers[victim].Kill()
						dead.Done()
					})
				}
			})
		}
		clients.Wait()
		killing.Do(func() { t.Fatal("nobody was killed") })
		dead.Wait()
		// create objects until the quota is exhausted, because some results are unknown
		for n := range 64 {
			code, text, err := others[n%2].try("POST", q.maps, aMap(fmt.Sprintf("rest%d-%d", victim, n), "1", ""), patience)
			if code == 403 {
				break
			}
			if code != 201 {
				t.Fatalf("%d %s %v", code, text, err)
			}
		}
		servers[victim].Launch()
		servers[victim].ready()
		q.settles(servers[victim], 50)
		servers[victim].do(403, "POST", q.maps, aMap("more", "1", ""))
		for _, name := range q.names(servers[victim])[:45] {
			others[0].do(200, "DELETE", q.maps+"/"+name, "")
		}
		q.settles(others[1], 5)
	}
	q.never(client, since, 50)
}

// TestTwoQuotasAreChargedTogether checks two quotas with different resources, and updates that
// increase the usage.
func TestTwoQuotasAreChargedTogether(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	servers := []*server{c.startServer(), c.startServer()}
	q := limited(t, servers[0], "two", 30)
	servers[1].do(201, "POST", q.quotas, `{"metadata":{"name":"r"},"spec":{"hard":{"configmaps":"20","requests.storage":"10Gi"}}}`)
	for _, s := range servers {
		q.known(s)
	}
	apilettest.Until(t, "both servers know both", func() error {
		for _, s := range servers {
			if code, text, err := s.try("POST", "/api/v1/namespaces/two/persistentvolumeclaims?dryRun=All", aClaim("c", 11), patience); code != 403 {
				return fmt.Errorf("%d %s %v", code, text, err)
			}
		}
		return nil
	})
	if through, refused := q.race(40, func(n int) *server { return servers[n%2] }); through != 20 || refused != 20 {
		t.Errorf("%d through, %d refused", through, refused)
	}
	var made atomic.Int64
	var clients sync.WaitGroup
	for n := range 16 {
		clients.Go(func() {
			code, text, err := servers[n%2].try("POST", "/api/v1/namespaces/two/persistentvolumeclaims", aClaim(fmt.Sprint("c", n), 1), patience)
			switch {
			case code == 201:
				made.Add(1)
			case code != 403:
				t.Errorf("%d %s %v", code, text, err)
			}
		})
	}
	clients.Wait()
	if made.Load() != 10 {
		t.Errorf("%d claims of a gigabyte, of ten", made.Load())
	}
	q.settles(servers[0], 20)
	apilettest.Until(t, "what the claims take is told", func() error {
		if text := servers[1].do(200, "GET", q.quotas+"/r", ""); !strings.Contains(text, `"requests.storage":"10Gi"},"used"`) && !strings.Contains(text, `"used":{"configmaps":"20","requests.storage":"10Gi"}`) {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

func aClaim(name string, gigabytes int) string {
	return fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"%dGi"}}}}`, name, gigabytes)
}

// TestWhatOthersHaveReserved checks that a reservation by a kube-apiserver is respected until the
// object is created or the reservation expires. The test uses a client of etcd instead of a
// kube-apiserver.
func TestWhatOthersHaveReserved(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	client := c.client()
	s := c.startServer()
	q := limited(t, s, "shared", 3)
	s.do(201, "POST", q.maps, aMap("a", "1", ""))
	q.settles(s, 1)
	for round := 0; ; round++ {
		began := time.Now()
		q.reserve(client, 1, 3)
		code := make(chan int, 1)
		go func() {
			got, _, _ := s.try("POST", q.maps, aMap("c", "1", ""), patience)
			code <- got
		}()
		q.put(client, "b0")
		q.put(client, "b1")
		inTime := time.Since(began) < 2*time.Second // otherwise the reservations have expired
		if got := <-code; got != 403 && inTime {
			t.Fatalf("got %d for what was reserved", got)
		}
		for _, name := range q.names(s)[1:] {
			s.do(200, "DELETE", q.maps+"/"+name, "")
		}
		q.settles(s, 1)
		if inTime {
			break
		}
		if round == 20 {
			t.Skip("this machine is too busy")
		}
	}
	q.reserve(client, 1, 3) // only one of the two objects is created
	q.put(client, "b")
	// waits for the end of the reservation, and then succeeds
	s.do(201, "POST", q.maps, aMap("d", "1", ""))
	s.do(403, "POST", q.maps, aMap("e", "1", ""))
	q.settles(s, 3)
}

// reserve increases the usage in the status.
func (q *quotaed) reserve(client *clientv3.Client, from, to int) {
	q.Helper()
	key := "/registry/resourcequotas/" + q.name + "/q"
	apilettest.Until(q.T, "the status is raised", func() error {
		kept, err := client.Get(context.Background(), key)
		if err != nil {
			return err
		}
		was := string(kept.Kvs[0].Value)
		next := strings.Replace(was, fmt.Sprintf(`"used":{"count/configmaps":"%d"}`, from), fmt.Sprintf(`"used":{"count/configmaps":"%d"}`, to), 1)
		if next == was {
			return fmt.Errorf("not found in %s", was)
		}
		answer, err := client.Txn(context.Background()).If(clientv3.Compare(clientv3.ModRevision(key), "=", kept.Kvs[0].ModRevision)).Then(clientv3.OpPut(key, next)).Commit()
		if err == nil && !answer.Succeeded {
			err = errors.New("somebody was faster")
		}
		return err
	})
}

// put writes a ConfigMap to etcd directly.
func (q *quotaed) put(client *clientv3.Client, name string) {
	q.Helper()
	value := fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"namespace":%q,"uid":%q}}`, name, q.name, name)
	if _, err := client.Put(context.Background(), "/registry/configmaps/"+q.name+"/"+name, value); err != nil {
		q.Fatal(err)
	}
}

// A quotaed namespace has a quota for ConfigMaps.
type quotaed struct {
	*testing.T
	quotas, maps string
	name         string
}

func limited(t *testing.T, s *server, namespace string, hard int) *quotaed {
	t.Helper()
	q := &quotaed{t, "/api/v1/namespaces/" + namespace + "/resourcequotas", "/api/v1/namespaces/" + namespace + "/configmaps", namespace}
	s.do(201, "POST", "/api/v1/namespaces", fmt.Sprintf(`{"metadata":{"name":%q}}`, namespace))
	s.do(201, "POST", q.quotas, fmt.Sprintf(`{"metadata":{"name":"q"},"spec":{"hard":{"count/configmaps":"%d"}}}`, hard))
	return q
}

// known waits until the quota is visible on the server.
func (q *quotaed) known(s *server) {
	q.Helper()
	apilettest.Until(q.T, "the server knows the quota", func() error {
		code, text, err := s.try("GET", q.quotas+"/q?resourceVersion=0", "", patience)
		if code != 200 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
}

// race creates ConfigMaps at the same time from a number of clients.
func (q *quotaed) race(clients int, at func(int) *server) (through, refused int64) {
	q.Helper()
	var good, bad atomic.Int64
	var racing sync.WaitGroup
	for n := range clients {
		racing.Go(func() {
			switch code, text, err := at(n).try("POST", q.maps, aMap(fmt.Sprint("r", n), "1", ""), patience); {
			case code == http.StatusCreated:
				good.Add(1)
			case code == http.StatusForbidden && strings.Contains(text, "exceeded quota"):
				bad.Add(1)
			default:
				q.Errorf("%d %s %v", code, text, err)
			}
		})
	}
	racing.Wait()
	return good.Load(), bad.Load()
}

func (q *quotaed) names(s *server) (names []string) {
	q.Helper()
	for _, o := range read(q.T, s.do(200, "GET", q.maps, "")).Items {
		names = append(names, o.Metadata.Name)
	}
	return names
}

// settles waits until the status equals the actual number of objects, which must be want.
func (q *quotaed) settles(s *server, want int) {
	q.Helper()
	if n := len(q.names(s)); n != want {
		q.Errorf("%d objects, want %d", n, want)
	}
	apilettest.Until(q.T, "the status tells what is used", func() error {
		if used := usedOf([]byte(s.do(200, "GET", q.quotas+"/q", ""))); used != want {
			return fmt.Errorf("it says %d", used)
		}
		return nil
	})
}

func usedOf(doc []byte) int {
	var quota struct {
		Status struct{ Used map[string]string }
	}
	if json.Unmarshal(doc, &quota) != nil {
		return -1
	}
	n, err := strconv.Atoi(quota.Status.Used["count/configmaps"])
	if err != nil {
		return -1
	}
	return n
}

func (q *quotaed) revision(client *clientv3.Client) int64 {
	q.Helper()
	answer, err := client.Get(context.Background(), "/registry/nothing")
	if err != nil {
		q.Fatal(err)
	}
	return answer.Header.Revision
}

// never reads etcd's history since a revision. The number of objects must never exceed the quota or
// the status.
func (q *quotaed) never(client *clientv3.Client, since int64, hard int) {
	q.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	end, err := client.Put(ctx, "/registry/end", "")
	if err != nil {
		q.Fatal(err)
	}
	objects, quotas := "/registry/configmaps/"+q.name+"/", "/registry/resourcequotas/"+q.name+"/q"
	there, used, last, grown := map[string]bool{}, 0, int64(0), false
	check := func() {
		if len(there) > hard {
			q.Errorf("%d objects at %d", len(there), last)
		}
		if grown && used < len(there) {
			q.Errorf("%d objects at %d, and the status says %d", len(there), last, used)
		}
		grown = false
	}
	for news := range client.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(since)) {
		if news.Err() != nil {
			q.Fatal(news.Err())
		}
		for _, ev := range news.Events {
			if ev.Kv.ModRevision != last {
				check()
				last = ev.Kv.ModRevision
			}
			switch key := string(ev.Kv.Key); {
			case last >= end.Header.Revision:
				return
			case strings.HasPrefix(key, objects) && ev.Type == clientv3.EventTypeDelete:
				delete(there, key)
			case strings.HasPrefix(key, objects):
				there[key], grown = true, true
			case key == quotas:
				used = usedOf(ev.Kv.Value)
			}
		}
	}
	q.Fatal("the history has no end")
}
