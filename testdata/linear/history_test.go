package linear

// This file generates the histories. Several clients write to the same ConfigMaps while the server
// is killed and restarted. Watches must receive all writes. Rounds are short and use separate
// namespaces, because the check takes longer for longer histories.

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"apilet-harness"
	"apilet-harness/proxy"
	"apilet/apilettest"
)

const (
	clients     = 6
	watchers    = 3
	roundLength = 8 * time.Second
	// for a request that an idle machine serves immediately
	patience   = 90 * time.Second
	searchTime = 4 * time.Minute // it usually takes milliseconds
	// key of the object that marks the end of a round for the watchers
	lastKey = keys
)

// startApilet starts a server that stores the data in a file. The history is compacted every 20
// seconds.
func startApilet(t *testing.T, flags ...string) *apilettest.Server {
	t.Helper()
	return apilettest.Start(t, apilettest.Data(filepath.Join(t.TempDir(), "data")),
		apilettest.Flags(append([]string{"--compaction-interval", "20s"}, flags...)...))
}

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

func TestHistoriesAreLinearizable(t *testing.T) {
	length := 3 * roundLength
	if text := os.Getenv("LINEAR"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal("LINEAR:", err)
		}
	}
	s := startApilet(t)
	begin := time.Now()
	for n := 1; n == 1 || time.Since(begin)+roundLength/2 < length; n++ {
		r := &round{t: t, s: s, name: fmt.Sprint("round-", n), begin: time.Now()}
		r.play()
		if t.Failed() {
			return
		}
	}
}

// A round contains the history of a namespace.
type round struct {
	t       *testing.T
	s       *apilettest.Server
	more    []*apilettest.Server // using the same members
	moving  *moves               // nil if requests go to all servers
	members []*apilettest.Server // nil if the server has no etcd
	ways    [][]*proxy.Proxy     // from each server to each member
	// proxies in front of the members, for connections from other members
	between []*proxy.Proxy
	name    string
	begin   time.Time

	mu      sync.Mutex // guards the fields below
	history []porcupine.Operation
	lost    int
}

func (r *round) path(key int) string {
	path := "/api/v1/namespaces/" + r.name + "/configmaps"
	if key >= 0 {
		path += "/o" + strconv.Itoa(key)
	}
	return path
}

func (r *round) play() (lives int) {
	r.insist("/api/v1/namespaces", `{"metadata":{"name":"`+r.name+`"}}`)
	var watching, writing, killing sync.WaitGroup
	stories := make([][]event, watchers)
	since := r.listRev()
	for i := range stories {
		watching.Go(func() { stories[i] = r.watch(since) })
	}
	if r.moving != nil {
		for range watchers {
			r.moving.until.Add(1)
			go r.moving.follow(since)
		}
		defer func() {
			r.moving.until.Wait()
			for _, problem := range r.moving.judge(stories[0]) {
				r.t.Error(problem)
			}
		}()
	}
	over := make(chan struct{})
	for i := range clients {
		writing.Go(func() { r.fight(i, over) })
	}
	kill := r.restarts
	switch {
	case r.moving != nil:
		kill = r.moving.play
	case r.members != nil:
		kill = r.disturb
	}
	killing.Go(func() { lives = kill(over) })
	time.Sleep(r.length())
	close(over)
	killing.Wait()
	writing.Wait()
	r.insist(r.path(-1), r.body(lastKey, "last", "last", 0))
	ended := time.Since(r.begin).Nanoseconds()
	for i := range r.history {
		if op := &r.history[i]; r.members != nil && op.Output.(output).code == 0 {
			op.Return = ended
		}
	}
	watching.Wait()
	r.t.Logf("%s: %d requests, %d answers lost, %d disturbances, %d events", r.name, len(r.history), r.lost, lives, len(stories[0]))
	begin, history := time.Now(), settle(r.history, stories[0])
	switch porcupine.CheckOperationsTimeout(model(), history, searchTime) {
	case porcupine.Illegal:
		r.t.Errorf("%s: the history is not linearizable", r.name)
		r.show(history)
	case porcupine.Unknown:
		r.t.Errorf("%s: no verdict after %v", r.name, searchTime)
	}
	r.t.Logf("searched for %v", time.Since(begin).Round(time.Millisecond))
	for i, story := range stories {
		for _, problem := range judge(story, r.history) {
			r.t.Errorf("%s, watch %d: %s", r.name, i, problem)
		}
	}
	return lives
}

