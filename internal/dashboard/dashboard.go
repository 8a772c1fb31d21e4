// Package dashboard is the page /debug/ui/: what happens in the server, drawn for people. It shows changes as they are made, who owns
// whom, flow control, watches and how far each lags, deprecated versions in use, findings, and the store; and all objects as they were.
//
//	page := &dashboard.Page{Store: st, Types: reg, Watches: watches}
//	mux.HandleFunc(request.PathUI, page.ServePage)     // HTML, CSS, JavaScript: for anybody, there is nothing of the server in it
//	mux.HandleFunc(dashboard.DataPath, page.ServeData) // for whoever may get it
//
// The page is the program's own and asks nobody else for anything. Everything that it shows it asks for by paths that have their own
// authorization, as the user whose page it is: objects by the API, now and under /at/, changes by /debug/history, findings by
// /debug/findings. What has no path of its own (flow control, watches, the store) is one JSON document, made here twice a second at most
// however many pages there are, and never when there is none.
//
// Invariants: names and values come from users, so no script makes HTML of text (the Content-Security-Policy forbids it besides); the
// document has a bound, whatever users send; so has the number of pages that ask for it.
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
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/shares"
	"apilet/internal/store"
)

// DataPath is where the document is, for whoever may get it.
const DataPath = request.PathUI + "data"

const (
	madeEvery = 500 * time.Millisecond
	maxPages  = 100
	pageLease = 15 * time.Second // one that has not asked for so long is closed, or hidden
	pageIDMax = 40

	shownResources = 500
	shownUsages    = 100
)

//go:embed page
var files embed.FS

// A Page serves the page. Its fields up to once are set before.
type Page struct {
	Store        *store.Store            // whose size and commits are shown
	Types        *scheme.Registry        // what is listed and drawn as a tree
	Flows        *flowcontrol.Dispatcher // nil without flow control
	Watches      *Watches                // that are open now
	Deprecations func(most int) any      // uses of deprecated versions, the newest first
	Version      string                  // of apilet
	Kept         time.Duration           // how far back history reaches; 0: all of it is kept

	once      sync.Once
	assembled *assembled // from the first time on that somebody asks

	mu     sync.Mutex // guards what follows
	places *shares.Places
	pages  map[string]openPage // by the words that they call themselves

	making sync.Mutex // guards what follows; whoever needs the document while it is being made waits for it
	made   time.Time
	body   []byte
}

// An assembled page is what ServePage sends: one answer, since a stranger's connection may end with it.
type assembled struct {
	html         []byte
	policy, etag string
}

// assemble puts style and scripts into the page. The policy lets it run these and nothing else, ask this server and no other, and be in no
// frame; trusted types make a mistake with innerHTML an error.
func assemble() *assembled {
	read := func(names ...string) (text string) {
		for _, name := range names {
			content, err := files.ReadFile("page/" + name)
			if err != nil {
				panic(err) // it is embedded
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

// hashOf names a script or a style in the policy.
func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// ServePage answers with the page.
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
	_, _ = w.Write(p.assembled.html) // the client is gone otherwise
}

// ServeData answers with the document. Each page says who it is by ?page=, a word that it has made up; maxPages of them are served at once, a quarter of them of one user.
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
	case r.Header.Get("Sec-Fetch-Site") == "cross-site": // which could not read the answer, but take the places of pages that can
		err = apierrors.NewBadRequest("this is for the page of this server, not for those of other sites")
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

// An openPage has a place until it has not asked for a while.
type openPage struct {
	asked   time.Time
	release func()
}

// admit says whether a user's page is among those that are served, and keeps its place.
func (p *Page) admit(u request.User, id string, now time.Time) bool {
	id = strings.Clone(id[:min(len(id), pageIDMax)])
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pages == nil {
		p.places, p.pages = shares.NewPlaces(maxPages), map[string]openPage{}
	}
	page, known := p.pages[id]
	if !known {
		var ok bool
		if page.release, ok = p.places.Take(u); !ok {
			p.closeLocked(now)
			page.release, ok = p.places.Take(u)
		}
		if !ok {
			return false
		}
	}
	page.asked = now
	p.pages[id] = page
	return true
}

// closeLocked takes their places from pages that are closed, or hidden.
func (p *Page) closeLocked(now time.Time) {
	for id, page := range p.pages {
		if now.Sub(page.asked) > pageLease {
			page.release()
			delete(p.pages, id)
		}
	}
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
	LogBytes       int64           `json:"logBytes"`
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
