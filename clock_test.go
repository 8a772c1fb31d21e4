package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"apilet/internal/apitest"
	"apilet/internal/apitest/kubetest"
	"apilet/internal/clock"
)

// A board without a battery starts in 1970 on a file that was written today: it goes on from the newest write, and loses no history.
func TestStartIn1970GoesOnFromTheNewestWrite(t *testing.T) {
	t.Parallel()
	var machine atomic.Int64 // ahead of the machine's clock
	s := startTest(t, func(c *config) {
		kept := time.Hour
		c.Ephemeral, c.Data, c.History, c.CompactionInterval = false, filepath.Join(t.TempDir(), "board.db"), &kept, time.Hour
		c.clock = func() time.Time { return time.Now().Add(time.Duration(machine.Load())) }
	})
	maps := s.namespace("board")
	before := time.Now().Add(-time.Second)
	rev := s.want(201, "POST", maps, configMap("m", "k", "old")).rev()
	s.want(200, "PUT", maps+"/m", configMap("m", "k", "new"))
	s.halt()

	machine.Store(-int64(time.Since(time.Unix(0, 0))))
	s.start()
	tick := func() { // what compacts every five minutes
		if _, err := s.upkeep.Compact(t.Context(), s.upkeep.RevisionBefore(s.st.Now().Add(-time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	tick()
	if behind := s.clock.Behind(); behind < 50*365*24*time.Hour {
		t.Errorf("behind by %s", behind)
	}
	made := s.want(201, "POST", maps, configMap("after", "k", "v"))
	if at, err := time.Parse(time.RFC3339, made.get("metadata.creationTimestamp").String()); err != nil || at.Before(before.Truncate(time.Second)) {
		t.Errorf("created at %s: %v", at, err)
	}
	s.want(201, "POST", "/api/v1/namespaces/board/serviceaccounts", `{"metadata":{"name":"robot"}}`)
	token := s.want(201, "POST", "/api/v1/namespaces/board/serviceaccounts/robot/token", `{}`)
	if ends, err := time.Parse(time.RFC3339, token.get("status.expirationTimestamp").String()); err != nil || ends.Before(before) {
		t.Errorf("the token ends at %s: %v", ends, err)
	}
	s.want(200, "GET", "/api/v1/namespaces/board/configmaps/m", "", "Authorization: Bearer "+token.get("status.token").String())
	if old := s.want(200, "GET", fmt.Sprintf("/at/%d%s/m", rev, maps), "").get("data.k").String(); old != "old" {
		t.Errorf("at revision %d the object was %q", rev, old)
	}
	if s.st.Compacted() >= rev {
		t.Errorf("compacted to %d, beyond revision %d of this hour", s.st.Compacted(), rev)
	}
	if text := string(s.want(200, "GET", "/metrics", "").body); !strings.Contains(text, "\napilet_clock_behind_seconds ") || strings.Contains(text, "\napilet_clock_behind_seconds 0\n") {
		t.Error("the metric does not say that the clock is behind")
	}
	machine.Store(0)
	if behind := s.clock.Behind(); behind != 0 || s.clock.Now().Before(clock.Earliest) {
		t.Errorf("put right, and behind by %s", behind)
	}
}

// Ages in tables are those of then: of a time, of a revision, of built-in types, custom columns and scales.
func TestAgesAreThoseOfThen(t *testing.T) {
	t.Parallel()
	var ahead atomic.Int64 // of the machine's clock
	s := startTest(t, func(c *config) { c.clock = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	s.want(201, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", kubetest.FromFlow(t, `{metadata: {name: kites.example.com}, spec: {group: example.com, scope: Namespaced,
		names: {plural: kites, kind: Kite}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}},
		additionalPrinterColumns: [{name: Flown, type: date, jsonPath: .spec.flown}]}]}}`))
	born := time.Now()
	kites := "/apis/example.com/v1/namespaces/default/kites"
	s.want(201, "POST", kites, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Kite","metadata":{"name":"red"},"spec":{"flown":%q}}`, born.Add(-time.Hour).Format(time.RFC3339)))
	s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap("c", "a", "b"))
	ahead.Store(int64(3 * time.Hour))
	rev := s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap("later", "a", "b")).get("metadata.resourceVersion").String()
	cell := func(at, path, want string) {
		t.Helper()
		rows := s.want(200, "GET", at+path, "", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1").get("rows.0.cells")
		cells := rows.Array()
		if got := cells[len(cells)-1].String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s%s: %s, want %s", at, path, rows, want)
		}
	}
	then := "/at/" + rev
	cell(then, "/api/v1/namespaces/default/configmaps/c", "3h")
	cell(then, "/api/v1/namespaces/default/configmaps?fieldSelector=metadata.name=c", "3h")
	cell(then, kites, "4h")
	cell("/at/"+time.Now().Add(time.Second).UTC().Format(time.RFC3339), kites, "6") // minutes, and some more on a machine that is slow
	if now := s.want(200, "GET", kites, "", "Accept: application/json;as=Table;g=meta.k8s.io;v=v1").get("rows.0.cells.1").String(); !strings.HasPrefix(now, "6") {
		t.Errorf("now: %s", now)
	}
}

