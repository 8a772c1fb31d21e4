package torture

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"apilet/internal/apitest"
	"apilet/internal/request"
)

// What kube-apiserver 1.36 answers, which was asked with a policy, a webhook and quotas of these names.
func TestRefusalsAreInKubeAPIServersWords(t *testing.T) {
	t.Parallel()
	const hook = `failed calling webhook \"gate.apilet.dev\": failed to call webhook: Post \"https://gate.apilet.svc:443/gate?timeout=10s\": ` +
		`dial tcp 10.96.0.99:443: connect: connection refused`
	const policy = `ValidatingAdmissionPolicy 'gate.apilet.dev' with binding 'gate' denied request: failed expression: false`
	p := &passed{name: "web", info: request.Info{Verb: "create", Group: "apps", Resource: "deployments", Namespace: "x"}}
	for want, no := range map[string]*refusal{
		`{"apiVersion":"v1","code":500,"details":{"causes":[{"message":"` + hook + `"}]},"kind":"Status","message":"Internal error occurred: ` + hook +
			`","metadata":{},"reason":"InternalError","status":"Failure"}`: failedWebhook(p),
		`{"apiVersion":"v1","code":422,"details":{"causes":[{"message":"` + policy + `"}],"group":"apps","kind":"deployments","name":"web"},"kind":"Status",` +
			`"message":"deployments.apps \"web\" is forbidden: ` + policy + `","metadata":{},"reason":"Invalid","status":"Failure"}`: deniedByPolicy(p),
		`{"apiVersion":"v1","code":403,"details":{"group":"apps","kind":"deployments","name":"web"},"kind":"Status","message":"deployments.apps \"web\" is forbidden: ` +
			`exceeded quota: gate, requested: count/deployments.apps=1, used: count/deployments.apps=7, limited: count/deployments.apps=7",` +
			`"metadata":{},"reason":"Forbidden","status":"Failure"}`: exceededQuota(p),
	} {
		w := httptest.NewRecorder()
		no.write(w)
		if got := strings.TrimSpace(w.Body.String()); got != want || w.Code != no.code {
			t.Errorf("%d\n got %s\nwant %s", w.Code, got, want)
		}
	}
}

// runOf is a run of a plan against a server that has one object, which it changes and deletes as it is told.
func runOf(t *testing.T, plan Plan, object string) (*run, *[]string) {
	t.Helper()
	var mu sync.Mutex
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if r.Method != "GET" {
			asked = append(asked, r.Method+" "+r.URL.Path+" "+string(body))
		}
		if r.Method == "DELETE" {
			object = ""
		}
		if r.Method == "POST" {
			object = string(body)
		}
		if object == "" && r.Method != "DELETE" {
			w.WriteHeader(404)
		}
		fmt.Fprint(w, object)
	}))
	t.Cleanup(s.Close)
	r := &run{cfg: &Config{Patience: time.Minute}, plan: &plan, server: &server{url: s.URL, client: s.Client()}, record: newRecord(0, nil), out: &outcome{}}
	return r, &asked
}

func TestRefusalsLastAWhile(t *testing.T) {
	t.Parallel()
	r, _ := runOf(t, Plan{Kind: refused, Detail: quotaFull, Write: "create pods x/a", Nth: 1}, "")
	tricks := r.tricks()
	first := &passed{what: "create pods x/a", nth: 1, writes: true, info: request.Info{Verb: "create", Resource: "pods"}}
	second := &passed{what: "create pods x/b", nth: 1, writes: true, info: request.Info{Verb: "create", Resource: "pods"}}
	other := &passed{what: "update pods x/b", nth: 1, writes: true, info: request.Info{Verb: "update", Resource: "pods"}}
	if tricks.before(second) != nil || tricks.before(first) == nil || tricks.before(second) == nil || tricks.before(other) != nil || r.isQuiet() {
		t.Error("not what is of the kind is refused, and nothing else")
	}
	apitest.WaitFor(t, "there is room again", func() bool { return r.pending.Load() == 0 && tricks.before(first) == nil })
}

