package main

// This file tests continue tokens by themselves: what is in them comes back, and nothing that somebody has made or changed is taken. What a list
// with a token answers is tested from outside, in internal/e2e.

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"
	"apilet/internal/registry"
)

// TestWaitingForATurnEnds: lists that read do not hold up others for longer than these have time.
func TestWaitingForATurnEnds(t *testing.T) {
	s := startTest(t)
	for range cap(s.rd.Slots) {
		s.rd.Slots <- struct{}{} // lists that read, and do not end
	}
	a := s.want(504, "GET", "/api/v1/namespaces?timeout=100ms", "")
	apitest.Expect(t, a.get("reason"), "Timeout")
	for range cap(s.rd.Slots) {
		<-s.rd.Slots
	}
	s.want(200, "GET", "/api/v1/namespaces", "")
}

// TestLargeListIsCompressedForOtherHosts: gzip is for clients that want it and are not on this host, and only where it pays.
func TestLargeListIsCompressedForOtherHosts(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.fill(600, 1024)
	for _, c := range []struct {
		name, from, accepts, query, want string
	}{
		{"another host", "192.0.2.1:1", "gzip", "", "gzip"},
		{"this host", "127.0.0.1:1", "gzip", "", ""},
		{"a client that does not want it", "192.0.2.1:1", "", "", ""},
		{"a small list", "192.0.2.1:1", "gzip", "?limit=5", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", benchPath+c.query, nil)
			r.RemoteAddr, r.Host = c.from, "127.0.0.1"
			r.Header.Set("Accept-Encoding", c.accepts)
			w := httptest.NewRecorder()
			s.http.Handler.ServeHTTP(w, r)
			apitest.Expect(t, w.Header().Get("Content-Encoding"), c.want)
			var in io.Reader = w.Body
			if c.want == "gzip" {
				var err error
				if in, err = gzip.NewReader(w.Body); err != nil {
					t.Fatal(err)
				}
			}
			var list struct{ Items []json.RawMessage }
			if err := json.NewDecoder(in).Decode(&list); err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{true: 5, false: 600}[c.query != ""]; len(list.Items) != want {
				t.Errorf("got %d items, want %d", len(list.Items), want)
			}
		})
	}
}

// fill creates n ConfigMaps of about size bytes in the namespace default, past HTTP.
func (s *testServer) fill(n, size int) {
	s.t.Helper()
	res := s.reg.Lookup("", "v1", "configmaps")
	payload := strings.Repeat("x", max(size-250, 1))
	next := make(chan int)
	var group sync.WaitGroup
	for range 128 {
		group.Go(func() {
			for i := range next {
				obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%06d", i), Namespace: "default",
					Labels: map[string]string{"half": strconv.Itoa(i % 2)}}, Data: map[string]string{"k": payload}}
				if _, err := s.wr.Insert(context.Background(), res, obj, registry.Options{}); err != nil {
					s.t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
}

func TestListsThatNobodyReadHoldNothing(t *testing.T) {
	s := startTest(t)
	payload := strings.Repeat("x", 200_000)
	for i := range 50 { // 10 MB: more than a socket takes
		s.want(201, "POST", "/api/v1/namespaces/default/configmaps", configMap(fmt.Sprint("big", i), "k", payload))
	}
	before := heldMemory()
	const lists = 20
	for range lists {
		s.deaf("GET /api/v1/configmaps HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
	}
	stuck := func() bool {
		return metricValue(s, `apiserver_current_inflight_requests{request_kind="readOnly"}`) >= lists && s.st.File.Db.Stats().OpenTxN == 0
	}
	apitest.WaitFor(t, "the lists to be stuck", stuck)
	expectMemory(t, before, lists*2<<20)
	s.compactNow(s.st.Revision())
	s.want(200, "GET", "/api/v1/namespaces/default/configmaps?limit=1", "")
	apitest.WaitFor(t, "every read transaction to end", stuck)
}
