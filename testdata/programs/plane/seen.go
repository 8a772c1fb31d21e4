package main

// This file watches nodes and Pods like any other client. It counts them and measures the time
// until a Pod is running and the time until an event is received.

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// A seenObject contains the parsed fields of a node or a Pod.
type seenObject struct {
	Metadata struct {
		Name, Namespace, ResourceVersion string
		Annotations                      map[string]string
	}
	Spec   struct{ NodeName string }
	Status struct {
		Phase      string
		Conditions []struct{ Type, Status string }
	}
}

func (o *seenObject) isReady() bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c struct{ Type, Status string }) bool { return c.Type == "Ready" && c.Status == "True" })
}

// A pod is the observed state of a Pod.
type pod struct {
	created            time.Time // time of its first event
	scheduled, running bool
}

type counts struct{ ready, pods, scheduled, running int }

// Seen contains the state that was received from the watches.
type seen struct {
	mu    sync.Mutex // guards the fields below
	ready map[string]bool
	pods  map[string]*pod
	// time from the first event of a Pod until it is running
	starts [2][]time.Duration
	// time from sending a write until its event was received
	delays [2][]time.Duration
	// time from sending a write until its response was received
	writes [2][]time.Duration
	rest   int // 1 at rest
}

func newSeen() *seen { return &seen{ready: map[string]bool{}, pods: map[string]*pod{}} }

func (s *seen) counts() counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := counts{ready: len(s.ready), pods: len(s.pods)}
	for _, p := range s.pods {
		if p.scheduled {
			c.scheduled++
		}
		if p.running {
			c.running++
		}
	}
	return c
}

// startAnew starts the rest. Its measurements are kept separately.
func (s *seen) startAnew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest = 1
}

// follow watches until ctx ends.
func (s *seen) follow(ctx context.Context, c *client) {
	var both sync.WaitGroup
	both.Go(func() { watch(ctx, c, "/api/v1/nodes", s.node) })
	both.Go(func() { watch(ctx, c, "/api/v1/pods", s.pod) })
	both.Wait()
}

func (s *seen) node(event string, o *seenObject) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if event != "DELETED" && o.isReady() {
		s.ready[o.Metadata.Name] = true
	} else {
		delete(s.ready, o.Metadata.Name)
	}
}

func (s *seen) pod(event string, o *seenObject) {
	if !strings.HasPrefix(o.Metadata.Namespace, "load-") {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := o.Metadata.Namespace + "/" + o.Metadata.Name
	if event == "DELETED" {
		delete(s.pods, key)
		return
	}
	p := s.pods[key]
	if p == nil {
		p = &pod{created: time.Now()}
		s.pods[key] = p
	}
	p.scheduled = o.Spec.NodeName != ""
	if !p.running && o.Status.Phase == "Running" {
		p.running = true
		s.starts[s.rest] = append(s.starts[s.rest], time.Since(p.created))
	}
}

// probe writes an object ten times per second and waits for each event, until ctx ends.
func (s *seen) probe(ctx context.Context, c *client) {
	const namespace = "/api/v1/namespaces/default/configmaps"
	if err := c.create(ctx, namespace, object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "probe"}}); err != nil {
		log.Print(err)
		return
	}
	events := make(chan string, 1024)
	var watcher sync.WaitGroup
	defer watcher.Wait()
	watcher.Go(func() {
		watch(ctx, c.alone(), namespace, func(_ string, o *seenObject) {
			select {
			case events <- o.Metadata.Annotations["probe"]:
			default:
			}
		})
	})
	for i := 0; sleep(ctx, 100*time.Millisecond) == nil; i++ {
		number, begin := fmt.Sprint(i), time.Now()
		patch := `[{"op": "add", "path": "/metadata/annotations", "value": {"probe": "` + number + `"}}]`
		if err := c.patch(ctx, namespace+"/probe", patch); err != nil {
			continue
		}
		answered := time.Since(begin)
		if !awaitEvent(ctx, events, number) {
			continue
		}
		s.mu.Lock()
		s.writes[s.rest] = append(s.writes[s.rest], answered)
		s.delays[s.rest] = append(s.delays[s.rest], time.Since(begin))
		s.mu.Unlock()
	}
}

func awaitEvent(ctx context.Context, events <-chan string, number string) bool {
	late := time.After(time.Minute)
	for {
		select {
		case is := <-events:
			if is == number {
				return true
			}
		case <-late:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// watch lists the resource and calls see for every object and event until ctx is done. It resumes
// interrupted watches.
func watch(ctx context.Context, c *client, path string, see func(event string, o *seenObject)) {
	for version := ""; ctx.Err() == nil; {
		if version == "" {
			var err error
			if version, err = list(ctx, c, path, see); err != nil {
				_ = sleep(ctx, time.Second)
				continue
			}
		}
		response, err := c.do(ctx, "GET", path+"?watch=true&allowWatchBookmarks=true&resourceVersion="+version, "", nil)
		if err != nil {
			_ = sleep(ctx, time.Second)
			continue
		}
		if response.StatusCode == http.StatusOK {
			version = readEvents(response, version, see)
		} else if response.StatusCode == http.StatusGone {
			version = ""
		}
		response.Body.Close()
	}
}

func list(ctx context.Context, c *client, path string, see func(event string, o *seenObject)) (version string, err error) {
	text, err := c.call(ctx, "GET", path, "", nil)
	if err != nil {
		return "", err
	}
	var all struct {
		Metadata struct{ ResourceVersion string }
		Items    []*seenObject
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return "", err
	}
	for _, o := range all.Items {
		see("ADDED", o)
	}
	return all.Metadata.ResourceVersion, nil
}

// readEvents returns the version to continue from, or "" if the resource has to be listed again.
func readEvents(response *http.Response, version string, see func(event string, o *seenObject)) string {
	for decoder := json.NewDecoder(response.Body); ; {
		var event struct {
			Type   string
			Object *seenObject
		}
		if decoder.Decode(&event) != nil {
			return version
		}
		if event.Type == "ERROR" {
			return ""
		}
		version = event.Object.Metadata.ResourceVersion
		if event.Type != "BOOKMARK" {
			see(event.Type, event.Object)
		}
	}
}
