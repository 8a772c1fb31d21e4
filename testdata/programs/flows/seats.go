package main

// This file compares numbers of seats: apilet with its default of 600, apilet with --max-requests-inflight=auto, and a kube-apiserver if one is
// given, each with its data on disk and fsync:
//
//	go run ./testdata/programs/flows -seats -length 8s [-server https://127.0.0.1:6443 -token TOKEN]
//
// In each scenario culprits ask as fast as they are answered, while three leases are renewed and a probe is made 20 times a second. What the
// culprits got is the goodput; the 99th percentiles of the light ones say what the others feel. Servers go through all scenarios, with a pause
// between them, since a change of load is what the seats have to follow. A scenario's first five seconds do not count.

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

const (
	settling  = 5 * time.Second
	breather  = 2 * time.Second
	hookDelay = 300 * time.Millisecond
	hooks     = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
)

var trusting = &tls.Config{InsecureSkipVerify: true} // of the server under test, on this machine

// authorize makes the request the administrator's, where that is not everybody.
func (st *stage) authorize(r *http.Request) {
	if st.token != "" {
		r.Header.Set("Authorization", "Bearer "+st.token)
	}
}

// light are those who must not suffer; they come first.
func light() []actor {
	return []actor{node(0, "renews its lease", 1, calm, renew("node", 0)), node(1, "renews its lease", 1, calm, renew("node", 1)),
		{"system:kube-controller-manager renews its lease", "system:kube-controller-manager", nil, 1, calm, renew("leader", 0)},
		{"probe", "", nil, 1, calm, fetch("/livez")}}
}

const lights = 4

func seatScenarios() []scenario {
	lists := func(title string, connections int) scenario {
		sc := scenario{title: title}
		for i := range 4 {
			sc.actors = append(sc.actors, account("flows-loud", fmt.Sprint("app-", i), "lists pods", connections/4, 0, searchPods))
		}
		return sc
	}
	creates := func(title, namespace string, connections int) scenario {
		return scenario{title: title, actors: []actor{account(namespace, "deployer", "creates, deletes", connections, 0, createDelete(namespace))}}
	}
	both := lists("20 list, 60 create", 20)
	both.actors = append(both.actors, creates("", "flows-doom", 60).actors...)
	whole := fetch("/api/v1/pods")
	all := []scenario{{title: "nobody else"}, lists("20 list", 20), lists("200 list", 200), creates("16 create", "flows-doom", 16),
		creates("200 create", "flows-doom", 200), both,
		{title: "40 list and read", actors: []actor{account("flows-loud", "reader", "lists", 40, 0, whole)}},
		creates("100 create, a webhook takes 0.3 s", "flows-shop", 100)}
	for i := range all {
		all[i].actors = append(light(), all[i].actors...)
	}
	return all
}

// playSeats prints a row for each scenario.
func playSeats(ctx context.Context, program string) error {
	hook := httptest.NewTLSServer(http.HandlerFunc(allowSlowly))
	defer hook.Close()
	var text bytes.Buffer
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	rows := make([]string, len(seatScenarios()))
	heads := []string{"\t", "who else"}
	for _, title := range []string{"600 seats", "auto", "kube-apiserver"} {
		if title == "kube-apiserver" && *serverURL == "" {
			continue
		}
		heads[0] += title + "\t\t\t"
		heads[1] += "\tserved/s\trenewals p99\tprobes p99"
		if err := playSeatsOn(ctx, program, title, hook, rows); err != nil {
			return fmt.Errorf("%s: %w", title, err)
		}
	}
	fmt.Fprintln(table, heads[0])
	fmt.Fprintln(table, heads[1])
	for i, sc := range seatScenarios() {
		fmt.Fprintln(table, sc.title+rows[i])
	}
	_ = table.Flush()
	_, err := text.WriteTo(os.Stdout)
	return err
}

func playSeatsOn(ctx context.Context, program, title string, hook *httptest.Server, rows []string) error {
	st := &stage{title, strings.TrimSuffix(*serverURL, "/"), &http.Client{Transport: &http.Transport{TLSClientConfig: trusting}}, *token}
	if title != "kube-apiserver" {
		name := filepath.Join(filepath.Dir(program), strings.ReplaceAll(title, " ", "-"))
		flags := []string{"--data=" + name + ".db"}
		if title == "auto" {
			flags = append(flags, "--max-requests-inflight=auto")
		}
		limited, stop := context.WithCancel(ctx)
		started, server, err := startWith(limited, program, name, title, flags...)
		if err != nil {
			stop()
			return err
		}
		defer func(server *exec.Cmd) { stop(); _ = server.Wait() }(server)
		st = started
	}
	defer st.clear()
	if err := st.furnish(ctx); err != nil {
		return err
	}
	if err := st.callSlowly(ctx, hook); err != nil {
		return err
	}
	defer func() { _, _ = st.ask(context.Background(), "DELETE", hooks+"/flows", "") }()
	for i, sc := range seatScenarios() {
		fmt.Fprintln(os.Stderr, title+":", sc.title)
		time.Sleep(breather)
		outcomes, err := st.playSettled(ctx, sc)
		if err != nil {
			return err
		}
		rows[i] += seatCells(outcomes)
		if title == "auto" {
			state, err := st.ask(ctx, "GET", "/debug/api_priority_and_fairness/dump_seats", "")
			if err != nil {
				return err
			}
			fmt.Fprintln(os.Stderr, strings.TrimSpace(string(state)))
		}
	}
	return nil
}

// playSettled plays a scenario twice in a row: only the second time counts.
func (st *stage) playSettled(ctx context.Context, sc scenario) ([]*outcome, error) {
	wanted := *length
	defer func() { *length = wanted }()
	if *length = settling; len(sc.actors) > lights {
		if _, err := st.play(ctx, sc); err != nil {
			return nil, err
		}
	}
	*length = wanted
	return st.play(ctx, sc)
}

func seatCells(outcomes []*outcome) string {
	var renewals, probes time.Duration
	served, failed := 0, 0
	for i, o := range outcomes {
		switch {
		case i < lights-1:
			renewals = max(renewals, o.percentile(0.99))
		case i == lights-1:
			probes = o.percentile(0.99)
		default:
			served += len(o.latencies)
		}
		failed += o.failed
	}
	cells := fmt.Sprintf("\t%.0f\t%.1f ms\t%.1f ms", float64(served)/length.Seconds(), renewals.Seconds()*1000, probes.Seconds()*1000)
	if failed > 0 {
		cells += fmt.Sprintf(" (%d failed)", failed)
	}
	return cells
}

// callSlowly lets creates in one namespace wait for a webhook.
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
