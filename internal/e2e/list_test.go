package e2e

// This file tests the reads of list.go from outside. The expected responses were observed on
// kube-apiserver 1.36. If apilet differs deliberately, the test case says so.
//
// Most tests use a listScene: ConfigMaps a to e in namespace p1 and z in p2, created in this order.
// Responses are compared in the form of a line:
//
//	a b @now, more, 3 left        a list of a and b at the newest revision, with a continue token and remainingItemCount 3
//	a b c @c                      a list at the revision that wrote c
//	400 BadRequest no such luck   an error: code, reason, message

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/store"
)

const (
	asTable   = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io"
	asPartial = "Accept: application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

// A listScene is a server with a few objects. Their revisions have names.
type listScene struct {
	*testServer
	p1  string // path of the ConfigMaps in namespace p1
	rev map[string]int64
}

func startScene(t *testing.T, flags ...string) *listScene {
	t.Helper()
	s := &listScene{testServer: startTest(t, flags...), rev: map[string]int64{}}
	s.p1 = s.namespace("p1")
	p2 := s.namespace("p2")
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		s.rev[name] = s.want(201, "POST", s.p1, labelled(name, []string{"y", "n"}[i%2])).rev()
	}
	s.rev["z"] = s.want(201, "POST", p2, configMap("z")).rev()
	return s
}

// labelled returns the JSON of a ConfigMap with the label odd.
func labelled(name, odd string) string {
	return `{"metadata":{"name":"` + name + `","labels":{"odd":"` + odd + `"}},"data":{"of":"` + name + `"}}`
}

// list lists p1's ConfigMaps and returns the response as a line.
func (s *listScene) list(query string, headers ...string) string {
	s.t.Helper()
	return s.brief(s.send("GET", s.p1+"?"+query, "", headers...))
}

// brief returns the response as a line.
func (s *listScene) brief(a answer) string {
	s.t.Helper()
	if a.code != 200 {
		s.checkStatus(a)
		return a.failure()
	}
	line := strings.TrimSpace(a.names() + " @" + s.revName(a.rev()))
	if a.token() != "" {
		line += ", more"
	}
	if left := a.get("metadata.remainingItemCount"); left.Exists() {
		line += fmt.Sprintf(", %d left", left.Int())
	}
	return line
}

func (s *listScene) revName(rev int64) string {
	if rev == s.revision() {
		return "now"
	}
	for name, r := range s.rev {
		if r == rev {
			return name
		}
	}
	return strconv.FormatInt(rev, 10)
}

// fillIn replaces r(x) by the revision that wrote x, F by a future revision, and TOKEN by the token
// that follows a and b.
func (s *listScene) fillIn(text string) string {
	for name, rev := range s.rev {
		text = strings.ReplaceAll(text, "r("+name+")", strconv.FormatInt(rev, 10))
	}
	if strings.Contains(text, "TOKEN") {
		text = strings.ReplaceAll(text, "TOKEN", s.send("GET", s.p1+"?limit=2", "").token())
	}
	return strings.ReplaceAll(text, "=F", "="+futureRev)
}

const futureRev = "99999999"

// A briefCase is a query with the expected response as a line.
type briefCase struct{ title, query, want string }

func (s *listScene) check(t *testing.T, cases []briefCase) {
	for _, c := range cases {
		t.Run(c.title, func(t *testing.T) {
			if got := s.list(s.fillIn(c.query)); got != c.want {
				t.Errorf("?%s\n got %s\nwant %s", c.query, got, c.want)
			}
		})
	}
}

// ---- The decision table ----

// refusals contains the texts of all errors in the table. M1 to M4 are causes of a 422, which
// refusedWith combines.
var refusals = map[string]string{
	"M1":  `resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided`,
	"M2":  `resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided`,
	"M3":  `resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"`,
	"M4":  `resourceVersionMatch: Unsupported value: "bogus": supported values: "Exact", "NotOlderThan", ""`,
	"M5":  `400 BadRequest invalid resource version: resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax`,
	"M8":  `410 Expired The resourceVersion for the provided list is too old.`,
	"M10": `400 BadRequest specifying resource version is not allowed when using continue`,
}

// refusedWith returns the line of an error: "M8", "M1", or "M1+M4" for a 422 with two causes. It
// returns any other text unchanged.
func refusedWith(name string) string {
	if name == "M5" || name == "M8" || name == "M10" {
		return refusals[name]
	}
	var causes []string
	for part := range strings.SplitSeq(name, "+") {
		if refusals[part] == "" {
			return name
		}
		causes = append(causes, refusals[part])
	}
	text := strings.Join(causes, ", ")
	if len(causes) > 1 {
		text = "[" + text + "]"
	}
	return `422 Invalid ListOptions.meta.k8s.io "" is invalid: ` + text
}

