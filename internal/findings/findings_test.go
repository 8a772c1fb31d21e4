package findings

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"apilet/internal/apitest"
)

var (
	alice = Client{User: "alice", Agent: "alice/1.0"}
	bob   = Client{User: "bob", Agent: "bob/1.0", Manager: "bob"}
)

// A world is a detector with a clock and a log.
type world struct {
	*Detector
	now  time.Time
	told []Finding
}

func newWorld() *world {
	w := &world{now: time.Unix(1_800_000_000, 0)}
	w.Detector = New(func(f Finding) { w.told = append(w.told, f) })
	return w
}

// every does something at equal distances for a while.
func (w *world) every(distance, total time.Duration, do func(i int) outcome) {
	for i := 0; i < int(total/distance); i++ {
		r := do(i)
		r.at = w.now
		w.observe(&r)
		if w.now = w.now.Add(distance); w.now.UnixMilli()%10_000 < distance.Milliseconds() {
			w.Sweep(w.now)
		}
	}
}

func (w *world) kinds() string {
	var kinds []string
	for _, f := range w.told {
		kind := f.Kind
		if f.Ended != nil {
			kind += " over"
		}
		kinds = append(kinds, kind)
	}
	return strings.Join(kinds, ", ")
}

func doc(replicas, rev int) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":"web","resourceVersion":"%d","managedFields":[{"time":"%d"}]},"spec":{"replicas":%d,"other":true},"status":{"seen":%d}}`, rev, rev, replicas, rev)
}

func update(who Client, from, to, rev int) outcome {
	return outcome{client: who, verb: "update", group: "apps", resource: "deployments", namespace: "shop", name: "web", code: 200, wrote: true,
		old: int64(rev - 1), new: int64(rev), was: doc(from, rev-1), is: doc(to, rev)}
}

// turns has two set replicas to 1 and to 2.
func turns(i int) outcome {
	if i%2 == 0 {
		return update(alice, 1, 2, i+10)
	}
	return update(bob, 2, 1, i+10)
}

// alike is turns by one, at so many addresses.
func alike(i, address int) outcome {
	r := turns(i)
	r.client, r.from = alice, fmt.Sprintf("10.0.0.%d:4711", address)
	return r
}

// large adds 700 KB to a document, of which a half is one text.
func large(doc []byte, letter string) []byte {
	list := strings.Repeat(`{"name":"x","value":"0123456789"},`, 10_000)
	return append(fmt.Appendf(nil, `{"data":{"text":"%s","list":[%s1]},`, strings.Repeat(letter, 350_000), list), doc[1:]...)
}

func get(who Client, name string) outcome {
	return outcome{client: who, verb: "get", resource: "pods", namespace: "shop", name: name, code: 200}
}

