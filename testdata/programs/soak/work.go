package main

// This file sends the requests. There are writers that use different names, readers that list
// objects, and a goroutine that creates and deletes namespaces, definitions, Events and backups.
// One ticker limits all of them to -rate requests per second.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	writers      = 3
	jsonBody     = "application/json"
	mergeBody    = "application/merge-patch+json"
	pageSize     = 25
	householdGap = 10 * time.Second
	bystandGap   = 100 * time.Millisecond
	// number of names that are reused because the metrics keep a series for every name
	definitions = 8
)

const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]ss.soak.example.com"},
"spec":{"group":"soak.example.com","scope":"Namespaced","names":{"plural":"%[1]ss","singular":"%[1]s","kind":"%[2]s"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
"properties":{"turns":{"type":"integer"},"speed":{"type":"integer","default":7}},
"x-kubernetes-validations":[{"rule":"self.turns >= 0"}]}}}}}]}}`

// furnish creates the namespace, the definition and the marker that are used by the workers.
func (s *subject) furnish() error {
	for _, what := range [][2]string{
		{"/api/v1/namespaces", `{"metadata":{"name":"soak"}}`},
		{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", fmt.Sprintf(definition, "gadget", "Gadget")},
		{"/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"marker"},"data":{"says":"` + markerText + `"}}`},
	} {
		if a := s.must("POST", what[0], what[1], 201, 409); a.code != 201 {
			return fmt.Errorf("POST %s: %d %s", what[0], a.code, a.body)
		}
	}
	return await(kinds[2].path+" is served", func() bool { return s.ask(kinds[2].path).code == 200 })
}

// startWorkers starts all goroutines that send requests. They run until ctx is done.
func (s *subject) startWorkers(ctx context.Context, running *sync.WaitGroup) {
	// unbuffered, to avoid that requests are sent faster after a pause
	turns := make(chan struct{})
	running.Go(func() {
		defer close(turns)
		ticker := time.NewTicker(time.Second / time.Duration(*rate))
		defer ticker.Stop()
		for ctx.Err() == nil {
			<-ticker.C
			select {
			case turns <- struct{}{}:
			default:
			}
		}
	})
	for i := range writers {
		running.Go(func() { s.write(turns, i) })
	}
	running.Go(func() { s.read(turns) })
	running.Go(func() { s.keepHouse(ctx) })
	running.Go(func() { s.standBy(ctx) })
}

// standBy reads an object in a loop and measures how long the server is unavailable.
func (s *subject) standBy(ctx context.Context) {
	for served := time.Now(); pause(ctx, bystandGap); {
		asked := time.Now()
		if a, err := s.call("GET", "/api/v1/namespaces/soak", "", ""); err == nil && a.code == 200 {
			served = time.Now()
		} else if err == nil {
			s.fault("the bystander is answered %d %.200s", a.code, a.body)
		}
		if waited := max(time.Since(asked), time.Since(served)); int64(waited) > s.silence.Load() {
			s.silence.Store(int64(waited))
		}
	}
}

// ---- Writers ----

// write repeatedly makes a random change to one of the writer's objects.
func (s *subject) write(turns <-chan struct{}, writer int) {
	for range turns {
		k := kinds[rand.IntN(len(kinds))]
		name := fmt.Sprintf("o-%d-%02d", writer, rand.IntN(perKind/writers))
		s.ledger.gate.RLock()
		if e := s.ledger.get(k, name); !e.there {
			s.create(k, name, e)
		} else {
			s.change(k, name, e)
		}
		s.ledger.gate.RUnlock()
	}
}

func (s *subject) create(k *kind, name string, e entry) {
	a, err := s.call("POST", k.path, k.body(name, "", e.n+1), jsonBody)
	s.settle(k, name, attempt{before: e, after: entry{n: e.n + 1, there: true}, code: 201}, a, err)
}