// TestListDecisionTable tests every combination of resourceVersion, resourceVersionMatch, limit and
// continue. The history is compacted to r(c), so the revision of b is too old. Unlike
// kube-apiserver with its watch cache, apilet also applies a limit at resourceVersion 0.
func TestListDecisionTable(t *testing.T) {
	t.Parallel()
	s := startScene(t, onSomeFile(t))
	token := s.send("GET", s.p1+"?limit=2", "").token()
	s.compactNow(s.rev["c"])
	m9 := fmt.Sprintf("504 Timeout Timeout: Too large resource version: %s, current: %d", futureRev, s.revision())
	const all, two = "a b c d e @now", "a b @now, more, 3 left"
	for _, row := range []struct{ rv, match, whole, limited, continued string }{
		{"", "", all, two, "c d e @z"},
		{"", "NotOlderThan", "M1", "M1", "M1+M2"},
		{"", "Exact", "M1", "M1", "M1+M2"},
		{"", "bogus", "M1+M4", "M1+M4", "M1+M2+M4"},
		{"0", "", all, two, "c d e @z"},
		{"0", "NotOlderThan", all, two, "M2"},
		{"0", "Exact", "M3", "M3", "M2+M3"},
		{"0", "bogus", "M4", "M4", "M2+M4"},
		{"r(c)", "", all, "a b @c, more, 1 left", "M10"},
		{"r(c)", "NotOlderThan", all, two, "M2"},
		{"r(c)", "Exact", "a b c @c", "a b @c, more, 1 left", "M2"},
		{"r(c)", "bogus", "M4", "M4", "M2+M4"},
		{"r(b)", "", all, "M8", "M10"},
		{"r(b)", "NotOlderThan", all, two, "M2"},
		{"r(b)", "Exact", "M8", "M8", "M2"},
		{"r(b)", "bogus", "M4", "M4", "M2+M4"},
		{futureRev, "", m9, m9, "M10"},
		{futureRev, "NotOlderThan", m9, m9, "M2"},
		{futureRev, "Exact", m9, m9, "M2"},
		{futureRev, "bogus", "M4", "M4", "M2+M4"},
		{"abc", "", "M5", "M5", "M10"},
		{"abc", "NotOlderThan", "M5", "M5", "M2"},
		{"abc", "Exact", "M5", "M5", "M2"},
		{"abc", "bogus", "M4", "M4", "M2+M4"},
	} {
		query := url.Values{}
		if row.rv != "" {
			query.Set("resourceVersion", s.fillIn(row.rv))
		}
		if row.match != "" {
			query.Set("resourceVersionMatch", row.match)
		}
		for extra, want := range map[string]string{"": row.whole, "&limit=2": row.limited, "&limit=3&continue=" + token: row.continued} {
			want = refusedWith(want)
			if got := s.list(query.Encode() + extra); got != want {
				t.Errorf("resourceVersion %q, match %q%.20s\n got %s\nwant %s", row.rv, row.match, extra, got, want)
			}
		}
	}
}

// ---- LIST ----

func TestListPlain(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	s.check(t, []briefCase{
		{"in name order", "", "a b c d e @now"},
		{"limit 0", "limit=0", "a b c d e @now"},
		{"limit -1", "limit=-1", "a b c d e @now"},
		{"limit abc", "limit=abc", `400 BadRequest strconv.ParseInt: parsing "abc": invalid syntax`},
		{"the first limit wins", "limit=1&limit=2", "a @now, more, 4 left"},
		{"unknown parameter", "bogus=1", "a b c d e @now"},
	})
	t.Run("kind", func(t *testing.T) {
		a := s.want(200, "GET", s.p1, "")
		apitest.Expect(t, a.get("kind"), "ConfigMapList")
		apitest.Expect(t, a.get("items.0.kind").Exists(), false)
		for _, header := range []string{"Audit-Id", "Cache-Control", "Content-Type"} {
			if a.header.Get(header) == "" {
				t.Errorf("no header %s", header)
			}
		}
	})
	for _, path := range []string{"/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/none/configmaps"} {
		t.Run("empty list of "+path, func(t *testing.T) {
			a := s.want(200, "GET", path, "")
			apitest.Expect(t, a.get("items").Raw, "[]")
			apitest.Expect(t, a.rev() > 0, true)
		})
	}
	t.Run("order by whole key", func(t *testing.T) {
		for _, name := range []string{"q", "q-a"} {
			s.want(201, "POST", s.namespace(name), configMap("x"))
		}
		a := s.want(200, "GET", "/api/v1/configmaps", "")
		apitest.Expect(t, a.get("items.#.metadata.namespace"), `["p1","p1","p1","p1","p1","p2","q-a","q"]`)
	})
	t.Run("unknown resource", func(t *testing.T) {
		apitest.Expect(t, s.want(404, "GET", "/api/v1/bogus", "").failure(), "404 NotFound the server could not find the requested resource")
		a := s.send("GET", "/apis/bogus.example/v1/things", "")
		apitest.Expect(t, fmt.Sprintf("%d %s", a.code, a.body), "404 404 page not found\n")
	})
}

func TestListForms(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	t.Run("table", func(t *testing.T) {
		a := s.want(200, "GET", s.p1, "", asTable)
		apitest.Expect(t, a.get("kind"), "Table")
		apitest.Expect(t, s.brief(a), "a b c d e @now")
		apitest.Expect(t, a.get("rows.0.object.kind"), "PartialObjectMetadata")
		apitest.Expect(t, a.get("columnDefinitions.#.name"), `["Name","Data","Age"]`)
		apitest.Expect(t, s.want(200, "GET", "/api/v1/secrets", "", asTable).get("rows").Raw, "[]")
	})
	t.Run("metadata alone", func(t *testing.T) {
		a := s.want(200, "GET", s.p1, "", asPartial)
		apitest.Expect(t, s.brief(a), "a b c d e @now")
		apitest.Expect(t, a.get("kind"), "PartialObjectMetadataList")
		apitest.Expect(t, a.get("items.0.kind"), "PartialObjectMetadata")
		apitest.Expect(t, a.get("items.0.apiVersion"), "meta.k8s.io/v1")
		apitest.Expect(t, a.get("items.0.data").Exists(), false)
		apitest.Expect(t, s.want(200, "GET", "/api/v1/secrets", "", asPartial).get("items").Raw, "null")
	})
	t.Run("not acceptable", func(t *testing.T) {
		a := s.want(406, "GET", s.p1+"/a", "", "Accept: text/html")
		apitest.Expect(t, a.get("reason"), "NotAcceptable")
		s.want(406, "GET", s.p1, "", "Accept: application/cbor")
	})
	t.Run("pages in other forms", func(t *testing.T) {
		for _, form := range []string{asTable, asPartial, "Accept: application/json"} {
			apitest.Expect(t, s.list("limit=2", form), "a b @now, more, 3 left")
		}
	})
}

