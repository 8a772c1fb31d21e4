package etcd

// This file tests apilet and a kube-apiserver on the same etcd. It requires the program:
// KUBE_APISERVER=kube-apiserver go test -run Beside .

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"apilet-harness"
)

// kubernetes adds a token to all requests for a kube-apiserver.
type kubernetes struct{ http.RoundTripper }

func (k kubernetes) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+harness.Token)
	return k.RoundTripper.RoundTrip(r)
}

// startKubernetes starts a kube-apiserver that writes JSON.
func (c *cluster) startKubernetes(more ...string) *server {
	t := c.t
	t.Helper()
	kube := harness.Kubernetes(t, strings.Join(c.urls, ","), append([]string{"--storage-media-type", "application/json"}, more...)...)
	k := &server{process: &process{kube, t}}
	k.client = &http.Client{Transport: kubernetes{&http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}}
	return k
}

// TestQuotaHoldsBesideKubernetes tests a quota on two apilets and a kube-apiserver. kube-apiserver
// updates the status before it writes the object, but apilet writes both in one transaction.
func TestQuotaHoldsBesideKubernetes(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	kube := c.startKubernetes("--advertise-address", "10.9.9.9")
	client := c.client()
	servers := []*server{c.startServer(), kube, c.startServer()}
	q := limited(t, servers[0], "few", 50)
	for _, s := range servers {
		q.known(s)
	}
	q.settles(kube, 0)
	since := q.revision(client)
	for round := range 3 {
		var through, refused atomic.Int64
		var clients sync.WaitGroup
		for n := range 64 {
			clients.Go(func() {
				for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
					s := servers[n%3]
					code, text, err := s.try("POST", q.maps, aMap(fmt.Sprintf("b%d-%d", round, n), "1", ""), patience)
					switch {
					case code == http.StatusCreated:
						through.Add(1)
					case code == http.StatusForbidden && strings.Contains(text, "exceeded quota"):
						refused.Add(1)
					case code == http.StatusForbidden && strings.Contains(text, "status unknown for quota") || s == kube && code == http.StatusConflict:
						continue // the quota has changed four times meanwhile
					default:
						t.Errorf("%d %s %v", code, text, err)
					}
					return
				}
				t.Error("no answer")
			})
		}
		clients.Wait()
		if through.Load() > 50 || through.Load()+refused.Load() != 64 {
			t.Errorf("%d through, %d refused", through.Load(), refused.Load())
		}
		// kube-apiserver decides by the status, which may include a failed create for a moment.
		for n, s := 0, servers[0]; len(q.names(s)) < 50; n++ {
			s.do(201, "POST", q.maps, aMap(fmt.Sprintf("rest%d-%d", round, n), "1", ""))
		}
		q.settles(kube, 50)
		for n, name := range q.names(kube)[:40] {
			servers[n%3].do(200, "DELETE", q.maps+"/"+name, "")
		}
		q.settles(servers[round], 10)
		for n := range 30 {
			servers[n%3].do(201, "POST", q.maps, aMap(fmt.Sprintf("free%d-%d", round, n), "1", ""))
		}
		q.settles(servers[round], 40)
		for n, name := range q.names(kube) {
			servers[n%3].do(200, "DELETE", q.maps+"/"+name, "")
		}
		q.settles(servers[0], 0)
	}
	q.never(client, since, 50)
}

// TestClientsOfKubernetesMissNothingInMigrations moves the data from a file to etcd and back to a
// file. In the meantime, the objects are served by a kube-apiserver. Existing clients must have the
// current objects. Another kube-apiserver uses the same etcd with a different prefix. Its clients
// must not be disconnected by the migration.
func TestClientsOfKubernetesMissNothingInMigrations(t *testing.T) {
	t.Parallel()
	c, dir := startCluster(t, 1), t.TempDir()
	beside := c.startKubernetes("--etcd-prefix", "/beside", "--advertise-address", "10.9.9.8")
	neighbour := beside.informer()
	data := filepath.Join(dir, "data.db")
	on := startOnFile(t, data)
	client := on.informer()
	client.resume(on, on.work("file", 60))
	on.Stop()
	if said, problem := c.migrate(data); problem != "" {
		t.Fatalf("%s%s", said, problem)
	}
	neighbour.resume(beside, beside.work("beside", 3))
	neighbour.wantSame(beside, "beside a migration into etcd", 0)

	kube := c.startKubernetes("--advertise-address", "10.9.9.9")
	kube.expired(client.rev)
	client.resume(kube, kube.work("etcd", 150))
	client.wantSame(kube, "in etcd", 410)
	client.resume(kube, kube.work("etcd-more", 3))
	client.wantSame(kube, "in etcd, later", 0)
	kube.Stop()
	back := filepath.Join(dir, "back.db")
	if said, problem := c.migrate(back, "--to-file"); problem != "" {
		t.Fatalf("%s%s", said, problem)
	}
	neighbour.resume(beside, beside.work("beside-more", 3))
	neighbour.wantSame(beside, "beside a migration out of etcd", 0)

	on = startOnFile(t, back)
	on.expired(client.rev)
	client.resume(on, on.work("file-again", 150))
	client.wantSame(on, "in a file again", 410)
}