// change updates, patches or deletes an object, or sends a write that must be rejected.
func (s *subject) change(k *kind, name string, e entry) {
	path, next := k.path+"/"+name, entry{n: e.n + 1, there: true}
	switch dice := rand.IntN(100); {
	case dice < 35:
		a := s.ask(path)
		body := s.edited(k, name, a)
		if body == "" {
			return
		}
		a, err := s.call("PUT", path, body, jsonBody)
		s.settle(k, name, attempt{before: e, after: next, code: 200}, a, err)
	case dice < 70:
		body := fmt.Sprintf(`{"metadata":{"annotations":{"soak/n":"%d"}}}`, next.n)
		a, err := s.call("PATCH", path, body, mergeBody)
		s.settle(k, name, attempt{before: e, after: next, code: 200}, a, err)
	case dice < 85:
		a, err := s.call("DELETE", path+"?gracePeriodSeconds=0", "", "")
		s.settle(k, name, attempt{before: e, after: entry{n: e.n}, code: 200}, a, err)
	case dice < 90:
		a, err := s.call("POST", k.path, k.body(name, "", e.n+1), jsonBody)
		s.settle(k, name, attempt{before: e, after: e, code: 409}, a, err)
	default:
		body := fmt.Sprintf(`{"metadata":{"resourceVersion":"%d","annotations":{"soak/n":"0"}}}`, max(revisionOf(e.rev)-1, 1))
		a, err := s.call("PATCH", path, body, mergeBody)
		s.settle(k, name, attempt{before: e, after: e, code: 409}, a, err)
	}
}

// edited returns the response of a GET with the next counter. It includes the fields that were set
// by the server.
func (s *subject) edited(k *kind, name string, a answer) string {
	e := s.ledger.get(k, name) // the revision may have changed in the meantime
	var read object
	if err := json.Unmarshal(a.body, &read); err != nil || a.code != 200 || !e.fits(&read) {
		s.fault("GET %s/%s: want write %d at %s, got %d %.200s", k.path, name, e.n, e.rev, a.code, a.body)
		return ""
	}
	was, is := fmt.Sprintf(`"soak/n":"%d"`, e.n), fmt.Sprintf(`"soak/n":"%d"`, e.n+1)
	return strings.Replace(string(a.body), was, is, 1)
}

// An attempt is a write that was sent but has an unknown result.
type attempt struct {
	before, after entry
	code          int // expected status of the response
}

// settle records the result of a write. If the result is unknown or the write was refused, it reads
// the object.
func (s *subject) settle(k *kind, name string, w attempt, a answer, err error) {
	switch {
	case err != nil:
		s.resolve(k, name, w, errors.As(err, new(refusedError)))
	case a.code != w.code:
		s.fault("%s/%s: a write is answered %d, not %d: %.300s", k.path, name, a.code, w.code, a.body)
	case w.code != 409:
		s.note(k, name, w, a)
	}
}

// note records a successful write.
func (s *subject) note(k *kind, name string, w attempt, a answer) {
	now := w.after
	if w.after.there {
		if now = entryOf(a); now.n != w.after.n {
			s.fault("%s/%s: of write %d is there: %d %.300s", k.path, name, w.after.n, a.code, a.body)
			return
		}
	}
	s.counts.written.Add(1)
	s.ledger.set(k, name, now)
}

// entryOf returns the state of the object in a response.
func entryOf(a answer) entry {
	var o object
	if a.code == 404 || json.Unmarshal(a.body, &o) != nil {
		return entry{}
	}
	return entry{n: o.n(), there: true, rev: o.Metadata.ResourceVersion}
}

// resolve determines whether a write that got no response was executed. The write has happened, has
// not happened, or may still happen, e.g. if the request waits in a suspended etcd. While the
// object is unchanged, resolve repeats the write with a precondition on the current state. When the
// repetition succeeds, the first write can no longer happen.
func (s *subject) resolve(k *kind, name string, w attempt, refused bool) {
	path := k.path + "/" + name
	for first := true; s.over.Err() == nil; first = false {
		a := s.ask(path)
		if a.code != 200 && a.code != 404 {
			s.fault("GET %s: %d %.200s", path, a.code, a.body)
			return
		}
		found := entryOf(a)
		happened := found.there == w.after.there && (!found.there || found.n == w.after.n)
		untouched := found.there == w.before.there && (!found.there || found.n == w.before.n)
		switch {
		case w.code == 409 && untouched: // the write had to be rejected
			return
		case happened && refused && first:
			s.fault("%s: write %d was refused, and has happened", path, w.after.n)
			return
		case happened:
			s.note(k, name, w, a)
			return
		case !untouched:
			s.fault("%s: after write %d without an answer is there: %d %.300s", path, w.after.n, a.code, a.body)
			return
		}
		if s.repeated(k, name, w, found) {
			return
		}
		time.Sleep(blink)
	}
}

