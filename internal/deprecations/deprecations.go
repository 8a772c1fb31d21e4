// Package deprecations records the clients that use deprecated API versions. The warnings
// themselves are rarely noticed, because those that matter appear in the logs of controllers.
//
//	tracker := deprecations.NewTracker()
//	tracker.Record(deprecations.Use{User: "alice", Agent: "kubectl/v1.30", Verb: "list", ...}, now)
//	mux.Handle("/debug/deprecations", tracker) // the newest first, as a text table, or as JSON if Accept asks for it
//
// Invariant: the number of recorded uses and the size of each are limited, regardless of the names
// that clients send.
package deprecations

import (
	"container/list"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Use describes a client and its use of a deprecated version.
type Use struct {
	User        string `json:"user"`
	Agent       string `json:"userAgent"`
	Verb        string `json:"verb"`
	Group       string `json:"group"`
	Version     string `json:"version"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Removed     string `json:"removedRelease,omitempty"`
	UseInstead  string `json:"useInstead,omitempty"`
}

// Usage is a line of GET /debug/deprecations.
type Usage struct {
	Use
	Count    int64     `json:"count"`
	LastSeen time.Time `json:"lastSeen"`
}

const (
	maxUsages     = 1000 // maximum number of uses
	maxAgentRunes = 120
)

// Tracker records the uses of deprecated versions. It is not persistent, because uses that matter
// occur again after a restart.
type Tracker struct {
	mu     sync.Mutex // guards the following fields
	usages map[Use]*list.Element
	recent *list.List // of *Usage, newest first
}

// NewTracker returns an empty Tracker.
func NewTracker() *Tracker {
	return &Tracker{usages: map[Use]*list.Element{}, recent: list.New()}
}

// Record counts a use.
func (t *Tracker) Record(use Use, now time.Time) {
	// Clone the strings, because a substring of a header would keep the whole header in memory.
	use.Agent, use.User = strings.Clone(cutRunes(use.Agent, maxAgentRunes)), strings.Clone(cutRunes(use.User, maxAgentRunes))
	t.mu.Lock()
	defer t.mu.Unlock()
	el := t.usages[use]
	if el == nil {
		el = t.recent.PushFront(&Usage{Use: use})
		t.usages[use] = el
	}
	usage := el.Value.(*Usage)
	usage.Count++
	usage.LastSeen = now
	t.recent.MoveToFront(el)
	if oldest := t.recent.Back(); t.recent.Len() > maxUsages {
		delete(t.usages, t.recent.Remove(oldest).(*Usage).Use)
	}
}

// List returns up to most uses, starting with the most recent one.
func (t *Tracker) List(most int) []Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	usages := make([]Usage, 0, min(most, t.recent.Len()))
	for el := t.recent.Front(); el != nil && len(usages) < most; el = el.Next() {
		usages = append(usages, *el.Value.(*Usage))
	}
	return usages
}

// ServeHTTP serves GET /debug/deprecations. It returns the most recent uses first, either as JSON
// or as a text table.
func (t *Tracker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	usages := t.List(maxUsages)
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"items": usages})
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff") // user agents are untrusted text
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "LAST SEEN\tCOUNT\tUSER\tVERB\tRESOURCE\tVERSION\tREMOVED IN\tUSE INSTEAD\tUSER AGENT")
	for _, u := range usages {
		resource := strings.TrimSuffix(u.Resource+"/"+u.Subresource, "/")
		fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", u.LastSeen.UTC().Format(time.RFC3339), u.Count, printable(u.User),
			u.Verb, resource, schema.GroupVersion{Group: u.Group, Version: u.Version}, u.Removed, u.UseInstead, printable(u.Agent))
	}
	table.Flush()
}

// cutRunes returns at most the first n runes of s.
func cutRunes(s string, n int) string {
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// printable quotes text with control characters, so that a client cannot forge lines of the table.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