func TestBookmarksAreOfWhatWasShown(t *testing.T) {
	t.Parallel()
	r, _ := runOf(t, Plan{Kind: bookmarks, Resource: "pods"}, "")
	tricks := r.tricks()
	frameOf := func(kind, rev string) frame {
		return frame{raw: json.RawMessage(fmt.Sprintf(`{"type":%q,"object":{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":%q}}}`, kind, rev))}
	}
	watch := request.Info{Verb: "watch", Resource: "pods"}
	initial := &passed{info: watch, query: "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersion="}
	for _, f := range []frame{frameOf("ADDED", "9"), frameOf("ADDED", "3"), frameOf("BOOKMARK", "12")} {
		if h := tricks.frame(initial, f); h.cut || h.first != nil {
			t.Errorf("first objects are held: %+v", h)
		}
	}
	if h := tricks.frame(&passed{info: watch, query: "resourceVersion=5"}, frameOf("ADDED", "13")); h.cut {
		t.Error("who takes no bookmarks gets some")
	}
	h := tricks.frame(initial, frameOf("MODIFIED", "14"))
	want := `{"object":{"apiVersion":"v1","kind":"Pod","metadata":{"creationTimestamp":null,"resourceVersion":"12"}},"type":"BOOKMARK"}`
	if string(h.first) != want || h.wait == nil || !h.cut {
		t.Errorf("%s %v", h.first, h.cut)
	}
	<-h.wait
	if h := tricks.frame(initial, frameOf("MODIFIED", "15")); h.cut {
		t.Error("a second time")
	}
}

func TestWhatIsHeldIsLetGo(t *testing.T) {
	t.Parallel()
	r, asked := runOf(t, Plan{Kind: held, Write: "delete pods x/a", Nth: 1}, `{"metadata":{"resourceVersion":"7","finalizers":["theirs","apilet.dev/held"]}}`)
	r.tricks().before(&passed{what: "delete pods x/a", nth: 1, writes: true, info: request.Info{Verb: "delete", Version: "v1", Resource: "pods", Namespace: "x", Name: "a"}})
	apitest.WaitFor(t, "the finalizer is taken off", func() bool { return r.pending.Load() == 0 })
	if got := strings.Join(*asked, "\n"); got != `PATCH /api/v1/namespaces/x/pods/a {"metadata":{"finalizers":["theirs","apilet.dev/held","apilet.dev/held"],"resourceVersion":"7"}}
PATCH /api/v1/namespaces/x/pods/a {"metadata":{"finalizers":["theirs"],"resourceVersion":"7"}}` {
		t.Error(got)
	}
}

func TestWhatIsMadeAgainIsAsItsUserMadeIt(t *testing.T) {
	t.Parallel()
	r, asked := runOf(t, Plan{}, `{"kind":"Nest","metadata":{"name":"n","uid":"u","resourceVersion":"7","labels":{"a":"b"},"finalizers":["theirs"]},"spec":{"eggs":2},"status":{"eggs":2}}`)
	if err := r.remake(context.Background(), "/apis/zoo/v1/namespaces/x/nests/n"); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(*asked, "\n"); got != "DELETE /apis/zoo/v1/namespaces/x/nests/n \n"+
		`POST /apis/zoo/v1/namespaces/x/nests {"kind":"Nest","metadata":{"labels":{"a":"b"},"name":"n"},"spec":{"eggs":2}}` {
		t.Error(got)
	}
}

func TestLabelsArePutBack(t *testing.T) {
	t.Parallel()
	r, asked := runOf(t, Plan{Kind: unlabelled, Object: "configmaps x/a"}, `{"metadata":{"resourceVersion":"7","labels":{"a":"b"}}}`)
	r.record.add((&teller{}).tell("ADDED", "c", "x/a", "{}").lines[0])
	r.tricks()
	if err := r.afterward(context.Background()); err != nil || !r.reached.Load() {
		t.Fatal(err)
	}
	if got := strings.Join(*asked, "\n"); got != `PATCH /api/v1/namespaces/x/configmaps/a {"metadata":{"labels":null,"resourceVersion":"7"}}
PATCH /api/v1/namespaces/x/configmaps/a {"metadata":{"labels":{"a":"b"},"resourceVersion":"7"}}` {
		t.Error(got)
	}
}

func TestPatienceEndsWithAControllerThatGoesInCirclesWhileEventsAreLate(t *testing.T) {
	t.Parallel()
	r, _ := runOf(t, Plan{Kind: slow, Resource: "pods"}, "")
	r.cfg.Patience = time.Millisecond
	r.replicas = []*replica{{&door{}, &controller{}}}
	r.lagging.Add(1) // and there is always one more
	if r.settle(context.Background(), nil) {
		t.Error("quiet, while an event is held back")
	}
}
