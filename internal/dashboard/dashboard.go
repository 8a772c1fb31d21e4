// Package dashboard is the page /debug/ui/: what happens in the server, drawn for people. It shows changes as they are made, who owns
// whom, flow control, watches and how far each lags, deprecated versions in use, findings, and the store; and all objects as they were.
//
//	page := &dashboard.Page{Store: st, Types: reg, Watches: watches}
//	mux.HandleFunc("/debug/ui/", page.ServeFile)       // HTML, CSS, JavaScript: for anybody, there is nothing of the server in them
//	mux.HandleFunc(dashboard.DataPath, page.ServeData) // for whoever may get it
//
// The files are the program's own and ask nobody else for anything. Everything that they show they ask for by paths that have their own
// authorization, as the user whose page it is: objects by the API, now and under /at/, changes by /debug/history, findings by
// /debug/findings. What has no path of its own (flow control, watches, the store) is one JSON document, made here twice a second at most
// however many pages there are, and never when there is none.
//
// Invariants: names and values come from users, so no file makes HTML of text (the Content-Security-Policy forbids it besides); the
// document has a bound, whatever users send; so has the number of pages that ask for it.
package dashboard

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"apilet/internal/auth/rbac"
	"apilet/internal/flowcontrol"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// DataPath is where the document is, for whoever may get it.
const DataPath = rbac.PathUI + "data"

const (
	madeEvery = 500 * time.Millisecond
	maxPages  = 100
	pageLease = 15 * time.Second // one that has not asked for so long is closed, or hidden
	pageIDMax = 40

	shownWatches   = 200
	shownResources = 500
	shownUsages    = 100
	shownRunes     = 120 // of a text that a client sent
)

//go:embed page
var files embed.FS

// A Page serves the page. Its fields up to mu are set once.
type Page struct {
	Store        *store.Store
	Types        *scheme.Registry
	Flows        *flowcontrol.Dispatcher // nil without flow control
	Watches      *Watches
	Deprecations func(most int) any // uses of deprecated versions, the newest first
	Version      string
	Kept         time.Duration // how far back history reaches; 0: all of it is kept

	mu    sync.Mutex // guards what follows
	pages map[string]time.Time

	making sync.Mutex // guards what follows; whoever needs the document while it is being made waits for it
	made   time.Time
	body   []byte
}

// securityHeaders let the page run what the server sent as files and nothing else, ask this server and no other, and be in no frame.
// Trusted types make a mistake with innerHTML an error.
var securityHeaders = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " +
		"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
	"X-Content-Type-Options":       "nosniff",
	"X-Frame-Options":              "DENY",
	"Referrer-Policy":              "no-referrer",
	"Cross-Origin-Opener-Policy":   "same-origin",
	"Cross-Origin-Resource-Policy": "same-origin",
}

