package main

// This file makes the requests: writers who own their names, readers who ask for every sort of list, and a household of namespaces,
// definitions, Events and backups. All take turns from one ticker, so that the server sees -rate requests a second and not more.

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
	definitions  = 8 // names that come and go: metrics keep a series for each that was used
)

const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]ss.soak.example.com"},
"spec":{"group":"soak.example.com","scope":"Namespaced","names":{"plural":"%[1]ss","singular":"%[1]s","kind":"%[2]s"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
"properties":{"turns":{"type":"integer"},"speed":{"type":"integer","default":7}},
"x-kubernetes-validations":[{"rule":"self.turns >= 0"}]}}}}}]}}`

// furnish makes what the work needs: a namespace, a definition, and the marker.
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

// startWorkers starts what makes requests until ctx ends.
func (s *subject) startWorkers(ctx context.Context, running *sync.WaitGroup) {
	turns := make(chan struct{}) // unbuffered: a turn that nobody takes is gone, so that a pause is not made up for
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

// standBy is a client who wants one object, again and again, and takes the time for which there is no answer.
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

// write does a random thing to a random name of its own, a turn each.
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

// change updates, patches or deletes an object, or tries what has to be refused.
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

// edited is what a GET answered, as its next write. What the server has filled in stays.
func (s *subject) edited(k *kind, name string, a answer) string {
	e := s.ledger.get(k, name) // its revision may be another one since it was asked for
	var read object
	if err := json.Unmarshal(a.body, &read); err != nil || a.code != 200 || !e.fits(&read) {
		s.fault("GET %s/%s: want write %d at %s, got %d %.200s", k.path, name, e.n, e.rev, a.code, a.body)
		return ""
	}
	was, is := fmt.Sprintf(`"soak/n":"%d"`, e.n), fmt.Sprintf(`"soak/n":"%d"`, e.n+1)
	return strings.Replace(string(a.body), was, is, 1)
}

// An attempt is a write under way.
type attempt struct {
	before, after entry
	code          int // of the answer that is due
}

// settle notes what a write has become. If nobody knows, or it was refused, the server is asked.
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

// note enters a write that was answered, or found.
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

// entryOf is what an answer shows of an object.
func entryOf(a answer) entry {
	var o object
	if a.code == 404 || json.Unmarshal(a.body, &o) != nil {
		return entry{}
	}
	return entry{n: o.n(), there: true, rev: o.Metadata.ResourceVersion}
}

// resolve finds out what became of a write that was not answered: all of it has happened, or nothing, or all of it will happen yet, as with a
// request that waits in the memory of an etcd that is held. As long as there is what was there before, the write is made again, on the
// condition that this is so: when that is answered, the first one cannot happen any more.
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
		case w.code == 409 && untouched: // it was to change nothing
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

// repeated makes a write again, on the condition that what was found is still there. It is not done if that is not so, or nobody knows.
func (s *subject) repeated(k *kind, name string, w attempt, found entry) (done bool) {
	path := k.path + "/" + name
	var a answer
	var err error
	switch {
	case !w.before.there:
		a, err = s.call("POST", k.path, k.body(name, "", w.after.n), jsonBody)
	case !w.after.there: // also a Pod that was marked, and is to go yet
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

// A memory is a list that was read, to be asked for again at its revision.
type memory struct {
	path, rev string
	items     map[string]object
}

// read asks for lists: every fourth turn of the others' rate is left to it.
func (s *subject) read(turns <-chan struct{}) {
	var past *memory
	for range turns {
		k := kinds[rand.IntN(len(kinds))]
		s.ledger.gate.RLock() // older data come back between reads
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

// readNow lists everything. What was acknowledged before the request is in it.
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

// readChunks lists chunk by chunk, across restarts, too. All chunks show one revision.
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

// readAgain lists as of a revision: it is what it was, or compacted.
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

// readSome lists with a selector.
func (s *subject) readSome(k *kind, selector string, fits func(*object) bool) {
	path := k.path + "?" + selector
	items, _, _ := s.listAll(path)
	for name, o := range items {
		if !fits(&o) {
			s.fault("LIST %s has %s", path, name)
		}
	}
}

// ---- The household ----

// keepHouse makes and removes what seldom changes.
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
	s.ledger.gate.RLock() // older data come back between turns
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

// passNamespace makes a namespace with objects of which one owns another, and waits until all are gone again.
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
	s.must("DELETE", path, "", 200, 404, 409) // 409: it was deleted before the connection was cut, and is emptying
	s.gone(path)
}

// passDefinition makes a definition, uses it and removes it.
func (s *subject) passDefinition(name string) {
	const all = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	path := "/apis/soak.example.com/v1/namespaces/soak/" + name + "s"
	s.must("POST", all, fmt.Sprintf(definition, name, strings.ToUpper(name[:1])+name[1:]), 201, 409)
	s.until(path, 200)
	s.must("POST", path, `{"apiVersion":"soak.example.com/v1","kind":"`+strings.ToUpper(name[:1])+name[1:]+`","metadata":{"name":"x"},"spec":{"turns":1}}`, 201, 409)
	s.must("DELETE", all+"/"+name+"s.soak.example.com", "", 200, 404)
	s.gone(all + "/" + name + "s.soak.example.com")
}

// must makes a request until it is answered, with one of some codes.
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

// until waits for a code.
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
