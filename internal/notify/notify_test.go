package notify

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"apilet/internal/apitest"
	"apilet/internal/store"
)

func TestMain(m *testing.M) { apitest.Main(m) }

// open is an empty store, with a notifier that runs.
func open(t *testing.T) (*store.Store, *Notifier, chan struct{}) {
	t.Helper()
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	n, stopping := New(st), make(chan struct{})
	go n.Run(stopping)
	t.Cleanup(func() {
		n.Close()
		st.Close()
	})
	return st, n, stopping
}

// write makes an object with a label and a field, or changes the version rev of it, or deletes that (no value), and returns its revision.
func write(st *store.Store, key string, rev int64, value string) (int64, error) {
	head := `{"metadata":{"resourceVersion":"`
	doc := head + `","labels":{"app.kubernetes.io/name":"` + value + `","other":"x"}},"spec":{"nodeName":"` + value + `"}}`
	c := store.Change{Op: store.OpCreate, Key: key, JSON: []byte(doc), RevAt: len(head)}
	switch {
	case rev != 0 && value == "":
		c.Op, c.Expect, c.JSON = store.OpDelete, rev, []byte(head+`"}}`)
	case rev != 0:
		c.Op, c.Expect = store.OpUpdate, rev
	}
	rec, err := st.Commit(context.Background(), c)
	return rec.Rev, err
}

// writeMuch writes more than the log keeps in memory.
func writeMuch(t *testing.T, st *store.Store, key string) int64 {
	t.Helper()
	rev, err := write(st, key, 0, "n1")
	if err != nil {
		t.Fatal(err)
	}
	for range 60 {
		if rev, err = write(st, key, rev, strings.Repeat("much", 25_000)); err != nil {
			t.Fatal(err)
		}
	}
	return rev
}

// concerns says the same as the index, in plain words.
func (in *Interest) concerns(ev *store.Event) bool {
	if !strings.HasPrefix(ev.Key, in.Span) {
		return false
	}
	has := func(json []byte) bool {
		switch {
		case json == nil:
			return false
		case in.Label != "":
			label := gjson.GetBytes(json, "metadata.labels").Map()[in.Label]
			return label.Exists() && label.String() == in.Value
		case in.Field != "":
			return gjson.GetBytes(json, in.Field).String() == in.Value
		}
		return true
	}
	return has(ev.JSON) || has(ev.Prev)
}

// A follower does what a watch does.
type follower struct {
	sub   *Subscription
	want  Interest
	rings atomic.Int64
	saw   []int64 // revisions
}

func (f *follower) run(ctx context.Context, st *store.Store, pos int64) error {
	for {
		newest := st.Revision()
		events, upTo, err := st.Events(f.want.Resource, pos, 0, nil)
		if err != nil {
			return err
		}
		for i := range events {
			if f.want.concerns(&events[i]) {
				f.saw = append(f.saw, events[i].Rev)
			}
		}
		if pos = upTo; pos < newest { // one call returns a limited number of events
			continue
		}
		f.sub.MarkIdle(pos)
		select {
		case <-f.sub.C:
			f.rings.Add(1)
		case <-ctx.Done():
			return nil
		}
		pos = max(pos, f.sub.QuietRevision())
	}
}

const pods = "//pods/"

func interests() []Interest {
	list := []Interest{{Resource: pods, Span: pods}, {Resource: "//nodes/", Span: "//nodes/"}}
	for _, namespace := range []string{"a/", "b/", "ab/"} {
		list = append(list, Interest{Resource: pods, Span: pods + namespace}, Interest{Resource: pods, Span: pods + namespace + "p1"})
	}
	for _, value := range []string{"", "n1", "n2"} {
		list = append(list, Interest{Resource: pods, Span: pods, Field: "spec.nodeName", Value: value},
			Interest{Resource: pods, Span: pods + "a/", Field: "spec.nodeName", Value: value},
			Interest{Resource: pods, Span: pods, Label: "app.kubernetes.io/name", Value: value},
			Interest{Resource: pods, Span: pods + "b/", Label: "app.kubernetes.io/name", Value: value})
	}
	return list
}

