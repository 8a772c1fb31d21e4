package main

// This file compares numbers of seats: apilet with its default of 600, apilet with
// --max-requests-inflight=auto, and a kube-apiserver if one is given. All servers store their data
// on disk and use fsync. The scenarios are run on all servers, one after the other:
//
//	go run ./testdata/programs/flows -seats -length 4s [-server https://127.0.0.1:6443 -token TOKEN]     # five and a half minutes with three
//
// In each scenario culprits send requests without pause, while three leases are renewed and a probe
// is sent 20 times per second. The culprits' rate of responses is the goodput. The 99th percentile
// of the light clients shows how other clients are affected. The light clients run in a separate
// process, because among the goroutines of hundreds of culprits they would wait for this program
// more than for the server. A server runs all scenarios with pauses between them, so that the
// number of seats has to follow the change of load. The results of the first five seconds are
// ignored.

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

const (
	settling  = 5 * time.Second
	breather  = 2 * time.Second
	hookDelay = 300 * time.Millisecond
	autoTitle = "auto"
	bindings  = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	hooks     = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
)

var trusting = &tls.Config{InsecureSkipVerify: true} // for the server under test, on this machine

// authorize adds the token of the administrator to the request.
func (st *stage) authorize(r *http.Request) {
	if st.token != "" {
		r.Header.Set("Authorization", "Bearer "+st.token)
	}
}

// light returns the clients that must not be affected.
func light() []actor {
	return []actor{node(0, "renews its lease", 1, calm, renew("node", 0)), node(1, "renews its lease", 1, calm, renew("node", 1)),
		{"system:kube-controller-manager renews its lease", "system:kube-controller-manager", nil, 1, calm, renew("leader", 0)},
		{"probe", "", nil, 1, calm, fetch("/livez")}}
}

func seatScenarios() []scenario {
	lists := func(title string, connections int) scenario {
		sc := scenario{title: title}
		for i := range 4 {
			sc.actors = append(sc.actors, account("flows-loud", fmt.Sprint("app-", i), "lists pods", connections/4, 0, searchPods))
		}
		return sc
	}
	creates := func(title, namespace string, connections int) scenario {
		return scenario{title: title, actors: []actor{account(namespace, "deployer", "creates, deletes", connections, 0, createAnew(namespace))}}
	}
	both := lists("20 list, 60 create", 20)
	both.actors = append(both.actors, creates("", "flows-doom", 60).actors...)
	whole := fetch("/api/v1/pods")
	all := []scenario{{title: "nobody else"}, lists("20 list", 20), lists("200 list", 200), creates("16 create", "flows-doom", 16),
		creates("200 create", "flows-doom", 200), both,
		{title: "40 list and read", actors: []actor{account("flows-loud", "reader", "lists", 40, 0, whole)}},
		creates("100 create, a webhook takes 0.3 s", "flows-shop", 100)}
	return all
}

// createAnew is createDelete with unique names, because objects of interrupted requests remain.
func createAnew(namespace string) script {
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	// the last created name of each connection
	var names sync.Map
	return func(connection, step int, _ string) call {
		// two connections may read the same time
		name := fmt.Sprintf("made-%d-%d", connection, time.Now().UnixNano())
		if old, made := names.LoadAndDelete(connection); made && step%2 == 1 {
			return call{"DELETE", path + "/" + old.(string), ""}
		}
		names.Store(connection, name)
		return call{"POST", path, `{"metadata":{"name":"` + name + `"}}`}
	}
}

// playSeats runs the scenarios on all servers and prints the results.
func playSeats(ctx context.Context, program string) error {
	hook := httptest.NewUnstartedServer(http.HandlerFunc(allowSlowly))
	// about connections that end with their scenario
	hook.Config.ErrorLog = log.New(io.Discard, "", 0)
	hook.StartTLS()
	defer hook.Close()
	stages, end, err := seatStages(ctx, program)
	defer end()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprint(table, "\t")
	for _, st := range stages {
		defer st.leave()
		if err := st.prepare(ctx, hook); err != nil {
			return fmt.Errorf("%s: %w", st.title, err)
		}
		fmt.Fprint(table, st.title, "\t\t\t")
	}
	fmt.Fprint(table, "\nwho else", strings.Repeat("\tserved/s\trenewals p99\tprobes p99", len(stages)), "\n")
	for _, sc := range seatScenarios() {
		fmt.Fprint(table, sc.title)
		for _, st := range stages {
			time.Sleep(breather)
			outcomes, err := st.playSettled(ctx, sc)
			if err != nil {
				return err
			}
			fmt.Fprint(table, seatCells(outcomes))
			if err := st.tellSeats(ctx, sc, outcomes); err != nil {
				return err
			}
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush()
	_, err = text.WriteTo(os.Stdout)
	return err
}

// seatStages starts apilet twice and adds the given server. end stops the started servers.
func seatStages(ctx context.Context, program string) (stages []*stage, end func(), err error) {
	ctx, stop := context.WithCancel(ctx)
	var servers []*exec.Cmd
	end = func() {
		stop()
		for _, server := range servers {
			_ = server.Wait() // returns an error because it was interrupted
		}
	}
	for title, flags := range map[string][]string{"600 seats": nil, autoTitle: {"--max-requests-inflight=auto"}} {
		name := filepath.Join(filepath.Dir(program), strings.ReplaceAll(title, " ", "-"))
		st, server, err := startWith(ctx, program, name, title, append(flags, "--data="+name+".db")...)
		if err != nil {
			return stages, end, err
		}
		stages, servers = append(stages, st), append(servers, server)
	}
	slices.SortFunc(stages, func(a, b *stage) int { return cmp.Compare(a.title, b.title) })
	if *serverURL != "" {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: trusting}}
		stages = append(stages, &stage{"kube-apiserver", strings.TrimSuffix(*serverURL, "/"), client, *token})
	}
	return stages, end, nil
}

