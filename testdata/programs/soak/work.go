package main

// This file makes the requests: writers who own their names, readers who ask for every sort of list, and a household of namespaces,
// definitions, Events and backups. All take turns from one ticker, so that the server sees -rate requests a second and not more.

import (
	"context"
	"encoding/json"
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
	definitions  = 8 // names that come and go: metrics keep a series for each that was used
)

const definition = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"%[1]ss.soak.example.com"},
"spec":{"group":"soak.example.com","scope":"Namespaced","names":{"plural":"%[1]ss","singular":"%[1]s","kind":"%[2]s"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
"properties":{"turns":{"type":"integer"},"speed":{"type":"integer","default":7}},
"x-kubernetes-validations":[{"rule":"self.turns >= 0"}]}}}}}]}}`

// furnish makes the namespace and the definition that the work needs.
func (s *subject) furnish() error {
	for path, body := range map[string]string{
		"/api/v1/namespaces": `{"metadata":{"name":"soak"}}`,
		"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": fmt.Sprintf(definition, "gadget", "Gadget"),
	} {
		if a, err := s.call("POST", path, body, jsonBody); err != nil || a.code != 201 {
			return fmt.Errorf("POST %s: %d %s %w", path, a.code, a.body, err)
		}
	}
	for deadline := time.Now().Add(patience); s.ask(kinds[2].path).code != 200; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not served", kinds[2].path)
		}
	}
	return nil
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
		body := s.edited(k, name, e, a)
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
		body := fmt.Sprintf(`{"metadata":{"resourceVersion":"%d","annotations":{"soak/n":"0"}}}`, revisionOf(e.rev)-1)
		a, err := s.call("PATCH", path, body, mergeBody)
		s.settle(k, name, attempt{before: e, after: e, code: 409}, a, err)
	}
}

// edited is what a GET answered, as its next write. What the server has filled in stays.
func (s *subject) edited(k *kind, name string, e entry, a answer) string {
	var read object
	if err := json.Unmarshal(a.body, &read); err != nil || a.code != 200 || read.n() != e.n || read.Metadata.ResourceVersion != e.rev {
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

// settle notes what a write has become. If nobody knows, for the connection was cut, the server is asked: it did all of it or nothing.
func (s *subject) settle(k *kind, name string, w attempt, a answer, err error) {
	path := k.path + "/" + name
	unknown := err != nil
	switch {
	case unknown:
		if a = s.ask(path); a.code != 200 && a.code != 404 {
			s.fault("GET %s: %d %.200s", path, a.code, a.body)
			return
		}
	case a.code != w.code:
		s.fault("%s: a write is answered %d, not %d: %.300s", path, a.code, w.code, a.body)
		return
	case w.code == 409:
		return
	}
	var now object
	_ = json.Unmarshal(a.body, &now)
	found := entry{n: now.n(), there: a.code != 404 && (unknown || w.after.there), rev: now.Metadata.ResourceVersion}
	switch {
	case unknown && found.there && found.n == w.before.n && now.Metadata.Deleted != "" && !w.after.there:
		a, err = s.call("DELETE", path+"?gracePeriodSeconds=0", "", "") // a Pod goes in two writes, and the server was stopped between them
		s.settle(k, name, attempt{before: found, after: w.after, code: w.code}, a, err)
		return
	case unknown && found.there && found == w.before, unknown && !found.there && !w.before.there: // it was not done
		return
	case found.there != w.after.there || found.there && found.n != w.after.n:
		s.fault("%s: of write %d (unknown: %t) is there: %d %.300s", path, w.after.n, unknown, a.code, a.body)
		return
	}
	if !found.there {
		found = w.after
	}
	s.counts.written.Add(1)
	s.ledger.set(k, name, found)
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
	for {
		a, err := s.call(method, path, body, jsonBody)
		if err != nil {
			time.Sleep(20 * time.Millisecond)
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
}

func (s *subject) gone(path string) { s.until(path, 404) }

// until waits for a code.
func (s *subject) until(path string, code int) {
	begin := time.Now()
	for s.ask(path).code != code {
		if time.Since(begin) > patience {
			s.fault("GET %s: not %d after %v", path, code, patience)
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}