func TestListChunks(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	s.check(t, []briefCase{
		{"first page", "limit=2", "a b @now, more, 3 left"},
		{"second page", "limit=2&continue=TOKEN", "c d @now, more, 1 left"},
		{"the rest without a limit", "continue=TOKEN", "c d e @now"},
		{"limit is the number of objects", "limit=5", "a b c d e @now"},
		{"limit is one more", "limit=6", "a b c d e @now"},
		{"token with an equal revision", "continue=TOKEN&resourceVersion=r(z)", refusedWith("M10")},
		{"token with revision 0", "limit=2&continue=TOKEN&resourceVersion=0", "c d @now, more, 1 left"},
		{"token with a match", "continue=TOKEN&resourceVersion=1&resourceVersionMatch=Exact", refusedWith("M2")},
		{"empty token", "continue=&limit=2", "a b @now, more, 3 left"},
		{"limit at revision 0 (kube-apiserver's watch cache ignores it)", "resourceVersion=0&limit=2", "a b @now, more, 3 left"},
	})
	t.Run("to the last page", func(t *testing.T) {
		for limit := range 7 {
			s.walk(t, s.p1+"?limit="+strconv.Itoa(limit), "a b c d e")
		}
	})
	t.Run("the limit may change", func(t *testing.T) {
		token := s.send("GET", s.p1+"?limit=1", "").token()
		apitest.Expect(t, s.list("limit=3&continue="+token), "b c d @now, more, 1 left")
	})
	t.Run("across namespaces", func(t *testing.T) { s.walk(t, "/api/v1/configmaps?limit=2", "a b c d e z") })
	t.Run("changes between pages", func(t *testing.T) { checkSnapshot(t, s) })
}

// walk follows the tokens to the end and checks the counts of every page.
func (s *listScene) walk(t *testing.T, path, want string) {
	t.Helper()
	total := len(strings.Fields(want))
	var got []string
	for next := path; next != ""; {
		a := s.want(200, "GET", next, "")
		got = append(got, strings.Fields(a.names())...)
		next = ""
		if token := a.token(); token != "" {
			next = path + "&continue=" + token
			apitest.Expect(t, len(got)+int(a.get("metadata.remainingItemCount").Int()), total)
		}
	}
	apitest.Expect(t, strings.Join(got, " "), want)
}

// checkSnapshot changes the collection between two pages. The second page must not include the
// changes. A watch from the first page's revision must return them.
func checkSnapshot(t *testing.T, s *listScene) {
	first := s.want(200, "GET", s.p1+"?limit=2", "")
	s.want(201, "POST", s.p1, configMap("bb"))
	s.want(200, "DELETE", s.p1+"/d", "")
	s.want(200, "PUT", s.p1+"/e", configMap("e", "changed", "yes"))
	rest := s.want(200, "GET", s.p1+"?continue="+first.token(), "")
	apitest.Expect(t, s.brief(rest), "c d e @z")
	apitest.Expect(t, rest.get("items.2.data.of"), "e")
	w := s.watch(fmt.Sprintf("%s?watch=1&resourceVersion=%d", s.p1, first.rev()))
	w.want("ADDED bb", "DELETED d", "MODIFIED e")
}

func TestPageAfterRestart(t *testing.T) {
	t.Parallel()
	s := startScene(t, onSomeFile(t))
	token := s.send("GET", s.p1+"?limit=2", "").token()
	s.want(201, "POST", s.p1, configMap("cc"))
	s.restart()
	apitest.Expect(t, s.list("limit=2&continue="+token), "c d @z, more, 1 left")
}

// TestLargeListIsStreamed lists more data than the server ever buffers.
func TestLargeListIsStreamed(t *testing.T) {
	t.Parallel()
	const objects, size = 5000, 1000
	s := startTest(t, filled(t, objects, size))
	path := "/api/v1/namespaces/default/configmaps"
	for _, form := range []string{"Accept: application/json", asTable, asPartial, "Accept: application/yaml"} {
		a := s.want(200, "GET", path, "", form)
		if got := bytes.Count(a.body, []byte("resourceVersion")); got != objects+1 {
			t.Errorf("%s: %d of %d objects", form, got-1, objects)
		}
		if form != "Accept: application/yaml" && !json.Valid(a.body) {
			t.Errorf("%s: no valid JSON", form)
		}
	}
	page := s.want(200, "GET", path+"?limit=4500", "")
	apitest.Expect(t, page.get("items.#"), 4500)
	apitest.Expect(t, page.get("metadata.remainingItemCount"), 500)
	apitest.Expect(t, s.want(200, "GET", path+"?continue="+page.token(), "").get("items.#"), 500)
}

