package health

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestHealthSpeaksKubernetesText(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	sick := Check{Name: "poststarthook/rbac", Err: func() error { return errors.New("it hurts") }}
	livez := &Endpoint{Name: "livez", Checks: []Check{Ping, sick}}
	readyz := &Endpoint{Name: "readyz", Checks: []Check{Ping, {Name: "etcd", Err: Ping.Err}, Shutdown(stop)}}
	ask := func(h http.Handler, url string) string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", url, nil))
		return fmt.Sprintf("%d %s %s", w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	const text = " text/plain; charset=utf-8 "
	check := func(h http.Handler, url, want string) {
		t.Helper()
		if got := ask(h, url); got != want {
			t.Errorf("GET %s: got\n%s\nwant\n%s", url, got, want)
		}
	}
	check(readyz, "/readyz", "200"+text+"ok")
	check(readyz, "/readyz?verbose", "200"+text+"[+]ping ok\n[+]etcd ok\n[+]shutdown ok\nreadyz check passed\n")
	check(readyz, "/readyz?verbose&exclude=etcd&exclude=foo&exclude=bar", "200"+text+
		"[+]ping ok\n[+]etcd excluded: ok\n[+]shutdown ok\nwarn: some health checks cannot be excluded: no matches for \"bar\",\"foo\"\nreadyz check passed\n")
	check(readyz, "/readyz/etcd", "200"+text+"ok")
	check(readyz, "/readyz/nope", "404"+text+"404 page not found\n")
	check(readyz, "/readyz/", "404"+text+"404 page not found\n")
	check(livez, "/livez", "500"+text+"[+]ping ok\n[-]poststarthook/rbac failed: reason withheld\nlivez check failed\n")
	check(livez, "/livez?exclude=poststarthook/rbac", "200"+text+"ok")
	check(livez, "/livez/poststarthook/rbac", "500"+text+"internal server error: it hurts\n")
	close(stop)
	check(readyz, "/readyz", "500"+text+"[+]ping ok\n[+]etcd ok\n[-]shutdown failed: reason withheld\nreadyz check failed\n")
}

// What warns is told, and leaves the server ready; its own page says so to a monitor.
func TestAWarningLeavesTheServerReady(t *testing.T) {
	t.Parallel()
	var full error
	observed := make(chan string, 100)
	readyz := &Endpoint{Name: "readyz", Checks: []Check{Ping, {Name: "disk", Err: func() error { return full }, WarnOnly: true}},
		MayView:  func(r *http.Request, path string) bool { return r.Header.Get("Root") != "" && path == "/readyz/disk" },
		OnResult: func(check string, err error) { observed <- fmt.Sprint(check, " ", err) }}
	full = errors.New("no space left")
	for _, c := range []struct{ url, root, want string }{
		{"/readyz", "", "200 ok"},
		{"/readyz?verbose", "", "200 [+]ping ok\n[!]disk warns: reason withheld\nreadyz check passed\n"},
		{"/readyz?verbose", "yes", "200 [+]ping ok\n[!]disk warns: no space left\nreadyz check passed\n"},
		{"/readyz/disk", "", "500 internal server error: no space left\n"},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", c.url, nil)
		r.Header.Set("Root", c.root)
		readyz.ServeHTTP(w, r)
		if got := fmt.Sprintf("%d %s", w.Code, w.Body); got != c.want {
			t.Errorf("%s: got %q, want %q", c.url, got, c.want)
		}
	}
	for len(observed) > 0 {
		<-observed
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { readyz.Run(ctx, time.Millisecond); close(ended) }()
	for _, want := range []string{"ping <nil>", "disk no space left", "ping <nil>", "disk no space left"} {
		if got := <-observed; got != want {
			t.Errorf("observed %q, want %q", got, want)
		}
	}
	cancel()
	for open := true; open; {
		select {
		case <-observed:
		case <-ended:
			open = false
		}
	}
}
