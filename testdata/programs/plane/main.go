// Plane runs the control plane of a cluster with a thousand nodes on a single machine and prints
// its performance.
//
//	KUBE_CONTROLLER_MANAGER=… KUBE_SCHEDULER=… KWOK=… go run ./testdata/programs/plane -nodes 1000 -pods 10000
//
// In addition to the server, it runs kube-controller-manager, kube-scheduler, and kwok, which
// simulates the kubelets. All are unmodified release binaries. It first creates the nodes and waits
// until they are ready. It creates Deployments with a Service each and waits until all Pods are
// running. Then it leaves the cluster at rest, with occasional rollouts, and finally deletes the
// Deployments. It prints the duration of each part, the resources that each program used, and
// Kubernetes' service level indicators: the durations of API calls by verb and scope, from creation
// to Running, and from a write to its event.
//
// -on selects the servers that are compared. The columns are named memory (apilet --ephemeral),
// disk (apilet), etcd (apilet on its own etcd), and kube-apiserver (on its own etcd). The programs
// are set by APILET, KUBE_APISERVER and ETCD. If APILET is not set, the program is built. -out
// keeps the logs, a table with one row per second (seconds.csv) and a picture (pods.svg).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Settings are the values of the command line.
type settings struct {
	nodes, pods int
	size        int // Pods per Deployment
	// number of watches for the Pods of a node. Each of them uses a separate connection.
	kubelets int
	rest     time.Duration // idle time after all objects have been created
	rolls    int           // number of rollouts in that time
	patience time.Duration // time limit of each part
	out      string
}

func main() {
	log.SetFlags(log.Ltime)
	var s settings
	flag.IntVar(&s.nodes, "nodes", 1000, "how many nodes")
	flag.IntVar(&s.pods, "pods", 10000, "how many Pods")
	flag.IntVar(&s.size, "size", 100, "how many Pods a Deployment has")
	flag.IntVar(&s.kubelets, "kubelets", 0, "how many watches by spec.nodeName are open besides, each on its own connection, as kubelets have them")
	flag.DurationVar(&s.rest, "rest", time.Minute, "for how long everything is left at rest")
	flag.IntVar(&s.rolls, "rolls", 1, "how many Deployments are rolled out anew during the rest")
	flag.DurationVar(&s.patience, "patience", 30*time.Minute, "how long each part may take")
	flag.StringVar(&s.out, "out", "", "the folder for logs, seconds.csv and pods.svg (default: none is kept)")
	on := flag.String("on", "memory", "servers, with commas: memory, disk, etcd, kube-apiserver")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := compare(ctx, s, strings.Split(*on, ",")); err != nil {
		log.Fatal(err)
	}
}

// compare runs the control plane on each server and prints the table.
func compare(ctx context.Context, s settings, on []string) error {
	dir, err := os.MkdirTemp("", "plane-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if os.Getenv("APILET") == "" {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, "apilet"), ".")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, out)
		}
		os.Setenv("APILET", filepath.Join(dir, "apilet"))
	}
	var runs []*run
	for i, name := range on {
		r := &run{settings: s, name: name, dir: filepath.Join(dir, fmt.Sprint(i)), seen: newSeen()}
		if s.out != "" {
			r.dir = filepath.Join(s.out, fmt.Sprintf("%d-%s", i, name))
		}
		if err := r.whole(ctx); err != nil {
			return fmt.Errorf("on %s: %w", name, err)
		}
		runs = append(runs, r)
		printTable(os.Stdout, runs[len(runs)-1:])
	}
	if len(runs) > 1 {
		fmt.Println("\nAll together:")
		printTable(os.Stdout, runs)
	}
	if s.out == "" {
		return nil
	}
	return errors.Join(writeSeconds(filepath.Join(s.out, "seconds.csv"), runs), writePicture(filepath.Join(s.out, "pods.svg"), runs))
}

// A run contains the state of the control plane on a server.
type run struct {
	settings
	name     string // as in -on
	dir      string
	client   *client
	server   []*program // the server and, if it is used, etcd
	others   []*program // kube-controller-manager, kube-scheduler, kwok
	seen     *seen
	parts    []part
	seconds  []second
	calls    calls // of the whole run except for the rest
	atRest   calls
	watchers int // number of open watches at the end
}

// A part contains the duration of a phase and the resources used.
type part struct {
	name string
	took time.Duration
	used usage // by the server and its etcd
}

func (r *run) whole(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var background sync.WaitGroup
	defer func() {
		cancel()
		background.Wait()
		r.end()
	}()
	if err := r.begin(ctx); err != nil {
		return err
	}
	background.Go(func() { r.seen.follow(ctx, r.client) })
	background.Go(func() { r.sample(ctx) })
	background.Go(func() { r.seen.probe(ctx, r.client) })
	before, err := r.client.calls(ctx)
	if err != nil {
		return err
	}
	err = r.inParts(ctx, &background)
	after, err2 := r.client.calls(context.WithoutCancel(ctx))
	r.calls = after.since(before).since(r.atRest)
	return errors.Join(err, err2)
}