func (r *round) length() time.Duration {
	if r.moving != nil {
		return moveLength
	}
	return roundLength
}

// insist creates an object that the round requires.
func (r *round) insist(path, body string) {
	var code int
	var answer []byte
	var err error
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(10 * time.Millisecond) {
		code, answer, err = r.send("POST", path, body, "application/json")
		// an earlier attempt may have succeeded
		if err == nil && (code == 201 || code == 409 && r.members != nil) {
			return
		}
	}
	r.t.Fatal(code, string(answer), err)
}

// settle uses the events of a watch to determine the results of requests that received no response.
// Every write has a unique value. If there is an event, it was executed at that revision. It was
// never executed if there is no event before the last object of the round, which is created after
// all clients have finished. The history is invalid if such a value was read. Deletions remain
// open, because they have no value. (Each lost response doubles the search: with thirty open ones
// it took seconds and occasionally minutes.)
func settle(history []porcupine.Operation, story []event) (settled []porcupine.Operation) {
	told := map[string]event{} // by the value of p, which all writes set
	for _, ev := range story {
		if ev.kind != "DELETED" {
			told[ev.p] = ev
		}
	}
	for _, op := range history {
		in, out := op.Input.(input), op.Output.(output)
		if out.code == 0 && in.verb != remove {
			ev, ok := told[in.value]
			if !ok {
				continue
			}
			code := 200
			if in.verb == create {
				code = 201
			}
			op.Output = output{code: code, rev: ev.rev, cell: cell{true, ev.rev, ev.v, ev.p}}
		}
		settled = append(settled, op)
	}
	return settled
}

// show writes an invalid history to a file that a browser can display.
func (r *round) show(history []porcupine.Operation) {
	_, info := porcupine.CheckOperationsVerbose(model(), history, searchTime)
	file, err := os.CreateTemp("", "linear-*.html")
	if err == nil {
		err = errors.Join(porcupine.Visualize(model(), info, file), file.Close())
	}
	r.t.Log("see", file.Name(), err)
}

// restarts stops and starts the server until the round ends. Two of three stops are crashes.
func (r *round) restarts(over <-chan struct{}) (n int) {
	for {
		select {
		case <-over:
			return n
		case <-time.After(time.Duration(200+rand.IntN(1500)) * time.Millisecond):
		}
		how := syscall.SIGKILL
		if n++; n%3 == 0 {
			how = syscall.SIGTERM
		}
		r.s.Terminate(how)
		if err := r.s.Run(); err != nil {
			r.t.Error(err)
			return n
		}
	}
}

// ---- Clients ----

// An object contains the relevant fields of a ConfigMap.
type object struct {
	Metadata struct{ Name, ResourceVersion string }
	Data     struct{ V, P string }
}

func (o *object) rev() int64 {
	rev, _ := strconv.ParseInt(o.Metadata.ResourceVersion, 10, 64)
	return rev
}

func (o *object) key() int {
	key, _ := strconv.Atoi(strings.TrimPrefix(o.Metadata.Name, "o"))
	return key
}

func (o *object) cell() cell { return cell{there: true, rev: o.rev(), v: o.Data.V, p: o.Data.P} }

func (r *round) body(key int, v, p string, at int64) string {
	version := ""
	if at != 0 {
		version = fmt.Sprintf(`,"resourceVersion":"%d"`, at)
	}
	return fmt.Sprintf(`{"metadata":{"name":"o%d"%s},"data":{"v":"%s","p":"%s"}}`, key, version, v, p)
}

// fight sends random requests until the round ends.
func (r *round) fight(client int, over <-chan struct{}) {
	var seen [keys]int64 // resourceVersions, which other clients change
	for n := 0; ; n++ {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(rand.IntN(12)) * time.Millisecond):
		}
		in := input{key: rand.IntN(keys), value: fmt.Sprintf("c%d-%d", client, n)}
		in.verb = []verb{create, create, get, get, update, update, update, patch, patch, remove, list}[rand.IntN(11)]
		if in.verb == update {
			if in.at = seen[in.key]; in.at == 0 {
				in.verb = get
			}
		}
		out, ok := r.request(client, in)
		if !ok {
			continue
		}
		if out.cell.there {
			seen[in.key] = out.cell.rev
		}
		for key, c := range out.cells {
			if c.there {
				seen[key] = c.rev
			}
		}
	}
}

