package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/request"
)

// Cases of what Kubernetes does with warnings go by numbers, through the whole file.

func TestWarningHeaderIsBuilt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number      string
		code        int
		agent, text string
		want        string // "" is refused
	}{
		{"1 no agent", 299, "", "mytext", `299 - "mytext"`},
		{"2 agent", 299, "myagent", "mytext", `299 myagent "mytext"`},
		{"3 small code", 1, "", "mytext", `001 - "mytext"`},
		{"4 large code", 999, "", "mytext", `999 - "mytext"`},
		{"5 negative code", -1, "", "mytext", ""},
		{"5 code of four digits", 1000, "", "mytext", ""},
		{"6 agent with space", 299, "a b", "mytext", ""},
		{"6 agent with wide space", 299, "a\u2003b", "mytext", ""},
		{"7 agent with newline", 299, "a\n", "mytext", ""},
		{"8 agent with backslash", 299, `a\b`, "mytext", ""},
		{"9 agent with quote", 299, `a"b`, "mytext", ""},
		{"10 agent with NUL", 299, "a\x00", "mytext", ""},
		{"11 agent not UTF-8", 299, "a\xc5", "mytext", ""},
		{"12 text with LF", 299, "", "my\ntext", ""},
		{"12 text with CR", 299, "", "my\rtext", ""},
		{"13 text with NUL", 299, "", "my\x00text", ""},
		{"14 text with TAB", 299, "", "my\ttext", ""},
		{"14 text with DEL", 299, "", "my\x7ftext", ""},
		{"14 text with next line", 299, "", "my\u0085text", ""},
		{"15 text not UTF-8", 299, "", "my\xc5text", ""},
		{"16 empty text", 299, "", "", `299 - ""`},
		{"17 quote", 299, "", `a"b`, `299 - "a\"b"`},
		{"18 backslash", 299, "", `a\b`, `299 - "a\\b"`},
		{"19 emoji and accents", 299, "", "Iñtërnâtiônàlizætiøn 🐹", `299 - "Iñtërnâtiônàlizætiøn 🐹"`},
	} {
		t.Run(c.number, func(t *testing.T) {
			got, err := warningHeader(c.code, c.agent, c.text)
			if got != c.want || (err == nil) != (c.want != "") {
				t.Fatalf("warningHeader(%d, %q, %q) = %q, %v; want %q", c.code, c.agent, c.text, got, err, c.want)
			}
			if reference, _ := utilnet.NewWarningHeader(c.code, c.agent, c.text); got != reference {
				t.Errorf("apimachinery builds %q, we %q", reference, got)
			}
		})
	}
}