// prepare creates the objects on a server, gives all users full access, and configures the webhook.
func (st *stage) prepare(ctx context.Context, hook *httptest.Server) error {
	if _, err := st.ask(ctx, "POST", bindings, `{"metadata":{"name":"flows"},"subjects":[{"kind":"Group","name":"system:authenticated","apiGroup":"rbac.authorization.k8s.io"}],
		"roleRef":{"kind":"ClusterRole","name":"cluster-admin","apiGroup":"rbac.authorization.k8s.io"}}`); err != nil {
		return err
	}
	if err := st.furnish(ctx); err != nil {
		return err
	}
	return st.callSlowly(ctx, hook)
}

// leave deletes the objects that prepare created on an external server.
func (st *stage) leave() {
	if st.token == "" {
		return
	}
	paths := []string{bindings + "/flows", hooks + "/flows"}
	// the namespaces are not deleted, because this requires kube-controller-manager
	for _, namespace := range namespaces {
		paths = append(paths, podsOf(namespace)+"?gracePeriodSeconds=0", "/api/v1/namespaces/"+namespace+"/configmaps")
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
}

// tellSeats prints progress to standard error.
func (st *stage) tellSeats(ctx context.Context, sc scenario, outcomes []*outcome) error {
	fmt.Fprintf(os.Stderr, "%s, %s:%s\n", sc.title, st.title, strings.ReplaceAll(seatCells(outcomes), "\t", "  "))
	if st.title != autoTitle {
		return nil
	}
	state, err := st.ask(ctx, "GET", "/debug/api_priority_and_fairness/dump_seats", "")
	fmt.Fprint(os.Stderr, string(state))
	return err
}

// playSettled runs a scenario twice in a row. Only the second run counts.
func (st *stage) playSettled(ctx context.Context, sc scenario) ([]*outcome, error) {
	wanted := *length
	defer func() { *length = wanted }()
	if *length = settling; len(sc.actors) > 0 {
		if _, err := st.playBeside(ctx, sc); err != nil {
			return nil, err
		}
	}
	*length = wanted
	return st.playBeside(ctx, sc)
}

// A lightOutcome contains the results that were reported by the process of the light clients.
type lightOutcome struct {
	Latencies       []time.Duration
	Failed, Failure int
}

// playBeside runs a scenario's culprits in this process and the light clients in another. The
// results of the light clients are returned first.
func (st *stage) playBeside(ctx context.Context, sc scenario) ([]*outcome, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child := exec.CommandContext(ctx, self, "-light", "-server="+st.url, "-token="+st.token, "-length="+length.String())
	var said bytes.Buffer
	child.Stdout, child.Stderr = &said, os.Stderr
	if err := child.Start(); err != nil {
		return nil, err
	}
	culprits, err := st.play(ctx, sc)
	if err = errors.Join(err, child.Wait()); err != nil {
		return nil, err
	}
	var told []lightOutcome
	if err := json.Unmarshal(said.Bytes(), &told); err != nil {
		return nil, err
	}
	var all []*outcome
	for _, t := range told {
		all = append(all, &outcome{latencies: t.Latencies, failed: t.Failed, failure: t.Failure})
	}
	return append(all, culprits...), nil
}

// playLight is the main function of the process for light clients.
func playLight(ctx context.Context) error {
	st := &stage{"", *serverURL, &http.Client{Transport: &http.Transport{TLSClientConfig: trusting}}, *token}
	outcomes, err := st.play(ctx, scenario{actors: light()})
	if err != nil {
		return err
	}
	var told []lightOutcome
	for _, o := range outcomes {
		told = append(told, lightOutcome{o.latencies, o.failed, o.failure})
	}
	return json.NewEncoder(os.Stdout).Encode(told)
}

func seatCells(outcomes []*outcome) string {
	var renewals, probes time.Duration
	var served, failed, code int
	probe := len(light()) - 1 // the last one
	for i, o := range outcomes {
		switch {
		case i < probe:
			renewals = max(renewals, o.percentile(0.99))
		case i == probe:
			probes = o.percentile(0.99)
		default:
			served += len(o.latencies)
		}
		failed, code = failed+o.failed, cmp.Or(o.failure, code)
	}
	cells := fmt.Sprintf("\t%.0f\t%.1f ms\t%.1f ms", float64(served)/length.Seconds(), renewals.Seconds()*1000, probes.Seconds()*1000)
	if failed > 0 {
		cells += fmt.Sprintf(" (%d failed, %d)", failed, code)
	}
	return cells
}

// callSlowly installs a webhook that delays all creates in a namespace.
func (st *stage) callSlowly(ctx context.Context, hook *httptest.Server) error {
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})
	_, err := st.ask(ctx, "POST", hooks, fmt.Sprintf(`{"metadata":{"name":"flows"},"webhooks":[{"name":"slow.flows.example","sideEffects":"None",
		"admissionReviewVersions":["v1"],"clientConfig":{"url":"%s/slow","caBundle":"%s"},
		"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"flows-shop"}},
		"rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}]}]}`,
		hook.URL, base64.StdEncoding.EncodeToString(authority)))
	return err
}

func allowSlowly(w http.ResponseWriter, r *http.Request) {
	var review struct{ Request struct{ UID string } }
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	time.Sleep(hookDelay)
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`, review.Request.UID)
}