// filled returns a flag for a data file with n ConfigMaps of about size bytes in namespace default.
// Half of them have the label half=0.
func filled(t testing.TB, n, size int) string {
	t.Helper()
	path, payload := filepath.Join(t.TempDir(), "filled.db"), strings.Repeat("x", max(size-250, 1))
	openTestStore(t, path, func(st *store.Store) error {
		next := make(chan int)
		var group sync.WaitGroup
		for range 128 { // concurrent writes are committed together
			group.Go(func() {
				for i := range next {
					const head = `{"metadata":{"resourceVersion":"`
					name := fmt.Sprintf("c%06d", i)
					object := store.Change{Op: store.OpCreate, Key: "//configmaps/default/" + name, RevAt: len(head), JSON: fmt.Appendf(nil,
						`%s","name":%q,"namespace":"default","uid":"u%d","labels":{"half":"%d"},"creationTimestamp":"2026-01-01T00:00:00Z"},"data":{"k":%q}}`,
						head, name, i, i%2, payload)}
					if _, err := st.Commit(context.Background(), object); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for i := range n {
			next <- i
		}
		close(next)
		group.Wait()
		return nil
	})
	return onFile(path)
}

// ---- Continue tokens ----

func TestBadTokensAre400(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	const bad, noBase64 = "400 BadRequest invalid continue token: continue key is not valid", ": illegal base64 data at input byte "
	genuine := s.send("GET", s.p1+"?limit=2", "").token()
	encode := base64.RawURLEncoding.EncodeToString
	for title, token := range map[string]string{
		"larger than any":        strings.Repeat("A", 60000),
		"twice":                  genuine + genuine,
		"line feed at the end":   genuine + "\n",
		"nothing but the header": encode(append([]byte{1}, make([]byte, 20)...)),
	} {
		t.Run(title, func(t *testing.T) { apitest.Expect(t, s.list("continue="+url.QueryEscape(token)), bad) })
	}
	for text, want := range map[string]string{ // for other tokens, the errors are the same as in kube-apiserver
		"hello": "invalid character 'h' looking for beginning of value",
		`{"v":"meta.k8s.io/v2","rv":3,"start":"b\u0000"}`:            "server does not recognize this encoded version meta.k8s.io/v2",
		`{"v":"meta.k8s.io/v1","rv":3,"start":""}`:                   "encoded start key empty (version meta.k8s.io/v1)",
		`{"v":"meta.k8s.io/v1","start":"b\u0000"}`:                   "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
		`{"v":"meta.k8s.io/v1","rv":3,"start":"../../secrets/p1/x"}`: "../../secrets/p1/x",
	} {
		t.Run(text, func(t *testing.T) { apitest.Expect(t, s.list("continue="+encode([]byte(text))), bad+": "+want) })
	}
	for title, token := range map[string]string{
		"no base64":      "!!!",
		"padded":         genuine + "=",
		"other alphabet": strings.NewReplacer("-", "+", "_", "/").Replace(genuine) + "+",
		"white space":    genuine[:10] + " " + genuine[10:],
	} {
		t.Run(title, func(t *testing.T) {
			if got := s.list("continue=" + url.QueryEscape(token)); !strings.HasPrefix(got, bad+noBase64) {
				t.Errorf("%s, want %s", got, bad+noBase64)
			}
		})
	}
	// A truncated token may still be valid base64, depending on its length.
	if got := s.list("continue=" + genuine[:len(genuine)-1]); !strings.HasPrefix(got, bad) {
		t.Errorf("a token that was cut: %s", got)
	}
	for _, token := range []string{`"rv":3,"start":"b\u0000"`, `"rv":99999999,"start":"b\u0000"`, `"rv":-1,"start":"b\u0000"`} {
		t.Run("kube-apiserver's "+token, func(t *testing.T) { // such a token is always rejected
			got := s.list("continue=" + encode([]byte(`{"v":"meta.k8s.io/v1",`+token+`}`)))
			if !strings.HasPrefix(got, "410 Expired The provided continue parameter is a kube-apiserver's") {
				t.Error(got)
			}
		})
	}
	for title, path := range map[string]string{
		"another resource (kube-apiserver goes on there)": "/api/v1/namespaces/p1/secrets?",
		"another namespace":      "/api/v1/namespaces/p2/configmaps?",
		"all namespaces":         "/api/v1/configmaps?",
		"another label selector": s.p1 + "?labelSelector=odd&",
		"another field selector": s.p1 + "?fieldSelector=metadata.name%3Da&",
	} {
		t.Run(title, func(t *testing.T) { apitest.Expect(t, s.brief(s.send("GET", path+"continue="+genuine, "")), bad) })
	}
}

// keyFile returns a flag with the keys of continue tokens.
func keyFile(t *testing.T, keys ...byte) string {
	text := ""
	for _, key := range keys {
		text += base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{key}, 32)) + "\n"
	}
	return "--continue-key-file=" + apitest.TempFile(t, "keys", text)
}

func TestServersShareTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shared := keyFile(t, 9)
	one := startScene(t, onFile(filepath.Join(dir, "one.db")), shared)
	one.halt()
	data := apitest.ReadFile(t, one.flag("data"))
	two := &listScene{testServer: startTest(t, onFile(apitest.TempFile(t, "two.db", string(data))), shared), p1: one.p1, rev: one.rev}
	one.start()
	// The revision is shown as a number, because the newest revisions of the servers differ.
	next := func(token string) string {
		a := two.want(200, "GET", two.p1+"?limit=2&continue="+token, "")
		return fmt.Sprintf("%s @%d, more: %t, %s left", a.names(), a.rev(), a.token() != "", a.get("metadata.remainingItemCount"))
	}
	// Both servers have revision z.
	token := one.want(200, "GET", one.p1+one.fillIn("?limit=2&resourceVersion=r(z)&resourceVersionMatch=Exact"), "").token()
	apitest.Expect(t, next(token), fmt.Sprintf("c d @%d, more: true, 1 left", one.rev["z"]))
	foreign := startScene(t, shared)
	apitest.Expect(t, strings.HasPrefix(foreign.list("limit=2&continue="+token), "410 Expired"), true)
	stranger := startScene(t)
	apitest.Expect(t, stranger.list("limit=2&continue="+token), "400 BadRequest invalid continue token: continue key is not valid")

	page := two.send("GET", two.p1+"?limit=2", "")
	old, rev := page.token(), page.rev()
	two.flags = append(two.flags, keyFile(t, 8, 9))
	two.restart()
	apitest.Expect(t, next(old), fmt.Sprintf("c d @%d, more: true, 1 left", rev))
	two.flags = append(two.flags, keyFile(t, 8))
	two.restart()
	apitest.Expect(t, two.list("limit=2&continue="+old), "400 BadRequest invalid continue token: continue key is not valid")
}

func TestContinueKeyFileMistakesAreStartErrors(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n\n", "short", base64.StdEncoding.EncodeToString(make([]byte, 31))} {
		if why := startFails(t, "--continue-key-file="+apitest.TempFile(t, "keys", text)); !strings.Contains(why, "--continue-key-file") {
			t.Errorf("a key file of %q: %s", text, why)
		}
	}
}

