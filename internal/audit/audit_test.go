package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/apitest"

	"apilet/internal/request"
)

func auditExample(n int) event {
	uri, _ := url.ParseRequestURI("/api/v1/namespaces/default/configmaps/b?fieldManager=x&dryRun=All")
	received := time.Date(2026, 11, 21, 20, 10, 25, 785643000, time.FixedZone("", 3600))
	return event{
		id: fmt.Sprint(n), stage: stageResponseComplete, uri: uri, verb: "patch",
		user:      user{Username: "admin", UID: "1", Groups: []string{"system:masters", "system:authenticated"}},
		sourceIPs: []string{"127.0.0.1"}, agent: "x\"y<é\n",
		object: &objectRef{Resource: "configmaps", Namespace: "default", Name: "b", APIVersion: "v1"},
		code:   201, received: received, at: received.Add(1500 * time.Microsecond),
		annotations: map[string]string{"authorization.k8s.io/reason": "", "authorization.k8s.io/decision": "allow", "k8s.io/deprecated": "true"},
	}
}

// auditLines runs the events through a log and returns its file's lines.
func auditLines(t *testing.T, events ...event) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := Open(Config{Path: path}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ev := range events {
		a.write(ev)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// The lines are kube-apiserver 1.36's own, its ids and times replaced.
func TestAuditLinesAreKubernetes(t *testing.T) {
	const times = `"requestReceivedTimestamp":"2026-11-21T19:10:25.785643Z","stageTimestamp":"2026-11-21T19:10:25.787143Z"`
	patch := auditExample(1)

	refused := auditExample(2)
	refused.uri, _ = url.ParseRequestURI("/api/v1/pods?labelSelector=a%26<b")
	refused.verb, refused.object, refused.agent, refused.code, refused.annotations = "list", &objectRef{Resource: "pods", APIVersion: "v1"}, "curl/7.88.1", 403, nil
	refused.user, refused.impersonated = user{}, &user{Username: "bob", Groups: []string{"q"}, Extra: map[string][]string{"foo": {"a"}}}
	refused.status = &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Message: "no", Reason: "Forbidden",
		Details: &metav1.StatusDetails{Kind: "pods"}, Code: 403}

	path := auditExample(3)
	path.uri, path.object, path.verb, path.code, path.agent, path.annotations = &url.URL{Path: "/livez"}, nil, "get", 200, "curl/7.88.1", nil
	path.stage = stageResponseStarted

	want := []string{
		`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/default/configmaps/b?fieldManager=x\u0026dryRun=All","verb":"patch","user":{"username":"admin","uid":"1","groups":["system:masters","system:authenticated"]},"sourceIPs":["127.0.0.1"],"userAgent":"x\"y\u003cé\n","objectRef":{"resource":"configmaps","namespace":"default","name":"b","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":201},` + times + `,"annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":"","k8s.io/deprecated":"true"}}`,
		`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"2","stage":"ResponseComplete","requestURI":"/api/v1/pods?labelSelector=a%26\u003cb","verb":"list","user":{},"impersonatedUser":{"username":"bob","groups":["q"],"extra":{"foo":["a"]}},"sourceIPs":["127.0.0.1"],"userAgent":"curl/7.88.1","objectRef":{"resource":"pods","apiVersion":"v1"},"responseStatus":{"metadata":{},"status":"Failure","message":"no","reason":"Forbidden","details":{"kind":"pods"},"code":403},` + times + `}`,
		`{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"3","stage":"ResponseStarted","requestURI":"/livez","verb":"get","user":{"username":"admin","uid":"1","groups":["system:masters","system:authenticated"]},"sourceIPs":["127.0.0.1"],"userAgent":"curl/7.88.1","responseStatus":{"metadata":{},"code":200},` + times + `}`,
	}
	for i, got := range auditLines(t, patch, refused, path) {
		if got != want[i] {
			t.Errorf("line %d: got\n%s\nwant\n%s", i, got, want[i])
		}
	}
}

func TestAuditKeepsSecretsOut(t *testing.T) {
	for query, want := range map[string]string{
		"limit=5&continue=abc":                     "limit=5&continue=abc",
		"token=s3cret":                             "token=REDACTED",
		"a=1&%74oken=s3cret&b=%20":                 "a=1&%74oken=REDACTED&b=%20",
		"Client_Secret=s3cret&access_token=s3cret": "Client_Secret=REDACTED&access_token=REDACTED",
		"%zz=s3cret&x":                             "%zz=REDACTED&x",
		"password":                                 "password=REDACTED",
	} {
		if got := URI(&url.URL{Path: "/api", RawQuery: query, User: url.UserPassword("u", "s3cret"), Host: "h"}); got != "/api?"+want {
			t.Errorf("query %q is logged as %q, want %q", query, got, want)
		}
	}
	bad := auditExample(1)
	bad.code, bad.object = 422, &objectRef{Resource: "secrets", Name: "a"}
	bad.status = &metav1.Status{Status: "Failure", Reason: "Invalid", Code: 422, Message: `Invalid value: "s3cret"`,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: "s3cret"}}}}
	bad.agent = strings.Repeat("a", 2000)
	line := auditLines(t, bad)[0]
	if strings.Contains(line, "s3cret") || !strings.Contains(line, `"reason":"Invalid"`) || !strings.Contains(line, `a...TRUNCATED"`) {
		t.Errorf("got %s", line)
	}
	if bad.status.Details == nil {
		t.Error("the answered Status was changed too")
	}
}

