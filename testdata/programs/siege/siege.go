package main

// This file is the main loop of the siege. The next family is selected by the time that was used
// for each family. It pursues requests that trip a meter. From time to time it kills the server and
// checks that no data is lost.

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
	pursuit   = 25 * time.Second // the maximum time for shrinking one finding
	killAfter = 100 * time.Second
	manyBytes = 400 << 20 // start a fresh server if data or memory exceed this size
)

// A siege is the state of a run of the program.
type siege struct {
	out   io.Writer
	dir   string
	began time.Time

	server  *server
	by      *bystanders
	behind  *httptest.Server   // serves an aggregated API group
	leave   context.CancelFunc // stops the bystanders
	servers int                // number of servers started without data
	logSeen int64
	kinds   []*kind
	gen     *generator

	spent    map[string]time.Duration // by family
	asked    int
	skipped  int
	accepted int
	pursued  time.Duration // part of this step that is not added to the time of the family
	findings []finding
	faults   []string // already reported sorts of 500 responses
}

// A finding is a request that trips a meter, after shrinking.
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
	if !s.server.alive() { // the time ended during a restart
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

// step generates and sends one request.
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
			// other trips are usually caused by the worst one
			break
		}
	}
	s.calm(ctx, o)
}

// tellFaults prints responses with status 500 unless a similar one was already printed. They are
// not reported as findings because some of them are caused by the libraries of Kubernetes.
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

// turn returns the family that has used the smallest part of its share of the time.
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

// known reports whether all features of an earlier finding occur in q. The meters are compared
// separately for a crowd, because a problem may hide another one.
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

// calm prepares the server for the next measurement. It starts a fresh one if this one is still
// busy with the request or holds too much memory or data.
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

// pursue shrinks and reports the request if the meter trips again.
func (s *siege) pursue(ctx context.Context, q *request, meter string) {
	var last trip
	trips := func(q *request) bool {
		// A previous crowd may still hold memory, and previously stored objects still exist.
		stale := q.Connections > 0 || len(q.Before) > 0 || q.Method == "GET"
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

// report prints a finding and writes it to files.
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

// fresh stops the server, if one is running, and starts one without data.
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

// learn reads the types of the server on the first call. It also stores an object of each type.
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
	s.gen.recorded = recorded // has the resource versions of this server
	watching, leave := context.WithCancel(ctx)
	s.leave = leave
	s.by = watchBystanders(watching, s.server)
	return nil
}

// kindsOn returns the types that the server lists.
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

// inProtobuf returns a stored object of the kind in protobuf. It returns nil if no object exists.
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

// unplug kills the server during a write.
func (s *siege) unplug(ctx context.Context) {
	s.restart(ctx, func() error { s.server.kill(); return nil })
	if ctx.Err() == nil {
		_ = s.fresh(ctx)
	}
}

// restart ends the server by calling end while a client writes. It then checks the data file,
// restarts the server, and checks that all acknowledged objects exist.
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

// write creates ConfigMaps until the server has ended. It returns the names of all ConfigMaps that
// were acknowledged.
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
