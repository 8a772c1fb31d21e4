// Flows runs the scenarios that flow control must handle (KEP-1040, Goals) against a running
// server, and prints the requests that each client got served. All clients are impersonated, as
// with kubectl --as, so the server must listen on a plain loopback port:
//
//	go run ./testdata/programs/flows                                  # starts two small servers, with and without flow control, and compares them
//	go run ./testdata/programs/flows -server http://127.0.0.1:8080    # uses this server
//
// The culprit ignores Retry-After and sends the next request as soon as it receives a response. The
// other clients send 20 requests per second, or fewer if responses take longer. LISTs use a
// selector that does not match any object, because large responses would also slow down this
// program. With -seats the program compares servers with 600 seats and with
// --max-requests-inflight=auto (seats.go). It exits with 1 if lease renewals took too long.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

const (
	modulePath = "apilet"
	// limit for the 99th percentile of lease renewals
	renewalLimit = 100 * time.Millisecond
	tries        = 3 // a busy machine may spoil one
	// limits the time that this machine spends on rejected requests
	afterRefusal = 10 * time.Millisecond
	apis         = "/apis/flowcontrol.apiserver.k8s.io/v1/"
)

var (
	serverURL = flag.String("server", "", "`URL` of a server to play against; without it two are started")
	only      = flag.String("only", "", "a `word` of the title of the scenarios to play")
	seats     = flag.Bool("seats", false, "compare --max-requests-inflight=auto with the default of 600 seats, and with -server if that is given")
	aside     = flag.Bool("light", false, "play the light ones of -seats alone, against -server, and print what became of them as JSON: so the program starts itself")
	token     = flag.String("token", "", "an administrator's bearer `token` for -server")
	length    = flag.Duration("length", 3*time.Second, "how long each scenario lasts")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ok, err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "flows:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run runs all scenarios. ok reports whether leases were renewed in time with flow control.
func run(ctx context.Context) (ok bool, err error) {
	program := ""
	if *aside {
		return true, playLight(ctx)
	}
	if *serverURL == "" || *seats {
		dir, err := os.MkdirTemp("", "flows")
		if err != nil {
			return false, err
		}
		defer os.RemoveAll(dir)
		program = filepath.Join(dir, "apilet.exe") // a file name that works on every system
		build := exec.CommandContext(ctx, "go", "build", "-o", program, modulePath)
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return false, fmt.Errorf("building the server: %w", err)
		}
	}
	if *seats {
		return true, playSeats(ctx, program)
	}
	for _, sc := range scenarios() {
		if !strings.Contains(sc.title, *only) {
			continue
		}
		if _, err := playAfresh(ctx, program, sc); err != nil {
			return false, err
		}
	}
	if !strings.Contains(renewals().title, *only) {
		return true, nil
	}
	for range tries {
		worst, err := playAfresh(ctx, program, renewals())
		if err != nil {
			return false, err
		}
		if ok = worst > 0 && worst <= renewalLimit; ok {
			break
		}
	}
	fmt.Printf("\nleases renewed within %v (p99): %s\n", renewalLimit, map[bool]string{true: "yes", false: "no"}[ok])
	return ok, nil
}

// playAfresh runs a scenario on new servers, because borrowed seats of one scenario would affect
// the next.
func playAfresh(ctx context.Context, program string, sc scenario) (worst time.Duration, err error) {
	stages, closeStages, err := openStages(ctx, program)
	if err != nil {
		return 0, err
	}
	defer closeStages()
	for _, st := range stages {
		defer st.clear()
		if err := st.furnish(ctx); err != nil {
			return 0, err
		}
	}
	return playOn(ctx, stages, sc)
}

// ---- Servers

// A stage is a server for the scenarios.
type stage struct {
	title, url string
	admin      *http.Client
	token      string // token of an administrator, or "" if the port is not secured
}

