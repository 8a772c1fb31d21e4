// Package dashboard implements the web page at /debug/ui/. The page displays changes as they
// happen, trees of owned objects, the state of flow control, the lag of each watch, the use of
// deprecated versions, findings, and statistics about the store. It can also be used to view the
// objects at any time in the past.
//
//	page := &dashboard.Page{Store: st, Types: reg, Watches: watches}
//	mux.HandleFunc(request.PathUI, page.ServePage)     // HTML, CSS, JavaScript; public, contains no data of the server
//	mux.HandleFunc(dashboard.DataPath, page.ServeData) // requires authorization
//
// The page is embedded in the program and loads nothing from other servers. It uses the credentials
// of the user to fetch objects from the API (including past versions below /at/), changes from
// /debug/history and findings from /debug/findings. Authorization is performed by each of these
// endpoints. The remaining data (flow control, watches and the store) is one JSON document from
// this package. The document is only generated when it is requested, and at most twice per second
// regardless of the number of pages.
//
// Invariants: scripts never convert text to HTML, because names and values come from users. The
// Content-Security-Policy also prevents this. The size of the document and the number of pages that
// may request it are limited.
package dashboard

import (
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/apierror"
	"apilet/internal/flowcontrol"
	"apilet/internal/limits"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// DataPath is the path of the document. It requires authorization.
const DataPath = request.PathUI + "data"

const (
	refreshInterval = 500 * time.Millisecond
	maxPages        = 100
	pageLease       = 15 * time.Second // if a page has not made a request for this long, it is considered closed or hidden
	pageIDMax       = 40

	shownResources = 500
	shownUsages    = 100
)

//go:embed page
var files embed.FS

// A Page serves the page and the document. The fields above once must be set before use.
type Page struct {
	Store        *store.Store            // provides the size and the number of commits
	Types        *scheme.Registry        // the types to list, and to draw as trees
	Flows        *flowcontrol.Dispatcher // nil without flow control
	Watches      *Watches                // the open watches
	Deprecations func(most int) any      // returns recent uses of deprecated versions, up to the given maximum
	Version      string                  // version of apilet
	Retention    time.Duration           // retention period of the history, or zero if unlimited

	once      sync.Once
	assembled *assembled // set by once

	mu     sync.Mutex // guards places and pages
	places *limits.Slots
	pages  map[string]openPage // indexed by the random ID chosen by each page

	buildLock sync.Mutex // guards the following fields; held while the document is generated
	made      time.Time
	body      []byte
}

// An assembled page is the response of ServePage. It is a single response, because the connection
// of a client without credentials may be closed after it.
type assembled struct {
	html         []byte
	policy, etag string
}

// assemble inserts the style and the scripts into the page. The policy allows only these, allows
// requests only to this server, and forbids frames. Trusted types turn a mistaken use of innerHTML
// into an error.
func assemble() *assembled {
	read := func(names ...string) (text string) {
		for _, name := range names {
			content, err := files.ReadFile("page/" + name)
			if err != nil {
				panic(err) // cannot happen, because the file is embedded
			}
			text += string(content)
		}
		return text
	}
	style := read("style.css")
	script := "'use strict';\n" + read("dom.js", "server.js", "timeline.js", "objects.js", "panels.js", "app.js")
	icon := "data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString([]byte(read("icon.svg")))
	a := &assembled{html: []byte(strings.NewReplacer("{{style}}", style, "{{script}}", script, "{{icon}}", icon).Replace(read("index.html")))}
	a.policy = "default-src 'none'; script-src " + hashOf(script) + "; style-src " + hashOf(style) + "; img-src data:; connect-src 'self'; base-uri 'none'; " +
		"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
	sum := sha256.Sum256(a.html)
	a.etag = `"` + hex.EncodeToString(sum[:8]) + `"`
	return a
}

// hashOf returns the hash of a script or a style for the policy.
func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// RedirectBrowsers redirects browsers, which prefer text/html to every other format, to the page.
// All other requests are passed to next. No authorization is necessary, because the page does not
// contain any data.
func RedirectBrowsers(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		reads := r.Method == http.MethodGet || r.Method == http.MethodHead
		if reads && response.ParseAccept(r.Header.Get("Accept"))[0].Name == "text/html" {
			http.Redirect(w, r, request.PathUI, http.StatusFound)
			return
		}
		next(w, r)
	}
}

// ServePage serves the page.
func (p *Page) ServePage(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		_ = response.Refuse(w, r, apierror.MethodNotAllowed())
		return
	case r.URL.Path != request.PathUI:
		http.NotFound(w, r)
		return
	}
	p.once.Do(func() { p.assembled = assemble() })
	header := w.Header()
	for key, value := range map[string]string{
		"Content-Security-Policy":      p.assembled.policy,
		"Content-Type":                 "text/html; charset=utf-8",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
		"Etag":                         p.assembled.etag,
		"Referrer-Policy":              "no-referrer",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
	} {
		header.Set(key, value)
	}
	if r.Header.Get("If-None-Match") == p.assembled.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(p.assembled.html) // If this fails, the client has gone away.
}

