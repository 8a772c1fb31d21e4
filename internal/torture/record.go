package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"apilet/internal/history"
)

// A record contains all writes after a given revision as returned by the history of the server.
// This includes the author of each write and both versions of the object.
type record struct {
	ignored []string // resources that are not compared, in addition to Events and Leases

	mu      sync.Mutex // guards the fields below
	lines   []history.Line
	read    int64         // the newest revision received
	changed time.Time     // time of the last relevant change
	news    chan struct{} // closed at the next line
}

// newRecord returns a record of all writes after the given revision.
func newRecord(after int64, ignored []string) *record {
	return &record{read: after, ignored: ignored, news: make(chan struct{}), changed: time.Now()}
}

// follow receives new lines from the history of the server until ctx is done.
func (rec *record) follow(ctx context.Context, s *server) {
	for ctx.Err() == nil {
		rec.mu.Lock()
		after := rec.read
		rec.mu.Unlock()
		r, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s%s?follow=true&objects=true&after=%d", s.url, history.Path, after), nil)
		if err != nil {
			return
		}
		r.Header.Set("User-Agent", agent)
		if resp, err := s.client.Do(r); err == nil {
			rec.take(resp.Body)
			resp.Body.Close()
		}
		select {
		case <-ctx.Done():
		case <-s.ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// take reads lines from the stream until it ends.
func (rec *record) take(from io.Reader) {
	for lines := bufio.NewReader(from); ; {
		text, err := lines.ReadBytes('\n')
		var line history.Line
		if err != nil {
			return
		}
		if json.Unmarshal(text, &line) == nil && line.Revision > 0 {
			rec.add(line)
		}
	}
}

func (rec *record) add(line history.Line) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if line.Revision <= rec.read {
		return
	}
	rec.lines, rec.read = append(rec.lines, line), line.Revision
	if rec.counts(line.Group, line.Resource) {
		rec.changed = time.Now()
	}
	close(rec.news)
	rec.news = make(chan struct{})
}

// counts reports whether a resource is compared. Events are only messages, and Leases are renewed
// forever.
func (rec *record) counts(group, resource string) bool { return counts(rec.ignored, group, resource) }

func counts(ignored []string, group, resource string) bool {
	switch {
	case resource == "events" && (group == "" || group == "events.k8s.io"), resource == "leases" && group == "coordination.k8s.io":
		return false
	// the server assigns these addresses at random
	case resource == "ipaddresses" && group == "networking.k8s.io":
		return false
	case group == "authentication.k8s.io", group == "authorization.k8s.io": // reviews are not stored
		return false
	}
	return !slices.Contains(ignored, strings.TrimSuffix(resource+"."+group, "."))
}

// all returns the lines so far.
func (rec *record) all() []history.Line {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.Clone(rec.lines)
}

// touch restarts the quiet period, because the controller may still react to the last action.
func (rec *record) touch() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.changed = time.Now()
}

// lastChange returns the time of the last change.
func (rec *record) lastChange() time.Time {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.changed
}

// wait waits until holds returns true for the lines. It returns false after the time limit.
func (rec *record) wait(ctx context.Context, most time.Duration, holds func([]history.Line) bool) bool {
	end := time.NewTimer(most)
	defer end.Stop()
	for {
		rec.mu.Lock()
		news, ok := rec.news, holds(rec.lines)
		rec.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-news:
		case <-end.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// The authors of a line.
const (
	byController = "controller"
	byUser       = "user"   // the workload or a plan
	byServer     = "server" // garbage collection, namespace deletion, default objects
)

func whoWrote(line *history.Line) string {
	switch {
	case line.Agent == agent:
		return byUser
	case line.Agent == "apilet" || strings.HasPrefix(line.Agent, "apilet/"):
		return byServer
	}
	return byController
}

// keyOf returns the name of an object in messages: configmaps shop/prices, deployments.apps
// shop/web, namespaces shop.
func keyOf(group, resource, namespace, name string) string {
	key := resource
	if group != "" {
		key += "." + group
	}
	if namespace != "" && resource != "namespaces" {
		name = namespace + "/" + name
	}
	return key + " " + name
}

func keyOfLine(line *history.Line) string {
	return keyOf(line.Group, line.Resource, line.Namespace, line.Name)
}
