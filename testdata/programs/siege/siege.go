package main

// This file is the siege: it deals requests, a family after the other by the time that each has had, pursues what trips a meter, and now and
// then kills the server and looks whether all is still there.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	pursuit   = 25 * time.Second // at most, for making one finding small
	killAfter = 100 * time.Second
	manyBytes = 400 << 20 // of data or memory: time for a fresh server
)

// A siege is a run of the program.
type siege struct {
	out   io.Writer
	dir   string
	began time.Time

	server  *server
	by      *bystanders
	behind  *httptest.Server   // serves an API group of the server's
	leave   context.CancelFunc // ends the bystanders
	servers int                // servers so far that began without data
	logSeen int64
	kinds   []*kind
	gen     *generator

	spent    map[string]time.Duration // by family
	asked    int
	skipped  int
	accepted int
	pursued  time.Duration // of the time of this step: that is no family's
	findings []finding
	faults   []string // sorts of 500 that were told
}

// A finding is a request that trips a meter, as small as it could be made.
type finding struct {
	trip
	request *request
	at      time.Duration
}

// lay besieges servers until ctx ends.
func (s *siege) lay(ctx context.Context) error {
	if err := s.fresh(ctx); err != nil {
		return err
	}
	defer func() { s.leave(); s.server.kill() }()
	for killed := time.Now(); ctx.Err() == nil; {
		if time.Since(killed) > killAfter {
			s.unplug(ctx)
			killed = time.Now()
			continue
		}
		s.step(ctx)
	}
	ending := context.WithoutCancel(ctx)
	if !s.server.alive() { // time was over while it was started anew
		if err := s.fresh(ending); err != nil {
			return err
		}
	}
	s.restart(ending, func() error { return s.server.stop() })
	fmt.Fprintf(s.out, "%d requests, %d accepted, %d of a known kind left out, %d servers\n", s.asked, s.accepted, s.skipped, s.servers)
	if len(s.findings) > 0 {
		return fmt.Errorf("%d findings, in %s", len(s.findings), *found)
	}
	return nil
}

// step is one request.
func (s *siege) step(ctx context.Context) {
	family := s.turn()
	began := time.Now()
	defer func() { s.spent[family] += time.Since(began) - s.pursued + time.Millisecond; s.pursued = 0 }()
	q := s.gen.next(family)
	if q == nil {
		return
	}
	if q.Connections > 0 {
		q.Connections = *users
	}
	if s.known(q, "") {
		s.skipped++
		return
	}
	o, trips := s.try(ctx, q)
	if ctx.Err() != nil {
		return
	}
	s.asked++
	switch o.code / 100 {
	case 2:
		s.accepted++
	case 4:
		s.gen.again(family)
	}
	if *loud {
		fmt.Fprintf(s.out, "%v %s %s %.100s as %s: %v [%s]\n", time.Since(s.began).Round(time.Second), family, q.Method, q.target(), q.As, o, strings.Join(q.features(), "; "))
	}
	s.tellFaults(q, o)
	for _, t := range trips {
		if !s.known(q, t.meter) {
			s.pursue(ctx, q, t.meter)
		}
		if q.Connections == 0 {
			break // the others follow from the worst
		}
	}
	s.calm(ctx, o)
}

// tellFaults prints the first request of each sort that is answered with 500. Kubernetes' libraries do so at times: it is no finding.
func (s *siege) tellFaults(q *request, o outcome) {
	if o.code != http.StatusInternalServerError {
		return
	}
	_, message, _ := strings.Cut(o.answer, "message")
	sort := q.Method + fmt.Sprintf("%.32s", message)
	if !slices.Contains(s.faults, sort) {
		s.faults = append(s.faults, sort)
		fmt.Fprintf(s.out, "%s %.100s: 500%.200s\n", q.Method, q.target(), message)
	}
}

// turn is the family that has had the least of its share of the time.
func (s *siege) turn() string {
	best := ""
	for _, family := range families {
		if *only != "" && !slices.Contains(strings.Split(*only, ","), family) {
			continue
		}
		if best == "" || s.spent[family]*time.Duration(shares[best]) < s.spent[best]*time.Duration(shares[family]) {
			best = family
		}
	}
	return best
}