// ServeData serves the document. Each page identifies itself by ?page= with a random name. The
// number of pages is limited to maxPages in total, and to a quarter of that for each user.
func (p *Page) ServeData(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	var err error
	var user request.User
	if rec := request.From(r.Context()); rec != nil {
		user = rec.User
	}
	switch {
	case r.Method != http.MethodGet:
		err = apierror.MethodNotAllowed()
	// another site cannot read the response, but would use up places for pages
	case r.Header.Get("Sec-Fetch-Site") == "cross-site":
		err = apierrors.NewBadRequest("this path serves only this server's own page")
	case !p.admit(user, r.URL.Query().Get("page"), time.Now()):
		err = apierrors.NewTooManyRequests("as many pages are open as may be, of this user or of all; close one", int(pageLease.Seconds()))
	}
	if err != nil {
		_ = response.Refuse(w, r, err)
		return
	}
	header.Set("Content-Type", "application/json")
	_, _ = w.Write(p.document())
}

// An openPage represents a page whose last request is not older than pageLease.
type openPage struct {
	lastRequest time.Time
	release     func()
}

// admit reports whether the page may be served. If so, it renews the place of the page.
func (p *Page) admit(u request.User, id string, now time.Time) bool {
	id = strings.Clone(id[:min(len(id), pageIDMax)])
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pages == nil {
		p.places, p.pages = limits.NewSlots(maxPages), map[string]openPage{}
	}
	page, known := p.pages[id]
	if !known {
		var ok bool
		if page.release, ok = p.places.TryAcquire(u); !ok {
			p.closeLocked(now)
			page.release, ok = p.places.TryAcquire(u)
		}
		if !ok {
			return false
		}
	}
	page.lastRequest = now
	p.pages[id] = page
	return true
}

// closeLocked releases the places of closed and hidden pages. The caller must hold mu.
func (p *Page) closeLocked(now time.Time) {
	for id, page := range p.pages {
		if now.Sub(page.lastRequest) > pageLease {
			page.release()
			delete(p.pages, id)
		}
	}
}

// document returns the document, which is at most refreshInterval old.
func (p *Page) document() []byte {
	p.buildLock.Lock()
	defer p.buildLock.Unlock()
	now := time.Now()
	if p.body != nil && now.Sub(p.made) < refreshInterval {
		return p.body
	}
	doc := document{Time: now.UTC().Truncate(time.Millisecond), Version: p.Version, Store: p.storeState(), Watches: p.Watches.state(p.Store, now),
		Deprecations: p.Deprecations(shownUsages)}
	if p.Flows != nil {
		flows := p.Flows.State()
		for i := range flows.Levels {
			for j := range flows.Levels[i].Flows {
				flow := &flows.Levels[i].Flows[j]
				flow.Distinguisher = truncate(flow.Distinguisher)
			}
		}
		doc.FlowControl = &flows
	}
	body, err := json.Marshal(&doc)
	if err != nil {
		panic(err) // this cannot happen, because all values are numbers, strings and times
	}
	p.made, p.body = now, body
	return body
}

// A document contains all the data for the page that is not available from other endpoints.
type document struct {
	Time         time.Time          `json:"time"`
	Version      string             `json:"version"`
	Store        storeState         `json:"store"`
	FlowControl  *flowcontrol.State `json:"flowControl"` // null without flow control
	Watches      watchesState       `json:"watches"`
	Deprecations any                `json:"deprecations"`
}

type storeState struct {
	Revision      int64     `json:"revision"`
	Compacted     int64     `json:"compacted"` // history up to this revision is deleted
	KeptSeconds   float64   `json:"keptSeconds"`
	FileBytes     int64     `json:"fileBytes"`
	FreeBytes     int64     `json:"freeBytes"`
	LogBytes      int64     `json:"logBytes"`
	Objects       int64     `json:"objects"`
	Commits       int64     `json:"commits"`
	Changes       int64     `json:"changes"`
	CommitSeconds float64   `json:"commitSeconds"`
	Bounds        []float64 `json:"bounds"` // upper bounds of commit durations in seconds
	// The number of commits in each bucket. The last bucket counts all commits above the highest
	// bound.
	Buckets []int64 `json:"buckets"`
	// resources sorted by the number of objects
	Resources      []resourceState `json:"resources"`
	ResourcesTotal int             `json:"resourceCount"` // number including the resources that are not shown
}

type resourceState struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
	Objects  int64  `json:"objects"`
	Bytes    int64  `json:"bytes"`
}

func (p *Page) storeState() storeState {
	stats := p.Store.Stats()
	s := storeState{Revision: stats.Revision, Compacted: stats.CompactRev, KeptSeconds: p.Retention.Seconds(), FileBytes: stats.FileBytes,
		FreeBytes: stats.FreeBytes, LogBytes: stats.LogBytes, Objects: p.Store.Objects(), Commits: stats.Commits, Changes: stats.Writes, CommitSeconds: stats.CommitSeconds,
		Bounds: store.CommitBounds[:], Buckets: stats.CommitBuckets[:], Resources: []resourceState{}}
	seen := map[string]bool{}
	for _, res := range p.Types.All() {
		prefix := res.KeyPrefix("")
		if res.Virtual || seen[prefix] {
			continue
		}
		seen[prefix] = true
		if objects, bytes, _ := p.Store.Count(prefix); objects > 0 {
			s.Resources = append(s.Resources, resourceState{res.StorageGroup, res.Plural, objects, bytes})
		}
	}
	slices.SortStableFunc(s.Resources, func(a, b resourceState) int { return int(b.Objects - a.Objects) })
	s.ResourcesTotal = len(s.Resources)
	s.Resources = s.Resources[:min(len(s.Resources), shownResources)]
	return s
}