// TestEventsAreLimited has the answers that a kube-apiserver 1.36 gave under the same configuration, while no second passes.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	file := apitest.TempFile(t, "admission.yaml", `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: EventRateLimit
  configuration:
    apiVersion: eventratelimit.admission.k8s.io/v1alpha1
    kind: Configuration
    limits:
    - {type: Namespace, qps: 1, burst: 3, cacheSize: 2}
    - {type: User, qps: 1, burst: 8}
    - {type: SourceAndObject, qps: 1, burst: 2}
`)
	var passed atomic.Int64 // seconds
	s := startTest(t, func(c *config) {
		c.AdmissionConfig, c.EnabledPlugins = file, []string{"EventRateLimit"}
		c.clock = func() time.Time { return time.Unix(1_900_000_000+passed.Load(), 0) }
	})
	const events, one = "/api/v1/namespaces/default/events", "limit reached on type SourceAndObject for key khPoddefaultouv1"
	n := 0
	event := func(query, want string) {
		t.Helper()
		n++
		a := s.send("POST", events+query, fmt.Sprintf(`{"metadata":{"name":"e%d","namespace":"default"},"source":{"component":"k","host":"h"},"reason":"r",
			"involvedObject":{"kind":"Pod","namespace":"default","name":"o","uid":"u","apiVersion":"v1"}}`, n))
		if got := a.get("message"); a.code != 201 && a.code != 429 || (a.code == 201) != (want == "") || want != "" && got.String() != "Too many requests: "+want {
			t.Errorf("event %d: %d %s, want %q", n, a.code, a.body, want)
		}
		if want != "" && (a.get("reason").String() != "TooManyRequests" || a.header.Get("Retry-After") != "") {
			t.Errorf("event %d: %s %s", n, a.header, a.body)
		}
	}
	event("", "")
	event("", "")
	event("", one)
	for range 5 {
		event("", "[limit reached on type Namespace for key default, "+one+"]")
	}
	all := "[limit reached on type Namespace for key default, limit reached on type User for key system:unsecured, " + one + "]"
	event("", all)
	event("?dryRun=All", "")
	s.want(429, "PATCH", events+"/e1", `{"count":2}`, asMergePatch)
	for i := range 12 { // which are not limited there, either
		s.want(201, "POST", "/apis/events.k8s.io/v1/namespaces/default/events", fmt.Sprintf(`{"metadata":{"name":"n%d"},"eventTime":"2026-01-01T00:00:00.000000Z",
			"reportingController":"a.b/c","reportingInstance":"i","action":"a","reason":"r","type":"Normal"}`, i))
	}
	passed.Add(1)
	event("", "")
	event("", all)
}