// A dry run may call its object by a name of a megabyte, which is refused in words that quote it.
func TestAuditLinesHaveABound(t *testing.T) {
	long := strings.Repeat("ä", 1<<20)
	big := auditExample(1)
	big.code = 422
	big.status = &metav1.Status{Status: "Failure", Reason: "Invalid", Code: 422, Message: "bad name " + long,
		Details: &metav1.StatusDetails{Name: long, Kind: "Pod", Causes: []metav1.StatusCause{{Message: long}}}}
	rec := &request.Request{}
	rec.Info.ResourceRequest, rec.Info.Resource = true, "pods"
	rec.Sent = request.BodyID{Namespace: long, Name: long, UID: long, ResourceVersion: long}
	big.object = objectRefOf(rec)
	line := auditLines(t, big)[0]
	if len(line) > 8<<10 || !strings.Contains(line, "bad name") || !strings.Contains(line, `...TRUNCATED"`) {
		t.Errorf("a line of %d bytes: %.2000s", len(line), line)
	}
	if !utf8.ValidString(line) || big.status.Details.Name != long {
		t.Error("the line is no text, or the answered Status was changed")
	}
}

func TestAuditStatuses(t *testing.T) {
	if s := panicStatus("boom"); s.Message != "APIServer panic'd: boom" || s.Code != 500 || s.Reason != "InternalError" {
		t.Errorf("panic: %+v", s)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Forwarded-For", "10.0.0.1, bogus")
	r.RemoteAddr = "192.0.2.7:1234"
	if got := fmt.Sprint(sourceIPs(r)); got != "[10.0.0.1 192.0.2.7]" {
		t.Errorf("source addresses: got %s", got)
	}
}

// Many writers, a file that is renamed away and one that is truncated below them: every event is in one of the files, whole.
func TestAuditLosesAndTearsNoLine(t *testing.T) {
	const writers, each = 8, 200
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	var written atomic.Int64
	a, err := Open(Config{Path: path}, Hooks{Written: func(n int) { written.Add(int64(n)) }})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				a.write(auditExample(w*each + i))
			}
		})
	}
	for i := range 5 {
		if err := errors.Join(os.Rename(path, fmt.Sprintf("%s.%d", path, i)), a.Reopen()); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(path + "*")
	var all []byte
	for _, name := range files {
		data, _ := os.ReadFile(name)
		all = append(all, data...)
	}
	seen := apitest.AuditIDs(t, all)
	if len(seen) != writers*each || written.Load() != writers*each {
		t.Errorf("got %d events in %d files and %d told, want %d", len(seen), len(files), written.Load(), writers*each)
	}
	if mode, _ := os.Stat(path); mode.Mode().Perm() != 0o600 {
		t.Errorf("the file's mode is %v", mode.Mode())
	}
}

// What logrotate's copytruncate does: the copy and the file behind it have every event between them. (What is written after the copy and
// before the truncation is lost to everybody who appends; here nothing is.)
func TestAuditLosesNothingToTruncation(t *testing.T) {
	const writers, each = 4, 200
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := Open(Config{Path: path}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	var rotating sync.RWMutex // writers share it
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				rotating.RLock()
				a.write(auditExample(w*each + i))
				rotating.RUnlock()
			}
		})
	}
	var copies []byte
	for range 10 {
		rotating.Lock()
		data, readErr := os.ReadFile(path)
		copies = append(copies, data...)
		if err := errors.Join(readErr, os.Truncate(path, 0)); err != nil {
			t.Error(err)
		}
		rotating.Unlock()
	}
	wg.Wait()
	data, err := os.ReadFile(path)
	if err := errors.Join(err, a.Close()); err != nil {
		t.Fatal(err)
	}
	if n := len(apitest.AuditIDs(t, append(copies, data...))); n != writers*each {
		t.Errorf("%d events in the copies and the file, want %d", n, writers*each)
	}
}