// Whatever is written, each follower sees what concerns it, once and in order; and who is concerned by nothing is not woken.
func TestFollowersSeeWhatConcernsThem(t *testing.T) {
	t.Parallel()
	st, n, _ := open(t)
	untouched := Interest{Resource: pods, Span: pods + "nobody/"}
	absent := Interest{Resource: pods, Span: pods, Label: "app.kubernetes.io/name", Value: "absent"}
	var followers []*follower
	for _, want := range append(slices.Concat(interests(), interests()), untouched, absent) {
		followers = append(followers, &follower{sub: n.Subscribe(want), want: want})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running, writing sync.WaitGroup
	for _, f := range followers {
		running.Go(func() {
			if err := f.run(ctx, st, 0); err != nil {
				t.Error(err)
			}
		})
	}
	for _, resource := range []string{pods, "//nodes/"} {
		for _, namespace := range []string{"a/", "b/", "ab/", "c/"} {
			writing.Go(func() {
				random, revs := rand.New(rand.NewPCG(1, uint64(len(resource+namespace)))), map[string]int64{}
				for range 200 {
					key := fmt.Sprint(resource, namespace, "p", random.IntN(3))
					value := []string{"", "n1", "n2", "n3"}[random.IntN(4)]
					rev, err := write(st, key, revs[key], value)
					if err != nil {
						t.Error(key, err)
						return
					}
					if revs[key] != 0 && value == "" {
						rev = 0
					}
					revs[key] = rev
				}
			})
		}
	}
	writing.Wait()
	for _, f := range followers {
		apitest.WaitFor(t, "a follower to come to the end", func() bool { return f.sub.Progress() == st.Revision() })
	}
	cancel()
	running.Wait()
	all, _, err := st.Events(store.Everything, 0, 1<<20, nil)
	if err != nil || len(all) < 1000 {
		t.Fatal(len(all), err)
	}
	for _, f := range followers {
		var want []int64
		for i := range all {
			if strings.HasPrefix(all[i].Key, f.want.Resource) && f.want.concerns(&all[i]) {
				want = append(want, all[i].Rev)
			}
		}
		if !slices.Equal(f.saw, want) {
			t.Errorf("%+v: saw %d events, not %d", f.want, len(f.saw), len(want))
		}
		if len(want) == 0 && f.rings.Load() != 0 {
			t.Errorf("%+v: rung %d times for nothing", f.want, f.rings.Load())
		}
		f.sub.Close()
	}
	if len(n.spans) != 0 || len(n.facets) != 0 {
		t.Errorf("left behind: %v, %v", slices.Collect(maps.Keys(n.spans)), n.facets)
	}
}

// One that has slept while the log was written elsewhere, and compacted, reads on where its own place has news.
func TestSleepersOutliveCompaction(t *testing.T) {
	t.Parallel()
	st, n, _ := open(t)
	maintenance, err := store.NewMaintenance(st)
	if err != nil {
		t.Fatal(err)
	}
	sub := n.Subscribe(Interest{Resource: pods, Span: pods + "a/"})
	defer sub.Close()
	pos := st.Revision()
	sub.MarkIdle(pos)
	rev := writeMuch(t, st, pods+"b/p")
	apitest.WaitFor(t, "the notifier to come to the end", func() bool { return sub.Progress() == rev })
	if _, err := maintenance.Compact(context.Background(), rev); err != nil {
		t.Fatal(err)
	}
	if len(sub.C) != 0 {
		t.Error("rung for what happens elsewhere")
	}
	first, err := write(st, pods+"a/p", 0, "n1")
	if err != nil {
		t.Fatal(err)
	}
	<-sub.C
	if quiet := sub.QuietRevision(); quiet != first-1 {
		t.Errorf("quiet up to %d, not %d", quiet, first-1)
	}
	if at := sub.Progress(); at != pos {
		t.Errorf("awake it is at %d, not %d", at, pos)
	}
	events, upTo, err := st.Events(pods, first-1, 0, nil)
	if err != nil || len(events) != 1 || upTo != first {
		t.Error(events, upTo, err)
	}
}

// A log that cannot be read on from where the notifier stands wakes everybody, who then know nothing.
func TestLostPlaceWakesEverybody(t *testing.T) {
	t.Parallel()
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	maintenance, err := store.NewMaintenance(st)
	if err != nil {
		t.Fatal(err)
	}
	n := New(st)
	var subs []*Subscription
	for _, want := range interests() {
		subs = append(subs, n.Subscribe(want))
	}
	rev := writeMuch(t, st, "//nodes//n")
	if _, err := maintenance.Compact(context.Background(), rev); err != nil {
		t.Fatal(err)
	}
	n.catchUp()
	for _, sub := range subs {
		if len(sub.C) != 1 || sub.QuietRevision() != 0 {
			t.Errorf("%+v is not rung, or thinks it knows", sub.want)
		}
		sub.Close()
	}
}

func TestStoppingWakesEverybody(t *testing.T) {
	t.Parallel()
	st, n, stopping := open(t)
	at := st.Revision()
	var subs []*Subscription
	for _, want := range interests() {
		subs = append(subs, n.Subscribe(want))
	}
	close(stopping)
	for _, sub := range subs {
		select {
		case <-sub.C:
		case <-apitest.Timeout(t):
			t.Fatalf("%+v sleeps on", sub.want)
		}
		if sub.QuietRevision() != at {
			t.Errorf("%+v: quiet up to %d, not %d", sub.want, sub.QuietRevision(), at)
		}
	}
}

// An event finds whom it concerns among ten thousand who want other things.
func BenchmarkTell(b *testing.B) {
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	n := New(st)
	for i := range 10_000 {
		n.Subscribe(Interest{Resource: pods, Span: pods, Field: "spec.nodeName", Value: fmt.Sprint("node-", i)})
		n.Subscribe(Interest{Resource: pods, Span: fmt.Sprint(pods, "namespace-", i, "/")})
	}
	if _, err := write(st, pods+"namespace-7/p", 0, "node-9"); err != nil {
		b.Fatal(err)
	}
	events, _, err := st.Events(pods, 0, 1, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		n.notifyLocked(&events[0])
	}
}