// What clients make of a header: the parser is theirs, so this is about what we may send.
func TestClientsParseWarnings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number string
		value  string
		want   string // "code agent text" of the first; "" is an error
		rest   string
	}{
		{"20 empty", "", "", ""},
		{"21 two segments", "A B", "", ""},
		{"22 short code", `1 - "text"`, "", ""},
		{"23 no code", `A - "text"`, "", ""},
		{"24 code 321", `321 - "text"`, "321 - text", ""},
		{"25 escapes", `299 - "text\"\\\a\b\c"`, `299 - text"\abc`, ""},
		{"26 spaces", `  299 - "text"  `, "299 - text", ""},
		{"27 date", `299 - "text" "Tue, 15 Nov 1994 08:12:31 GMT"`, "299 - text", ""},
		{"28 date unclosed", `299 - "text" "Tue`, "", ""},
		{"29 token after date", `299 - "text" "Tue" more`, "", ""},
		{"30 comma after date", `299 - "text" "Tue",`, "299 - text", ""},
		{"31 comma and rest", `299 - "text", 299 - "more"`, "299 - text", `299 - "more"`},
		{"34 quoted-printable", `299 - "=?iso-8859-1?q?text=20=A3?="`, "299 - text £", ""},
		{"35 base64", `299 - "=?UTF-8?B?dGV4dCA=?= =?UTF-8?B?bW9yZQ==?="`, "299 - text more", ""},
		{"36 unknown charset", `299 - "=?foo?q?text?="`, "299 - =?foo?q?text?=", ""},
		{"37 raw UTF-8", `299 - "tëxt 🐹"`, "299 - tëxt 🐹", ""},
		{"38 control in text", "299 - \"te\x00xt\"", "", ""},
		{"38 control in agent", "299 a\x00b \"text\"", "", ""},
		{"39 empty text", `299 - ""`, "299 - ", ""},
		{"40 code 199", `199 - "text"`, "199 - text", ""},
	} {
		t.Run(c.number, func(t *testing.T) {
			header, rest, err := utilnet.ParseWarningHeader(c.value)
			if c.want == "" {
				if err == nil {
					t.Errorf("%q parses to %+v; want an error", c.value, header)
				}
				return
			}
			if got := fmt.Sprintf("%03d %s %s", header.Code, header.Agent, header.Text); err != nil || got != c.want || rest != c.rest {
				t.Errorf("%q parses to %q, rest %q, %v; want %q, rest %q", c.value, got, rest, err, c.want, c.rest)
			}
		})
	}
	two, errs := utilnet.ParseWarningHeaders([]string{`299 - "a", 299 - "b"`, `299 - "c", 299 - d`, `299 - "e"`}) // 32, 33
	if len(two) != 4 || len(errs) != 1 {
		t.Errorf("cases 32 and 33: got %d warnings and %d errors, want 4 and 1", len(two), len(errs))
	}
}

// recordWarnings adds texts to a recorder and returns the texts that a client would read.
func recordWarnings(t *testing.T, limits warningLimits, warnings ...message) []string {
	t.Helper()
	set := &warningSet{header: http.Header{}, limits: limits, seen: map[string]bool{}}
	for _, w := range warnings {
		set.add(w)
	}
	return receivedWarnings(t, set.header)
}

func receivedWarnings(t *testing.T, header http.Header) []string {
	t.Helper()
	parsed, errs := utilnet.ParseWarningHeaders(header.Values("Warning"))
	if len(errs) > 0 {
		t.Errorf("clients cannot parse %q: %v", header.Values("Warning"), errs)
	}
	var texts []string
	for _, w := range parsed {
		texts = append(texts, w.Text)
	}
	return texts
}

func warningTexts(texts ...string) []message {
	var ws []message
	for _, text := range texts {
		ws = append(ws, message{"", text})
	}
	return ws
}

// manyWarnings returns n texts of the given length in runes, all different.
func manyWarnings(n, runes int) []message {
	var ws []message
	for i := range n {
		ws = append(ws, message{"", fmt.Sprintf("%04d", i) + strings.Repeat("é", runes-4)})
	}
	return ws
}

func TestWarningsAreSentOnceAndInOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number string
		add    []message
		want   []string
	}{
		{"41 none", nil, nil},
		{"42 empty text", warningTexts(""), nil},
		{"43 same text, other agent", []message{{"first", "a"}, {"second", "a"}}, []string{"a"}},
		{"44 order", warningTexts("c", "a", "b"), []string{"c", "a", "b"}},
		{"45 invalid", []message{{"", "a\nb"}, {"bad agent", "x"}, {"", "ok"}}, []string{"ok"}},
	} {
		t.Run(c.number, func(t *testing.T) {
			if got := recordWarnings(t, kubernetesWarningLimits, c.add...); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestWarningsAreCutAtSmallLimits(t *testing.T) {
	t.Parallel()
	set := &warningSet{header: http.Header{}, limits: warningLimits{total: 25, each: 5}, seen: map[string]bool{}}
	step := func(text string, want ...string) {
		t.Helper()
		set.add(message{text: text})
		if got := receivedWarnings(t, set.header); !slices.Equal(got, want) {
			t.Errorf("after %q: got %q, want %q", text, got, want)
		}
	}
	a, accents := strings.Repeat("a", 10), "ÀÁÂÃÄÅÆÇÈÉ"
	step(a, a)
	step("bb", a, "bb")
	step("ccc", a, "bb", "ccc")
	step(accents, a, "bb", "ccc", accents)
	step("bb", a, "bb", "ccc", accents)
	step("e", "aaaaa", "bb", "ccc", "ÀÁÂÃÄ", "e")
	step(strings.Repeat("f", 10), "aaaaa", "bb", "ccc", "ÀÁÂÃÄ", "e", "fffff")
	step(strings.Repeat("g", 10), "aaaaa", "bb", "ccc", "ÀÁÂÃÄ", "e", "fffff", "ggggg")
	step("h", "aaaaa", "bb", "ccc", "ÀÁÂÃÄ", "e", "fffff", "ggggg")
}

func TestWarningsAreCutAtKubernetesLimits(t *testing.T) {
	t.Parallel()
	lengths := func(got []string) string {
		var out []string
		for _, s := range got {
			if !utf8.ValidString(s) {
				t.Errorf("%q is not UTF-8", s)
			}
			out = append(out, fmt.Sprint(utf8.RuneCountInString(s)))
		}
		return strings.Join(out, " ")
	}
	times := func(n int, s string) string { return strings.TrimSpace(strings.Repeat(s+" ", n)) }
	long := strings.Repeat("x", 256)
	for _, c := range []struct {
		number string
		add    []message
		want   string
	}{
		{"47 24 texts of 170", manyWarnings(24, 170), times(24, "170")},
		{"47 the 25th still whole", manyWarnings(25, 170), times(25, "170")},
		{"47 the 26th dropped", manyWarnings(26, 170), times(25, "170")},
		{"48 13 texts of 300", manyWarnings(13, 300), times(13, "300")},
		{"48 the 14th switches", manyWarnings(14, 300), times(14, "256")},
		{"48 20 texts", manyWarnings(20, 300), times(16, "256")},
		{"49 one of 4096", manyWarnings(1, 4096), "4096"},
		{"50 one of 4097", manyWarnings(1, 4097), "256"},
		{"52 equal after the cut", append(manyWarnings(1, 4097), warningTexts(long+"a", long+"b")...), "256 256 256"},
		{"84 one of 300 alone", manyWarnings(1, 300), "300"},
	} {
		t.Run(c.number, func(t *testing.T) {
			if got := lengths(recordWarnings(t, kubernetesWarningLimits, c.add...)); got != c.want {
				t.Errorf("got texts of %s runes, want %s", got, c.want)
			}
		})
	}
	if got := cutRunes("aé🐹b", 3); got != "aé🐹" { // 51
		t.Errorf(`cutRunes("aé🐹b", 3) = %q`, got)
	}
}

func TestWarningsMayComeInParallel(t *testing.T) {
	t.Parallel()
	header := http.Header{}
	ctx := warningContext(t.Context(), header)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range 50 {
				warning.AddWarning(ctx, "", fmt.Sprint(i*j%7))
			}
		})
	}
	wg.Wait()
	if got := receivedWarnings(t, header); len(got) != 7 {
		t.Errorf("got %q, want the seven numbers once each", got)
	}
}

func TestWarningsTravelWithErrorsAndBeforeTheBody(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(warningContext(r.Context(), w.Header()), request.Key{}, "below")
		warning.AddWarning(ctx, "", `say "hé"`)
		if r.URL.Path == "/watch" {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			warning.AddWarning(ctx, "", "too late")
			<-r.Context().Done()
			return
		}
		http.Error(w, "conflict", 409)
	}))
	defer srv.Close()
	for path, code := range map[string]int{"/x": 409, "/watch": 200} {
		resp, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Values("Warning"); resp.StatusCode != code || len(got) != 1 || got[0] != `299 - "say \"hé\""` {
			t.Errorf("GET %s: got %d with warnings %q", path, resp.StatusCode, got)
		}
		resp.Body.Close()
	}
	warning.AddWarning(t.Context(), "", "nobody listens") // without a recorder nothing happens
}