// ---- Expiry ----

func TestExpiredToken(t *testing.T) {
	t.Parallel()
	s := startScene(t, onSomeFile(t))
	for _, selector := range []string{"", "&labelSelector=odd"} {
		token := s.send("GET", s.p1+"?limit=2"+selector, "").token()
		s.want(201, "POST", s.p1, labelled("cc"+strconv.Itoa(len(selector)), "y"))
		s.want(201, "POST", s.p1, labelled("aa"+strconv.Itoa(len(selector)), "y"))
		s.compactNow(s.revision())
		gone := s.want(410, "GET", s.p1+"?limit=2"+selector+"&continue="+token, "")
		apitest.Expect(t, gone.get("reason"), "Expired")
		if !strings.HasPrefix(gone.get("message").String(), "The provided continue parameter is too old to display a consistent list result.") {
			t.Error(gone.failure())
		}
		next := s.want(200, "GET", s.p1+"?limit=2"+selector+"&continue="+gone.token(), "")
		apitest.Expect(t, next.rev(), s.revision())
		s.want(201, "POST", s.p1, labelled("ee"+strconv.Itoa(len(selector)), "y"))
		last := s.want(200, "GET", s.p1+"?limit=9"+selector+"&continue="+next.token(), "")
		apitest.Expect(t, last.rev(), next.rev())
		if selector == "" {
			apitest.Expect(t, next.get("metadata.remainingItemCount"), 2)
			apitest.Expect(t, next.names()+" "+last.names(), "c cc0 d e")
		}
	}
}

func TestOldRevisions(t *testing.T) {
	t.Parallel()
	s := startScene(t, onSomeFile(t))
	s.compactNow(s.rev["z"])
	s.check(t, []briefCase{
		{"exact", "resourceVersion=r(c)&resourceVersionMatch=Exact", refusedWith("M8")},
		{"with a limit", "resourceVersion=r(c)&limit=2", refusedWith("M8")},
		{"as a lower bound", "resourceVersion=r(c)", "a b c d e @now"},
		{"not older than", "resourceVersion=r(c)&resourceVersionMatch=NotOlderThan&limit=2", "a b @now, more, 3 left"},
	})
	gone := s.send("GET", s.p1+"?resourceVersion=1&resourceVersionMatch=Exact", "")
	apitest.Expect(t, gone.token(), "")
	apitest.Expect(t, gone.get("details").Exists(), false)
}

// ---- resourceVersion and match ----