func TestFindings(t *testing.T) {
	t.Parallel()
	write := func(verb string, old, new int64, who Client) outcome {
		return outcome{client: who, verb: verb, resource: "configmaps", namespace: "shop", name: "c", code: 200, wrote: true, old: old, new: new}
	}
	comesAndGoes := func(i int) outcome {
		if i%2 == 0 {
			return write("create", 0, int64(i+5), alice)
		}
		return write("delete", int64(i+4), 0, bob)
	}
	random := rand.New(rand.NewPCG(17, 17))
	docs := [2][2][]byte{} // by replicas and text
	for replicas := range docs {
		docs[replicas] = [2][]byte{large(doc(replicas+1, 9), "x"), large(doc(replicas+1, 9), "y")}
	}
	larger := func(i int, text func(i int) int) outcome {
		r := turns(i)
		r.was, r.is = docs[i%2][text(i)], docs[(i+1)%2][text(i+1)]
		return r
	}
	for _, c := range []struct {
		name            string
		distance, total time.Duration
		do              func(i int) outcome
		want            string
		finding         func(f Finding) bool
	}{
		{"a fight", 500 * time.Millisecond, 20 * time.Second, turns, Fight, func(f Finding) bool {
			return len(f.Who) == 2 && f.Who[0] != f.Who[1] && slices.Equal(f.Paths, []string{".spec.replicas"}) && len(f.Revisions) == 3 && f.Objects[0] == "shop/web" &&
				len(f.Values) == 2 && string(f.Values[slices.Index(f.Who, alice)]) == "2" && string(f.Values[slices.Index(f.Who, bob)]) == "1" // as turns has them
		}},
		{"a slow fight", 10 * time.Second, 3 * time.Minute, turns, Fight, nil},
		{"two write their own parts", 100 * time.Millisecond, time.Minute, func(i int) outcome {
			if i%2 == 0 {
				return update(alice, 1, 1, i+10)
			}
			return update(bob, 1, 1, i+10)
		}, "", nil},
		{"one goes back and forth with itself", 100 * time.Millisecond, time.Minute, func(i int) outcome { return update(alice, i%2, (i+1)%2, i+10) }, "", nil},
		{"two of one program", 500 * time.Millisecond, 20 * time.Second, func(i int) outcome { return alike(i, i%2) }, Fight, func(f Finding) bool {
			return len(f.Who) == 2 && f.Who[0] == f.Who[1] && len(f.From) == 2 && strings.HasPrefix(f.String(), "two of alice (alice), at 10.0.0.") &&
				string(f.Values[slices.Index(f.From, "10.0.0.0:4711")]) == "2" && string(f.Values[slices.Index(f.From, "10.0.0.1:4711")]) == "1"
		}},
		{"one with two connections, one after the other", 100 * time.Millisecond, time.Minute, func(i int) outcome { return alike(i, i/2%2) }, "", nil},
		{"one with three connections", 100 * time.Millisecond, time.Minute, func(i int) outcome { return alike(i, i%3) }, "", nil},
		{"one with another connection each time", 100 * time.Millisecond, time.Minute, func(i int) outcome { return alike(i, i) }, "", nil},
		{"one with connections by chance", 100 * time.Millisecond, 10 * time.Minute, func(i int) outcome { return alike(i, random.IntN(2)) }, "", nil},
		{"a fight over a large object", time.Second, 2 * time.Minute, func(i int) outcome { return larger(i, func(int) int { return 0 }) }, Fight, func(f Finding) bool {
			return slices.Equal(f.Paths, []string{".spec.replicas"}) && len(f.Values) == 2 && len(f.Values[0]) == 1
		}},
		{"a fight over a long text", time.Second, 2 * time.Minute, func(i int) outcome { return larger(i, func(i int) int { return i % 2 }) }, Fight, func(f Finding) bool {
			return slices.Contains(f.Paths, ".data.text")
		}},
		{"two count", 100 * time.Millisecond, time.Minute, func(i int) outcome {
			r := update(alice, i, i+1, i+10)
			r.client = []Client{alice, bob}[i%2]
			return r
		}, "", nil},
		{"nothing is changed", 500 * time.Millisecond, time.Minute, func(int) outcome { return write("patch", 7, 7, alice) }, NoOp,
			func(f Finding) bool { return f.Revisions[0] == 7 && f.Times >= 3*noOpsHot && f.Verb == "patch" }},
		{"nothing is changed, of many", 100 * time.Millisecond, time.Minute, func(i int) outcome {
			r := write("patch", 7, 7, alice)
			r.name = fmt.Sprint(i % 100)
			return r
		}, NoOp, func(f Finding) bool { return len(f.Objects) >= 1 }},
		{"many are applied twice", 10 * time.Millisecond, 40 * time.Second, func(i int) outcome {
			r := write("patch", 7, 7, alice)
			r.name = fmt.Sprint(i)
			return r
		}, "", nil},
		{"dry runs", 100 * time.Millisecond, time.Minute, func(int) outcome { r := write("patch", 7, 7, alice); r.wrote = false; return r }, "", nil},
		{"conflicts", 500 * time.Millisecond, time.Minute, func(i int) outcome {
			return outcome{client: alice, verb: "update", resource: "configmaps", namespace: "shop", name: "c", code: 409, sent: int64(i/40 + 5)}
		}, Conflict, func(f Finding) bool { return f.Revisions[0] == 5 || f.Revisions[0] == 6 }},
		{"some conflicts", 2 * time.Second, time.Minute, func(i int) outcome {
			return outcome{client: alice, verb: "update", resource: "configmaps", namespace: "shop", name: "c", code: 409}
		}, "", nil},
		{"reads", 100 * time.Millisecond, time.Minute, func(int) outcome { return get(alice, "p") }, Read, func(f Finding) bool { return f.Times > 150 }},
		{"reads for twenty seconds", 10 * time.Millisecond, 20 * time.Second, func(int) outcome { return get(alice, "p") }, "", nil},
		{"a leader election", 2 * time.Second, 5 * time.Minute, func(int) outcome { return get(alice, "lease") }, "", nil},
		{"reads of many", 10 * time.Millisecond, time.Minute, func(i int) outcome { return get(alice, fmt.Sprint(i%1000)) }, "", nil},
		{"lists", 400 * time.Millisecond, time.Minute, func(int) outcome {
			return outcome{client: bob, verb: "list", resource: "pods", selector: "app=x", code: 200}
		}, Read,
			func(f Finding) bool { return f.Selector == "app=x" }},
		{"watches", 500 * time.Millisecond, time.Minute, func(int) outcome {
			return outcome{client: bob, verb: "watch", resource: "pods", code: 200, took: time.Second}
		}, Watch, nil},
		{"long watches", 500 * time.Millisecond, time.Minute, func(int) outcome {
			return outcome{client: bob, verb: "watch", resource: "pods", code: 200, took: time.Minute}
		}, "", nil},
		{"what comes again", time.Second, time.Minute, comesAndGoes, Recreate, func(f Finding) bool { return f.Who[0] == alice && f.Who[1] == bob && len(f.Revisions) > 0 }},
		{"a test that creates and deletes", time.Second, time.Minute, func(i int) outcome { r := comesAndGoes(i); r.client = alice; return r }, "", nil},
		{"strangers", 10 * time.Millisecond, time.Minute, func(int) outcome { return get(Client{Agent: "x"}, "p") }, "", nil},
		{"too many requests", 10 * time.Millisecond, time.Minute, func(int) outcome { r := get(alice, "p"); r.code = 429; return r }, "", nil},
	} {
		w := newWorld()
		w.every(c.distance, c.total, c.do)
		if got := w.kinds(); got != c.want {
			t.Errorf("%s: found %q, want %q: %+v", c.name, got, c.want, w.told)
			continue
		}
		if c.want == "" {
			continue
		}
		if f := w.told[0]; c.finding != nil && !c.finding(f) || f.Since.After(f.Last) || len(f.Who) == 0 {
			t.Errorf("%s: %+v", c.name, f)
		}
		if counts := w.counts(); counts[c.want] != 1 || len(counts) != len(kinds) {
			t.Errorf("%s: %v are active", c.name, counts)
		}
		if list := w.list(); len(list) != 1 || list[0].Times < w.told[0].Times || list[0].Ended != nil {
			t.Errorf("%s: %+v", c.name, list)
		}
		w.every(time.Second, 2*time.Minute, func(int) outcome { return get(bob, "another") })
		if got := w.kinds(); got != c.want+", "+c.want+" over" {
			t.Errorf("%s: told at the end: %q", c.name, got)
		}
		if list := w.list(); len(list) != 1 || list[0].Ended == nil || w.counts()[c.want] != 0 {
			t.Errorf("%s: %+v", c.name, list)
		}
		w.every(c.distance, c.total, c.do)
		if got := w.kinds(); got != c.want+", "+c.want+" over, "+c.want {
			t.Errorf("%s: told when it comes again: %q", c.name, got)
		}
	}
}

