package swap

// This file counts the writes of the servers while both of them are idle.

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
)

// written lists the expected writes of idle servers and the minimum time between them.
var written = []struct {
	key   *regexp.Regexp
	who   string
	every time.Duration
}{
	{regexp.MustCompile(`^/registry/masterleases/10\.9\.9\.1$`), "kube-apiserver: where it is", 9 * time.Second},
	// the lease is kept alive in etcd without creating a revision
	{regexp.MustCompile(`^/registry/masterleases/10\.9\.9\.2$`), "apilet: where it is", time.Hour},
	{regexp.MustCompile(`^/registry/(leases/kube-system|peerserverleases)/apiserver-`), "kube-apiserver: its identity", 9 * time.Second},
	{regexp.MustCompile(`^compact_rev_key$`), "either: etcd is compacted", 4 * time.Minute},
}

// begun matches the additional writes when a server starts and stops.
var begun = regexp.MustCompile(`^/registry/(masterleases/|leases/kube-system/apiserver-|peerserverleases/|\.apilet/|services/endpoints/default/kubernetes$|endpointslices/default/kubernetes$)` +
	`|^compact_rev_key$`)

const furniture = `
---
apiVersion: v1
kind: Namespace
metadata: {name: furnished}
---
apiVersion: v1
kind: Service
metadata: {name: table}
spec: {type: NodePort, ports: [{port: 80}]}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: chairs}
spec: {hard: {count/configmaps: "4", pods: "2"}}
`

// TestRest restarts the servers in turn until all objects have been processed, and then checks that
// there are no unexpected writes. Writes that are not in the list mean that the servers fight.
func TestRest(t *testing.T) {
	w := newWorld(t)
	length := 30 * time.Second
	if text := os.Getenv("REST"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal("REST:", err)
		}
	}
	// objects that are updated by both servers, such as a definition, a Service and a quota
	b := w.book("furniture")
	things := objects(t, file(t, "clients", "controller", "guestbook.yaml")+furniture)
	for _, o := range things {
		at := b.client.Resource(kinds[o["kind"].(string)])
		var in dynamic.ResourceInterface = at
		if o["kind"] == "Service" || o["kind"] == "ResourceQuota" {
			in = at.Namespace("furnished")
		}
		if _, err := b.create(in, &unstructured.Unstructured{Object: o}); err != nil {
			t.Fatal(err)
		}
	}
	// for the quota's first status and other initial writes
	time.Sleep(10 * time.Second)
	for turn := range 4 {
		s := w.sides[turn%2]
		changes := w.changes(20*time.Second, func() {
			s.server.Stop()
			if err := s.server.Run(); err != nil {
				t.Fatal(err)
			}
		})
		for key, n := range changes {
			if !begun.MatchString(key) {
				t.Errorf("restart %d, of %s: %s is written %d times", turn, s.name, key, n)
			}
		}
		t.Logf("restart %d, of %s: %s", turn, s.name, told(changes))
	}
	changes := w.changes(length, func() {})
	for key, n := range changes {
		who, most := "nobody should", 0
		for _, one := range written {
			if one.key.MatchString(key) {
				who, most = one.who, int(length/one.every)+2
			}
		}
		if n > most {
			t.Errorf("%s is written %d times in %v: %s", key, n, length, who)
		}
	}
	t.Logf("in %v: %s", length, told(changes))
}

// told formats the number of changes per key.
func told(changes map[string]int) string {
	total := 0
	var lines []string
	for key, n := range changes {
		total += n
		lines = append(lines, fmt.Sprintf("\n%5d %s", n, key))
	}
	slices.Sort(lines)
	return fmt.Sprintf("%d changes%s", total, strings.Join(lines, ""))
}

// changes counts the writes to each key while done is running and for the given time afterwards.
func (w *world) changes(length time.Duration, done func()) map[string]int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	counted := map[string]int{}
	var following sync.WaitGroup
	following.Go(func() {
		if err := w.follow(ctx, func(ev event) { counted[string(ev.Kv.Key)]++ }); err != nil {
			w.t.Error(err)
		}
	})
	time.Sleep(200 * time.Millisecond) // until etcd has created the watch
	done()
	time.Sleep(length)
	cancel()
	following.Wait()
	return counted
}