// known is whether a finding has nothing that q does not have. Of crowds each meter counts by itself, for the one hides the other.
func (s *siege) known(q *request, meter string) bool {
	features, meters := q.features(), map[string]bool{}
	for _, f := range s.findings {
		of := f.request.features()
		if slices.ContainsFunc(of, func(feature string) bool { return !slices.Contains(features, feature) }) {
			continue
		}
		if q.Connections == 0 || f.meter == meter {
			return true
		}
		meters[f.meter] = true
	}
	return meters["bystander"] && meters["memory"]
}

// calm brings the server back to where a request can be measured: a fresh one where this one still works at what it was asked, or holds much.
func (s *siege) calm(ctx context.Context, o outcome) {
	if ctx.Err() != nil {
		return
	}
	memory, _ := s.server.memory()
	data, _ := os.Stat(s.server.data())
	bad := !o.ended || o.died || memory > manyBytes || data != nil && data.Size() > manyBytes
	if !bad && o.connections > 0 {
		bad = !s.by.recovered(ctx, 5*time.Second)
	}
	if bad {
		if err := s.fresh(ctx); err != nil && ctx.Err() == nil {
			s.report(finding{trip{"death", err.Error()}, &request{Method: "GET", Path: "/", Tags: []string{"start"}}, time.Since(s.began)})
		}
	}
}

// pursue makes sure that q trips the meter, makes it small, and reports it.
func (s *siege) pursue(ctx context.Context, q *request, meter string) {
	var last trip
	trips := func(q *request) bool {
		stale := q.Connections > 0 || len(q.Before) > 0 || q.Method == "GET" // the last crowd may still hold what it held, and what was stored before is still there
		if stale && s.fresh(ctx) != nil {
			return false
		}
		o, all := s.try(ctx, q)
		t, tripped := worst(all, meter)
		s.calm(ctx, o)
		if ctx.Err() != nil {
			return false
		}
		if tripped {
			last = t
		}
		return tripped
	}
	defer func(began time.Time) { s.pursued += time.Since(began) }(time.Now())
	at, deadline := time.Since(s.began), time.Now().Add(min(pursuit, *length/10))
	if s.fresh(ctx) != nil || !trips(q) {
		if ctx.Err() != nil {
			return
		}
		fmt.Fprintf(s.out, "%v: %s %.100s tripped %s once, and not again\n", at.Round(time.Second), q.Method, q.target(), meter)
		return
	}
	q = shrink(q, trips, func() bool { return time.Now().Before(deadline) && ctx.Err() == nil })
	s.report(finding{last, q, at})
}

// report prints a finding and leaves it in files.
func (s *siege) report(f finding) {
	s.findings = append(s.findings, f)
	name := filepath.Join(*found, fmt.Sprint("finding-", len(s.findings)))
	fmt.Fprintf(s.out, "\nFINDING %d after %v, %s: %s\n", len(s.findings), f.at.Round(time.Second), f.meter, f.why)
	fmt.Fprintf(s.out, "  as %s; %s\n", f.request.As, strings.Join(f.request.features(), "; "))
	description, _ := json.MarshalIndent(f.request, "", " ")
	err := errors.Join(os.MkdirAll(*found, 0o700), os.WriteFile(name+".json", description, 0o600))
	for i, q := range append(slices.Clone(f.request.Before), f.request) {
		file := fmt.Sprintf("%s.%d.body", name, i)
		if q.Body != nil {
			err = errors.Join(err, os.WriteFile(file, q.Body.bytes(), 0o600))
		}
		fmt.Fprintln(s.out, "  "+q.curl(file))
	}
	if err != nil {
		fmt.Fprintln(s.out, "  not written:", err)
	}
	fmt.Fprintf(s.out, "  -replay %s.json\n\n", name)
}

// ---- Servers ----

// fresh ends the server, if there is one, and starts one without data.
func (s *siege) fresh(ctx context.Context) error {
	if s.server != nil {
		s.leave()
		s.server.kill()
		_ = os.RemoveAll(s.server.dir)
	}
	s.servers++
	dir := filepath.Join(s.dir, fmt.Sprint(s.servers))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s.logSeen = 0
	if err := s.serve(ctx, dir); err != nil {
		return err
	}
	if err := s.server.furnish(); err != nil {
		return err
	}
	if err := s.learn(ctx); err != nil {
		return err
	}
	if s.behind == nil {
		s.behind = newBackend()
	}
	return register(s.server, s.behind)
}

// serve starts a server on dir.
func (s *siege) serve(ctx context.Context, dir string) (err error) {
	s.leave = func() {}
	next, err := start(ctx, *binary, dir)
	if next != nil {
		s.server = next
	}
	return err
}