// repeated sends a write again with a precondition on the current state. It returns false if the
// state has changed or the result is unknown.
func (s *subject) repeated(k *kind, name string, w attempt, found entry) (done bool) {
	path := k.path + "/" + name
	var a answer
	var err error
	switch {
	case !w.before.there:
		a, err = s.call("POST", k.path, k.body(name, "", w.after.n), jsonBody)
	case !w.after.there: // also for a Pod that has a deletion timestamp already
		a, err = s.call("DELETE", path, `{"gracePeriodSeconds":0,"preconditions":{"resourceVersion":"`+found.rev+`"}}`, jsonBody)
	default:
		a, err = s.call("PATCH", path, fmt.Sprintf(`{"metadata":{"resourceVersion":"%s","annotations":{"soak/n":"%d"}}}`, found.rev, w.after.n), mergeBody)
	}
	if err != nil || a.code == 409 || a.code == 404 {
		return false
	}
	s.settle(k, name, w, a, nil)
	return true
}

// ---- Readers ----

// A memory is a list that will be requested again at its revision.
type memory struct {
	path, rev string
	items     map[string]object
}

// read requests lists. It uses a quarter of the rate.
func (s *subject) read(turns <-chan struct{}) {
	var past *memory
	for range turns {
		k := kinds[rand.IntN(len(kinds))]
		s.ledger.gate.RLock() // backups are restored between reads
		switch rand.IntN(5) {
		case 0:
			past = s.readNow(k)
		case 1:
			s.readChunks(k)
		case 2:
			if past != nil {
				s.readAgain(past)
			}
		case 3:
			s.readSome(k, "labelSelector="+url.QueryEscape("colour in (c1,c2)"), func(o *object) bool {
				return o.Metadata.Labels["colour"] == "c1" || o.Metadata.Labels["colour"] == "c2"
			})
		case 4:
			name := fmt.Sprintf("o-%d-%02d", rand.IntN(writers), rand.IntN(perKind/writers))
			s.readSome(k, "fieldSelector=metadata.name%3D"+name, func(o *object) bool { return o.Metadata.Name == name })
		}
		s.ledger.gate.RUnlock()
	}
}

// readNow reads a whole list. It must contain all writes that were acknowledged before the request.
func (s *subject) readNow(k *kind) *memory {
	before := s.ledger.copy(k)
	items, rev, ok := s.listAll(k.path)
	if !ok {
		return nil
	}
	s.notOlder(k, items, before)
	return &memory{k.path, rev, items}
}

func (s *subject) notOlder(k *kind, items map[string]object, before map[string]entry) {
	for name, o := range items {
		if e := before[name]; o.n() < e.n || o.n() == e.n && !e.there {
			s.fault("LIST %s: %s is at write %d, though %d was acknowledged before (there: %t)", k.path, name, o.n(), e.n, e.there)
		}
	}
}

// readChunks reads a list in chunks, also across restarts. All chunks must have the same revision.
func (s *subject) readChunks(k *kind) {
	path := fmt.Sprintf("%s?limit=%d", k.path, pageSize)
	last, rev := "", ""
	for token := ""; ; {
		a := s.ask(path + token)
		if a.code == 410 {
			s.counts.expired.Add(1)
			return
		}
		l, ok := s.parseList(path, a)
		if !ok || a.code != 200 {
			s.fault("GET %s%s: %d %.200s", path, token, a.code, a.body)
			return
		}
		if rev == "" {
			rev = l.Metadata.ResourceVersion
		}
		if len(l.Items) > 0 && (l.Items[0].Metadata.Name <= last || l.Metadata.ResourceVersion != rev) {
			s.fault("GET %s: a chunk begins with %s after %s, at %s after %s", path, l.Items[0].Metadata.Name, last, l.Metadata.ResourceVersion, rev)
		}
		if l.Metadata.Continue == "" {
			return
		}
		last, token = l.Items[len(l.Items)-1].Metadata.Name, "&continue="+url.QueryEscape(l.Metadata.Continue)
	}
}

// readAgain reads a list at an earlier revision. The list must be unchanged, unless the revision is
// compacted.
func (s *subject) readAgain(m *memory) {
	path := m.path + "?resourceVersionMatch=Exact&resourceVersion=" + m.rev
	a := s.ask(path)
	if a.code == 410 {
		s.counts.expired.Add(1)
		return
	}
	l, ok := s.parseList(path, a)
	if !ok || a.code != 200 || l.Metadata.ResourceVersion != m.rev || len(l.Items) != len(m.items) {
		s.fault("GET %s: %d, %d items instead of %d", path, a.code, len(l.Items), len(m.items))
		return
	}
	for _, o := range l.Items {
		if was := m.items[o.Metadata.Name]; was.Metadata.ResourceVersion != o.Metadata.ResourceVersion || was.n() != o.n() {
			s.fault("GET %s: %s is at %s and was at %s", path, o.Metadata.Name, o.Metadata.ResourceVersion, was.Metadata.ResourceVersion)
		}
	}
}