func TestListAtARevision(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	m9 := fmt.Sprintf("504 Timeout Timeout: Too large resource version: %s, current: %d", futureRev, s.revision())
	s.check(t, []briefCase{
		{"exact", "resourceVersion=r(c)&resourceVersionMatch=Exact", "a b c @c"},
		{"exact with a limit", "resourceVersion=r(c)&resourceVersionMatch=Exact&limit=2", "a b @c, more, 1 left"},
		{"limit alone is exact", "resourceVersion=r(c)&limit=2", "a b @c, more, 1 left"},
		{"lower bound", "resourceVersion=r(c)", "a b c d e @now"},
		{"not older than", "resourceVersion=r(c)&resourceVersionMatch=NotOlderThan&limit=2", "a b @now, more, 3 left"},
		{"match without revision", "resourceVersionMatch=Exact", refusedWith("M1")},
		{"bogus match", "resourceVersion=1&resourceVersionMatch=bogus", refusedWith("M4")},
		{"exactly 0", "resourceVersion=0&resourceVersionMatch=Exact", refusedWith("M3")},
		{"no number", "resourceVersion=abc", refusedWith("M5")},
		{"negative", "resourceVersion=-1", strings.ReplaceAll(refusedWith("M5"), "abc", "-1")},
		{"too many digits", "resourceVersion=12345678901234567890123",
			strings.ReplaceAll(strings.ReplaceAll(refusedWith("M5"), "abc", "12345678901234567890123"), "invalid syntax", "value out of range")},
		{"leading zeros", "resourceVersion=007", "a b c d e @now"},
		{"zeros", "resourceVersion=00", "a b c d e @now"},
		{"future", "resourceVersion=F", m9},
		{"future, exact", "resourceVersion=F&resourceVersionMatch=Exact", m9},
		{"future, not older than", "resourceVersion=F&resourceVersionMatch=NotOlderThan", m9},
		{"revision of another resource", "resourceVersion=2&resourceVersionMatch=Exact", "@2"},
		{"one object in time", "fieldSelector=metadata.name%3Db&resourceVersion=r(b)&resourceVersionMatch=Exact", "b @b"},
		{"sendInitialEvents", "sendInitialEvents=true",
			`422 Invalid ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list`},
	})
	t.Run("second page", func(t *testing.T) {
		token := s.send("GET", s.p1+s.fillIn("?resourceVersion=r(c)&resourceVersionMatch=Exact&limit=2"), "").token()
		apitest.Expect(t, s.list("limit=2&continue="+token), "c @c")
	})
	t.Run("the future is refused", func(t *testing.T) { // TestOnlyReplicasWaitForTheFuture shows that it is refused immediately
		a := s.want(504, "GET", fmt.Sprintf("%s?resourceVersion=%d", s.p1, s.revision()+1000), "")
		apitest.Expect(t, a.get("details.causes.0.reason"), "ResourceVersionTooLarge")
		apitest.Expect(t, a.header.Get("Retry-After"), "")
	})
	t.Run("the past keeps what is gone", func(t *testing.T) { checkPast(t, s) })
}

func checkPast(t *testing.T, s *listScene) {
	before := s.revision()
	s.want(200, "PUT", s.p1+"/a", configMap("a", "of", "later"))
	s.want(200, "DELETE", s.p1+"/b", "")
	now := s.revision()
	exact := func(rev int64) answer {
		return s.want(200, "GET", fmt.Sprintf("%s?resourceVersion=%d&resourceVersionMatch=Exact", s.p1, rev), "")
	}
	old := exact(before)
	apitest.Expect(t, old.names(), "a b c d e")
	apitest.Expect(t, old.get("items.0.data.of"), "a")
	apitest.Expect(t, old.get("items.0.metadata.resourceVersion").Int(), s.rev["a"])
	apitest.Expect(t, exact(now-1).names(), "a b c d e")
	apitest.Expect(t, exact(now-1).get("items.0.data.of"), "later")
	apitest.Expect(t, exact(now).names(), "a c d e")
	apitest.Expect(t, exact(now).rev(), now)
}

// ---- Selectors ----

func TestSelectors(t *testing.T) {
	t.Parallel()
	s := startScene(t)
	bad := "400 BadRequest unable to parse requirement: "
	s.check(t, []briefCase{
		{"equal", "labelSelector=odd%3Dy", "a c e @now"},
		{"double equal", "labelSelector=odd%3D%3Dn", "b d @now"},
		{"not equal", "labelSelector=odd!%3Dy", "b d @now"},
		{"in", "labelSelector=odd+in+(y,n)", "a b c d e @now"},
		{"notin", "labelSelector=odd+notin+(y)", "b d @now"},
		{"exists", "labelSelector=odd", "a b c d e @now"},
		{"exists not", "labelSelector=!odd", "@now"},
		{"and", "labelSelector=odd,odd!%3Dn", "a c e @now"},
		{"open parenthesis", "labelSelector=a+in+(b", bad + "found '', expected: ',' or ')'"},
		{"two marks", "labelSelector=!!x", bad + "found '!', expected: identifier"},
		{"name", "fieldSelector=metadata.name%3Db", "b @now"},
		{"no such name", "fieldSelector=metadata.name%3Dnope", "@now"},
		{"other names", "fieldSelector=metadata.name!%3Db", "a c d e @now"},
		{"contradiction", "fieldSelector=metadata.name%3Da,metadata.name%3Db", "@now"},
		{"unknown field", "fieldSelector=data.a%3Dx",
			`400 BadRequest "data.a" is not a known field selector: only "metadata.name", "metadata.namespace"`},
		{"no operator", "fieldSelector=foo", "400 BadRequest invalid selector: 'foo'; can't understand 'foo'"},
		{"page", "labelSelector=odd%3Dn&limit=1", "b @now, more"},
		{"nothing matches", "labelSelector=odd%3Dz&limit=1", "@now"},
	})
	t.Run("namespace of a list of all", func(t *testing.T) {
		apitest.Expect(t, s.want(200, "GET", "/api/v1/configmaps?fieldSelector=metadata.namespace%3Dp2", "").names(), "z")
		apitest.Expect(t, s.want(200, "GET", "/api/v1/configmaps?fieldSelector=metadata.namespace%3Dp2,metadata.name%3Dz", "").names(), "z")
		apitest.Expect(t, s.want(200, "GET", "/api/v1/configmaps?fieldSelector=metadata.namespace%3Dp1,metadata.name%3Dz", "").names(), "")
	})
	t.Run("unknown field of a pod", func(t *testing.T) {
		apitest.Expect(t, s.send("GET", "/api/v1/pods?fieldSelector=spec.foo%3Dx", "").failure(), "400 BadRequest field label not supported: spec.foo")
	})
	t.Run("to the end", func(t *testing.T) {
		token := s.send("GET", s.p1+"?labelSelector=odd%3Dn&limit=1", "").token()
		apitest.Expect(t, s.list("labelSelector=odd%3Dn&limit=1&continue="+token), "d @now")
	})
	t.Run("events", func(t *testing.T) { checkEventSelectors(t, s) })
}