// request sends a request and records it. It ignores reads without a response and requests that
// could not be sent.
func (r *round) request(client int, in input) (out output, ok bool) {
	present := r.anyServer()
	op := porcupine.Operation{ClientId: client, Input: in, Call: time.Since(r.begin).Nanoseconds()}
	code, body, err := r.try(present, in)
	op.Return = time.Since(r.begin).Nanoseconds()
	var unsent *net.OpError
	switch {
	case err == nil && code >= 500 && r.members != nil && (in.verb == get || in.verb == list):
		return out, false
	case err == nil && code >= 500 && r.members != nil: // it may have been executed
	case err == nil:
		if out, err = answerOf(in, code, body); err != nil {
			r.t.Errorf("%s o%d: %v", in.verb, in.key, err)
			return out, false
		}
	case !r.died(present):
		r.t.Errorf("%s o%d: %v, and the server lives", in.verb, in.key, err)
		return out, false
	case in.verb == get || in.verb == list || errors.As(err, &unsent) && unsent.Op == "dial":
		return out, false
	default:
		// it cannot be executed later
		op.Return = max(op.Call+1, present.End.Sub(r.begin).Nanoseconds())
	}
	op.Output = out
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, op)
	if out.code == 0 {
		r.lost++
	}
	return out, true
}

// died waits until the server process has ended and the next process was started.
func (r *round) died(present *apilettest.Process) bool {
	select {
	case <-present.Done:
	case <-time.After(patience):
		return false
	}
	for _, s := range r.open() {
		for begin := time.Now(); s.Process() == present && time.Since(begin) < patience; {
			time.Sleep(time.Millisecond)
		}
	}
	return true
}

func (r *round) try(present *apilettest.Process, in input) (code int, body []byte, err error) {
	const asJSON, asMerge = "application/json", "application/merge-patch+json"
	switch in.verb {
	case create:
		return exchange(present, "POST", r.path(-1), r.body(in.key, in.value, in.value, 0), asJSON)
	case update:
		return exchange(present, "PUT", r.path(in.key), r.body(in.key, in.value, in.value, in.at), asJSON)
	case patch:
		return exchange(present, "PATCH", r.path(in.key), `{"data":{"p":"`+in.value+`"}}`, asMerge)
	case remove:
		return exchange(present, "DELETE", r.path(in.key), "", asJSON)
	case get:
		return exchange(present, "GET", r.path(in.key), "", "")
	}
	return exchange(present, "GET", r.path(-1), "", "")
}

var client = &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * clients, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// ask sends a request without a timeout.
func ask(present *apilettest.Process, path string) (*http.Response, error) {
	request, err := http.NewRequest("GET", present.URL()+path, nil)
	if err != nil {
		return nil, err
	}
	authorize(request)
	return client.Transport.RoundTrip(request)
}

// authorize adds the token that is required by a kube-apiserver.
func authorize(r *http.Request) {
	if r.URL.Scheme == "https" {
		r.Header.Set("Authorization", "Bearer "+harness.Token)
	}
}