func TestDeniedDeprecationIsForbidden(t *testing.T) {
	t.Parallel()
	err := denyDeprecated("batch", "cronjobs", "x", "batch/v1beta1 CronJob is deprecated in v1.21+")
	const want = `cronjobs.batch "x" is forbidden: batch/v1beta1 CronJob is deprecated in v1.21+ (this server runs with --deny-deprecated)`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestDeniedDeprecationOverHTTP(t *testing.T) {
	t.Parallel()
	s := startTest(t, func(c *config) { c.DenyDeprecated = true })
	const old, current = "/apis/batch/v1beta1/namespaces/default/cronjobs", "/apis/batch/v1/namespaces/default/cronjobs"
	const tick = `{"metadata":{"name":"tick"},"spec":{"schedule":"* * * * *","jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never",` +
		`"containers":[{"name":"c","image":"i"}]}}}}}}`
	refused := s.want(403, "POST", old, tick)
	if warnings := receivedWarnings(t, refused.header); len(warnings) != 1 || refused.get("reason").String() != "Forbidden" {
		t.Errorf("%s with the warnings %q", refused.failure(), warnings)
	}
	s.want(404, "GET", current+"/tick", "")
	s.want(201, "POST", current, tick)
	s.want(403, "GET", old, "") // reads, too
	s.want(403, "DELETE", old+"/tick", "")
	s.want(200, "GET", current+"/tick", "")
}

func BenchmarkAddWarning(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		warning.AddWarning(warningContext(b.Context(), http.Header{}), "", "batch/v1beta1 CronJob is deprecated in v1.21+, unavailable in v1.25+; use batch/v1 CronJob")
	}
}

// warningContext returns a context whose warnings go to header.
func warningContext(ctx context.Context, header http.Header) context.Context {
	return warning.WithWarningRecorder(ctx, &warningRecorder{header: header})
}

// Warnings of the numbered cases, as a client gets them over HTTP.
func TestWarningsOverHTTP(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const maps, things = "/api/v1/namespaces/default/configmaps", "/apis/example.com/v1/namespaces/default/things"
	const odd = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"},"bogus":1,"data":{"a":"b","a":"c"}}`
	const unknown, duplicate = `unknown field "bogus"`, `duplicate field "data.a"`
	const fraction = `spec.containers[0].resources.limits[memory]: fractional byte value "100m" is invalid, must be an integer`
	const finalizer = `metadata.finalizers: "x": prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers`
	const endpoints = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"
	pod := func(name, image string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s"},"spec":{"containers":[{"name":"c","image":"%s","resources":{"limits":{"memory":"100m"}}}]}}`, name, image)
	}
	thing := func(name, finalizer string) string {
		return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Thing","metadata":{"name":"%s","finalizers":["%s"]}}`, name, finalizer)
	}
	s.want(201, "POST", definitionsPath, kubetest.SimpleDefinition(t, "Thing", "example.com", "{type: object, x-kubernetes-preserve-unknown-fields: true}", ""))
	for _, c := range []struct {
		title, method, path, body string
		code                      int
		want                      []string
	}{
		{"64 on a 404", "GET", "/api/v1/namespaces/default/endpoints/none", "", 404, []string{endpoints}},
		{"64 on a 422", "POST", "/api/v1/namespaces/default/endpoints", `{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"BAD"}}`, 422, []string{endpoints}},
		{"65 in the head of a watch", "GET", "/api/v1/namespaces/default/endpoints?watch=1&timeoutSeconds=1", "", 200, []string{endpoints}},
		{"90 and 93 by default", "POST", maps, fmt.Sprintf(odd, "a"), 201, []string{unknown, duplicate}},
		{"91 ignored", "POST", maps + "?fieldValidation=Ignore", fmt.Sprintf(odd, "b"), 201, nil},
		{"92 strict", "POST", maps + "?fieldValidation=Strict", fmt.Sprintf(odd, "c"), 400, nil},
		{"94 a bare finalizer", "POST", things, thing("a", "x"), 201, []string{finalizer}},
		{"94 a finalizer with domain and path", "POST", things, thing("b", "example.com/x"), 201, nil},
		{"94 there before", "PATCH", things + "/a", `{"spec":1}`, 200, nil},
		{"97 errors suppress", "POST", "/api/v1/namespaces/default/pods", pod("p", ""), 422, nil},
		{"98 and 100 dry run", "POST", "/api/v1/namespaces/default/pods?dryRun=All", pod("p", "i"), 201,
			[]string{fraction, strings.Replace(fraction, "limits", "requests", 1)}}, // which default to the limits
	} {
		var headers []string
		if c.method == "PATCH" {
			headers = append(headers, asMergePatch)
		}
		a := s.send(c.method, c.path, c.body, headers...)
		got := receivedWarnings(t, a.header)
		slices.Sort(got)
		slices.Sort(c.want)
		if a.code != c.code || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %d with %q, want %d with %q", c.title, a.code, got, c.code, c.want)
		}
	}
	if a := s.send("PATCH", maps+"/z?fieldManager=m&fieldValidation=Strict", fmt.Sprintf(odd, "z"), "Content-Type: application/apply-patch+yaml"); a.code < 400 {
		t.Errorf("99: a strict apply with an unknown field got %d", a.code)
	}
	for _, verb := range []string{"GET", "DELETE", "GET"} { // 61, 62
		s.send(verb, "/apis/batch/v1beta1/namespaces/default/cronjobs/none", "")
	}
	s.send("GET", "/apis/batch/v1beta1/namespaces/default/cronjobs/none/status", "")
	for _, sub := range []string{"", "status"} {
		series := `apiserver_requested_deprecated_apis{group="batch",removed_release="1.25",resource="cronjobs",subresource="` + sub + `",version="v1beta1"}`
		if got := metricValue(s, series); got != 1 {
			t.Errorf("%s is %v, want 1", series, got)
		}
	}
}

