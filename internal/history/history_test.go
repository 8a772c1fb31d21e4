package history

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/limits"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// A bench is a Log behind HTTP, over a store that a test writes to at times of its choice.
type bench struct {
	testing.TB
	st          *store.Store
	maintenance *store.Maintenance
	log         *Log
	url         string
	clock       atomic.Int64 // milliseconds
	may         func(request.Info) bool
	over        chan struct{}
}

var begin = time.Date(2026, 11, 23, 4, 0, 0, 0, time.UTC)

func newBench(t testing.TB) *bench {
	t.Helper()
	b := &bench{TB: t, may: func(request.Info) bool { return true }, over: make(chan struct{})}
	b.clock.Store(begin.UnixMilli())
	var err error
	if b.st, err = store.Open("", store.Options{Ephemeral: true, Clock: func() time.Time { return time.UnixMilli(b.clock.Load()) }}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.st.Close() })
	if b.maintenance, err = store.NewMaintenance(b.st); err != nil {
		t.Fatal(err)
	}
	b.log = New(Config{Store: b.st, Maintenance: b.maintenance, Types: scheme.NewRegistry(), MayListAny: func(request.User) bool { return b.may(request.Info{}) },
		Visibility: Visibility{Store: b.st, Authorize: func(_ request.User, info request.Info) bool { return b.may(info) }},
		WriteError: func(w http.ResponseWriter, r *http.Request, err error) { response.Refuse(w, r, err) }, WriteTimeout: time.Minute, Lifetime: time.Hour, ShuttingDown: b.over})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &request.Request{User: request.User{Name: cmp.Or(r.Header.Get("X-User"), "reader"), Groups: r.Header["X-Group"]}}
		b.log.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), request.Key{}, rec)))
	}))
	t.Cleanup(server.Close)
	b.url = server.URL + Path
	return b
}

var alice = store.Author{User: "alice", Agent: "kubectl/v1.36", Verb: "patch"}

// write makes an object, or changes it (rev), and returns its revision. A millisecond passes.
func (b *bench) write(key string, rev int64, members string, by store.Author) int64 {
	b.Helper()
	_, _, name, _ := scheme.SplitKey(key)
	head := `{"metadata":{"name":"` + name + `","uid":"u-` + name + `","resourceVersion":"`
	c := store.Change{Op: store.OpCreate, Key: key, JSON: []byte(head + `"},` + members + `}`), RevAt: len(head), Author: by}
	if rev != 0 {
		c.Op, c.Expect = store.OpUpdate, rev
	}
	if members == "" {
		c.Op, c.JSON = store.OpDelete, []byte(head+`"}}`)
	}
	written, err := b.st.Commit(context.Background(), c)
	if err != nil {
		b.Fatal(err)
	}
	b.clock.Add(1)
	return written.Rev
}

func (b *bench) ask(query string, headers ...string) (code int, body string) {
	b.Helper()
	r, _ := http.NewRequest("GET", b.url+"?"+query, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		b.Fatal(err)
	}
	return answer.StatusCode, string(all)
}