func (r *run) inParts(ctx context.Context, background *sync.WaitGroup) error {
	want := func(n int, have func(counts) int) func() bool {
		return func() bool { return have(r.seen.counts()) == n }
	}
	deployments := (r.pods + r.size - 1) / r.size
	parts := []struct {
		name string
		do   func(context.Context) error
		done func() bool
	}{
		{"nodes Ready", r.makeNodes, want(r.nodes, func(c counts) int { return c.ready })},
		{"kubelets' watches", func(ctx context.Context) error { return r.watchNodes(ctx, background) }, func() bool { return true }},
		{"Pods Running", func(ctx context.Context) error { return r.makeDeployments(ctx, deployments) },
			want(deployments*r.size, func(c counts) int { return c.running })},
		{"at rest", func(ctx context.Context) error { return r.atRestFor(ctx, deployments) },
			want(deployments*r.size, func(c counts) int { return c.running })},
		{"Pods gone", func(ctx context.Context) error { return r.deleteDeployments(ctx, deployments) },
			want(0, func(c counts) int { return c.pods })},
	}
	for _, p := range parts {
		begin, used := time.Now(), use(r.server)
		if err := p.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := r.await(ctx, p.name, p.done); err != nil {
			return err
		}
		r.parts = append(r.parts, part{name: p.name, took: time.Since(begin), used: use(r.server).since(used)})
		log.Printf("%s: %s after %.0f s", r.name, p.name, time.Since(begin).Seconds())
	}
	return nil
}

// await waits for the end of a part. It prints the progress every ten seconds.
func (r *run) await(ctx context.Context, what string, done func() bool) error {
	begin := time.Now()
	for said := begin; !done(); {
		if ended := r.ended(); ended != "" {
			return fmt.Errorf("%s has ended: see its log in %s", ended, r.dir)
		}
		if time.Since(begin) > r.patience {
			return fmt.Errorf("%s: not after %v: %+v", what, r.patience, r.seen.counts())
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			log.Printf("%s: %s: %+v", r.name, what, r.seen.counts())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return nil
}

// ---- Objects

// each calls do for the numbers from 0 to n-1 with 16 goroutines. It returns the first error.
func each(ctx context.Context, n int, do func(int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var workers sync.WaitGroup
	for range 16 {
		workers.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

func (r *run) makeNodes(ctx context.Context) error {
	size := object{"cpu": "32", "memory": "256Gi", "pods": "110"}
	return each(ctx, r.nodes, func(i int) error {
		name := nodeName(i)
		return r.client.create(ctx, "/api/v1/nodes", object{"apiVersion": "v1", "kind": "Node",
			"metadata": object{"name": name, "labels": object{"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}},
			"status":   object{"capacity": size, "allocatable": size}})
	})
}

func nodeName(i int) string       { return fmt.Sprintf("node-%04d", i) }
func namespaceOf(i int) string    { return fmt.Sprintf("load-%d", i%10) }
func deploymentName(i int) string { return fmt.Sprintf("web-%d", i) }
func deploymentPath(i int) string {
	return "/apis/apps/v1/namespaces/" + namespaceOf(i) + "/deployments/" + deploymentName(i)
}

func (r *run) makeDeployments(ctx context.Context, n int) error {
	for i := range min(n, 10) {
		namespace := object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespaceOf(i)}}
		if err := r.client.create(ctx, "/api/v1/namespaces", namespace); err != nil {
			return err
		}
	}
	return each(ctx, n, func(i int) error {
		labels := object{"app": deploymentName(i)}
		service := object{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": deploymentName(i)},
			"spec": object{"selector": labels, "ports": []object{{"port": 80}}}}
		if err := r.client.create(ctx, "/api/v1/namespaces/"+namespaceOf(i)+"/services", service); err != nil {
			return err
		}
		container := object{"name": "web", "image": "registry.example/web:1", "ports": []object{{"containerPort": 80}},
			"resources": object{"requests": object{"cpu": "100m", "memory": "64Mi"}}}
		return r.client.create(ctx, "/apis/apps/v1/namespaces/"+namespaceOf(i)+"/deployments", object{"apiVersion": "apps/v1", "kind": "Deployment",
			"metadata": object{"name": deploymentName(i)},
			"spec": object{"replicas": r.size, "selector": object{"matchLabels": labels},
				"template": object{"metadata": object{"labels": labels}, "spec": object{"containers": []object{container}}}}})
	})
}

// atRestFor waits while the cluster is idle, except for the rollouts.
func (r *run) atRestFor(ctx context.Context, deployments int) error {
	before, err := r.client.calls(ctx)
	if err != nil {
		return err
	}
	r.seen.startAnew()
	stretches := max(r.rolls, 1)
	for i := range stretches {
		if r.rolls > 0 {
			image := fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "registry.example/web:%d"}]`, i+2)
			if err := r.client.patch(ctx, deploymentPath(i%deployments), image); err != nil {
				return err
			}
		}
		if err := sleep(ctx, r.rest/time.Duration(stretches)); err != nil {
			return err
		}
	}
	after, err := r.client.calls(ctx)
	r.atRest = after.since(before)
	return err
}

func (r *run) deleteDeployments(ctx context.Context, n int) error {
	return each(ctx, n, func(i int) error {
		if err := r.client.delete(ctx, "/api/v1/namespaces/"+namespaceOf(i)+"/services/"+deploymentName(i)); err != nil {
			return err
		}
		return r.client.delete(ctx, deploymentPath(i))
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// watchNodes opens the watches that are used by kubelets. Each of them watches the Pods of a single
// node. They run until ctx ends.
func (r *run) watchNodes(ctx context.Context, background *sync.WaitGroup) error {
	var mu sync.Mutex // guards r.watchers
	return each(ctx, r.kubelets, func(i int) error {
		own := r.client.alone()
		response, err := own.do(ctx, "GET", "/api/v1/pods?watch=true&fieldSelector=spec.nodeName%3D"+nodeName(i%r.nodes), "", nil)
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		mu.Lock()
		r.watchers++
		mu.Unlock()
		background.Go(func() {
			defer response.Body.Close()
			for decoder := json.NewDecoder(response.Body); ; {
				var event json.RawMessage
				if decoder.Decode(&event) != nil {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if ctx.Err() == nil {
				r.watchers--
			}
		})
		return nil
	})
}