func TestDeprecationWarningsOfDefinitionsAreJudged(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	for title, c := range map[string]struct{ deprecated, text, want string }{
		"74 not deprecated":     {"false", `"x"`, "can only be set for deprecated versions"},
		"75 257 bytes":          {"true", strconv.Quote(strings.Repeat("a", 257)), "must be <= 256 characters long"},
		"76 bytes, not letters": {"true", strconv.Quote(strings.Repeat("€", 86)), "must be <= 256 characters long"},
		"77 empty":              {"true", `""`, "must not be an empty string"},
		"78 a line break":       {"true", `"a\nb"`, "must only contain printable UTF-8 characters; non-printable character found at index 1"},
	} {
		more := ", deprecated: " + c.deprecated + ", deprecationWarning: " + c.text
		a := s.want(422, "POST", definitionsPath, kubetest.SimpleDefinition(t, "Thing", "example.com", "{type: object}", more))
		if cause := a.get("details.causes.0"); cause.Get("field").String() != "spec.versions[0].deprecationWarning" || !strings.HasSuffix(cause.Get("message").String(), c.want) {
			t.Errorf("%s: got %s", title, a.body)
		}
	}
}

// Whatever can be built comes back from the clients' parser as it was, but for RFC 2047 words, which they decode.
func FuzzWarningHeader(f *testing.F) {
	for _, seed := range []string{"", `a"b\c`, "Iñtërnâtiônàlizætiøn 🐹", "a, b", "tab\there", "=?UTF-8?B?YQ==?=", "\xff", " spaces "} {
		f.Add("", seed)
		f.Add(seed, "text")
	}
	f.Fuzz(func(t *testing.T, agent, text string) {
		value, err := warningHeader(299, agent, text)
		reference, refErr := utilnet.NewWarningHeader(299, agent, text)
		if value != reference || (err == nil) != (refErr == nil) {
			t.Fatalf("warningHeader(299, %q, %q) = %q, %v; apimachinery: %q, %v", agent, text, value, err, reference, refErr)
		}
		if err != nil || strings.Contains(text, "=?") {
			return
		}
		if parsed, rest, err := utilnet.ParseWarningHeader(value); err != nil || rest != "" || parsed.Text != text {
			t.Errorf("%q comes back as %q, rest %q, %v", value, parsed.Text, rest, err)
		}
	})
}