func exchange(present *apilettest.Process, method, path, body, contentType string) (int, []byte, error) {
	request, err := http.NewRequest(method, present.URL()+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", contentType)
	authorize(request)
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// send sends a request outside of the fights.
func (r *round) send(method, path, body, contentType string) (int, []byte, error) {
	return exchange(r.s.Process(), method, path, body, contentType)
}

// answerOf parses a response. The model decides whether a status code is valid.
func answerOf(in input, code int, body []byte) (out output, err error) {
	out.code = code
	switch {
	case code >= 300 && code != 404 && code != 409:
		return out, fmt.Errorf("%d %s", code, body)
	case in.verb == list:
		l, err := listOf(body)
		for _, o := range l.Items {
			if key := o.key(); key < keys {
				out.cells[key] = o.cell()
			}
		}
		out.rev = l.rev()
		return out, err
	case code >= 300 || in.verb == remove:
		return out, nil
	}
	var o object
	err = json.Unmarshal(body, &o)
	out.cell, out.rev = o.cell(), o.rev()
	return out, err
}

// An objectList contains the relevant fields of a list.
type objectList struct {
	object
	Items []object
}

func listOf(body []byte) (l objectList, err error) {
	err = json.Unmarshal(body, &l)
	return l, err
}

func (r *round) listRev() int64 {
	code, body, err := r.send("GET", r.path(-1), "", "")
	for begin := time.Now(); err == nil && code >= 500 && time.Since(begin) < patience; {
		code, body, err = r.send("GET", r.path(-1), "", "")
	}
	if err != nil {
		r.t.Fatal(err)
	}
	l, err := listOf(body)
	if err != nil {
		r.t.Fatal(err)
	}
	return l.rev()
}

// ---- Watches ----

// An event is received from a watch.
type event struct {
	kind string
	key  int
	rev  int64
	v, p string
}

// watch follows the round from a revision to its last object, across all restarts.
func (r *round) watch(since int64) (story []event) {
	for begin := time.Now(); time.Since(begin) < roundLength+2*patience; time.Sleep(time.Millisecond) {
		response, err := http.Get(fmt.Sprintf("%s%s?watch=1&resourceVersion=%d", r.witness().URL(), r.path(-1), since))
		if err != nil {
			continue
		}
		// 429: the server is stopping
		if code := response.StatusCode; code == 429 || code >= 500 && r.members != nil {
			response.Body.Close()
			continue
		}
		lines := bufio.NewReader(response.Body)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				break
			}
			ev, err := eventOf(line)
			if errors.Is(err, errBehind) && r.members != nil {
				break
			}
			if err != nil {
				response.Body.Close()
				r.t.Errorf("a watch at %d: %v", since, err)
				return story
			}
			if ev.key == lastKey {
				response.Body.Close()
				return story
			}
			story, since = append(story, ev), ev.rev
		}
		response.Body.Close()
	}
	r.t.Error("a watch has not come to the round's end")
	return story
}

var (
	errRefused = errors.New("the watch is refused")
	// the server may not have received it in time
	errBehind  = errors.New("the revision has not come to this server yet")
	errExpired = errors.New("the revision is too old")
)

func eventOf(line []byte) (ev event, err error) {
	var frame struct {
		Type   string
		Object struct {
			object
			Code int // of a Status
		}
	}
	err = json.Unmarshal(line, &frame)
	if err == nil && frame.Type == "ERROR" {
		switch err = errRefused; frame.Object.Code {
		case http.StatusGatewayTimeout:
			err = errBehind
		case http.StatusGone:
			err = errExpired
		}
	}
	if err != nil {
		return ev, fmt.Errorf("%s, %w", bytes.TrimSpace(line), err)
	}
	o := &frame.Object
	return event{frame.Type, o.key(), o.rev(), o.Data.V, o.Data.P}, nil
}

// judge compares the events with the responses. There must be exactly one event for every
// acknowledged write, in the order of the revisions, and no other events.
func judge(story []event, history []porcupine.Operation) (problems []string) {
	told := map[int64]event{}
	cells := [keys]cell{}
	for i, ev := range story {
		if i > 0 && ev.rev <= story[i-1].rev {
			problems = append(problems, fmt.Sprintf("%+v comes after %d", ev, story[i-1].rev))
		}
		told[ev.rev] = ev
		was, fits := cells[ev.key], false
		switch ev.kind {
		case "ADDED":
			fits = !was.there
		case "MODIFIED":
			fits = was.there
		case "DELETED":
			fits = was.there && was.v == ev.v && was.p == ev.p
		}
		if !fits {
			problems = append(problems, fmt.Sprintf("%+v comes when there is %+v", ev, was))
		}
		cells[ev.key] = cell{there: ev.kind != "DELETED", rev: ev.rev, v: ev.v, p: ev.p}
	}
	return append(problems, judgeWrites(told, story, history)...)
}