// readSome reads a list with a selector.
func (s *subject) readSome(k *kind, selector string, fits func(*object) bool) {
	path := k.path + "?" + selector
	items, _, _ := s.listAll(path)
	for name, o := range items {
		if !fits(&o) {
			s.fault("LIST %s has %s", path, name)
		}
	}
}

// ---- Housekeeping ----

// keepHouse creates and deletes the objects that rarely change.
func (s *subject) keepHouse(ctx context.Context) {
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return
		case <-time.After(householdGap):
		}
		s.keepHouseOnce(turn)
	}
}

func (s *subject) keepHouseOnce(turn int) {
	s.ledger.gate.RLock() // backups are restored between turns
	defer s.ledger.gate.RUnlock()
	s.passNamespace(fmt.Sprint("passing-", turn))
	for i := range 5 {
		s.must("POST", "/api/v1/namespaces/soak/events", fmt.Sprintf(
			`{"metadata":{"name":"e-%d-%d"},"involvedObject":{"namespace":"soak"},"message":"%s"}`, turn, i, pads), 201, 409)
	}
	if turn%3 == 0 {
		s.passDefinition(fmt.Sprintf("passing%c", 'a'+turn%definitions))
	}
	if turn%18 == 0 {
		s.must("GET", "/debug/backup", "", 200)
	}
}

// passNamespace creates a namespace and objects in it, including an owner and its dependent. It
// deletes the namespace and waits until all objects are deleted.
func (s *subject) passNamespace(name string) {
	path := "/api/v1/namespaces/" + name
	s.must("POST", "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`, 201, 409)
	var owner struct{ Metadata struct{ UID string } }
	_ = json.Unmarshal(s.must("POST", path+"/configmaps", `{"metadata":{"name":"owner"}}`, 201, 409).body, &owner)
	if uid := owner.Metadata.UID; uid != "" {
		s.must("POST", path+"/configmaps", `{"metadata":{"name":"owned","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":"`+uid+`"}]}}`, 201, 409)
		s.must("DELETE", path+"/configmaps/owner", "", 200, 404)
		s.gone(path + "/configmaps/owned")
	}
	s.must("POST", path+"/secrets", `{"metadata":{"name":"s"},"data":{"k":"dg=="}}`, 201, 409)
	// 409: the namespace was already deleted when the connection was closed, and it still contains
	// objects
	s.must("DELETE", path, "", 200, 404, 409)
	s.gone(path)
}

// passDefinition creates a definition and an object of the new type, and deletes the definition.
func (s *subject) passDefinition(name string) {
	const all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	path := "/apis/soak.example.com/v1/namespaces/soak/" + name + "s"
	s.must("POST", all, fmt.Sprintf(definition, name, strings.ToUpper(name[:1])+name[1:]), 201, 409)
	s.until(path, 200)
	s.must("POST", path, `{"apiVersion":"soak.example.com/v1","kind":"`+strings.ToUpper(name[:1])+name[1:]+`","metadata":{"name":"x"},"spec":{"turns":1}}`, 201, 409)
	s.must("DELETE", all+"/"+name+"s.soak.example.com", "", 200, 404)
	s.gone(all + "/" + name + "s.soak.example.com")
}

// must repeats a request until the server responds. It records an error if the status is not one of
// the given codes.
func (s *subject) must(method, path, body string, codes ...int) answer {
	for s.over.Err() == nil {
		a, err := s.call(method, path, body, jsonBody)
		if err != nil {
			time.Sleep(blink)
			continue
		}
		for _, code := range codes {
			if a.code == code {
				return a
			}
		}
		s.fault("%s %s: %d %.300s", method, path, a.code, a.body)
		return a
	}
	return answer{}
}

func (s *subject) gone(path string) { s.until(path, 404) }

// until waits for a status code.
func (s *subject) until(path string, code int) {
	begin := time.Now()
	for s.ask(path).code != code && s.over.Err() == nil {
		if time.Since(begin) > patience {
			s.fault("GET %s: not %d after %v", path, code, patience)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}