// TestFightOverASecret: that a value went back and forth is found, and the value not told.
func TestFightOverASecret(t *testing.T) {
	t.Parallel()
	w := newWorld()
	w.every(time.Second, 30*time.Second, func(i int) outcome {
		values := []string{"b2xk", "bmV3"}
		body := func(i int) []byte {
			return fmt.Appendf(nil, `{"metadata":{"name":"s"},"data":{"p":"%s"}}`, values[i%2])
		}
		return outcome{client: []Client{alice, bob}[i%2], verb: "update", resource: "secrets", namespace: "shop", name: "s", code: 200, wrote: true,
			old: int64(i + 1), new: int64(i + 2), was: body(i), is: body(i + 1)}
	})
	if w.kinds() != Fight || w.told[0].Paths[0] != ".data.p" || string(w.told[0].Values[0]) != `"***"` || string(w.told[0].Values[1]) != `"***"` {
		t.Errorf("%+v", w.told)
	}
}

// TestAFightInACrowd: while a thousand objects are written each second, a fight once a second is found.
func TestAFightInACrowd(t *testing.T) {
	t.Parallel()
	w := newWorld()
	random := rand.New(rand.NewPCG(1, 2))
	w.every(time.Millisecond, 30*time.Second, func(i int) outcome {
		if i%1000 == 0 {
			return turns(i / 1000)
		}
		r := update(alice, 1, i, i+10)
		r.name = fmt.Sprint(random.IntN(20_000))
		return r
	})
	if w.kinds() != Fight {
		t.Errorf("told %q", w.kinds())
	}
}