// openStages starts two servers unless a URL is given.
func openStages(ctx context.Context, program string) (stages []*stage, closeAll func(), err error) {
	if *serverURL != "" {
		return []*stage{{"", strings.TrimSuffix(*serverURL, "/"), &http.Client{}, *token}}, func() {}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var servers []*exec.Cmd
	closeAll = func() {
		cancel()
		for _, server := range servers {
			_ = server.Wait() // returns an error because it was interrupted
		}
	}
	for _, title := range []string{"with flow control", "without"} {
		kubeconfig := filepath.Join(filepath.Dir(program), title)
		_ = os.Remove(kubeconfig) // of the previous scenario, if any
		st, server, err := startServer(ctx, program, kubeconfig, title)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		stages, servers = append(stages, st), append(servers, server)
	}
	return stages, closeAll, nil
}

// startServer starts a server with only 30 seats, so that clients compete for them. It stops when
// ctx ends.
func startServer(ctx context.Context, program, kubeconfig, title string) (*stage, *exec.Cmd, error) {
	return startWith(ctx, program, kubeconfig, title, "--ephemeral", "--max-requests-inflight=20", "--max-mutating-requests-inflight=10",
		fmt.Sprintf("--enable-priority-and-fairness=%t", title != "without"))
}

func startWith(ctx context.Context, program, kubeconfig, title string, flags ...string) (*stage, *exec.Cmd, error) {
	server := exec.CommandContext(ctx, program, append([]string{"--listen=127.0.0.1:0", "--kubeconfig=" + kubeconfig}, flags...)...)
	server.Cancel = func() error { return server.Process.Signal(os.Interrupt) }
	server.WaitDelay = 5 * time.Second
	if err := server.Start(); err != nil {
		return nil, nil, err
	}
	for range 200 {
		text, _ := os.ReadFile(kubeconfig) // may not exist yet
		if url := regexp.MustCompile(`http://[0-9.:]+`).Find(text); url != nil {
			return &stage{title, string(url), &http.Client{}, ""}, server, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, nil, errors.Join(errors.New("the server does not start"), server.Process.Kill())
}

// ask sends a request as an administrator, which is exempt from flow control. It ignores errors for
// objects that already exist or are already deleted.
func (st *stage) ask(ctx context.Context, method, path, body string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, st.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	st.authorize(r)
	answer, err := st.admin.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if code := answer.StatusCode; err == nil && code >= 400 && code != http.StatusConflict && code != http.StatusNotFound {
		err = fmt.Errorf("%s %s: %s", method, path, text)
	}
	return text, err
}

var (
	namespaces = []string{"flows-kubelets", "flows-doom", "flows-shop", "flows-loud", "flows-quiet"}
	leaseDirs  = map[string]string{"node": "kube-node-lease", "leader": "kube-system"}
)

const (
	podsPerNamespace = 300
	leaseHolders     = 6
)

// furnish creates the objects for the scenarios.
func (st *stage) furnish(ctx context.Context) error {
	for _, namespace := range namespaces {
		if _, err := st.ask(ctx, "POST", "/api/v1/namespaces", `{"metadata":{"name":"`+namespace+`"}}`); err != nil {
			return err
		}
		for i := range podsPerNamespace {
			pod := fmt.Sprintf(`{"metadata":{"name":"pod-%d"},"spec":{"containers":[{"name":"main","image":"registry.k8s.io/pause:3.10"}]}}`, i)
			if _, err := st.ask(ctx, "POST", podsOf(namespace), pod); err != nil {
				return err
			}
		}
	}
	for kind, namespace := range leaseDirs {
		for i := range leaseHolders {
			lease := fmt.Sprintf(`{"metadata":{"name":"flows-%s-%d"},"spec":{"holderIdentity":"%s-%d"}}`, kind, i, kind, i)
			if _, err := st.ask(ctx, "POST", leasesOf(namespace), lease); err != nil {
				return err
			}
		}
	}
	return nil
}

// clear deletes the objects from an external server and waits until the namespaces are empty.
func (st *stage) clear() {
	if *serverURL == "" {
		return
	}
	paths := []string{apis + "flowschemas/flows-tenants"}
	for _, namespace := range namespaces {
		paths = append(paths, "/api/v1/namespaces/"+namespace)
	}
	for kind, namespace := range leaseDirs {
		for i := range leaseHolders {
			paths = append(paths, fmt.Sprintf("%s/flows-%s-%d", leasesOf(namespace), kind, i))
		}
	}
	for _, path := range paths {
		if _, err := st.ask(context.Background(), "DELETE", path, ""); err != nil {
			fmt.Fprintln(os.Stderr, "flows: left behind:", err)
		}
	}
	for _, namespace := range namespaces {
		for range 100 {
			text, err := st.ask(context.Background(), "GET", "/api/v1/namespaces/"+namespace, "")
			if err != nil || bytes.Contains(text, []byte(`"reason":"NotFound"`)) {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func podsOf(namespace string) string { return "/api/v1/namespaces/" + namespace + "/pods" }
func leasesOf(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}

// classes returns the names of flow schemas and priority levels by the UIDs in response headers.
func (st *stage) classes(ctx context.Context) (map[string]string, error) {
	names := map[string]string{}
	for _, plural := range []string{"flowschemas", "prioritylevelconfigurations"} {
		text, err := st.ask(ctx, "GET", apis+plural, "")
		if err != nil {
			return nil, err
		}
		var list struct {
			Items []struct{ Metadata struct{ Name, UID string } }
		}
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, err
		}
		for _, item := range list.Items {
			names[item.Metadata.UID] = item.Metadata.Name
		}
	}
	return names, nil
}

// ---- Scenarios

// An actor represents one or more clients with the same behavior.
type actor struct {
	name        string
	user        string
	groups      []string
	connections int
	every       time.Duration // delay between two requests of a connection. Zero means no delay.
	script      script
}

// A script returns the next request of a connection. revision is the last resourceVersion that the
// connection received.
type script func(connection, step int, revision string) call

type call struct{ method, path, body string }

type scenario struct {
	title  string
	schema string // a FlowSchema to add, if any
	actors []actor
}

func scenarios() []scenario {
	return []scenario{kubeletAmuck(), deploymentOfDoom(), overbearingTenant(),
		manyAccounts("a tenant with four accounts, each of them a flow", ""),
		manyAccounts("the same, all accounts of a tenant one flow", `"flowcontrol.apilet.dev/distinguisher-pattern":"^system:serviceaccount:([^:]+):"`)}
}

const (
	calm = 50 * time.Millisecond
	// selector that is used by a kubelet to watch its Pods
	selector = "?fieldSelector=spec.nodeName%3Dnode-of-none"
)

var searchPods = fetch("/api/v1/pods" + selector)

func kubeletAmuck() scenario {
	sc := scenario{title: "kubelet amuck: one node lists all pods over 80 connections",
		actors: []actor{node(1, "lists pods", 80, 0, searchPods)}}
	for i := 2; i <= 4; i++ {
		sc.actors = append(sc.actors, node(i, "reads its pod", 1, calm, fetch(podsOf("flows-kubelets")+"/pod-1")))
	}
	sc.actors = append(sc.actors, account("flows-shop", "app", "lists pods of its own", 1, calm, fetch(podsOf("flows-shop")+selector)))
	return sc
}

func deploymentOfDoom() scenario {
	return scenario{title: "deployment of doom: a controller creates and deletes over 60 connections", actors: []actor{
		account("flows-doom", "deployer", "creates, deletes", 60, 0, createDelete("flows-doom")),
		account("flows-shop", "app", "creates, deletes", 1, calm, createDelete("flows-shop")),
		account("flows-quiet", "app", "creates, deletes", 1, calm, createDelete("flows-quiet")),
		account("kube-system", "generic-garbage-collector", "creates, deletes", 1, calm, createDelete("flows-kubelets")),
	}}
}

func overbearingTenant() scenario {
	return scenario{title: "overbearing tenant: 50 connections against two of 20 requests a second", actors: []actor{
		account("flows-loud", "app", "lists pods", 50, 0, searchPods),
		account("flows-quiet", "app", "lists pods of its own", 1, calm, fetch(podsOf("flows-quiet")+selector)),
		account("flows-shop", "app", "lists pods of its own", 1, calm, fetch(podsOf("flows-shop")+selector)),
	}}
}

func manyAccounts(title, annotations string) scenario {
	sc := scenario{title: title, schema: fmt.Sprintf(`{"metadata":{"name":"flows-tenants","annotations":{%s}},"spec":{
		"matchingPrecedence":5000,"priorityLevelConfiguration":{"name":"workload-low"},"distinguisherMethod":{"type":"ByUser"},
		"rules":[{"subjects":[{"kind":"Group","group":{"name":"system:serviceaccounts"}}],"resourceRules":[
			{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"namespaces":["*"],"clusterScope":true}]}]}}`, annotations)}
	for i := range 4 {
		sc.actors = append(sc.actors, account("flows-loud", fmt.Sprint("app-", i), "lists pods", 25, 0, searchPods))
	}
	sc.actors = append(sc.actors, account("flows-quiet", "app", "lists pods", 25, 0, searchPods))
	return sc
}

// renewals returns the scenario that determines the exit code. Its first actors renew leases.
func renewals() scenario {
	sc := scenario{title: "self-maintenance: leases are renewed while 200 clients list all pods", actors: []actor{
		node(0, "renews its lease", 1, calm, renew("node", 0)), node(1, "renews its lease", 1, calm, renew("node", 1)),
		{"system:kube-controller-manager renews its lease", "system:kube-controller-manager", nil, 1, calm, renew("leader", 0)},
	}}
	for i := range 4 {
		sc.actors = append(sc.actors, account("flows-loud", fmt.Sprint("app-", i), "lists pods", 50, 0, searchPods))
	}
	return sc
}

func node(i int, does string, connections int, every time.Duration, script script) actor {
	name := fmt.Sprint("system:node:node-", i)
	return actor{name + " " + does, name, []string{"system:nodes", "system:authenticated"}, connections, every, script}
}

func account(namespace, name, does string, connections int, every time.Duration, script script) actor {
	return actor{namespace + "/" + name + " " + does, "system:serviceaccount:" + namespace + ":" + name,
		[]string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}, connections, every, script}
}

func fetch(path string) script {
	return func(int, int, string) call { return call{"GET", path, ""} }
}

func createDelete(namespace string) script {
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	return func(connection, step int, _ string) call {
		name := fmt.Sprintf("made-%d-%d", connection, step/2)
		if step%2 == 1 {
			return call{"DELETE", path + "/" + name, ""}
		}
		return call{"POST", path, `{"metadata":{"name":"` + name + `"}}`}
	}
}

// renew sends the same requests as the leader election of client-go.
func renew(kind string, holder int) script {
	path := fmt.Sprintf("%s/flows-%s-%d", leasesOf(leaseDirs[kind]), kind, holder)
	return func(_, _ int, revision string) call {
		if revision == "" {
			return call{"GET", path, ""}
		}
		return call{"PUT", path, fmt.Sprintf(`{"metadata":{"name":"flows-%s-%d","resourceVersion":"%s"},"spec":{"renewTime":"%s"}}`,
			kind, holder, revision, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"))}
	}
}

// ---- Running scenarios

// An outcome contains an actor's results.
type outcome struct {
	mu              sync.Mutex // guards the fields below
	latencies       []time.Duration
	refused, failed int
	failure         int    // status code of the last failed request
	schema, level   string // UIDs, replaced by names at the end
}

func (o *outcome) percentile(p float64) time.Duration {
	if len(o.latencies) == 0 {
		return 0
	}
	slices.Sort(o.latencies)
	return o.latencies[int(p*float64(len(o.latencies)-1))]
}

// playOn runs a scenario on all stages and prints the results. It returns the maximum 99th
// percentile of lease renewals on the first stage.
func playOn(ctx context.Context, stages []*stage, sc scenario) (worst time.Duration, err error) {
	fmt.Printf("\n%s\n", sc.title)
	all := make([][]*outcome, len(stages))
	for i, st := range stages {
		if all[i], err = st.play(ctx, sc); err != nil {
			return 0, err
		}
	}
	for i := range sc.actors {
		if strings.Contains(sc.actors[i].name, "renews") {
			worst = max(worst, all[0][i].percentile(0.99))
		}
	}
	return worst, print(stages, sc, all)
}

func (st *stage) play(ctx context.Context, sc scenario) ([]*outcome, error) {
	if sc.schema != "" {
		if _, err := st.ask(ctx, "POST", apis+"flowschemas", sc.schema); err != nil {
			return nil, err
		}
		defer func() { _, _ = st.ask(ctx, "DELETE", apis+"flowschemas/flows-tenants", "") }()
		time.Sleep(time.Second) // until the server has applied it
	}
	limited, cancel := context.WithTimeout(ctx, *length)
	defer cancel()
	outcomes := make([]*outcome, len(sc.actors))
	var running sync.WaitGroup
	for i, a := range sc.actors {
		outcomes[i] = &outcome{}
		transport := &http.Transport{MaxIdleConnsPerHost: a.connections, DisableCompression: true, TLSClientConfig: trusting}
		defer transport.CloseIdleConnections()
		for connection := range a.connections {
			running.Go(func() { st.act(limited, &http.Client{Transport: transport}, a, connection, outcomes[i]) })
		}
	}
	running.Wait()
	names, err := st.classes(ctx)
	for _, o := range outcomes {
		o.schema, o.level = names[o.schema], names[o.level]
	}
	return outcomes, err
}

// act sends requests until ctx ends. It repeats rejected requests.
func (st *stage) act(ctx context.Context, client *http.Client, a actor, connection int, o *outcome) {
	revision := ""
	for step := 0; ctx.Err() == nil; {
		start := time.Now()
		got := st.send(ctx, client, a, a.script(connection, step, revision))
		if ctx.Err() != nil {
			return
		}
		o.note(got, time.Since(start))
		pause := time.Until(start.Add(a.every))
		if got.code < 400 {
			step, revision = step+1, got.revision
		} else if revision = ""; a.every == 0 {
			// the object may have been changed by another client in the meantime
			pause = afterRefusal
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (o *outcome) note(got reply, latency time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case got.code < 400:
		o.latencies = append(o.latencies, latency)
	case got.code == http.StatusTooManyRequests:
		o.refused++
	default:
		o.failed, o.failure = o.failed+1, got.code
	}
	o.schema = cmp.Or(got.header.Get("X-Kubernetes-Pf-Flowschema-Uid"), o.schema)
	o.level = cmp.Or(got.header.Get("X-Kubernetes-Pf-Prioritylevel-Uid"), o.level)
}

// A reply contains the status code and headers of a response.
type reply struct {
	code     int
	header   http.Header
	revision string
}

var (
	broken          = reply{code: 599} // the connection failed
	resourceVersion = regexp.MustCompile(`"resourceVersion":"([0-9]+)"`)
)

func (st *stage) send(ctx context.Context, client *http.Client, a actor, c call) reply {
	r, err := http.NewRequestWithContext(ctx, c.method, st.url+c.path, strings.NewReader(c.body))
	if err != nil {
		return broken
	}
	st.authorize(r)
	if a.user != "" { // otherwise the client is an administrator, which is exempt
		r.Header.Set("Impersonate-User", a.user)
		r.Header["Impersonate-Group"] = a.groups
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return broken
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return broken
	}
	got := reply{code: answer.StatusCode, header: answer.Header}
	if match := resourceVersion.FindSubmatch(body); match != nil {
		got.revision = string(match[1])
	}
	return got
}

// ---- The table

func print(stages []*stage, sc scenario, all [][]*outcome) error {
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	if len(stages) > 1 {
		fmt.Fprintf(table, "\t\t%s\t\t\t\t%s\n", stages[0].title, stages[1].title)
	}
	fmt.Fprint(table, "who\tflow schema, level", strings.Repeat("\tserved/s\tp50\tp99\t429/s", len(stages)), "\n")
	for i, a := range sc.actors {
		first := all[0][i]
		fmt.Fprintf(table, "%s\t%s, %s", a.name, cmp.Or(first.schema, "-"), cmp.Or(first.level, "-"))
		for _, outcomes := range all {
			fmt.Fprint(table, outcomes[i].cells())
		}
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := text.WriteTo(os.Stdout)
	return err
}

func (o *outcome) cells() string {
	round := func(d time.Duration) string {
		if len(o.latencies) == 0 {
			return "-"
		}
		return fmt.Sprintf("%.1fms", d.Seconds()*1000)
	}
	rate := func(n int) float64 { return float64(n) / length.Seconds() }
	cells := fmt.Sprintf("\t%.0f\t%s\t%s\t%.0f", rate(len(o.latencies)), round(o.percentile(0.5)), round(o.percentile(0.99)), rate(o.refused))
	if o.failed > 0 {
		cells += fmt.Sprintf(" (+%d failed, %d)", o.failed, o.failure)
	}
	return cells
}
