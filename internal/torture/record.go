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

// A record is what has happened on a server since a revision, as its history tells it: each write, by whom, and the object before and after it.
type record struct {
	ignored []string // resources that do not count, beside Events and Leases

	mu      sync.Mutex // guards what follows
	lines   []history.Line
	read    int64         // the newest revision that was told
	changed time.Time     // when the last change came that counts
	news    chan struct{} // closed at the next line
}

// newRecord begins behind a revision.
func newRecord(after int64, ignored []string) *record {
	return &record{read: after, ignored: ignored, news: make(chan struct{}), changed: time.Now()}
}

// follow reads on until ctx ends.
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

// take reads lines until there are no more.
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

// counts tells whether a resource is part of what a controller is judged by. Events tell, and Leases are renewed for ever.
func (rec *record) counts(group, resource string) bool { return counts(rec.ignored, group, resource) }

func counts(ignored []string, group, resource string) bool {
	switch {
	case resource == "events" && (group == "" || group == "events.k8s.io"), resource == "leases" && group == "coordination.k8s.io":
		return false
	case resource == "ipaddresses" && group == "networking.k8s.io": // the server's book of addresses, which it gives by chance
		return false
	case group == "authentication.k8s.io", group == "authorization.k8s.io": // reviews, which are not stored
		return false
	}
	return !slices.Contains(ignored, strings.TrimSuffix(resource+"."+group, "."))
}

// all is what has happened until now.
func (rec *record) all() []history.Line {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return slices.Clone(rec.lines)
}

// touch has nothing be quiet before something could have come of what was just done.
func (rec *record) touch() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.changed = time.Now()
}

// lastChange is when something happened last.
func (rec *record) lastChange() time.Time {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.changed
}

// wait returns when a condition holds that lines can bring about, or false when it does not within a time.
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

// Who has written a line.
const (
	byController = "controller"
	byUser       = "user"   // the workload, or a plan
	byServer     = "server" // garbage collection, namespaces, defaults
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

// keyOf names an object: configmaps shop/prices, deployments.apps shop/web, namespaces shop.
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