// TestFindingsAreBounded: names without end, of everything, come to no more memory than is promised.
func TestFindingsAreBounded(t *testing.T) { // not parallel: what it measures is the process's
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	w := newWorld()
	w.Detector.report = func(Finding) {}
	long := strings.Repeat("x", 1_000)
	for i := range 60_000 {
		w.now = w.now.Add(time.Millisecond)
		r := turns(i)
		switch i % 5 {
		case 1:
			r = get(alice, "p")
		case 2:
			r = outcome{client: bob, verb: "watch", resource: "pods", code: 200}
		}
		r.name = fmt.Sprint(i/2%500, long)
		r.client.Agent += long
		r.at = w.now
		w.observe(&r)
	}
	if used := int64(heap()) - int64(before); used > 1<<20 {
		t.Errorf("%d bytes are used", used)
	} else {
		t.Logf("%d bytes, %d findings", used, len(w.list()))
	}
	if len(w.active) > activeMax || len(w.suspects) > suspectsMax {
		t.Errorf("%d findings, %d suspects", len(w.active), len(w.suspects))
	}
	runtime.KeepAlive(w)
}

// TestLargeObjectsAreNarrowed: what is left of two versions has the same differences, as paths, and little else; nothing that is masked is shown.
func TestLargeObjectsAreNarrowed(t *testing.T) {
	t.Parallel()
	d := New(nil)
	pad := `"pad":{"long":"` + strings.Repeat("x", 10_000) + `"},`
	for _, c := range []struct{ was, is, wantWas, wantIs string }{
		{`{"a":1,` + pad + `"b":{"c":2,"d":3}}`, `{"a":1,` + pad + `"b":{"c":2,"d":4}}`, `{"b":{"d":3}}`, `{"b":{"d":4}}`},
		{`{` + pad + `"a":1}`, `{` + pad + `"b":2}`, `{"a":1}`, `{"b":2}`},
		{`{"metadata":{"managedFields":[1],"name":"x"},"a":{}}`, `{"metadata":{"managedFields":[2],"name":"x"},"a":[]}`, `{"metadata":{},"a":{}}`, `{"metadata":{},"a":[]}`},
		{`{"l":[1,2]}`, `{"l":[1,3]}`, `{"l":[1,2]}`, `{"l":[1,3]}`},
		{`{}`, `{"metadata":{"managedFields":[1]}}`, `{}`, `{"metadata":{"managedFields":[1]}}`},
	} {
		if was, is := d.narrow([]byte(c.was), []byte(c.is)); string(was) != c.wantWas || string(is) != c.wantIs {
			t.Errorf("%.60s %.60s: %s %s", c.was, c.is, was, is)
		}
	}
	long := `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"hidden` + strings.Repeat("x", 10_000) + `"}}}`
	if was, is := d.narrow([]byte(long), []byte(`{"metadata":{}}`)); strings.Contains(string(was)+string(is), "hidden") || len(was) > 200 {
		t.Errorf("%s %s", was, is)
	}
	var many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, `"k%d":"v%d",`, i, i)
	}
	if was, is := d.narrow([]byte(`{`+many.String()+`"a":1}`), []byte(`{"a":1}`)); was != nil || is != nil {
		t.Errorf("%d and %d bytes are left", len(was), len(is))
	}
}

