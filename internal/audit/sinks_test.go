package audit

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/request"
)

// lineOfSize is a line.
func lineOfSize(id, size int) []byte {
	head := fmt.Sprintf(`{"auditID":"%06d","pad":"`, id)
	return []byte(head + strings.Repeat("x", size-len(head)-3) + "\"}\n")
}

func TestLogIsMovedAsideWholeAndPacked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	l, err := Open(Config{Path: path, Rotation: Rotation{MaxSize: 1, MaxBackups: 3, Compress: true}}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	const lines, size = 700, 10 << 10 // seven files
	for i := range lines {
		l.report(l.append(lineOfSize(i, size)))
		if i%100 == 99 {
			time.Sleep(2 * time.Millisecond) // two files within a millisecond would be one
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "audit-*.log.gz"))
	if all, _ := os.ReadDir(dir); len(files) != 3 || len(all) != 4 {
		t.Fatalf("files: %v", all)
	}
	slices.Sort(files)
	var text []byte
	for _, file := range files {
		z, err := gzip.NewReader(bytes.NewReader(apitest.ReadFile(t, file)))
		if err != nil {
			t.Fatal(err)
		}
		part, err := io.ReadAll(z)
		if err != nil || len(part) > 1<<20 || !bytes.HasSuffix(part, []byte("\n")) {
			t.Errorf("%s: %v, %d bytes", file, err, len(part))
		}
		text = append(text, part...)
	}
	text = append(text, apitest.ReadFile(t, path)...)
	next := -1
	for line := range bytes.Lines(text) {
		id := int(gjson.GetBytes(line, "auditID").Int())
		if next >= 0 && id != next {
			t.Fatalf("line %d comes where %d should", id, next)
		}
		next = id + 1
	}
	if next != lines {
		t.Errorf("the last line is %d", next-1)
	}
}

