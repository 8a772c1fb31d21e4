package main

// This file contains the expected state. The annotation soak/n counts the writes of an object. Only
// the object's single writer increments it, and it continues when the object is deleted and
// recreated. Two observations of an object are therefore enough to detect lost, skipped and
// repeated writes.

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

// A kind is a resource that the test uses.
type kind struct {
	path string // path of the collection
	head string // apiVersion and kind
	rest string // format string for the remaining fields
}

const (
	pads    = "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz"
	perKind = 120 // number of names per kind. About two thirds of them exist at the same time.
	colours = 4

	// created by the server in each namespace if it uses TLS
	serversOwn = "kube-root-ca.crt"
	manifest   = `{%s,"metadata":{"name":"%s","resourceVersion":"%s","labels":{"colour":"%s"},"annotations":{"soak/n":"%d","soak/pad":"%s"}},%s}`
)

var kinds = []*kind{
	{"/api/v1/namespaces/soak/configmaps", `"apiVersion":"v1","kind":"ConfigMap"`, `"data":{"value":"%d"}`},
	{"/api/v1/namespaces/soak/pods", `"apiVersion":"v1","kind":"Pod"`, `"spec":{"containers":[{"name":"c","image":"image:%d"}]}`},
	{"/apis/soak.example.com/v1/namespaces/soak/gadgets", `"apiVersion":"soak.example.com/v1","kind":"Gadget"`, `"spec":{"turns":%d}`},
}

// An object contains the parsed fields of an object.
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

// An entry is the expected state of an object, including the number of its last write.
type entry struct {
	n     int
	there bool
	rev   string // resourceVersion; "" if unknown, because the data was copied since
}

// fits reports whether an existing object matches the entry.
func (e entry) fits(o *object) bool {
	return e.there && o.n() == e.n && (e.rev == "" || o.Metadata.ResourceVersion == e.rev)
}

// A ledger contains the entries of all objects by kind and name. The writer updates the entry of an
// object when the write is acknowledged.
type ledger struct {
	// held for reading during a request and the update of the ledger, and for writing while
	// everything is compared or a backup is restored
	gate sync.RWMutex

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

// copy returns the current entries of a kind.
func (l *ledger) copy(k *kind) map[string]entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]entry, len(l.entries[k]))
	for name, e := range l.entries[k] {
		out[name] = e
	}
	return out
}

// replace sets all entries, e.g. after a restore.
func (l *ledger) replace(entries map[*kind]map[string]entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = maps.Clone(entries)
}

// forgetRevisions clears the resource versions, because copied objects get new ones.
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

// colourOf returns the label value for the name.
func colourOf(name string) string { return fmt.Sprint("c", int(name[len(name)-1])%colours) }

// body returns the manifest for write n of an object. rev may be empty.
func (k *kind) body(name, rev string, n int) string {
	pad := strings.Repeat(pads, 1+rand.IntN(12))
	return fmt.Sprintf(manifest, k.head, name, rev, colourOf(name), n, pad, fmt.Sprintf(k.rest, n))
}

// compareAll pauses the writers and compares all lists with the ledger. They must contain all
// acknowledged writes and no other objects.
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

// listAll reads a list and its resource version. ok is false if the server returned an error.
func (s *subject) listAll(path string) (items map[string]object, rev string, ok bool) {
	a := s.ask(path)
	if a.code != 200 {
		s.fault("LIST %s: %d %.200s", path, a.code, a.body)
		return nil, "", false
	}
	l, ok := s.parseList(path, a)
	return l.byName(), l.Metadata.ResourceVersion, ok
}

// A list contains the parsed fields of a list.
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

// parseList parses a list. It checks that names are in ascending order without duplicates.
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