// learn reads the server's types, the first time, and stores an object of each.
func (s *siege) learn(ctx context.Context) error {
	if s.kinds == nil {
		kinds, err := kindsOn(s.server)
		if err != nil {
			return err
		}
		s.kinds = kinds
	}
	tenants, recorded := map[*kind]bool{}, map[*kind][]byte{}
	for _, k := range s.kinds {
		body := k.base("siege").bytes()
		if s.gen == nil {
			code, _, err := s.server.ask("tenant", "POST", k.collection+"?dryRun=All", body)
			if err != nil {
				return err
			}
			tenants[k] = code/100 == 2
		}
		if k.part() || k.review() {
			continue
		}
		if _, _, err := s.server.ask("administrator", "POST", k.collection, body); err != nil {
			return err
		}
	}
	for _, k := range s.kinds {
		recorded[k] = s.inProtobuf(ctx, k)
	}
	if s.gen == nil {
		s.gen = newGenerator(*seed, s.kinds, tenants, recorded)
	}
	s.gen.recorded = recorded // with the resource versions of this server
	watching, leave := context.WithCancel(ctx)
	s.leave = leave
	s.by = watchBystanders(watching, s.server)
	return nil
}

// kindsOn are the types that the server says it has.
func kindsOn(s *server) ([]*kind, error) {
	documents, err := s.documents()
	var kinds []*kind
	for _, d := range documents {
		kinds = append(kinds, kindsOf(d, func(path string) string {
			return strings.NewReplacer("{namespace}", namespace, "{name}", "siege").Replace(path)
		})...)
	}
	return kinds, err
}

// inProtobuf is the stored object of a kind in that form, nil if there is none.
func (s *siege) inProtobuf(ctx context.Context, k *kind) []byte {
	q := request{As: "administrator", Method: "GET", Path: k.collection + "/siege", Accept: "application/vnd.kubernetes.protobuf"}
	r, err := q.http(s.server.url, nil)
	if err != nil {
		return nil
	}
	response, err := s.server.clients[q.As].Do(r.WithContext(ctx))
	if err != nil {
		return nil
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(response.Body)
	if response.StatusCode != 200 || !strings.HasPrefix(string(answer), "k8s\x00") {
		return nil
	}
	return answer
}

// unplug kills the server while it writes.
func (s *siege) unplug(ctx context.Context) {
	s.restart(ctx, func() error { s.server.kill(); return nil })
	if ctx.Err() == nil {
		_ = s.fresh(ctx)
	}
}

// restart ends the server in the given way while somebody writes, checks its file, starts it on that, and looks for what was acknowledged.
func (s *siege) restart(ctx context.Context, end func() error) {
	written := make(chan []string, 1)
	writing, enough := context.WithCancel(ctx)
	go func() { written <- s.write(writing) }()
	time.Sleep(30 * tick)
	s.leave()
	err := end()
	enough()
	names := <-written
	err = errors.Join(err, s.server.check(*binary))
	panics, _ := s.server.panics(s.logSeen)
	if panics != "" {
		err = errors.Join(err, errors.New("the log says "+panics))
	}
	again := s.serve(ctx, s.server.dir)
	for _, name := range names {
		if again != nil || ctx.Err() != nil {
			break
		}
		code, _, failed := s.server.ask("administrator", "GET", "/api/v1/namespaces/"+namespace+"/configmaps/"+name, nil)
		if code != 200 {
			again = errors.Join(fmt.Errorf("ConfigMap %s was acknowledged, and after the restart: %d", name, code), failed)
		}
	}
	if err = errors.Join(err, again); err != nil && (ctx.Err() == nil || again == nil) {
		s.report(finding{trip{"restart", err.Error()}, &request{Method: "GET", Path: "/", Tags: []string{"restart"}}, time.Since(s.began)})
	}
}

// write makes ConfigMaps until the server is gone, and returns the names of those that were acknowledged.
func (s *siege) write(ctx context.Context) (names []string) {
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprint("kept-", s.servers, "-", i)
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"a":"b"}}`, name)
		code, _, err := s.server.ask("administrator", "POST", "/api/v1/namespaces/"+namespace+"/configmaps", []byte(body))
		if err != nil {
			break
		}
		if code == 201 {
			names = append(names, name)
		}
	}
	return names
}