func FuzzObserve(f *testing.F) {
	f.Add("update", "web", 200, int64(1), int64(2), `{"a":1}`, `{"a":2}`, uint8(3))
	f.Add("delete", "", 409, int64(0), int64(0), ``, `[`, uint8(0))
	f.Fuzz(func(t *testing.T, verb, name string, code int, old, new int64, was, is string, times uint8) {
		w := newWorld()
		w.every(time.Second, time.Duration(times)*time.Second, func(i int) outcome {
			r := outcome{client: []Client{alice, bob}[i%2], verb: verb, resource: "x", name: name, code: code, wrote: true, old: old, new: new, was: []byte(was), is: []byte(is)}
			if i%2 == 0 {
				r.was, r.is = r.is, r.was
			}
			return r
		})
		if len(w.list()) > 1 && w.counts()[Fight] > 1 {
			t.Fatalf("%+v", w.list())
		}
	})
}

// BenchmarkObserve is what a write costs where each is of another object, and where two fight over all of them at a thousand writes a second.
func BenchmarkObserve(b *testing.B) {
	names := make([]string, 4096)
	for i := range names {
		names[i] = fmt.Sprint("web-", i)
	}
	b.Run("writes", func(b *testing.B) {
		b.ReportAllocs()
		defer apitest.ProcessorTime(b)()
		w := newWorld()
		r := turns(0)
		for i := 0; b.Loop(); i++ {
			r.at, r.name, r.new = w.now.Add(time.Duration(i)*time.Millisecond), names[i%len(names)], int64(i+10)
			w.observe(&r)
		}
	})
	b.Run("fights", func(b *testing.B) {
		b.ReportAllocs()
		defer apitest.ProcessorTime(b)()
		w := newWorld()
		both := []outcome{turns(0), turns(1)}
		pad := strings.Repeat(`,{"name":"x","value":"0123456789012345678901234567890123456789"}`, 30) // about 2 KB in all
		for i := range both {
			both[i].was = append([]byte(`{"pad":[1`+pad+`],`), both[i].was[1:]...)
			both[i].is = append([]byte(`{"pad":[1`+pad+`],`), both[i].is[1:]...)
		}
		for i := 0; b.Loop(); i++ {
			r := &both[i%2]
			r.at, r.name, r.new = w.now.Add(time.Duration(i)*time.Millisecond), names[i/2%16], int64(i+10)
			w.observe(r)
		}
	})
	b.Run("fights over a megabyte", func(b *testing.B) { // whose bytes cost more than they count
		b.ReportAllocs()
		defer apitest.ProcessorTime(b)()
		w := newWorld()
		both := []outcome{turns(0), turns(1)}
		for i := range both {
			both[i].was, both[i].is = large(both[i].was, "x"), large(both[i].is, "x")
		}
		for i := 0; b.Loop(); i++ {
			r := &both[i%2]
			r.at, r.name, r.new = w.now.Add(time.Duration(i)*time.Millisecond), names[i/2%16], int64(i+10)
			w.observe(r)
		}
	})
}
