package health

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHealthSpeaksKubernetesText(t *testing.T) {
	t.Parallel()
	stop := make(chan struct{})
	sick := Check{"poststarthook/rbac", func() error { return errors.New("it hurts") }}
	livez := &Endpoint{"livez", []Check{Ping, sick}, nil}
	readyz := &Endpoint{"readyz", []Check{Ping, {"etcd", Ping.Err}, Shutdown(stop)}, nil}
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
