package main

// This file is the truth that the server is held against. Each object carries a count of its writes in the annotation soak/n, which only
// its one writer raises, by one, and which goes on when the object is deleted and made again. So whoever sees an object twice knows
// whether a write was lost, skipped, or told twice, without knowing anything else.

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// A kind is one of the resources that objects are made of.
type kind struct {
	path string // of its collection
	head string // apiVersion and kind
	rest string // a format for what comes besides metadata, with a number in it
}

const (
	pads    = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"
	perKind = 120 // names of each kind; about two of three exist at a time
	colours = 4

	serversOwn = "kube-root-ca.crt" // what the server puts into each namespace, if it speaks TLS
	manifest   = `{%s,"metadata":{"name":"%s","resourceVersion":"%s","labels":{"colour":"%s"},"annotations":{"soak/n":"%d","soak/pad":"%s"}},%s}`
)

var kinds = []*kind{
	{"/api/v1/namespaces/soak/configmaps", `"apiVersion":"v1","kind":"ConfigMap"`, `"data":{"value":"%d"}`},
	{"/api/v1/namespaces/soak/pods", `"apiVersion":"v1","kind":"Pod"`, `"spec":{"containers":[{"name":"c","image":"image:%d"}]}`},
	{"/apis/soak.example.com/v1/namespaces/soak/gadgets", `"apiVersion":"soak.example.com/v1","kind":"Gadget"`, `"spec":{"turns":%d}`},
}

// An object is what is read of one.
type object struct {
	Metadata struct {
		Name            string            `json:"name"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
		Annotations     map[string]string `json:"annotations"`
		Deleted         string            `json:"deletionTimestamp"`
	} `json:"metadata"`
}

func (o *object) n() int {
	n, _ := strconv.Atoi(o.Metadata.Annotations["soak/n"])
	return n
}

func revisionOf(text string) int64 {
	rev, _ := strconv.ParseInt(text, 10, 64)
	return rev
}

// An entry is what is known of an object: the number of its last write, and whether it exists.
type entry struct {
	n     int
	there bool
	rev   string // its resourceVersion; "": another one than it was written at, since the data have been copied
}

// fits says whether an object that is there is what the entry says.
func (e entry) fits(o *object) bool {
	return e.there && o.n() == e.n && (e.rev == "" || o.Metadata.ResourceVersion == e.rev)
}

// A ledger has an entry for every name, by kind. An entry changes when its write is acknowledged, and by its one writer.
type ledger struct {
	gate sync.RWMutex // held for reading during a request and what follows from it, for writing while everything is compared, or older data come back

	mu      sync.Mutex // guards entries
	entries map[*kind]map[string]entry
}

func newLedger() *ledger {
	l := &ledger{entries: map[*kind]map[string]entry{}}
	for _, k := range kinds {
		l.entries[k] = map[string]entry{}
	}
	return l
}

func (l *ledger) get(k *kind, name string) entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entries[k][name]
}

func (l *ledger) set(k *kind, name string, e entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[k][name] = e
}

// copy is the entries of a kind at this moment.
func (l *ledger) copy(k *kind) map[string]entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]entry, len(l.entries[k]))
	for name, e := range l.entries[k] {
		out[name] = e
	}
	return out
}

// replace has the entries be those of another moment.
func (l *ledger) replace(entries map[*kind]map[string]entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = maps.Clone(entries)
}

// forgetRevisions is for data that are copied, objects and all, and get others.
func (l *ledger) forgetRevisions() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, of := range l.entries {
		for name, e := range of {
			e.rev = ""
			of[name] = e
		}
	}
}

// colourOf spreads names over the values of a label.
func colourOf(name string) string { return fmt.Sprint("c", int(name[len(name)-1])%colours) }

// body is the manifest of an object's write n; rev may be empty.
func (k *kind) body(name, rev string, n int) string {
	pad := strings.Repeat(pads, 1+rand.IntN(12))
	return fmt.Sprintf(manifest, k.head, name, rev, colourOf(name), n, pad, fmt.Sprintf(k.rest, n))
}

// compareAll stops the writers and holds every list against the ledger: each acknowledged write is there, and nothing else.
func (s *subject) compareAll() {
	s.ledger.gate.Lock()
	defer s.ledger.gate.Unlock()
	for _, k := range kinds {
		got, _, ok := s.listAll(k.path)
		if !ok {
			continue
		}
		want := s.ledger.copy(k)
		for name, e := range want {
			o, there := got[name]
			switch {
			case there != e.there:
				s.fault("%s/%s: in the list: %t, by the writes that were acknowledged: %t (write %d)", k.path, name, there, e.there, e.n)
			case there && !e.fits(&o):
				s.fault("%s/%s: write %d at %s was acknowledged, listed is %d at %s", k.path, name, e.n, e.rev, o.n(), o.Metadata.ResourceVersion)
			}
		}
		for name := range got {
			if _, known := want[name]; !known {
				s.fault("%s/%s is listed, and nobody has made it", k.path, name)
			}
		}
	}
}

// listAll reads a list, and the revision that it shows. It is not ok when the server answered with an error.
func (s *subject) listAll(path string) (items map[string]object, rev string, ok bool) {
	a := s.ask(path)
	if a.code != 200 {
		s.fault("LIST %s: %d %.200s", path, a.code, a.body)
		return nil, "", false
	}
	l, ok := s.parseList(path, a)
	return l.byName(), l.Metadata.ResourceVersion, ok
}

// A list is what is read of one.
type list struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []object `json:"items"`
}

func (l *list) byName() map[string]object {
	items := make(map[string]object, len(l.Items))
	for _, o := range l.Items {
		items[o.Metadata.Name] = o
	}
	return items
}

// parseList also checks that names ascend: none is there twice.
func (s *subject) parseList(path string, a answer) (l list, ok bool) {
	if err := json.Unmarshal(a.body, &l); err != nil {
		s.fault("LIST %s: %v in %.200s", path, err, a.body)
		return l, false
	}
	l.Items = slices.DeleteFunc(l.Items, func(o object) bool { return o.Metadata.Name == serversOwn })
	s.counts.listed.Add(int64(len(l.Items)))
	for i := 1; i < len(l.Items); i++ {
		if l.Items[i].Metadata.Name <= l.Items[i-1].Metadata.Name {
			s.fault("LIST %s: %s comes after %s", path, l.Items[i].Metadata.Name, l.Items[i-1].Metadata.Name)
		}
	}
	return l, true
}
