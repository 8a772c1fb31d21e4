package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"apilet/internal/flowcontrol"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// newPage is a page of an empty store.
func newPage(t *testing.T) *Page {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "page.db"), store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	flows := flowcontrol.NewDispatcher(10, time.Minute)
	objects := flowcontrol.WithMandatory(flowcontrol.Objects{})
	flows.Configure(objects.Schemas, objects.Levels)
	return &Page{Store: st, Types: scheme.NewRegistry(), Flows: flows, Watches: &Watches{}, Deprecations: func(int) any { return []string{} }}
}

func get(handler http.HandlerFunc, path string, headers ...string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest("GET", path, nil), httptest.NewRecorder()
	for _, header := range headers {
		key, value, _ := strings.Cut(header, ": ")
		r.Header.Set(key, value)
	}
	handler(w, r)
	return w
}

func TestPageMayDoNothingButAskThisServer(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	w := get(p.ServePage, "/debug/ui/")
	html, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") || len(html) > 100<<10 || strings.Contains(html, "{{") {
		t.Errorf("%d %s, %d bytes", w.Code, w.Header().Get("Content-Type"), len(html))
	}
	for _, directive := range []string{"default-src 'none'", "connect-src 'self'", "img-src data:", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"} {
		if !slices.Contains(strings.Split(policy, "; "), directive) {
			t.Errorf("the policy %q lacks %s", policy, directive)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("X-Frame-Options") != "DENY" {
		t.Errorf("%v", w.Header())
	}
	for tag, directive := range map[string]string{"script": "script-src ", "style": "style-src "} { // one each, and the policy names it by its hash
		found := regexp.MustCompile(`(?s)<`+tag+`[^>]*>(.*?)</`+tag+`>`).FindAllStringSubmatch(html, -1)
		if len(found) != 1 || !strings.Contains(policy, directive+hashOf(found[0][1])) {
			t.Errorf("%d of %s; the policy is %q", len(found), tag, policy)
		}
	}
	if again := get(p.ServePage, "/debug/ui/", "If-None-Match: "+w.Header().Get("Etag")); again.Code != 304 || again.Body.Len() > 0 {
		t.Errorf("asked again: %d", again.Code)
	}
	forbidden := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9.-]+\.[a-z]+|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|style="| on[a-z]+="| src="[^d]| href="[^#d]`)
	if found := forbidden.FindString(strings.ReplaceAll(html, "http://www.w3.org/2000/svg", "")); found != "" {
		t.Errorf("it has %q", found)
	}
}

func TestBrowsersAreRedirected(t *testing.T) {
	t.Parallel()
	home := RedirectBrowsers(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for _, c := range []struct {
		method, accept string
		redirected     bool
	}{
		{"GET", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true},
		{"HEAD", "text/html", true},
		{"POST", "text/html", false},
		{"GET", "", false},
		{"GET", "*/*", false},
		{"GET", "application/json, */*", false},
		{"GET", "text/html;q=0.5, application/json", false},
	} {
		r, w := httptest.NewRequest(c.method, "/", nil), httptest.NewRecorder()
		r.Header.Set("Accept", c.accept)
		home(w, r)
		if redirected := w.Code == http.StatusFound && w.Header().Get("Location") == "/debug/ui/"; redirected != c.redirected || !redirected && w.Code != http.StatusTeapot {
			t.Errorf("%s with Accept %q: %d %q", c.method, c.accept, w.Code, w.Header().Get("Location"))
		}
	}
}

func TestThereIsNothingBeside(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	for _, path := range []string{"/debug/ui/x", "/debug/ui/../dashboard.go", "/debug/ui//etc/passwd", "/debug/ui/app.js", "/debug/ui/index.html"} {
		if w := get(p.ServePage, path); w.Code != 404 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	r, w := httptest.NewRequest("POST", "/debug/ui/", nil), httptest.NewRecorder()
	if p.ServePage(w, r); w.Code != 405 {
		t.Errorf("POST: %d", w.Code)
	}
}

func TestDocumentIsMadeOnceForAllWhoAsk(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	asked := 0
	p.Deprecations = func(int) any { asked++; return []string{} }
	p.buildLock.Lock() // as if somebody made it
	p.made, p.body = time.Now().Add(time.Hour), []byte(`{}`)
	p.buildLock.Unlock()
	var all sync.WaitGroup
	for i := range maxPages / 5 {
		all.Go(func() {
			if w := get(p.ServeData, fmt.Sprint(DataPath, "?page=", i)); w.Code != 200 || w.Body.String() != `{}` {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
	all.Wait()
	if asked != 0 {
		t.Errorf("made %d times", asked)
	}
	p.buildLock.Lock()
	p.made = time.Now().Add(-refreshInterval)
	p.buildLock.Unlock()
	w := get(p.ServeData, DataPath)
	var doc document
	if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil || asked != 1 || doc.FlowControl == nil || len(doc.FlowControl.Levels) == 0 {
		t.Errorf("made %d times: %v, %s", asked, err, w.Body)
	}
}

func TestPagesHaveABound(t *testing.T) {
	t.Parallel()
	p, now := newPage(t), time.Now()
	user := func(i int) request.User { return request.User{Name: fmt.Sprint("user", i%7)} }
	for i := range 100_000 {
		if got, want := p.admit(user(i), fmt.Sprint("page", i), now), i < maxPages; got != want {
			t.Fatalf("page %d: %v", i, got)
		}
	}
	if !p.admit(user(7), "page7", now.Add(pageLease)) || len(p.pages) != maxPages {
		t.Errorf("a page that is open is turned away; %d are known", len(p.pages))
	}
	if !p.admit(user(0), "late", now.Add(pageLease+time.Second)) || len(p.pages) != 2 {
		t.Errorf("places of pages that are closed are not given to others: %d", len(p.pages))
	}
	later := time.Now().Add(2 * pageLease)
	for i := range maxPages {
		if got, want := p.admit(request.User{}, fmt.Sprint("mine", i), later), i < maxPages/4; got != want {
			t.Fatalf("page %d of one user: %v", i, got)
		}
	}
	if !p.admit(user(0), "other", later) || !p.admit(request.User{Groups: []string{request.GroupMasters}}, "admin", later) {
		t.Error("one user has the places of all")
	}
	w := get(p.ServeData, DataPath+"?page="+strings.Repeat("x", 10_000))
	if w.Code != 429 || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), `"reason":"TooManyRequests"`) {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}

func TestOtherSitesTakeNoPlaces(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	if w := get(p.ServeData, DataPath, "Sec-Fetch-Site: cross-site"); w.Code != 400 || len(p.pages) != 0 {
		t.Errorf("%d, %d places", w.Code, len(p.pages))
	}
}

func TestWatchesSayHowFarTheyAre(t *testing.T) {
	t.Parallel()
	p, now := newPage(t), time.Now()
	newest := p.Store.NewestEvent("//pods/")
	long := strings.Repeat("ä", 5000)
	behind := &Watch{User: long, Agent: long, Resource: "pods", Base: "//pods/", Started: now, LabelSelector: long}
	p.Watches.Add(behind)
	behind.Follow(func() int64 { return newest - 3 })
	for i := range 2 * shownWatches {
		w := &Watch{User: "u", Resource: "pods", Base: "//pods/", Started: now.Add(time.Duration(i))}
		p.Watches.Add(w)
		w.Follow(func() int64 { return newest })
	}
	s := p.Watches.state(p.Store, now)
	if s.Total != 2*shownWatches+1 || s.Behind != 1 || len(s.Items) != shownWatches || s.Items[0].Lag != 3 || s.Items[1].Lag != 0 {
		t.Errorf("%d, %d behind, %d shown, %+v", s.Total, s.Behind, len(s.Items), s.Items[:2])
	}
	if got := len(s.Items[0].User) + len(s.Items[0].Agent) + len(s.Items[0].LabelSelector); got > 3*(2*shownRunes+3) {
		t.Errorf("%d bytes of text", got)
	}
	if s = p.Watches.state(p.Store, now.Add(4*time.Second)); s.Items[0].LagSeconds != 4 {
		t.Errorf("behind for %v s", s.Items[0].LagSeconds)
	}
	behind.Follow(func() int64 { return newest })
	if s = p.Watches.state(p.Store, now.Add(5*time.Second)); s.Behind != 0 {
		t.Errorf("%d behind", s.Behind)
	}
	p.Watches.Remove(behind)
	if s = p.Watches.state(p.Store, now); s.Total != 2*shownWatches {
		t.Errorf("%d after the end", s.Total)
	}
}

// A document of the longest of everything fits into a bound.
func TestDocumentHasABound(t *testing.T) {
	t.Parallel()
	p := newPage(t)
	long := strings.Repeat("<&>", 20_000)
	for range 3 * shownWatches {
		p.Watches.Add(&Watch{User: long, Agent: long, Resource: "pods", Namespace: strings.Repeat("n", 63), LabelSelector: long, FieldSelector: long, Base: "//pods/"})
	}
	if n := len(p.document()); n > 1<<20 {
		t.Errorf("%d bytes", n)
	}
}
