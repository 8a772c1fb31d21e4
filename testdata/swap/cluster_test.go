package swap

// This file moves a whole cluster between the servers. The cluster contains Deployments,
// StatefulSets, Jobs, CronJobs, and Guestbooks. At the end the cluster must contain exactly the
// objects that were requested last.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
)

var (
	statefulSets = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}
	replicaSets  = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
	jobs         = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}
	cronJobs     = schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}
	guestbooks   = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "guestbooks"}
	nodes        = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	accounts     = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
	secrets      = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	definitions  = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	mutating     = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"}
	validating   = schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"}
)

const workloads = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 8
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: "registry.example/web:0"}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: ledger}
spec:
  serviceName: ledger
  replicas: 3
  selector: {matchLabels: {app: ledger}}
  template:
    metadata: {labels: {app: ledger}}
    spec: {containers: [{name: c, image: "registry.example/ledger:0"}]}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: often}
spec:
  schedule: '* * * * *'
  successfulJobsHistoryLimit: 100
  jobTemplate:
    metadata: {labels: {from: often}}
    spec:
      template:
        spec: {restartPolicy: Never, containers: [{name: c, image: "registry.example/job:1"}]}
`

var kinds = map[string]schema.GroupVersionResource{"Deployment": deployments, "StatefulSet": statefulSets, "CronJob": cronJobs, "Node": nodes,
	"Namespace": namespaces, "Service": services, "ResourceQuota": quotas,
	"CustomResourceDefinition": definitions, "MutatingWebhookConfiguration": mutating, "ValidatingWebhookConfiguration": validating}

// prepare creates the initial objects.
func (b *book) prepare(h *hooks) {
	for _, text := range []string{h.manifests(b.w.certs.pem), file(b.w.t, "plane", "nodes.yaml"), file(b.w.t, "clients", "controller", "guestbook.yaml")} {
		for _, o := range objects(b.w.t, text) {
			if _, err := b.create(b.client.Resource(kinds[o["kind"].(string)]), &unstructured.Unstructured{Object: o}); err != nil {
				b.w.t.Fatal(err)
			}
		}
	}
	// a namespace to test whether both servers call the webhook
	for _, name := range []string{"watched", "unwatched"} {
		labels := map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]any{"watched": "yes"}}}
		if _, err := b.create(b.client.Resource(namespaces), object("v1", "Namespace", name, labels)); err != nil {
			b.w.t.Fatal(err)
		}
	}
	for _, s := range b.w.sides {
		b.until(s.name+" marks", begins, func() []string {
			o, err := b.w.at(s.addr).Resource(configMaps).Namespace("watched").Create(context.Background(), object("v1", "ConfigMap", "tried", nil),
				metav1.CreateOptions{DryRun: []string{"All"}})
			if err != nil || o.GetLabels()[mark] == "" {
				return []string{fmt.Sprint(o, err)}
			}
			if _, err = b.w.at(s.addr).Resource(rockets).List(context.Background(), metav1.ListOptions{}); err != nil {
				return []string{err.Error()}
			}
			if _, err = b.w.at(s.addr).Resource(guestbooks).List(context.Background(), metav1.ListOptions{}); err != nil {
				return []string{err.Error()}
			}
			return nil
		})
	}
	for _, name := range []string{"work", "quota", "full"} {
		labels := map[string]any{"metadata": map[string]any{"name": name, "labels": map[string]any{"watched": "yes"}}}
		if _, err := b.create(b.client.Resource(namespaces), object("v1", "Namespace", name, labels)); err != nil {
			b.w.t.Fatal(err)
		}
	}
	hard := map[string]any{"hard": map[string]any{"count/configmaps": fmt.Sprint(quotaMaps), "pods": fmt.Sprint(quotaPods)}}
	if _, err := b.create(b.client.Resource(quotas).Namespace("quota"), object("v1", "ResourceQuota", "few", map[string]any{"spec": hard})); err != nil {
		b.w.t.Fatal(err)
	}
	hard = map[string]any{"hard": map[string]any{"count/configmaps": fmt.Sprint(quotaFull)}}
	if _, err := b.create(b.client.Resource(quotas).Namespace("full"), object("v1", "ResourceQuota", "few", map[string]any{"spec": hard})); err != nil {
		b.w.t.Fatal(err)
	}
}

// time limit for definitions and webhooks to take effect
const begins = 90 * time.Second

// until waits until wrong returns no problems. It records the remaining problems after the time
// limit.
func (b *book) until(what string, patience time.Duration, wrong func() []string) {
	begin := time.Now()
	for {
		problems := wrong()
		if len(problems) == 0 {
			b.w.t.Logf("%s: after %v", what, time.Since(begin).Round(100*time.Millisecond))
			return
		}
		if time.Since(begin) > patience {
			b.wrong("%s: still after %v: %v", what, patience, problems)
			return
		}
		time.Sleep(time.Second)
	}
}

// roll changes the workloads continuously.
func (b *book) roll() (judge func() []string) {
	for _, o := range objects(b.w.t, workloads) {
		if _, err := b.create(b.client.Resource(kinds[o["kind"].(string)]).Namespace("work"), &unstructured.Unstructured{Object: o}); err != nil {
			b.wrong("%v", err)
		}
	}
	in := func(r schema.GroupVersionResource) func(name, body string) {
		return func(name, body string) {
			if _, err := b.patch(b.client.Resource(r).Namespace("work"), name, body); err != nil {
				b.wrong("%v", err)
			}
		}
	}
	last, made := 0, 0
	b.each(4*time.Second, func(n int) {
		last = n + 1
		in(deployments)("web", fmt.Sprintf(`{"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "registry.example/web:%d"}]}}}}`, last))
		if n%3 == 0 {
			in(statefulSets)("ledger", fmt.Sprintf(`{"spec": {"template": {"metadata": {"annotations": {"n": "%d"}}}}}`, last))
		}
		made++
		job := map[string]any{"completions": int64(3), "parallelism": int64(2), "template": map[string]any{"spec": map[string]any{"restartPolicy": "Never",
			"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}
		if _, err := b.create(b.client.Resource(jobs).Namespace("work"), object("batch/v1", "Job", fmt.Sprint("job-", n), map[string]any{"spec": job})); err != nil {
			b.wrong("%v", err)
		}
	})
	return func() []string { return b.rolled(last, made) }
}

// rolled checks that the workloads match the last request.
func (b *book) rolled(last, made int) (problems []string) {
	at := b.client
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if d, err := b.get(at.Resource(deployments).Namespace("work"), "web"); err != nil || nested(d, "status", "observedGeneration") != fmt.Sprint(d.GetGeneration()) ||
		nested(d, "status", "updatedReplicas") != "8" || nested(d, "status", "availableReplicas") != "8" || nested(d, "status", "replicas") != "8" {
		wrong("the Deployment is %s: %v", nested(d, "status"), err)
	}
	if s, err := b.get(at.Resource(statefulSets).Namespace("work"), "ledger"); err != nil || nested(s, "status", "updatedReplicas") != "3" ||
		nested(s, "status", "currentRevision") != nested(s, "status", "updateRevision") || nested(s, "status", "readyReplicas") != "3" {
		wrong("the StatefulSet is %s: %v", nested(s, "status"), err)
	}
	own, cron := 0, 0
	for _, j := range b.list(at.Resource(jobs).Namespace("work")) {
		want := "3"
		if j.GetLabels()["from"] != "" {
			want = "1"
			cron++
		} else {
			own++
		}
		if nested(&j, "status", "succeeded") != want || nested(&j, "status", "completionTime") == "<nil>" {
			wrong("Job %s is %s", j.GetName(), nested(&j, "status"))
		}
	}
	if own != made || cron == 0 {
		wrong("there are %d Jobs of %d, and %d of the CronJob", own, made, cron)
	}
	uids := map[string]int{}
	for _, r := range []schema.GroupVersionResource{deployments, replicaSets, statefulSets, jobs, cronJobs, guestbooks} {
		for _, o := range b.list(at.Resource(r)) {
			uids[string(o.GetUID())] = 0
		}
	}
	running := 0
	for _, p := range b.list(at.Resource(pods).Namespace("work")) {
		for _, ref := range p.GetOwnerReferences() {
			if _, ok := uids[string(ref.UID)]; !ok {
				wrong("Pod %s is of %s %s, which is not there", p.GetName(), ref.Kind, ref.Name)
			}
			uids[string(ref.UID)]++
		}
		if p.GetLabels()["app"] != "web" {
			continue
		}
		list, _, _ := unstructured.NestedSlice(p.Object, "spec", "containers")
		if image := list[0].(map[string]any)["image"]; image != fmt.Sprint("registry.example/web:", last) {
			wrong("Pod %s has %s, and the last was %d", p.GetName(), image, last)
		}
		running++
	}
	if running != 8 {
		wrong("%d Pods of 8", running)
	}
	for _, j := range b.list(at.Resource(jobs).Namespace("work")) {
		if n := uids[string(j.GetUID())]; fmt.Sprint(n) != nested(&j, "status", "succeeded") {
			wrong("Job %s has %d Pods: %s", j.GetName(), n, nested(&j, "status"))
		}
	}
	return problems
}

// operate creates Guestbooks of different sizes for the operator and deletes some of them.
func (b *book) operate() (judge func() []string) {
	at := b.client.Resource(guestbooks).Namespace("work")
	sizes := map[string]int64{}
	b.each(2*time.Second, func(n int) {
		name, size := fmt.Sprint("book-", n%3), int64(1+n%3)
		if n%7 == 6 && sizes[name] != 0 {
			if err := b.remove(at, name); err != nil {
				b.wrong("%v", err)
			}
			b.until(name+" is gone", settling, func() []string {
				if _, err := b.get(at, name); !apierrors.IsNotFound(err) {
					return []string{fmt.Sprint("it is there: ", err)}
				}
				return nil
			})
			delete(sizes, name)
			return
		}
		var err error
		if sizes[name] == 0 {
			_, err = b.create(at, object("example.com/v1", "Guestbook", name, map[string]any{"spec": map[string]any{"size": size}}))
		} else {
			_, err = b.patch(at, name, fmt.Sprintf(`{"spec": {"size": %d}}`, size))
		}
		if err != nil {
			b.wrong("%v", err)
			return
		}
		sizes[name] = size
	})
	return func() (problems []string) {
		for name, size := range sizes {
			g, err := b.get(at, name)
			d, errToo := b.get(b.client.Resource(deployments).Namespace("work"), name)
			if err != nil || errToo != nil || nested(g, "status", "available") != fmt.Sprint(size) || nested(d, "status", "availableReplicas") != fmt.Sprint(size) {
				problems = append(problems, fmt.Sprint("Guestbook ", name, " of ", size, ": ", g, err, errToo))
			}
		}
		return problems
	}
}

// hide writes encrypted Secrets and reads them from both servers.
func (b *book) hide() {
	at := b.client.Resource(secrets).Namespace("work")
	n := 0
	b.each(500*time.Millisecond, func(int) {
		n++
		if n == 1 {
			_, _ = b.create(at, object("v1", "Secret", "hidden", map[string]any{"stringData": map[string]any{"n": "1"}}))
		}
		o, err := b.patch(at, "hidden", fmt.Sprintf(`{"stringData": {"n": "%d"}}`, n))
		if err != nil {
			b.wrong("%v", err)
			return
		}
		again, err := b.get(at, "hidden")
		if err != nil || nested(o, "data") != nested(again, "data") {
			b.wrong("%v is read as %v: %v", o, again, err)
		}
		if value, err := b.w.value("/registry/secrets/work/hidden"); err != nil || !bytes.HasPrefix(value, []byte("k8s:enc:aesgcm:v1:one:")) {
			b.wrong("it lies in etcd as %.40q: %v", value, err)
		}
	})
}

func TestSwap(t *testing.T) {
	for _, name := range []string{"KUBE_CONTROLLER_MANAGER", "KUBE_SCHEDULER", "KWOK"} {
		if os.Getenv(name) == "" {
			t.Skip(name + " names no program")
		}
	}
	klog.SetLogger(klog.Logger{}) // the informers log each disconnection
	count := 10
	if text := os.Getenv("SWAP"); text != "" {
		if _, err := fmt.Sscan(text, &count); err != nil {
			t.Fatal("SWAP:", err)
		}
	}
	w := newWorld(t)
	over, end := context.WithCancel(context.Background())
	defer end()
	w.over = over
	h := w.startHooks()
	first := w.book("prepared")
	first.prepare(h)
	programs := w.cluster()
	first.until("accounts", begins, func() []string { // without an account Pods are not admitted
		_, err := first.client.Resource(accounts).Namespace("quota").Get(context.Background(), "default", metav1.GetOptions{})
		if err != nil {
			return []string{err.Error()}
		}
		return nil
	})
	books := []*book{first}
	var working sync.WaitGroup
	work := func(name string, do func(*book)) *book {
		b := w.book(name)
		books = append(books, b)
		working.Go(func() { do(b) })
		return b
	}
	for i := range 4 {
		work(fmt.Sprint("counter-", i), func(b *book) { b.count(b.name) })
	}
	for i := range 3 {
		work(fmt.Sprint("quota-", i), func(b *book) { b.fill(i) })
	}
	for i := range 3 {
		work(fmt.Sprint("full-", i), func(b *book) { b.fillUp(i) })
	}
	for i := range 2 {
		work(fmt.Sprint("services-", i), func(b *book) { b.ports(i) })
	}
	work("quota", (*book).measure)
	work("forbidden", (*book).forbidden)
	work("versions", (*book).versions)
	work("namespaces", (*book).rounds)
	work("steady", (*book).stay)
	work("secret", (*book).hide)
	var rolled, operated func() []string
	work("workloads", func(b *book) { rolled = b.roll() })
	work("operator", func(b *book) { operated = b.operate() })
	stories := w.stories("from kube-apiserver on")
	begin := time.Now()
	for n := range count {
		if w.move(n); n == 0 {
			stories = append(stories, w.stories("from apilet on")...)
		}
		if problems := exited(programs); problems != nil {
			t.Fatal(problems)
		}
	}
	w.awake(w.sides[1]) // both must be running for the comparison
	worked := time.Since(begin)
	end()
	working.Wait()
	first.until("workloads", settling, rolled)
	first.until("operator", settling, operated)
	first.release()
	first.until("quota", settling, first.used)
	first.until("namespaces", settling, first.remains)
	first.until("services", settling, first.shared)
	first.marks()
	for _, s := range stories {
		first.until(s.name, settling, func() []string { return s.judge(w.sides) })
		t.Logf("%s: %d events", s.name, s.events)
	}
	w.judge(books, programs, h, worked)
}

// judge reports the problems and the number of requests.
func (w *world) judge(books []*book, programs []*program, h *hooks, worked time.Duration) {
	var problems []string
	done, lost := 0, 0
	for _, b := range books {
		b.mu.Lock()
		w.t.Logf("%-12s %6d answers, %3d lost", b.name, b.done, b.lost)
		done, lost = done+b.done, lost+b.lost
		problems = append(problems, b.problems...)
		b.mu.Unlock()
	}
	problems = append(problems, exited(programs)...)
	w.t.Logf("%d answers in %v, and %d requests that lost theirs; webhooks: %d marked, %d judged, %d converted", done, worked.Round(time.Second), lost,
		h.marked.Load(), h.judged.Load(), h.converted.Load())
	slices.Sort(problems)
	for i, p := range problems {
		if i == 40 {
			w.t.Errorf("and %d more", len(problems)-i)
			break
		}
		w.t.Error(p[:min(len(p), 1200)])
	}
}