func judgeWrites(told map[int64]event, story []event, history []porcupine.Operation) (problems []string) {
	written := map[string]bool{}
	deletes, maybe := [keys]int{}, [keys]int{}
	for _, op := range history {
		in, out := op.Input.(input), op.Output.(output)
		written[in.value] = true
		switch {
		case in.verb == remove && out.code == 200:
			deletes[in.key]++
		case in.verb == remove && out.code == 0:
			maybe[in.key]++
		case in.verb != get && in.verb != list && out.code/100 == 2:
			if ev := told[out.rev]; ev.key != in.key || ev.v != out.cell.v || ev.p != out.cell.p || ev.kind == "DELETED" {
				problems = append(problems, fmt.Sprintf("%+v was acknowledged with %+v, and told is %+v", in, out.cell, ev))
			}
		}
	}
	for _, ev := range story {
		if !written[ev.v] || !written[ev.p] {
			problems = append(problems, fmt.Sprintf("nobody wrote %+v", ev))
		}
		if ev.kind == "DELETED" {
			deletes[ev.key]--
		}
	}
	for key := range deletes {
		if deletes[key] > 0 || -deletes[key] > maybe[key] {
			problems = append(problems, fmt.Sprintf("o%d: %d deletes were acknowledged and not told; %d answers were lost", key, deletes[key], maybe[key]))
		}
	}
	return problems
}

func TestLostAnswersAreFoundInTheStory(t *testing.T) {
	lost := func(v verb, value string, at int64, call int64) porcupine.Operation {
		return porcupine.Operation{Input: input{verb: v, value: value, at: at}, Output: output{}, Call: call, Return: 100}
	}
	read := porcupine.Operation{Input: input{verb: get}, Output: output{code: 200, cell: cell{true, 6, "a", "b"}}, Call: 20, Return: 30}
	history := []porcupine.Operation{lost(create, "a", 0, 1), lost(patch, "b", 0, 2), lost(update, "never", 5, 3), lost(remove, "gone", 0, 40), read}
	story := []event{{"ADDED", 0, 5, "a", "a"}, {"MODIFIED", 0, 6, "a", "b"}, {"DELETED", 0, 7, "a", "b"}}
	settled := settle(history, story)
	if len(settled) != 4 || settled[0].Output.(output) != (output{code: 201, rev: 5, cell: cell{true, 5, "a", "a"}}) ||
		settled[1].Output.(output) != (output{code: 200, rev: 6, cell: cell{true, 6, "a", "b"}}) || settled[2].Output.(output).code != 0 {
		t.Errorf("settled is %+v", settled)
	}
	if !porcupine.CheckOperations(model(), settled) {
		t.Error("what happened is refused")
	}
	if porcupine.CheckOperations(model(), settle(history, story[:1])) {
		t.Error("a write was read that no watch told")
	}
}

// TestStoriesWithGapsAreRefused checks that judge detects errors.
func TestStoriesWithGapsAreRefused(t *testing.T) {
	wrote := func(v verb, value string, code int, c cell) porcupine.Operation {
		return porcupine.Operation{Input: input{verb: v, value: value}, Output: output{code: code, rev: c.rev, cell: c}}
	}
	history := []porcupine.Operation{wrote(create, "a", 201, cell{true, 5, "a", "a"}), wrote(patch, "b", 200, cell{true, 6, "a", "b"}),
		wrote(remove, "c", 200, cell{}), wrote(create, "d", 0, cell{})}
	story := []event{{"ADDED", 0, 5, "a", "a"}, {"MODIFIED", 0, 6, "a", "b"}, {"DELETED", 0, 7, "a", "b"}, {"ADDED", 0, 8, "d", "d"}}
	if problems := judge(story, history); problems != nil {
		t.Errorf("the whole story: %v", problems)
	}
	if problems := judge(story[:3], history); problems != nil {
		t.Errorf("the lost answer did not happen: %v", problems)
	}
	for i := range 3 {
		if judge(slices.Delete(slices.Clone(story), i, i+1), history) == nil {
			t.Errorf("event %d may be missing", i)
		}
	}
	for i := range story {
		if judge(slices.Insert(slices.Clone(story), i, story[i]), history) == nil {
			t.Errorf("event %d may be there twice", i)
		}
	}
	foreign := slices.Clone(story)
	foreign[3].v = "x"
	if judge(foreign, history) == nil {
		t.Error("what nobody wrote may be told")
	}
}