func TestAuditGoesOnBehindATruncation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := Open(Config{Path: path}, Hooks{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	a.write(auditExample(1))
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	a.write(auditExample(2))
	data, _ := os.ReadFile(path)
	if !bytes.HasPrefix(data, []byte(`{"kind"`)) || bytes.Count(data, []byte("\n")) != 1 {
		t.Errorf("after the truncation the file holds %q", data)
	}
}

// A smallDisk has room for so many bytes.
type smallDisk struct {
	bytes.Buffer
	room int
}

type auditTold struct {
	written, lost int
	trouble       []error
}

func (told *auditTold) hooks() Hooks {
	return Hooks{Written: func(n int) { told.written += n }, Dropped: func(_ string, n int) { told.lost += n },
		Failing: func(err error) { told.trouble = append(told.trouble, err) }}
}

func TestAuditSurvivesAFullDisk(t *testing.T) {
	var told auditTold
	disk := &smallDisk{room: 1500} // two lines and a half
	a := &Log{path: "test", out: disk, hooks: told.hooks()}
	for i := range 10 {
		a.write(auditExample(i))
	}
	if told.written != 2 || told.lost != 0 || len(told.trouble) != 1 || !errors.Is(told.trouble[0], syscall.ENOSPC) {
		t.Fatalf("on the full disk: told %+v", told)
	}
	disk.room = 100 // a little, in the middle of a line
	a.write(auditExample(10))
	disk.room = 1 << 20
	a.write(auditExample(11))
	if told.written != 12 || told.lost != 0 || len(told.trouble) != 2 || told.trouble[1] != nil {
		t.Errorf("with room again: told %+v", told)
	}
	lines := bufio.NewScanner(&disk.Buffer)
	for i := 0; lines.Scan(); i++ {
		var ev struct{ AuditID string }
		if err := json.Unmarshal(lines.Bytes(), &ev); err != nil || ev.AuditID != fmt.Sprint(i) {
			t.Errorf("line %d: %v in %s", i, err, lines.Text())
		}
	}
}

func TestAuditDropsWhatDoesNotFitInMemory(t *testing.T) {
	var told auditTold
	disk := &smallDisk{room: 300}
	a := &Log{path: "test", out: disk, hooks: told.hooks()}
	const events = 3000
	for i := range events {
		a.write(auditExample(i))
	}
	if len(a.pending) > maxPendingAudit || told.lost == 0 {
		t.Fatalf("%d bytes wait, told %+v", len(a.pending), told)
	}
	fresh := &smallDisk{room: 1 << 30} // a new file: the torn line's rest must not open it
	old, lost := a.swap(fresh)
	if old != io.Writer(disk) || lost != 1 {
		t.Errorf("swap: got %v, %d lost; want the old file and 1", old, lost)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	a.write(auditExample(0)) // too late
	if lines := bytes.Count(fresh.Bytes(), []byte("\n")); lines != told.written || told.written+told.lost != events || !bytes.HasPrefix(fresh.Bytes(), []byte(`{"kind"`)) {
		t.Errorf("the new file has %d lines, told %+v of %d events, one of them by swap's result, one too late", lines, told, events)
	}
}

func TestAuditLosesNothingOnceThereIsRoom(t *testing.T) {
	var told auditTold
	disk := &smallDisk{}
	a := &Log{path: "test", out: disk, hooks: told.hooks()}
	for told.lost == 0 {
		a.write(auditExample(1))
	}
	disk.room = 1 << 30
	a.write(auditExample(2)) // what waits leaves it no room in memory, but goes out first
	if told.lost != 1 || len(a.pending) != 0 || bytes.Count(disk.Bytes(), []byte("\n")) != told.written || len(told.trouble) != 2 {
		t.Errorf("%d bytes wait, told %d written, %d lost, trouble %v", len(a.pending), told.written, told.lost, told.trouble)
	}
}

func TestAuditOnARealFullDisk(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has /dev/full")
	}
	var told auditTold
	a, err := Open(Config{Path: "/dev/full"}, told.hooks())
	if err != nil {
		t.Skip(err)
	}
	a.write(auditExample(1))
	a.write(auditExample(2))
	a.Close()
	if told.lost != 2 || len(told.trouble) != 1 || !errors.Is(told.trouble[0], syscall.ENOSPC) {
		t.Errorf("told %+v", told)
	}
}

func TestAuditPathMustBeWritable(t *testing.T) {
	if _, err := Open(Config{Path: filepath.Join(t.TempDir(), "no", "such", "folder")}, Hooks{}); err == nil || !strings.HasPrefix(err.Error(), "audit log: open ") {
		t.Errorf("got %v", err)
	}
	a, err := Open(Config{Path: "-"}, Hooks{})
	if err != nil || a.out != io.Writer(os.Stdout) || a.Reopen() != nil || a.Close() != nil {
		t.Errorf("standard output: %v", err)
	}
}

func BenchmarkAudit(b *testing.B) {
	a, err := Open(Config{Path: filepath.Join(b.TempDir(), "audit.log")}, Hooks{})
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	ev := auditExample(1)
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			a.write(ev)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				a.write(ev)
			}
		})
	})
}

func (d *smallDisk) Write(p []byte) (int, error) {
	n := min(len(p), d.room)
	d.room -= n
	d.Buffer.Write(p[:n])
	if n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}
