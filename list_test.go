package main

// This file tests continue tokens by themselves: what is in them comes back, and nothing that somebody has made or changed is taken. What a list
// with a token answers is tested from outside, in internal/e2e.

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
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
	"apilet/internal/selector"
)

func testMatcher(prefix string) *selector.Matcher {
	return &selector.Matcher{Prefix: prefix, Span: prefix}
}

func testKey(n byte) []byte { return bytes.Repeat([]byte{n}, 32) }

func TestTokenRoundTrip(t *testing.T) {
	t.Parallel()
	codec, list := newTokenCodec([][]byte{testKey(1)}), testMatcher("//configmaps/p1/")
	for _, token := range []continueToken{
		{rev: 1, start: "a\x00", remaining: 3, lineage: 7},
		{rev: 1 << 62, start: strings.Repeat("n", 253) + "\x00", remaining: -1, lineage: 1<<32 - 1},
		{start: "é\x00\xff", remaining: 1 << 62},
	} {
		text := codec.seal(token, list)
		got, err := codec.open(text, list)
		if err != nil || *got != token {
			t.Errorf("sealed %+v, opened %+v, %v", token, got, err)
		}
		if again := codec.seal(token, list); again != text {
			t.Errorf("equal input gave %s and %s", text, again)
		}
	}
}

func TestTokenWithAFlippedBitIsRefused(t *testing.T) {
	t.Parallel()
	codec, list := newTokenCodec([][]byte{testKey(1), testKey(2)}), testMatcher("//configmaps/p1/")
	text := codec.seal(continueToken{rev: 77, start: "b\x00", remaining: 3, lineage: 5}, list)
	raw, _ := base64.RawURLEncoding.DecodeString(text)
	for bit := range len(raw) * 8 {
		forged := bytes.Clone(raw)
		forged[bit/8] ^= 1 << (bit % 8)
		if _, err := codec.open(base64.RawURLEncoding.EncodeToString(forged), list); err == nil {
			t.Errorf("bit %d of the bytes may be flipped", bit)
		}
	}
	for bit := range len(text) * 8 {
		forged := []byte(text)
		forged[bit/8] ^= 1 << (bit % 8)
		if _, err := codec.open(string(forged), list); err == nil {
			t.Errorf("bit %d of the text may be flipped: %s", bit, forged)
		}
	}
}

func TestTokenIsBoundToItsList(t *testing.T) {
	t.Parallel()
	codec := newTokenCodec([][]byte{testKey(1)})
	lists := []*selector.Matcher{testMatcher("//configmaps/p1/"), testMatcher("//configmaps/"), testMatcher("//secrets/p1/"), testMatcher("//configmaps/p"),
		{Prefix: "//configmaps/p1/", Selectors: "a\x00"}, {Prefix: "//configmaps/p1/", Selectors: "\x00a"}, {Prefix: "//configmaps/p1/a", Selectors: "\x00"}}
	for i, of := range lists {
		text := codec.seal(continueToken{rev: 3, start: "b\x00"}, of)
		for j, on := range lists {
			if _, err := codec.open(text, on); (err == nil) != (i == j) {
				t.Errorf("a token of list %d used on list %d: %v", i, j, err)
			}
		}
	}
}

func TestTokenKeysRotate(t *testing.T) {
	t.Parallel()
	list, token := testMatcher("//configmaps/p1/"), continueToken{rev: 3, start: "b\x00", remaining: -1}
	sealed := func(c *tokenCodec) string { return c.seal(token, list) }
	before, both, after := newTokenCodec([][]byte{testKey(1)}), newTokenCodec([][]byte{testKey(2), testKey(1)}), newTokenCodec([][]byte{testKey(2)})
	for _, c := range []struct {
		title string
		text  string
		codec *tokenCodec
		ok    bool
	}{
		{"old token, both keys", sealed(before), both, true},
		{"new token, both keys", sealed(both), both, true},
		{"new token, new key", sealed(both), after, true},
		{"new token, old key", sealed(both), before, false},
		{"old token, new key", sealed(before), after, false},
	} {
		if _, err := c.codec.open(c.text, list); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.title, err)
		}
	}
}

func TestTokenTellsNoName(t *testing.T) {
	t.Parallel()
	const secret = "launch-codes"
	text := newTokenCodec([][]byte{testKey(1)}).seal(continueToken{rev: 3, start: secret + "\x00"}, testMatcher("//secrets/p1/"))
	raw, _ := base64.RawURLEncoding.DecodeString(text)
	if strings.Contains(text, secret) || bytes.Contains(raw, []byte(secret)) || bytes.Contains(raw, []byte("p1")) {
		t.Errorf("a name is readable in %q", raw)
	}
}

func FuzzContinueToken(f *testing.F) {
	codec, list := newTokenCodec([][]byte{testKey(1), testKey(2)}), testMatcher("//configmaps/p1/")
	sealed := map[string]bool{}
	for _, start := range []string{"", "a\x00", "b\x00"} {
		for _, rev := range []int64{0, 1, 300} {
			text := codec.seal(continueToken{rev: rev, start: start, remaining: rev - 1}, list)
			sealed[text] = true
			f.Add(text)
		}
	}
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := codec.open(text, list); err == nil && !sealed[text] {
			t.Errorf("a token that was never sealed is accepted: %q", text)
		}
	})
}

// TestWaitingForATurnEnds: lists that read do not hold up others for longer than these have time.
func TestWaitingForATurnEnds(t *testing.T) {
	s := startTest(t)
	for range cap(s.rd.readSlots) {
		s.rd.readSlots <- struct{}{} // lists that read, and do not end
	}
	a := s.want(504, "GET", "/api/v1/namespaces?timeout=100ms", "")
	apitest.Expect(t, a.get("reason"), "Timeout")
	for range cap(s.rd.readSlots) {
		<-s.rd.readSlots
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
