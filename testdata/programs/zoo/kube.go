package main

// This file is a minimal client library for the controllers: requests, and a cache that lists (at
// resourceVersion=0, like informers), watches, and lists again when its revision has expired.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// An object contains the fields that are used by the controllers.
type object struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   metadata          `json:"metadata"`
	Data       map[string]string `json:"data,omitempty"`
	Spec       map[string]any    `json:"spec,omitempty"`
	Status     map[string]any    `json:"status,omitempty"`
}

type metadata struct {
	Name              string            `json:"name,omitempty"`
	GenerateName      string            `json:"generateName,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	DeletionTimestamp string            `json:"deletionTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	Finalizers        []string          `json:"finalizers,omitempty"`
	OwnerReferences   []owner           `json:"ownerReferences,omitempty"`
}

type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

func (o *object) key() string { return o.Metadata.Namespace + "/" + o.Metadata.Name }

// copied returns a deep copy that can be modified. Objects in a cache must not be changed.
func (o *object) copied() *object {
	text, _ := json.Marshal(o)
	c := &object{}
	_ = json.Unmarshal(text, c)
	return c
}

// Paths of the collections. If the namespace is empty, they contain the objects of all namespaces.
const (
	nests  = "/apis/zoo.example.com/v1/%snests"
	eggs   = "/api/v1/%sconfigmaps"
	claims = "/api/v1/%spersistentvolumeclaims"
	pods   = "/api/v1/%spods"
	leases = "/apis/coordination.k8s.io/v1/%sleases"
)

func in(collection, namespace string) string {
	if namespace != "" {
		namespace = "namespaces/" + namespace + "/"
	}
	return fmt.Sprintf(collection, namespace)
}

// A status is a status code other than 2xx.
type status int

func (s status) Error() string { return fmt.Sprintf("the server answers %d", int(s)) }

func is(err error, code int) bool {
	var s status
	return errors.As(err, &s) && int(s) == code
}

// A client sends requests to one server.
type client struct{ url, agent string }

func (c *client) do(method, path string, body, into any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequest(method, c.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", c.agent)
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 300:
		return status(resp.StatusCode)
	case into == nil:
		return nil
	}
	return json.Unmarshal(answer, into)
}

func (c *client) get(collection, namespace, name string) (*object, error) {
	o := &object{}
	return o, c.do("GET", in(collection, namespace)+"/"+name, nil, o)
}

func (c *client) create(collection string, o *object) (*object, error) {
	made := &object{}
	return made, c.do("POST", in(collection, o.Metadata.Namespace), o, made)
}

func (c *client) update(collection string, o *object) error {
	return c.do("PUT", in(collection, o.Metadata.Namespace)+"/"+o.Metadata.Name, o, nil)
}

func (c *client) remove(collection string, o *object) error {
	return c.do("DELETE", in(collection, o.Metadata.Namespace)+"/"+o.Metadata.Name, nil, nil)
}

// list returns the newest state of a collection from the server, not from a cache.
func (c *client) list(collection, namespace string) ([]object, error) {
	var all struct{ Items []object }
	return all.Items, c.do("GET", in(collection, namespace), nil, &all)
}

// ---- The cache

// A cache stores the objects of a type for a controller.
type cache struct {
	client     *client
	collection string
	changed    chan<- struct{}    // receives a token after each change
	gone       func(last *object) // called if a deletion was observed; may be nil

	mu     sync.Mutex // guards the fields below
	byKey  map[string]*object
	synced bool
}

// run updates the cache until ctx ends.
func (c *cache) run(ctx context.Context) {
	for ctx.Err() == nil {
		if rev, err := c.relist(); err == nil {
			for err == nil && ctx.Err() == nil {
				rev, err = c.watch(ctx, rev)
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (c *cache) relist() (rev string, err error) {
	var all struct {
		Metadata struct{ ResourceVersion string }
		Items    []object
	}
	if err := c.client.do("GET", in(c.collection, "")+"?resourceVersion=0", nil, &all); err != nil {
		return "", err
	}
	c.mu.Lock()
	c.byKey, c.synced = map[string]*object{}, true
	for i := range all.Items {
		c.byKey[all.Items[i].key()] = &all.Items[i]
	}
	c.mu.Unlock()
	c.tell()
	return all.Metadata.ResourceVersion, nil
}

// errExpired means that a new list is necessary.
var errExpired = errors.New("the revision is too old")

// watch follows events from a revision until the watch ends. It returns the revision to continue
// from.
func (c *cache) watch(ctx context.Context, rev string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, "GET", c.client.url+in(c.collection, "")+"?watch=true&resourceVersion="+rev, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("User-Agent", c.client.agent)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", errExpired
	}
	for events := json.NewDecoder(resp.Body); ; {
		var ev struct {
			Type   string
			Object object
		}
		if events.Decode(&ev) != nil {
			return rev, nil
		}
		if ev.Type == "ERROR" {
			return "", errExpired
		}
		rev = ev.Object.Metadata.ResourceVersion
		c.take(ev.Type, &ev.Object)
	}
}

func (c *cache) take(what string, o *object) {
	c.mu.Lock()
	if c.byKey[o.key()] = o; what == "DELETED" {
		delete(c.byKey, o.key())
	}
	c.mu.Unlock()
	if what == "DELETED" && c.gone != nil {
		c.gone(o)
	}
	c.tell()
}

func (c *cache) tell() {
	select {
	case c.changed <- struct{}{}:
	default: // a token is already there
	}
}

// all returns the objects with a value of a label, or all objects if label is "".
func (c *cache) all(label, value string) (list []*object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, o := range c.byKey {
		if label == "" || o.Metadata.Labels[label] == value {
			list = append(list, o)
		}
	}
	return list
}

func (c *cache) isSynced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.synced
}

func (c *cache) get(namespace, name string) *object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byKey[namespace+"/"+strings.TrimSpace(name)]
}