// A line that is longer than a file is a file of its own; one whose first part a full disk took is not divided.
func TestLongAndTornLinesStayWhole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	w, err := openRotating(path, Rotation{MaxSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	long := lineOfSize(1, 3<<20)
	for _, part := range [][]byte{[]byte("first\n"), long[:1<<20], long[1<<20:], []byte("last\n")} {
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	aside := w.backups()
	if got := string(apitest.ReadFile(t, path)); len(aside) != 2 || got != "last\n" {
		t.Fatalf("%v %.20q", aside, got)
	}
	if got := apitest.ReadFile(t, aside[0].path); !bytes.Equal(got, long) {
		t.Errorf("the long line has %d bytes", len(got))
	}
}

func TestOldLogsGo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now().UTC()
	for _, age := range []time.Duration{time.Hour, 30 * time.Hour, 50 * time.Hour} {
		apitest.WriteFile(t, filepath.Join(dir, "audit-"+now.Add(-age).Format(backupTime)+".log"), []byte("x\n"))
	}
	apitest.WriteFile(t, filepath.Join(dir, "audit-mine.log"), []byte("x\n"))
	w := &rotatingFile{path: filepath.Join(dir, "audit.log"), rules: Rotation{MaxAge: 2}}
	w.sweep(now)
	if left, _ := os.ReadDir(dir); len(left) != 3 {
		t.Error(left)
	}
}

// A testReceiver is a webhook for events.
type testReceiver struct {
	mu   sync.Mutex // guards what follows
	ids  []string
	most int
	fail func(try int) error
	try  int
}

func (r *testReceiver) post(_ context.Context, body []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.try++; r.fail != nil {
		if err := r.fail(r.try); err != nil {
			return err
		}
	}
	items := gjson.GetBytes(body, "items").Array()
	r.most = max(r.most, len(items))
	for _, one := range items {
		r.ids = append(r.ids, one.Get("auditID").String())
	}
	return nil
}

func TestEventsAreSentInBatchesAndInOrder(t *testing.T) {
	t.Parallel()
	var lost, sent atomic.Int64
	r := &testReceiver{fail: func(try int) error {
		if try == 2 {
			return errors.New("down")
		}
		return nil
	}}
	hook := &Sender{Batches: Batches{BufferSize: 1000, MaxSize: 10, MaxWait: time.Millisecond, Backoff: time.Millisecond}, Post: r.post,
		Sent: func(n int) { sent.Add(int64(n)) }, Lost: func(_ string, n int, _ error) { lost.Add(int64(n)) }}
	hook.Start()
	l, err := Open(Config{Webhook: hook}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest("GET", "/api/v1/pods", nil)
	for i := range 95 {
		l.Done(req, &request.Request{ID: fmt.Sprint(i), Info: request.Parse(req), User: request.User{Name: "jane"}}, 200, nil)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for i, id := range r.ids {
		if id != fmt.Sprint(i) {
			t.Fatalf("event %d is %s", i, id)
		}
	}
	if len(r.ids) != 95 || r.most > 10 || lost.Load() != 0 || sent.Load() != 95 {
		t.Errorf("%d events in batches of %d at most, %d lost, %d sent", len(r.ids), r.most, lost.Load(), sent.Load())
	}
}

// A webhook that hangs holds no request, and no more memory than was said.
func TestWebhookThatHangsHoldsNobody(t *testing.T) {
	t.Parallel()
	var lost atomic.Int64
	hangs := make(chan struct{})
	hook := &Sender{Batches: Batches{BufferSize: 20, MaxSize: 5, MaxWait: time.Millisecond, Backoff: time.Millisecond},
		Post: func(ctx context.Context, _ []byte) error {
			select {
			case <-hangs:
			case <-ctx.Done():
			}
			return errors.New("down")
		}, Sent: func(int) {}, Lost: func(_ string, n int, _ error) { lost.Add(int64(n)) }}
	hook.Start()
	for i := range 100 {
		hook.add(lineOfSize(i, 100))
	}
	apitest.WaitFor(t, "events that are dropped", func() bool { return lost.Load() >= 100-20-2*5 })
	if n := hook.queue.waiting(); n > 20 {
		t.Errorf("%d events wait", n)
	}
	close(hangs)
	hook.close()
	if n := lost.Load(); n != 100 {
		t.Errorf("%d of 100 events are counted as lost", n)
	}
}

// A gate is a disk that hangs until it is opened, or has failed for good.
type gate struct {
	opened chan struct{}
	err    error

	mu     sync.Mutex // guards what follows
	writes []string
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.opened
	if g.err != nil {
		return 0, g.err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes = append(g.writes, string(p))
	return len(p), nil
}

// In mode batch a disk that hangs holds no request; what waits has a bound, and goes out in few writes.
func TestBatchesOfTheLogHoldNobody(t *testing.T) {
	t.Parallel()
	var told auditTold
	var buffered atomic.Int64
	disk := &gate{opened: make(chan struct{})}
	hooks := told.hooks()
	hooks.Dropped = func(plugin string, n int) {
		if plugin == pluginBuffered {
			buffered.Add(int64(n))
		}
	}
	l, err := Open(Config{Path: filepath.Join(t.TempDir(), "audit.log"), Mode: ModeBatch, Batches: Batches{BufferSize: 20, MaxSize: 5, MaxWait: time.Hour}}, hooks)
	if err != nil {
		t.Fatal(err)
	}
	l.swap(disk)
	const events = 100
	for i := range events { // this goroutine is a request's
		if !l.write(auditExample(i)) {
			t.Error("a request is refused")
		}
	}
	if n := l.queue.waiting(); n > 20 || buffered.Load() < events-20-5 {
		t.Errorf("%d events wait, %d found no room", n, buffered.Load())
	}
	close(disk.opened)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	last, lines := -1, 0
	for _, text := range disk.writes {
		for line := range strings.Lines(text) {
			id := int(gjson.Get(line, "auditID").Int())
			if id <= last {
				t.Errorf("%d comes after %d", id, last)
			}
			last = id
			lines++
		}
	}
	if lines != told.written || int64(lines) != events-buffered.Load() || len(disk.writes) < lines/5 || len(disk.writes) > lines/5+2 {
		t.Errorf("%d lines in %d writes, %d told, %d lost", lines, len(disk.writes), told.written, buffered.Load())
	}
}

// Who may not go on when an event is lost: nobody, or in blocking-strict a request whose arrival cannot be told.
func TestModesRefuseOrDoNot(t *testing.T) {
	t.Parallel()
	policy, err := LoadPolicy(apitest.TempFile(t, "policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {level: None, verbs: [list]}\n- level: Metadata\n"))
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest("POST", "/api/v1/namespaces/a/configmaps", nil)
	for _, c := range []struct {
		mode   Mode
		fails  bool
		goesOn bool
		posts  int // of one request
	}{{ModeBlocking, true, true, 2 * maxAttempts}, {ModeStrict, true, false, maxAttempts}, {ModeStrict, false, true, 2}, {ModeBatch, true, true, maxAttempts}} {
		disk, opened := &gate{opened: make(chan struct{})}, &testReceiver{}
		close(disk.opened)
		if c.fails {
			disk.err = errors.New("no room")
			opened.fail = func(int) error { return errors.New("down") }
		}
		ask := func(l *Log, method string) bool {
			r := req.Clone(t.Context())
			r.Method = method
			rec := &request.Request{ID: "1", Info: request.Parse(r), User: request.User{Name: "jane"}}
			proceed := l.RequestReceived(r, rec)
			l.Done(r, rec, 200, nil)
			return proceed
		}
		l, err := Open(Config{Path: filepath.Join(t.TempDir(), "audit.log"), Policy: policy, Mode: c.mode, Batches: Batches{BufferSize: 9, MaxSize: 1}}, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		l.swap(disk)
		if got := ask(l, "POST"); got != c.goesOn {
			t.Errorf("the log in mode %s, failing: %v: a request goes on: %v", c.mode, c.fails, got)
		}
		if !ask(l, "GET") {
			t.Errorf("the log in mode %s: a request of which nothing is to be told does not go on", c.mode)
		}
		_ = l.Close()
		if n := len(disk.writes); !c.fails && n != 2 {
			t.Errorf("the log in mode %s: %d events", c.mode, n)
		}
		hook := &Sender{Mode: c.mode, Batches: Batches{BufferSize: 9, MaxSize: 9, MaxWait: time.Hour, Backoff: time.Millisecond}, Post: opened.post, Sent: func(int) {},
			Lost: func(string, int, error) {}}
		hook.Start()
		if l, err = Open(Config{Policy: policy, Webhook: hook}, Hooks{}); err != nil {
			t.Fatal(err)
		}
		if got := ask(l, "POST"); got != c.goesOn {
			t.Errorf("the webhook in mode %s, failing: %v: a request goes on: %v", c.mode, c.fails, got)
		}
		if c.mode != ModeBatch && opened.try != c.posts {
			t.Errorf("the webhook in mode %s, failing: %v: asked %d times", c.mode, c.fails, opened.try)
		}
		_ = l.Close()
	}
}

// What finds no room in memory is lost by whole lines, and of a torn line the rest is kept.
func TestLinesThatWaitAreWhole(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxPendingAudit) + "\n"
	for _, c := range []struct {
		pending, lines string
		kept, lost     int
	}{{"", "a\nb\n", 2, 0}, {"", long, 1, 0}, {"", long + "b\n", 1, 1}, {"", "a\n" + long + "b\n", 1, 2}, {"a\n", long, 0, 1}, {"a\n", "b\n" + long, 1, 1}, {long, "b\n", 0, 1}} {
		got, lost := boundLines([]byte(c.pending), []byte(c.lines))
		if countLines(got)-strings.Count(c.pending, "\n") != c.kept || lost != c.lost || got[len(got)-1] != '\n' {
			t.Errorf("%.5q and %.5q: %d bytes, %d lost", c.pending, c.lines, len(got), lost)
		}
	}
}

func TestPaceIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p tokenBucket
		begin := time.Now()
		for range 5 {
			p.wait(t.Context(), 100, 2)
		}
		if took := time.Since(begin); took != 30*time.Millisecond {
			t.Errorf("five batches at 100 a second, of which two at once, took %v", took)
		}
	})
}

func TestLongEventsAreShortened(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	policy, err := LoadPolicy(apitest.TempFile(t, "policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: RequestResponse\n"))
	if err != nil {
		t.Fatal(err)
	}
	var dropped, levels atomic.Int64
	l, err := Open(Config{Path: path, Policy: policy, Truncate: Truncate{Enabled: true, MaxEventSize: 2000, MaxBatch: 2000}},
		Hooks{Dropped: func(_ string, n int) { dropped.Add(int64(n)) }, Leveled: func(string) { levels.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest("POST", "/api/v1/namespaces/a/configmaps", nil)
	for _, c := range []struct {
		body, agent string
	}{{`{"a":1}`, ""}, {`{"a":"` + strings.Repeat("x", 3000) + `"}`, ""}, {`{"a":1}`, strings.Repeat("y", 3000)}, {`{no json`, ""}} {
		req.Header.Set("User-Agent", c.agent)
		rec := &request.Request{ID: "1", Info: request.Parse(req), User: request.User{Name: strings.Repeat("n", len(c.agent))}}
		if rec.User.Name == "" {
			rec.User.Name = "jane"
		}
		l.RequestReceived(req, rec)
		rec.AuditData.RequestObject = []byte(c.body)
		l.Done(req, rec, 200, nil)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range bytes.Lines(apitest.ReadFile(t, path)) {
		got = append(got, gjson.GetBytes(line, "requestObject").Raw+gjson.GetBytes(line, `annotations.audit\.k8s\.io/truncated`).String())
	}
	if !slices.Equal(got, []string{`{"a":1}`, "true", "true"}) || dropped.Load() != 1 || levels.Load() != 4 {
		t.Errorf("got %q, %d dropped, %d chosen", got, dropped.Load(), levels.Load())
	}
}

func TestBadPoliciesAreRefusedInKubernetesWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "unknown group version field audit.k8s.io/__internal, Kind=Policy in policy: from file",
		"apiVersion: audit.k8s.io/v1\nkind: Policy\n":                                                      "loaded illegal policy with 0 rules: from file",
		"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: All\n":                                `rules[0].level: Unsupported value: "All"`,
		"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: None\n  nonResourceURLs: [\"a*b\"]\n": `rules[0].nonResourceURLs[0]: Invalid value: "a*b"`,
		"apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules:\n- level: None\n":                          `no kind "Policy" is registered for version "audit.k8s.io/v1beta1"`,
	} {
		if _, err := LoadPolicy(apitest.TempFile(t, "policy.yaml", text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLegacyLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(Config{Path: path, Legacy: true}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest("GET", "/api/v1/namespaces/a/pods", nil)
	l.Done(req, &request.Request{ID: "1", Info: request.Parse(req), User: request.User{Name: "jane", Groups: []string{"dev", "ops"}}}, 200, nil)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(string(apitest.ReadFile(t, path)), " ")
	want := `AUDIT: id="1" stage="ResponseComplete" ip="192.0.2.1" method="list" user="jane" groups="\"dev\",\"ops\"" as="<self>" asgroups="<lookup>" user-agent="" ` +
		`namespace="a" uri="/api/v1/namespaces/a/pods" response="200"` + "\n"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// What a request costs under a policy, with bodies of a kilobyte.
func BenchmarkPolicy(b *testing.B) {
	body := []byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","managedFields":[{"manager":"x"}]},"data":{"k":"` + strings.Repeat("x", 900) + `"}}`)
	for name, rules := range map[string]string{"none": "", "null": "- level: None\n", "metadata": "- level: Metadata\n", "bodies": "- level: RequestResponse\n",
		"without-fields": "- level: RequestResponse\n  omitManagedFields: true\n"} {
		b.Run(name, func(b *testing.B) {
			cfg := Config{Path: filepath.Join(b.TempDir(), "audit.log")}
			if rules != "" {
				var err error
				text := "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n" + rules
				if cfg.Policy, err = LoadPolicy(apitest.TempFile(b, "policy.yaml", text)); err != nil {
					b.Fatal(err)
				}
			}
			l, err := Open(cfg, Hooks{})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			r := httptest.NewRequest("POST", "/api/v1/namespaces/a/configmaps", nil)
			info, header := request.Parse(r), map[string][]string{"Content-Type": {"application/json"}}
			b.ReportAllocs()
			for b.Loop() {
				rec := &request.Request{ID: "1", Info: info, User: request.User{Name: "jane", Groups: []string{"dev"}}}
				l.RequestReceived(r, rec)
				if rec.AuditData.RecordsRequest() {
					rec.AuditData.RequestObject = body
				}
				if rec.AuditData.RecordsResponse() {
					rec.AuditData.RecordResponse(header, body)
				}
				l.Done(r, rec, 201, nil)
			}
		})
	}
}