var contentTypes = map[string]string{".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// ServeFile answers with a file of the page.
func (p *Page) ServeFile(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		_ = response.Refuse(w, r, response.ErrMethodNotAllowed())
		return
	}
	name := strings.TrimPrefix(r.URL.Path, rbac.PathUI)
	if name == "" {
		name = "index.html"
	}
	content, err := files.ReadFile("page/" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	header := w.Header()
	for key, value := range securityHeaders {
		header.Set(key, value)
	}
	sum := sha256.Sum256(content)
	etag := `"` + hex.EncodeToString(sum[:8]) + `"`
	header.Set("Etag", etag)
	header.Set("Content-Type", contentTypes[path.Ext(name)])
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(content) // the client is gone otherwise
}

// ServeData answers with the document. Each page says who it is by ?page=, a word that it has made up; maxPages of them are served at once.
func (p *Page) ServeData(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	var err error
	switch {
	case r.Method != http.MethodGet:
		err = response.ErrMethodNotAllowed()
	case r.Header.Get("Sec-Fetch-Site") == "cross-site": // which could not read the answer, but take the places of pages that can
		err = apierrors.NewBadRequest("this is for the page of this server, not for those of other sites")
	case !p.admit(r.URL.Query().Get("page"), time.Now()):
		err = apierrors.NewTooManyRequests(fmt.Sprintf("%d pages are open; close one", maxPages), int(pageLease.Seconds()))
	}
	if err != nil {
		_ = response.Refuse(w, r, err)
		return
	}
	header.Set("Content-Type", "application/json")
	_, _ = w.Write(p.document())
}

// admit says whether a page is among those that are served, and keeps its place.
func (p *Page) admit(id string, now time.Time) bool {
	id = strings.Clone(id[:min(len(id), pageIDMax)])
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pages == nil {
		p.pages = map[string]time.Time{}
	}
	if _, known := p.pages[id]; !known && len(p.pages) >= maxPages {
		for other, asked := range p.pages {
			if now.Sub(asked) > pageLease {
				delete(p.pages, other)
			}
		}
		if len(p.pages) >= maxPages {
			return false
		}
	}
	p.pages[id] = now
	return true
}

// document returns what is not older than madeEvery.
func (p *Page) document() []byte {
	p.making.Lock()
	defer p.making.Unlock()
	now := time.Now()
	if p.body != nil && now.Sub(p.made) < madeEvery {
		return p.body
	}
	doc := document{Time: now.UTC().Truncate(time.Millisecond), Version: p.Version, Store: p.storeState(), Watches: p.Watches.state(p.Store, now),
		Deprecations: p.Deprecations(shownUsages)}
	if p.Flows != nil {
		flows := p.Flows.State()
		for i := range flows.Levels {
			for j := range flows.Levels[i].Flows {
				flow := &flows.Levels[i].Flows[j]
				flow.Distinguisher = shortened(flow.Distinguisher)
			}
		}
		doc.FlowControl = &flows
	}
	body, err := json.Marshal(&doc)
	if err != nil {
		panic(err) // numbers, texts and times, all of them ours
	}
	p.made, p.body = now, body
	return body
}

// A document is what the page shows that has no path of its own.
type document struct {
	Time         time.Time          `json:"time"`
	Version      string             `json:"version"`
	Store        storeState         `json:"store"`
	FlowControl  *flowcontrol.State `json:"flowControl"` // null where it is switched off
	Watches      watchesState       `json:"watches"`
	Deprecations any                `json:"deprecations"`
}

type storeState struct {
	Revision       int64           `json:"revision"`
	Compacted      int64           `json:"compacted"` // history up to here is gone
	KeptSeconds    float64         `json:"keptSeconds"`
	FileBytes      int64           `json:"fileBytes"`
	FreeBytes      int64           `json:"freeBytes"`
	Objects        int64           `json:"objects"`
	Commits        int64           `json:"commits"`
	Changes        int64           `json:"changes"`
	CommitSeconds  float64         `json:"commitSeconds"`
	Bounds         []float64       `json:"bounds"`        // of commits' durations, in seconds,
	Buckets        []int64         `json:"buckets"`       // and how many lay under each and above the one before; the last: above all
	Resources      []resourceState `json:"resources"`     // that there are objects of, most objects first
	ResourcesTotal int             `json:"resourceCount"` // with those that are not shown
}

type resourceState struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
	Objects  int64  `json:"objects"`
	Bytes    int64  `json:"bytes"`
}

func (p *Page) storeState() storeState {
	stats := p.Store.Stats()
	s := storeState{Revision: stats.Revision, Compacted: stats.CompactRev, KeptSeconds: p.Kept.Seconds(), FileBytes: stats.FileBytes,
		FreeBytes: stats.FreeBytes, Objects: p.Store.Objects(), Commits: stats.Commits, Changes: stats.Writes, CommitSeconds: stats.CommitSeconds,
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

// shortened keeps a client's text from filling the document.
func shortened(text string) string {
	n := 0
	for i := range text {
		if n++; n > shownRunes {
			return text[:i] + "…"
		}
	}
	return text
}
