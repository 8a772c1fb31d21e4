package main

// The files of docs/monitoring, held against what a server shows at /metrics: a rule about a series that does not exist is silent for ever.

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	"sigs.k8s.io/yaml"
)

// A ruleFile is what Prometheus reads (https://prometheus.io/docs/prometheus/latest/configuration/recording_rules).
type ruleFile struct {
	Groups []struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			For         string            `json:"for"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

// exposed are the families of a server with their labels, each with the values that it has.
type exposed map[string]map[string]map[string]bool

var (
	sampleLine = regexp.MustCompile(`^(\w+)(?:\{(.*)\})? \S+$`)
	labelPair  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

func (e exposed) add(name, label, value string) {
	if e[name] == nil {
		e[name] = map[string]map[string]bool{"job": {}, "instance": {}} // Prometheus' own, of any series
	}
	if label == "" {
		return
	}
	if e[name][label] == nil {
		e[name][label] = map[string]bool{}
	}
	e[name][label][value] = true
}

func readExposed(text string) exposed {
	all := exposed{}
	all.add("up", "", "") // Prometheus' own
	for line := range strings.Lines(text) {
		sample := sampleLine.FindStringSubmatch(strings.TrimSpace(line))
		if sample == nil {
			continue
		}
		all.add(sample[1], "", "")
		for _, pair := range labelPair.FindAllStringSubmatch(sample[2], -1) {
			all.add(sample[1], pair[1], pair[2])
		}
	}
	return all
}

var described = regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`)

// addDescribed adds families that a server has registered and does not show now: those of an etcd cluster, which are shown with one alone
// (testdata/etcd has a server with one, and the same names), and counts of what has not happened.
func (e exposed) addDescribed(t *testing.T, registry *prometheus.Registry, prefixes ...string) {
	descs := make(chan *prometheus.Desc, 1000)
	go func() { registry.Describe(descs); close(descs) }()
	for desc := range descs {
		found := described.FindStringSubmatch(desc.String())
		if found == nil || !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(found[1], prefix) }) {
			continue
		}
		e.add(found[1], "", "")
		for label := range strings.SplitSeq(found[2], ",") {
			e.add(found[1], label, "")
		}
	}
}

// The parts of PromQL that a name may stand in.
var (
	exprRange  = regexp.MustCompile(`\[[^\]]*\]`)                                                       // of time
	exprGroup  = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right) *\(([^)]*)\)`) // of labels
	exprSeries = regexp.MustCompile(`([a-zA-Z_:][\w:]*) *(\(|\{(?:[^}"]|"[^"]*")*\})?`)                 // a function, or a series
	exprMatch  = regexp.MustCompile(`(\w+) *(=~|!~|!=|=) *"([^"]*)"`)                                   // a label's value
	exprWords  = []string{"and", "or", "unless", "bool", "offset", "vector", "time"}
)