// revisions asks, and returns the revisions of the lines and where to continue.
func (b *bench) revisions(query string) (revs []int64, next int64) {
	b.Helper()
	code, body := b.ask(query)
	if code != 200 {
		b.Fatalf("%s: %d %s", query, code, body)
	}
	for _, line := range strings.Split(strings.TrimSpace(body), "\n") {
		var l struct{ Revision, Continue int64 }
		if line == "" {
			continue
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil || next != 0 {
			b.Fatalf("%s: %v: %s", query, err, line)
		}
		if next = l.Continue; l.Revision != 0 {
			revs = append(revs, l.Revision)
		}
	}
	return revs, next
}

func TestLinesTellWhoWhenAndWhat(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rev := b.write("/apps/deployments/shop/web", 0, `"spec":{"replicas":1}`, store.Author{User: "system:serviceaccount:shop:bot", Agent: "manager/v0", Verb: "create", Manager: "bot"})
	rev = b.write("/apps/deployments/shop/web", rev, `"spec":{"replicas":2}`, store.Author{User: "alice", Agent: "kubectl/v1.36", Verb: "patch", Subresource: "scale"})
	b.write("/apps/deployments/shop/web", rev, "", store.Author{})
	_, got := b.ask("")
	want := `{"revision":1,"time":"2026-11-23T04:00:00.000Z","verb":"create","type":"ADDED","group":"apps","version":"v1","resource":"deployments","kind":"Deployment","namespace":"shop","name":"web","uid":"u-web","user":"system:serviceaccount:shop:bot","agent":"manager/v0","manager":"bot"}
{"revision":2,"time":"2026-11-23T04:00:00.001Z","verb":"patch","subresource":"scale","type":"MODIFIED","group":"apps","version":"v1","resource":"deployments","kind":"Deployment","namespace":"shop","name":"web","uid":"u-web","user":"alice","agent":"kubectl/v1.36","manager":"kubectl","changes":[{"path":".spec.replicas","old":1,"new":2}]}
{"revision":3,"time":"2026-11-23T04:00:00.002Z","type":"DELETED","group":"apps","version":"v1","resource":"deployments","kind":"Deployment","namespace":"shop","name":"web","uid":"u-web"}
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	_, got = b.ask("objects=true&after=2")
	if !strings.Contains(got, `"old":{"apiVersion":"apps/v1","kind":"Deployment"`) || strings.Contains(got, `"new":`) {
		t.Errorf("a deletion's objects: %s", got)
	}
}

// What a Secret holds never appears, whatever it was changed by, and with whole objects too.
func TestSecretsAreNeverTold(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	rev := b.write("//secrets/shop/pw", 0, `"data":{"p":"Z2VoZWlt"},"stringData":{"q":"geheim"}`, alice)
	rev = b.write("//secrets/shop/pw", rev, `"data":{"p":"Z2VoZWlt","neu":"R0VIRUlN"}`, alice)
	b.write("//secrets/shop/pw", rev, "", alice)
	for _, query := range []string{"", "objects=true"} {
		_, got := b.ask(query)
		if strings.Contains(got, "Z2Vo") || strings.Contains(got, "geheim") || strings.Contains(got, "R0VI") || !strings.Contains(got, `{"path":".data.neu","new":"***"}`) {
			t.Errorf("%q: %s", query, got)
		}
	}
}

func TestQueriesChoose(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.write("//pods/shop/a", 0, `"metadata2":{}`, alice)                                                                  // 1
	b.write("//pods/farm/a", 0, `"x":1`, store.Author{User: "bob", Agent: "manager/1", Verb: "create", Manager: "field-boss"}) // 2
	b.write("/apps/deployments/shop/web", 0, `"x":1`, store.Author{User: "bob", Agent: "other/1", Verb: "create"})             // 3
	b.write("/gone.example.com/widgets/shop/w", 0, `"x":1`, alice)                                                             // 4
	b.write("//pods/shop/a", a, `"x":2`, alice)                                                                                // 5
	b.write("//events/shop/e", 0, `"x":1`, alice)                                                                              // 6
	for query, want := range map[string]string{
		"":              "[1 2 3 4 5 6] 0",
		"resource=":     "[1 2 3 4 5 6] 0",
		"resource=pods": "[1 2 5] 0",
		"resource=pods&resource=widgets.gone.example.com":        "[1 2 4 5] 0",
		"resource=deployments.apps":                              "[3] 0",
		"resource=deployments":                                   "[] 0",
		"resource=events.events.k8s.io":                          "[6] 0",
		"namespace=farm":                                         "[2] 0",
		"name=a&namespace=shop":                                  "[1 5] 0",
		"fieldSelector=metadata.name=a,metadata.namespace!=farm": "[1 5] 0",
		"by=bob":                                 "[2 3] 0",
		"by=field-boss":                          "[2] 0",
		"by=other/":                              "[3] 0",
		"after=4":                                "[5 6] 0",
		"until=2":                                "[1 2] 0",
		"until=2026-11-23T04:00:00.003Z":         "[1 2 3 4] 0",
		"since=2026-11-23T04:00:00.003Z":         "[4 5 6] 0",
		"since=2026-11-23T03:00:00Z":             "[1 2 3 4 5 6] 0",
		"since=2026-11-23T04:00:00.002Z&after=4": "[5 6] 0",
		"limit=2":                                "[1 2] 2",
		"limit=2&after=2":                        "[3 4] 4",
		"limit=2&after=4":                        "[5 6] 0",
		"limit=2&resource=pods":                  "[1 2] 4",
		"labelSelector=app":                      "[] 0",
		"tail=2":                                 "[5 6] 0",
		"tail=2&until=4":                         "[3 4] 0",
		"tail=2&resource=pods":                   "[2 5] 0",
		"tail=9&by=bob":                          "[2 3] 0",
		"tail=2&after=5":                         "[6] 0",
		"tail=1&name=nobody":                     "[] 0",
		"without=pods&without=events":            "[3 4] 0",
		"resource=pods&without=pods":             "[] 0",
		"labelSelector=!app&limit=5000&resource=pods": "[1 2 5] 0",
	} {
		revs, next := b.revisions(query)
		if got := fmt.Sprint(revs, next); got != want && got != strings.Replace(want, "[]", "[]", 1) {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// The last lines of a long history are found from its end, however few of it is asked for, and are told where what is before them ends.
func TestTails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const all = 6000 // more than is in memory
	rare := []int64{3, 1700, 1701, 5000, 5990}
	for rev := int64(1); rev <= all; rev++ {
		key, by := fmt.Sprintf("//pods/shop/p%d", rev), alice
		if slices.Contains(rare, rev) {
			key, by.User = fmt.Sprintf("//configmaps/shop/c%d", rev), "bob"
		}
		b.write(key, 0, `"x":1`, by)
	}
	for query, want := range map[string]string{
		"tail=3":                                `5997 {"earlier":5997} [5998 5999 6000]`,
		"tail=2&by=bob":                         `4999 {"earlier":4999} [5000 5990]`,
		"tail=3&resource=configmaps":            `1700 {"earlier":1700} [1701 5000 5990]`,
		"tail=2&until=1700&by=bob":              `2 {"earlier":2} [3 1700]`,
		"tail=5&by=bob":                         `2 {"earlier":2} [3 1700 1701 5000 5990]`,
		"tail=6&by=bob":                         `0  [3 1700 1701 5000 5990]`,
		"tail=6&by=bob&after=1700":              `0  [1701 5000 5990]`,
		"tail=2&name=p17":                       `0  [17]`,
		"tail=1&name=nobody":                    `0  []`,
		"tail=2&labelSelector=!a&by=bob":        `4999 {"earlier":4999} [5000 5990]`,
		"tail=2&fieldSelector=metadata.name=c3": `0  [3]`,
	} {
		_, body := b.ask(query)
		earlier, rest := "", body
		if first, after, _ := strings.Cut(body, "\n"); strings.HasPrefix(first, `{"earlier"`) {
			earlier, rest = first, after
		}
		revs := []int64{}
		for line := range strings.Lines(rest) {
			revs = append(revs, gjson.Get(line, "revision").Int())
		}
		if got := fmt.Sprintf("%d %s %v", gjson.Get(earlier, "earlier").Int(), earlier, revs); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
	if _, err := b.maintenance.Compact(t.Context(), 5000); err != nil {
		t.Fatal(err)
	}
	if _, body := b.ask("tail=2&by=bob"); !strings.HasPrefix(body, `{"revision":5990,`) {
		t.Errorf("after a compaction: %s", body)
	}
}

// Who follows a tail has it first, and, when the stream broke, what came since and no tail again.
func TestTailsAreFollowed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 10 {
		b.write(fmt.Sprintf("//pods/shop/p%d", i), 0, `"x":1`, alice)
	}
	follow := func(query, lastEvent string, want ...string) {
		t.Helper()
		r, _ := http.NewRequestWithContext(t.Context(), "GET", b.url+"?follow=true&"+query, nil)
		r.Header.Set("Accept", "text/event-stream")
		if lastEvent != "" {
			r.Header.Set("Last-Event-ID", lastEvent)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		lines := bufio.NewScanner(answer.Body)
		for _, beginning := range want {
			if !lines.Scan() || !strings.HasPrefix(lines.Text(), beginning) {
				t.Fatalf("%s: %q, want %q", query, lines.Text(), beginning)
			}
		}
	}
	follow("tail=2", "", "event: earlier", `data: {"earlier":8}`, "", "id: 9", `data: {"revision":9`, "", "id: 10")
	follow("tail=2", "5", "id: 6")
	follow("tail=20", "", "id: 1")
}

// All that is wrong with a request is a Status that says so.
func TestBadQueries(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 5 {
		b.write(fmt.Sprintf("//pods/shop/p%d", i), 0, `"x":1`, alice)
	}
	if _, err := b.maintenance.Compact(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	for query, want := range map[string]string{
		"limit=0": "400 limit", "limit=5001": "400 limit", "limit=-3": "400 limit", "limit=x": "400 limit", "after=x": "400 after is not", "after=-1": "400 after",
		"after=99": "400 after is in the future: the newest revision is 5", "after=2": "410 revision 2 is compacted: the oldest moment that can be asked is revision 3",
		"after=99999999999999999999": "400 after", "since=yesterday": "400 .*not a moment", "since=3": "400 since must be a time", "until=-5": "400 .*not a moment",
		"until=99": "400 revision 99 is in the future", "until=2099-01-01T00:00:00Z": "400 .*in the future", "follow=maybe": "400 follow", "objects=1e3": "400 objects",
		"follow=true&until=4": "400 .*mutually exclusive", "labelSelector=a%20b%20c": "400", "fieldSelector=spec.x=1": "400 field label not supported",
		"tail=0": "400 tail", "tail=5001": "400 tail", "tail=x": "400 tail", "tail=3&limit=3": "400 limit and tail are mutually exclusive",
		"fieldSelector=((": "400", "%zz": "400 invalid URL escape", "since=" + strings.Repeat("9", 5000): "400 ",
		"since=2026-11-23T04:00:00": "400 .*not a moment", "until=2026-11-23T03:00:00Z": "410 .*is compacted: the oldest moment that can be asked is revision 3 of 2026-11-23T04:00:00.002Z",
	} {
		code, body := b.ask(query)
		var status struct {
			Kind, Message string
			Code          int
		}
		json.Unmarshal([]byte(body), &status)
		first, text, _ := strings.Cut(want, " ")
		text = strings.TrimPrefix(text, ".*")
		if fmt.Sprint(code) != first || status.Kind != "Status" || status.Code != code || !strings.Contains(status.Message, text) || len(body) > 2000 {
			t.Errorf("%s: %d %s, want %s", query, code, body, want)
		}
	}
	if answer, err := http.Post(b.url, "text/plain", nil); err != nil || answer.StatusCode != 405 {
		t.Errorf("POST: %v, %v", answer, err)
	}
}

// Each line is for those who may list its resource there; who may list nothing is refused.
func TestOnlyWhatMayBeListed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.write("//pods/shop/a", 0, `"x":1`, alice)
	b.write("//pods/farm/a", 0, `"x":1`, alice)
	b.write("//secrets/shop/a", 0, `"x":1`, alice)
	b.write("//namespaces//shop", 0, `"x":1`, alice)
	b.write("/gone.example.com/widgets/shop/w", 0, `"x":1`, alice)
	asked := map[request.Info]int{}
	b.may = func(info request.Info) bool {
		if info.Verb != "" {
			asked[request.Info{Group: info.Group, Version: info.Version, Resource: info.Resource, Namespace: info.Namespace, Verb: info.Verb, APIPrefix: info.APIPrefix}]++
		}
		return info.Resource != "secrets" && info.Namespace != "farm"
	}
	if revs, _ := b.revisions(""); fmt.Sprint(revs) != "[1 4 5]" {
		t.Errorf("%v", revs)
	}
	for info, n := range asked {
		if n != 1 || info.Verb != "list" {
			t.Errorf("asked %d times about %+v", n, info)
		}
	}
	if asked[request.Info{Verb: "list", APIPrefix: "apis", Group: "gone.example.com", Resource: "widgets", Namespace: "shop"}] != 1 || len(asked) != 7 { // of pods and widgets, in all namespaces, too
		t.Errorf("asked about %v", asked)
	}
	b.may = func(request.Info) bool { return false }
	if code, body := b.ask(""); code != 403 || !strings.Contains(body, `User \"reader\" may not list anything`) {
		t.Errorf("%d %s", code, body)
	}
}

// A follower hears of each change once, in order, whatever it says it has seen; it ends with the server, and says where to go on.
func TestFollowers(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 10 {
		b.write(fmt.Sprintf("//pods/shop/p%d", i), 0, `"x":1`, alice)
	}
	r, _ := http.NewRequest("GET", b.url+"?follow=true&after=3&resource=pods", nil)
	r.Header.Set("Accept", "text/event-stream")
	r.Header.Set("Last-Event-ID", "7")
	answer, err := http.DefaultClient.Do(r)
	if err != nil || answer.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatal(answer, err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	next := func() string {
		var event []string
		for lines.Scan() {
			if lines.Text() == "" {
				break
			}
			event = append(event, lines.Text())
		}
		return strings.Join(event, "|")
	}
	for rev := int64(8); rev < 15; rev++ {
		if rev > 10 { // it waits by now, or does not: both are right
			b.write("//configmaps/shop/x"+strconv.FormatInt(rev, 10), 0, `"x":1`, alice)
			rev++
			b.write("//pods/shop/p"+strconv.FormatInt(rev, 10), 0, `"x":1`, alice)
		}
		if got := next(); !strings.HasPrefix(got, fmt.Sprintf(`id: %d|data: {"revision":%d,`, rev, rev)) {
			t.Fatalf("at %d: %s", rev, got)
		}
	}
	close(b.over)
	newest := b.st.Revision()
	if got := next(); got != fmt.Sprintf(`event: continue|id: %d|data: {"continue":%d}`, newest, newest) {
		t.Errorf("the end: %s", got)
	}
	if got := next(); got != "" {
		t.Errorf("after the end: %s", got)
	}
}

// More followers than there may be are told to come again; those that leave make room.
func TestFollowersAreBounded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.log.followers, b.log.pages = limits.NewSlots(8), limits.NewSlots(4)
	var open []io.Closer
	for range 2 { // a quarter
		answer, err := http.Get(b.url + "?follow=true")
		if err != nil || answer.StatusCode != 200 {
			t.Fatal(answer, err)
		}
		open = append(open, answer.Body)
	}
	if code, body := b.ask("follow=true"); code != 429 || !strings.Contains(body, "TooManyRequests") {
		t.Errorf("%d %s", code, body)
	}
	for _, header := range [][]string{{"X-User", "another"}, {"X-Group", request.GroupMasters}} {
		if code := b.begin("follow=true", header...); code != 200 {
			t.Errorf("%v: %d", header, code)
		}
	}
	if code, _ := b.ask(""); code != 200 {
		t.Errorf("a page beside them: %d", code)
	}
	release, _ := b.log.pages.TryAcquire(request.User{Name: "reader"})
	if code, _ := b.ask(""); code != 429 {
		t.Errorf("a page too many: %d", code)
	}
	if code, _ := b.ask("", "X-User", "another"); code != 200 {
		t.Errorf("another's page: %d", code)
	}
	release()
	for _, body := range open {
		body.Close()
	}
	apitest.WaitFor(t, "room for followers", func() bool { return b.begin("follow=true") == 200 })
}

// begin asks, and goes away when the answer begins.
func (b *bench) begin(query string, headers ...string) (code int) {
	b.Helper()
	r, _ := http.NewRequest("GET", b.url+"?"+query, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

// A reader that never reads is cut off, and takes no more memory than its buffers until then.
func TestReaderThatNeverReads(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.log.WriteTimeout = 50 * time.Millisecond
	var came atomic.Bool // and may be gone again before anybody looks
	b.may = func(info request.Info) bool {
		if info.Resource != "" {
			came.Store(true)
		}
		return true
	}
	rev := b.write("//configmaps/shop/big", 0, `"data":{"a":"x"}`, alice)
	for i := range 200 {
		rev = b.write("//configmaps/shop/big", rev, `"data":{"a":"`+strings.Repeat(string(rune('a'+i%26)), 60_000)+`"}`, alice)
	}
	b.log.followers = limits.NewSlots(1)
	conn, err := net.Dial("tcp", strings.TrimPrefix(strings.TrimSuffix(b.url, Path), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s?follow=true&objects=true HTTP/1.1\r\nHost: x\r\n\r\n", Path)
	apitest.WaitFor(t, "the reader to be answered", came.Load)
	apitest.WaitFor(t, "it to be cut off", func() bool { return b.begin("follow=true") == 200 })
	apitest.WaitFor(t, "nobody to be at the store", func() bool { return len(b.log.reading) == 0 }) // the second follower was, for a moment
}

// Pages put together are the history, whatever their size, also where the log lies on the disk.
func TestPagesAreTheHistory(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var changes []store.Change
	for i := range 6000 { // past the ring in memory
		doc := fmt.Sprintf(`{"metadata":{"name":"p","resourceVersion":""},"n":%d}`, i)
		changes = append(changes, store.Change{Op: store.OpCreate, Key: fmt.Sprintf("//pods/shop/p%d", i), JSON: []byte(doc), RevAt: strings.Index(doc, `"},`), Author: alice})
	}
	done := make(chan error)
	for w := range 50 {
		go func() {
			var err error
			for i := w; i < len(changes) && err == nil; i += 50 {
				_, err = b.st.Commit(context.Background(), changes[i])
			}
			done <- err
		}()
	}
	for range 50 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{700, 5000} {
		after, seen := int64(0), int64(0)
		for {
			revs, next := b.revisions(fmt.Sprintf("limit=%d&after=%d", limit, after))
			for _, rev := range revs {
				if seen++; rev != seen {
					t.Fatalf("limit %d: revision %d, want %d", limit, rev, seen)
				}
			}
			if next == 0 {
				break
			}
			after = next
		}
		if seen != 6000 {
			t.Errorf("limit %d: %d lines", limit, seen)
		}
	}
}

// Whoever runs out of time is told where to go on.
func TestPageThatRunsOutOfTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 20 {
		b.write(fmt.Sprintf("//pods/shop/p%d", i), 0, `"x":1`, alice)
	}
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), request.Key{}, &request.Request{}), 0)
	defer cancel()
	w := httptest.NewRecorder()
	b.log.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", Path, nil))
	if got := w.Body.String(); w.Code != 200 || got != "{\"continue\":0}\n" {
		t.Errorf("%d %s", w.Code, got)
	}
}

// Moments are found to the millisecond among records that know their time; before them, marks vouch; before all, it is a 410.
func TestMoments(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	moments := Moments{b.st, b.maintenance}
	for i := range 100 {
		b.write(fmt.Sprintf("//pods/shop/p%d", i), 0, `"x":1`, alice) // revision i+1, at i ms
		b.clock.Add(int64(i % 3))
	}
	now := time.UnixMilli(b.clock.Load())
	at := func(text string) string {
		m, err := ParseMoment(text, now)
		if err == nil {
			var rev int64
			if rev, _, err = moments.RevisionAt(m, now); err == nil {
				return fmt.Sprint(rev)
			}
		}
		return err.Error()
	}
	if _, err := b.maintenance.Compact(t.Context(), 40); err != nil {
		t.Fatal(err)
	}
	times := map[int64]int64{} // of revisions, in ms since the beginning
	events, _, err := b.st.Events(store.Everything, 40, 1000, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events {
		times[ev.Rev] = ev.Time - begin.UnixMilli()
	}
	for rev := int64(41); rev <= 100; rev++ {
		for ms := times[rev]; ms < times[rev+1]; ms++ {
			if got := at(begin.Add(time.Duration(ms) * time.Millisecond).Format(time.RFC3339Nano)); got != fmt.Sprint(rev) {
				t.Fatalf("at %d ms: %s, want %d", ms, got, rev)
			}
		}
	}
	for text, want := range map[string]string{"-0s": "100", "40": "40", "100": "100", "-1ms": "100"} {
		if got := at(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{"39": "revision 39 is compacted: the oldest moment that can be asked is revision 40 of 2026-11-23T04:00:00", "101": "in the future",
		"-1h": "compacted", "0": "not a moment", "": "not a moment", "-": "not a moment", "-1": "not a moment", "5m": "not a moment", "2026-11-23": "not a moment",
		"2100-01-01T00:00:00Z": "in the future", "9223372036854775808": "not a moment", "<b>": "not a moment", "--5m": "not a moment"} {
		if got := at(text); !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// BenchmarkPage is a page of 500 lines.
func BenchmarkPage(b *testing.B) {
	h := newBench(b)
	rev := h.write("/apps/deployments/shop/web", 0, `"spec":{"replicas":0}`, alice)
	for i := range 500 {
		rev = h.write("/apps/deployments/shop/web", rev, fmt.Sprintf(`"spec":{"replicas":%d,"template":{"spec":{"containers":[{"name":"a","image":"b"}]}}}`, i), alice)
	}
	for b.Loop() {
		h.ask("")
	}
	b.SetBytes(500)
}