// TestPodsOfANode tests the index for the requests of kubelets. The requests use pages, old
// revisions, and a watch with initial events.
func TestPodsOfANode(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const pods, ofNode = "/api/v1/namespaces/default/pods", "fieldSelector=spec.nodeName%3Dn1"
	create := func(name, node string) int64 {
		return s.want(201, "POST", pods, `{"metadata":{"name":"`+name+`"},"spec":{"nodeName":"`+node+`","containers":[{"name":"c","image":"i"}]}}`).rev()
	}
	apitest.Expect(t, s.want(200, "GET", "/api/v1/pods?"+ofNode, "").names(), "")
	for _, name := range []string{"a", "b", "c", "d"} {
		create(name, "n1")
		create(name+"-elsewhere", "n2")
	}
	create("loose", "")
	apitest.Expect(t, s.want(200, "GET", "/api/v1/pods?"+ofNode, "").names(), "a b c d")
	apitest.Expect(t, s.want(200, "GET", "/api/v1/pods?"+ofNode+"&resourceVersion=0", "").names(), "a b c d")
	apitest.Expect(t, s.want(200, "GET", "/api/v1/namespaces/kube-system/pods?"+ofNode, "").names(), "")
	apitest.Expect(t, s.want(200, "GET", pods+"?"+ofNode+",metadata.name!%3Db", "").names(), "a c d")
	page := s.want(200, "GET", pods+"?"+ofNode+"&limit=2", "")
	apitest.Expect(t, page.names(), "a b")
	s.want(200, "DELETE", pods+"/c?gracePeriodSeconds=0", "")
	create("e", "n1")
	apitest.Expect(t, s.want(200, "GET", pods+"?"+ofNode+"&limit=2&continue="+page.token(), "").names(), "c d")
	apitest.Expect(t, s.want(200, "GET", "/api/v1/pods?"+ofNode, "").names(), "a b d e")
	at := fmt.Sprintf("&resourceVersionMatch=Exact&resourceVersion=%d", page.rev())
	apitest.Expect(t, s.want(200, "GET", pods+"?"+ofNode+at, "").names(), "a b c d")
	w := s.watch("/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&" + ofNode)
	w.want("ADDED a", "ADDED b", "ADDED d", "ADDED e", "BOOKMARK end")
	create("f", "n2")
	create("g", "n1")
	s.want(200, "DELETE", pods+"/a?gracePeriodSeconds=0", "")
	w.want("ADDED g", "MODIFIED a", "DELETED a")
}

// checkEventSelectors sends the requests of kubectl describe.
func checkEventSelectors(t *testing.T, s *listScene) {
	events := "/api/v1/namespaces/p1/events"
	for _, name := range []string{"one", "two"} {
		s.want(201, "POST", events, `{"metadata":{"name":"`+name+`"},"involvedObject":{"kind":"Pod","namespace":"p1","name":"`+name+
			`","uid":"u-`+name+`"},"reason":"R`+name+`","type":"Normal"}`)
	}
	for selector, want := range map[string]string{
		"involvedObject.name=one,involvedObject.namespace=p1,involvedObject.kind=Pod,involvedObject.uid=u-one": "one",
		"reason=Rtwo": "two", "type=Normal": "one two", "type!=Normal": "", "involvedObject.name=three": "",
	} {
		apitest.Expect(t, s.want(200, "GET", events+"?fieldSelector="+url.QueryEscape(selector), "").names(), want)
	}
	apitest.Expect(t, s.want(200, "GET", "/apis/events.k8s.io/v1/namespaces/p1/events?fieldSelector=regarding.name%3Done", "").names(), "one")
}

// ---- GET ----

func TestGetObject(t *testing.T) {
	t.Parallel()
	s := startScene(t, onSomeFile(t))
	s.compactNow(s.rev["e"])
	for _, c := range []briefCase{
		{"object", "/a", "200"},
		{"missing", "/nope", `404 NotFound configmaps "nope" not found`},
		{"revision 0", "/a?resourceVersion=0", "200"},
		{"own revision", "/a?resourceVersion=r(a)", "200"},
		{"future", "/a?resourceVersion=F", "504 Timeout Timeout: Too large resource version: " + futureRev + ", current: " + strconv.FormatInt(s.revision(), 10)},
		{"no number", "/a?resourceVersion=abc",
			`500  resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax`},
		{"match is ignored", "/a?resourceVersion=r(a)&resourceVersionMatch=Exact", "200"},
		{"watch is ignored", "/a?watch=true", "200"},
	} {
		t.Run(c.title, func(t *testing.T) {
			a := s.send("GET", s.p1+s.fillIn(c.query), "")
			got := "200"
			if a.code != 200 {
				got = a.failure()
			}
			apitest.Expect(t, got, c.want)
		})
	}
	missing := s.send("GET", s.p1+"/nope", "")
	apitest.Expect(t, missing.get("details").Raw, `{"name":"nope","kind":"configmaps"}`)
	apitest.Expect(t, s.want(200, "GET", s.p1+"/a", "").get("kind"), "ConfigMap")
}

// ---- Consistency under load ----