// check looks at one expression of PromQL: its names are families of the server, the labels in braces and groups are theirs, and a value that a
// label must equal is one that the server shows.
func (e exposed) check(expr string) (problems []string) {
	var used, grouped []string
	for _, group := range exprGroup.FindAllStringSubmatch(expr, -1) {
		grouped = append(grouped, strings.FieldsFunc(group[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	expr = exprGroup.ReplaceAllString(exprRange.ReplaceAllString(expr, ""), "")
	for _, found := range exprSeries.FindAllStringSubmatch(expr, -1) {
		name, rest := found[1], found[2]
		switch {
		case rest == "(" || slices.Contains(exprWords, name):
		case e[name] == nil:
			problems = append(problems, "no series is called "+name)
		default:
			used = append(used, name)
			problems = append(problems, e.checkMatchers(name, rest)...)
		}
	}
	for _, label := range grouped {
		if !slices.ContainsFunc(used, func(name string) bool { return e[name][label] != nil }) {
			problems = append(problems, "nothing in it has the label "+label)
		}
	}
	if len(used) == 0 {
		problems = append(problems, "it names no series")
	}
	return problems
}

func (e exposed) checkMatchers(name, matchers string) (problems []string) {
	for _, m := range exprMatch.FindAllStringSubmatch(matchers, -1) {
		switch values := e[name][m[1]]; {
		case values == nil:
			problems = append(problems, fmt.Sprintf("%s has no label %s", name, m[1]))
		case m[2] == "=" && len(values) > 0 && !values[m[3]] && !strings.HasPrefix(m[3], "$"):
			problems = append(problems, fmt.Sprintf("%s of %s is never %q", m[1], name, m[3]))
		}
	}
	return problems
}

func readRules(t *testing.T) (rules ruleFile) {
	t.Helper()
	text, err := os.ReadFile("docs/monitoring/rules.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(text, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestMonitoringSpeaksOfWhatThereIs scrapes a server that has been used a little, and looks up there whatever rules and dashboard name.
func TestMonitoringSpeaksOfWhatThereIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _ := startTLS(t, onFile(filepath.Join(dir, "a.db")), func(c *config) {
		c.Audit.Path, c.Kubeconfig = filepath.Join(dir, "audit.log"), filepath.Join(dir, "kubeconfig")
	})
	s.headers = []string{"Authorization: Bearer root-token"}
	maps := s.namespace("shop")
	s.want(201, "POST", maps, configMap("a"))
	s.want(200, "GET", maps, "")
	s.want(200, "GET", "/readyz", "")
	w := s.watch(maps+"?watch=1&timeoutSeconds=60", s.headers...)
	s.want(201, "POST", maps, configMap("b"))
	<-w.frames
	all := readExposed(string(s.want(200, "GET", "/metrics", "").body))
	all.addDescribed(t, s.metrics.registry.Registry, "apilet_etcd_", "apilet_replica_", "apiserver_flowcontrol_")

	for _, bad := range []string{`no_such_metric > 0`, `apilet_disk_full{colour="red"}`, `sum by (colour) (apilet_disk_full)`,
		`kubernetes_healthcheck{name="no-such-check"}`, `rate(apiserver_request_totals[5m])`} {
		if all.check(bad) == nil {
			t.Errorf("the test takes %s", bad)
		}
	}
	expressions := map[string]string{}
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			expressions["rule "+rule.Alert] = rule.Expr
			if rule.Alert == "" || rule.Annotations["summary"] == "" || !slices.Contains([]string{"page", "ticket", "info"}, rule.Labels["severity"]) {
				t.Errorf("rule %q has no name, summary or severity: %+v", rule.Alert, rule)
			}
			if !regexp.MustCompile(`^(|\d+[smhd])$`).MatchString(rule.For) {
				t.Errorf("rule %s: for %q", rule.Alert, rule.For)
			}
		}
	}
	text, err := os.ReadFile("docs/monitoring/dashboard.json")
	if err != nil || !json.Valid(text) {
		t.Fatal("no dashboard", err)
	}
	ids := map[int64]bool{}
	for _, panel := range gjson.GetBytes(text, "panels").Array() {
		if id := panel.Get("id").Int(); ids[id] {
			t.Errorf("two panels are number %d", id)
		} else {
			ids[id] = true
		}
		for _, target := range panel.Get("targets").Array() {
			expressions["panel "+panel.Get("title").String()+" "+target.Get("refId").String()] = target.Get("expr").String()
		}
	}
	if len(expressions) < 40 {
		t.Errorf("only %d expressions", len(expressions))
	}
	for where, expr := range expressions {
		for _, problem := range all.check(expr) {
			t.Errorf("%s: %s: %s", where, expr, problem)
		}
	}
}

// TestAlarmsAreExplained: docs/devices.md has a row for each alarm, in the file's order, and for no other.
func TestAlarmsAreExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("docs/devices.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows, alarms []string
	for _, row := range regexp.MustCompile(`(?m)^\| (Apilet\w+) \|`).FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, row[1])
	}
	for _, group := range readRules(t).Groups {
		for _, rule := range group.Rules {
			alarms = append(alarms, rule.Alert)
		}
	}
	if !slices.Equal(rows, alarms) {
		t.Errorf("docs/devices.md explains %v, the rules are %v", rows, alarms)
	}
}