// TestListsAreConsistentUnderLoad runs writers that create, update and delete, and clients that
// list in chunks. Afterwards it replays the events up to the revision of each list and compares the
// result with the list. It also starts watches at the revisions of some lists.
func TestListsAreConsistentUnderLoad(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	l := &listLoad{testServer: startTest(t), path: "/api/v1/namespaces/default/configmaps"}
	first := l.revision()
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() { l.write(ctx, w, rand.New(rand.NewPCG(seed, uint64(w)))) })
	}
	for _, limit := range []int{0, 1, 3, 17, 500} {
		group.Go(func() { l.listAll(ctx, limit) })
	}
	group.Wait()
	events := l.replay(first)
	if len(events) != len(l.acked)+l.deletes || len(l.lists) < 5 {
		t.Errorf("%d events after %d creates and updates and %d deletes, %d lists", len(events), len(l.acked), l.deletes, len(l.lists))
	}
	for _, ev := range events {
		if data, ok := l.acked[ev.rev]; ev.kind != "DELETED" && (!ok || data != ev.data) {
			t.Errorf("revision %d was acknowledged with %q and watched with %q", ev.rev, data, ev.data)
		}
	}
	slices.SortFunc(l.lists, func(a, b snapshotList) int { return int(a.rev - b.rev) })
	live, done := map[string]string{}, 0
	for _, list := range l.lists {
		for ; done < len(events) && events[done].rev <= list.rev; done++ {
			events[done].apply(live)
		}
		if want := liveText(live); list.text != want {
			t.Fatalf("limit %d at revision %d:\n got %s\nwant %s", list.limit, list.rev, list.text, want)
		}
	}
	for _, list := range l.lists[:min(5, len(l.lists))] {
		after := slices.IndexFunc(events, func(ev loadEvent) bool { return ev.rev > list.rev })
		if after >= 0 && !slices.Equal(l.replay(list.rev), events[after:]) {
			t.Errorf("a watch from %d shows other events than one from the start", list.rev)
		}
	}
	t.Logf("%d writes, %d lists", len(events), len(l.lists))
}

// listLoad records the writes and lists of a test.
type listLoad struct {
	*testServer
	path    string
	mu      sync.Mutex // guards the fields below
	acked   map[int64]string
	deletes int
	lists   []snapshotList
}

type snapshotList struct {
	rev   int64
	limit int
	text  string
}

type loadEvent struct {
	kind, name, data string
	rev              int64
}

func (ev *loadEvent) apply(live map[string]string) {
	if ev.kind == "DELETED" {
		delete(live, ev.name)
		return
	}
	live[ev.name] = ev.data
}

func liveText(live map[string]string) string {
	var items []string
	for name, data := range live {
		items = append(items, name+"="+data)
	}
	slices.Sort(items)
	return strings.Join(items, " ")
}

// write creates, updates and deletes nine objects as fast as possible.
func (l *listLoad) write(ctx context.Context, w int, random *rand.Rand) {
	exists := map[string]bool{}
	for i := 0; i == 0 || ctx.Err() == nil; i++ { // at least once, even on a slow machine
		name, data := fmt.Sprintf("w%d-%d", w, random.IntN(9)), fmt.Sprintf("%d.%d", w, i)
		body := configMap(name, "k", data)
		var a answer
		switch {
		case !exists[name]:
			a = l.send("POST", l.path, body)
			exists[name] = true
		case random.IntN(3) == 0:
			a, data = l.send("DELETE", l.path+"/"+name, ""), ""
			exists[name] = false
		default:
			a = l.send("PUT", l.path+"/"+name, body)
		}
		if a.code >= 300 {
			l.t.Errorf("%s: %s", name, a.body)
		}
		l.note(a.rev(), data)
	}
}

func (l *listLoad) note(rev int64, data string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if data == "" {
		l.deletes++
		return
	}
	if l.acked == nil {
		l.acked = map[int64]string{}
	}
	l.acked[rev] = data
}

// listAll repeatedly lists everything in chunks.
func (l *listLoad) listAll(ctx context.Context, limit int) {
	for first := true; first || ctx.Err() == nil; first = false { // at least once, even on a slow machine
		var items []string
		var rev int64
		for token := ""; ; {
			a := l.send("GET", fmt.Sprintf("%s?limit=%d&continue=%s", l.path, limit, token), "")
			if a.code != 200 || rev != 0 && a.rev() != rev {
				l.t.Errorf("page of limit %d at %d: %d %.300s", limit, rev, a.code, a.body)
				return
			}
			a.get("items").ForEach(func(_, item gjson.Result) bool {
				if name := item.Get("metadata.name").String(); name != "kube-root-ca.crt" {
					items = append(items, name+"="+item.Get("data.k").String())
				}
				return true
			})
			if rev, token = a.rev(), a.token(); token == "" {
				break
			}
		}
		l.mu.Lock()
		l.lists = append(l.lists, snapshotList{rev, limit, strings.Join(items, " ")})
		l.mu.Unlock()
	}
}

// replay returns the events from a revision to the current one.
func (l *listLoad) replay(from int64) (events []loadEvent) {
	end := l.want(201, "POST", l.path, fmt.Sprintf(`{"metadata":{"generateName":"end-%d-"}}`, from)).get("metadata.name").String()
	w := l.watch(fmt.Sprintf("%s?watch=1&resourceVersion=%d", l.path, from))
	defer w.close()
	for {
		f := w.next()
		name := f.object.Get("metadata.name").String()
		if name == end {
			return events
		}
		if strings.HasPrefix(name, "w") {
			events = append(events, loadEvent{f.kind, name, f.object.Get("data.k").String(), f.object.Get("metadata.resourceVersion").Int()})
		}
	}
}
