package etcd

// This file cuts, stalls or slows down the connections between servers and etcd. It checks the
// status and duration of requests, and that watches receive every event exactly once.

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"apilet-harness/proxy"
	"apilet/apilettest"
)

// through returns a copy of the cluster that uses a proxy for each member.
func (c *cluster) through() (*cluster, []*proxy.Proxy) {
	c.t.Helper()
	behind, proxies := &cluster{t: c.t}, []*proxy.Proxy(nil)
	for _, url := range c.urls {
		p, err := proxy.Start(strings.TrimPrefix(url, "http://"))
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(p.Close)
		behind.urls, proxies = append(behind.urls, "http://"+p.Addr()), append(proxies, p)
	}
	return behind, proxies
}

// TestServerIsCutOff tests a server that is disconnected from etcd while other servers are not. It
// must report this in time, serve its replica, and catch up afterwards.
func TestServerIsCutOff(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*proxy.Proxy){"cut": (*proxy.Proxy).Cut, "stalled": (*proxy.Proxy).Stall} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, 1)
			behind, proxies := c.through()
			a, b := behind.startServer(), c.startServer()
			rev := read(t, a.do(201, "POST", maps, aMap("o", "1", ""))).Metadata.ResourceVersion
			w := a.watch(t, maps, rev)
			spoil(proxies[0])
			var asking sync.WaitGroup
			for i, request := range [][3]string{{"GET", maps + "/o", ""}, {"GET", maps, ""}, {"POST", maps, aMap("p", "1", "")}, {"DELETE", maps + "/none", ""},
				{"PATCH", maps + "/o", `{"data":{"lost":"1"}}`}, {"PUT", maps + "/o", aMap("o", "lost", rev)}} {
				asking.Go(func() {
					begin := time.Now()
					code, text, err := a.try(request[0], request[1], request[2], patience/2)
					if err != nil || code < 500 {
						t.Errorf("%s %s without etcd: %d %s %v after %v", request[0], request[1], code, text, err, time.Since(begin))
					}
					var status struct{ Kind, Status, Reason, Message string }
					if err := json.Unmarshal([]byte(text), &status); err != nil || status.Kind != "Status" || status.Message == "" {
						t.Errorf("request %d is answered with %s", i, text)
					}
				})
			}
			asking.Wait()
			if o := read(t, a.do(200, "GET", maps+"/o?resourceVersion=0", "")); o.Data["v"] != "1" {
				t.Errorf("the replica shows %v", o)
			}
			a.do(200, "GET", maps+"?resourceVersion="+rev, "")
			if code, text, err := a.try("GET", "/readyz?verbose", "", patience); err != nil || code != 500 || !strings.Contains(text, "[-]etcd failed") {
				t.Errorf("/readyz: %d %s %v", code, text, err)
			}
			var want []string
			for n := range 10 {
				b.do(201, "POST", maps, aMap(fmt.Sprint("b", n), "1", ""))
				want = append(want, fmt.Sprint("ADDED b", n))
			}
			proxies[0].Mend()
			a.ready()
			apilettest.Until(t, "the watch tells what happened meanwhile, once", func() error {
				told := slices.DeleteFunc(w.story(), func(ev string) bool { return !strings.HasPrefix(ev, "ADDED b") })
				if !slices.Equal(told, want) {
					return fmt.Errorf("it tells %v", told)
				}
				return nil
			})
			if n := len(w.story()); n > len(want)+3 { // the results of three writes were unknown
				t.Errorf("the watch tells %v", w.story())
			}
			apilettest.Until(t, "writes work again", func() error {
				code, text, err := a.try("POST", maps, aMap("after", "1", ""), patience)
				if code != 201 && code != 409 {
					return fmt.Errorf("%d %s %v", code, text, err)
				}
				return nil
			})
			b.do(200, "GET", maps+"/after", "")
			if n := a.filled(); n != 1 {
				t.Errorf("the replica was filled %d times", n)
			}
		})
	}
}

// TestWayToEtcdIsSlow checks that a slow connection to etcd makes requests slow, but not wrong.
func TestWayToEtcdIsSlow(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	behind, proxies := c.through()
	a, b := behind.startServer(), c.startServer()
	proxies[0].Slow(150 * time.Millisecond)
	for n := range 5 {
		a.do(201, "POST", maps, aMap(fmt.Sprint("o", n), "1", ""))
		b.do(200, "PATCH", maps+fmt.Sprint("/o", n), `{"data":{"v":"2"}}`)
		if o := read(t, a.do(200, "GET", maps+fmt.Sprint("/o", n), "")); o.Data["v"] != "2" {
			t.Errorf("read %v after another server had written 2", o.Data)
		}
	}
	a.ready()
}

// TestWayToOneMemberIsSpoiled checks that requests use the other members while the connection to
// one of three members is cut, stalled, or slow.
func TestWayToOneMemberIsSpoiled(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	behind, proxies := c.through()
	a := behind.startServer()
	for i, spoil := range []func(*proxy.Proxy){(*proxy.Proxy).Cut, (*proxy.Proxy).Stall, func(p *proxy.Proxy) { p.Slow(100 * time.Millisecond) }} {
		spoil(proxies[i])
		for n := range 10 {
			name := fmt.Sprintf("o%d-%d", i, n)
			apilettest.Until(t, "a write by the other members", func() error {
				code, text, err := a.try("POST", maps, aMap(name, "1", ""), patience)
				if code != 201 && code != 409 { // an earlier attempt with an unknown result
					return fmt.Errorf("%d %s %v", code, text, err)
				}
				return nil
			})
			apilettest.Until(t, "a read by the other members", func() error {
				code, text, err := a.try("GET", maps+"/"+name, "", patience)
				if code != 200 {
					return fmt.Errorf("%d %s %v", code, text, err)
				}
				return nil
			})
		}
		proxies[i].Mend()
	}
}

// TestClientsMoveWhileConnectionsAreCut runs clients that use a different server for each request.
// In the meantime the connections between servers and etcd are cut or stalled a hundred times.
func TestClientsMoveWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	const disturbances = 100
	c := startCluster(t, 3)
	var servers []*server
	var proxies []*proxy.Proxy
	for range 3 {
		behind, own := c.through()
		servers, proxies = append(servers, behind.startServer()), append(proxies, own...)
	}
	m := &movers{t: t, servers: servers, names: 30}
	for n := range m.names {
		m.insist("POST", maps, aMap(fmt.Sprintf("o%02d", n), "0", ""))
	}
	m.since, _ = strconv.ParseInt(read(t, servers[0].do(200, "GET", maps, "")).Metadata.ResourceVersion, 10, 64)
	m.until.Store(1 << 62)
	var moving, disturbing sync.WaitGroup
	over := make(chan struct{})
	disturbing.Go(func() {
		defer close(over)
		for range disturbances {
			time.Sleep(time.Duration(rand.IntN(80)) * time.Millisecond)
			p := proxies[rand.IntN(len(proxies))]
			if rand.IntN(4) == 0 { // all connections of one server
				at := rand.IntN(len(servers)) * len(c.members)
				for _, p := range proxies[at : at+len(c.members)] {
					p.Cut()
				}
				time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
				for _, p := range proxies[at : at+len(c.members)] {
					p.Mend()
				}
				continue
			}
			[]func(*proxy.Proxy){(*proxy.Proxy).Drop, (*proxy.Proxy).Cut, (*proxy.Proxy).Stall, func(p *proxy.Proxy) { p.Slow(20 * time.Millisecond) }}[rand.IntN(4)](p)
			time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
			p.Mend()
		}
	})
	stories := make([][]event, 3)
	for i := range stories {
		moving.Go(func() { stories[i] = m.watch() })
	}
	var writing sync.WaitGroup
	for i := range 3 {
		writing.Go(func() { m.write(i, over) })
	}
	var lists []chunkedList
	writing.Go(func() { lists = m.list(over) })
	disturbing.Wait()
	writing.Wait()
	end := m.insist("POST", maps, aMap("the-end", "1", ""))
	rev, _ := strconv.ParseInt(end.Metadata.ResourceVersion, 10, 64)
	m.until.Store(rev)
	moving.Wait()
	m.judge(stories, lists)
	moved := 0
	for _, l := range lists {
		moved += l.pages - 1
	}
	t.Logf("%d disturbances, %d writes acknowledged, %d events, %d watches begun, %d lists in %d pages each at another server",
		disturbances, len(m.written), len(stories[0]), m.begun.Load(), len(lists), moved+len(lists))
}

// movers send each request to a random server.
type movers struct {
	t       *testing.T
	servers []*server
	names   int
	since   int64
	until   atomic.Int64 // the revision of the last event
	begun   atomic.Int64 // number of watches

	mu      sync.Mutex
	written map[int64]string // acknowledged revisions: name=value
}

// A chunkedList contains the result of a list in chunks. items contains the revisions by name.
type chunkedList struct {
	rev   int64
	pages int
	items map[string]int64
}

func (m *movers) any() *server { return m.servers[rand.IntN(len(m.servers))] }

// insist repeats a create until it succeeds.
func (m *movers) insist(method, path, body string) (o object) {
	m.t.Helper()
	name := read(m.t, body).Metadata.Name
	apilettest.Until(m.t, "the create of "+name, func() error {
		code, text, err := m.any().try(method, path, body, patience)
		if code == 409 { // an earlier attempt succeeded
			code, text, err = m.any().try("GET", path+"/"+name, "", patience)
		}
		if err != nil || code != 200 && code != 201 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		o = read(m.t, text)
		return nil
	})
	return o
}

func (m *movers) write(writer int, over <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-over:
			// a very slow machine needs another write after the connections are repaired
			if m.acknowledged() > 0 {
				return
			}
		case <-time.After(time.Duration(rand.IntN(10)) * time.Millisecond):
		}
		name, value := fmt.Sprintf("o%02d", rand.IntN(m.names)), fmt.Sprintf("w%d-%d", writer, n)
		code, text, err := m.any().try("PATCH", maps+"/"+name, `{"data":{"v":"`+value+`"}}`, patience)
		switch {
		case err != nil || code != 200 && code < 500:
			m.t.Errorf("PATCH %s: %d %s %v", name, code, text, err)
			return
		case code == 200:
			o := read(m.t, text)
			rev, _ := strconv.ParseInt(o.Metadata.ResourceVersion, 10, 64)
			m.mu.Lock()
			if m.written == nil {
				m.written = map[int64]string{}
			}
			m.written[rev] = name + "=" + value
			m.mu.Unlock()
		}
	}
}

func (m *movers) acknowledged() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.written)
}

// watch follows from m.since to m.until, with a few events on each server.
func (m *movers) watch() (story []event) {
	since := m.since
	for begin := time.Now(); since < m.until.Load() && time.Since(begin) < 4*patience; {
		m.begun.Add(1)
		stay := 1 + rand.IntN(30)
		answer, err := (&http.Client{Timeout: 3 * time.Second}).Get(fmt.Sprintf("%s%s?watch=1&resourceVersion=%d", m.any().URL(), maps, since))
		if err != nil {
			continue
		}
		if code := answer.StatusCode; code != 200 {
			answer.Body.Close()
			if code < 500 {
				m.t.Errorf("a watch at %d is answered %d", since, code)
				return story
			}
			continue
		}
		for frames := json.NewDecoder(answer.Body); stay > 0 && since < m.until.Load(); stay-- {
			var ev event
			if frames.Decode(&ev) != nil {
				break
			}
			if ev.Type == "ERROR" { // a server that is behind and cannot read the current revision
				if code := ev.Object.Code; code != 504 && code != 500 {
					m.t.Errorf("a watch at %d ends in %+v", since, ev)
					answer.Body.Close()
					return story
				}
				break
			}
			story = append(story, ev)
			since, _ = strconv.ParseInt(ev.Object.Metadata.ResourceVersion, 10, 64)
		}
		answer.Body.Close()
	}
	if since < m.until.Load() {
		m.t.Errorf("a watch came to %d of %d", since, m.until.Load())
	}
	return story
}

// list lists the objects in chunks and uses a different server for each chunk.
func (m *movers) list(over <-chan struct{}) (lists []chunkedList) {
	for {
		l := chunkedList{items: map[string]int64{}}
		path := maps + "?limit=4"
		for path != "" {
			select {
			case <-over:
				if len(lists) > 0 {
					return lists
				}
			default:
			}
			code, text, err := m.servers[(len(lists)+l.pages)%len(m.servers)].try("GET", path, "", patience)
			if err != nil || code != 200 && code < 500 {
				m.t.Errorf("GET %s: %d %s %v", path, code, text, err)
				return lists
			}
			if code != 200 {
				time.Sleep(5 * time.Millisecond)
				continue
			}
			page := read(m.t, text)
			rev, _ := strconv.ParseInt(page.Metadata.ResourceVersion, 10, 64)
			if l.pages > 0 && rev != l.rev {
				m.t.Errorf("page %d is of revision %d, the first of %d", l.pages, rev, l.rev)
			}
			l.rev, l.pages, path = rev, l.pages+1, ""
			for _, o := range page.Items {
				if _, twice := l.items[o.Metadata.Name]; twice {
					m.t.Errorf("%s is in two pages of %d", o.Metadata.Name, rev)
				}
				l.items[o.Metadata.Name], _ = strconv.ParseInt(o.Metadata.ResourceVersion, 10, 64)
			}
			if page.Metadata.Continue != "" {
				path = maps + "?limit=4&continue=" + page.Metadata.Continue
			}
		}
		lists = append(lists, l)
	}
}

// judge compares all results. All watches must have received the same events in the same order,
// including all acknowledged writes. The lists must match the events up to their revision.
func (m *movers) judge(stories [][]event, lists []chunkedList) {
	lines := func(story []event) (told []string) {
		for _, ev := range story {
			told = append(told, fmt.Sprintf("%s %s=%s %s", ev.Object.Metadata.ResourceVersion, ev.Object.Metadata.Name, ev.Object.Data["v"], ev.Type))
		}
		return told
	}
	told, first := map[int64]event{}, lines(stories[0])
	last := int64(0)
	for _, ev := range stories[0] {
		rev, _ := strconv.ParseInt(ev.Object.Metadata.ResourceVersion, 10, 64)
		if rev <= last {
			m.t.Errorf("%d is told after %d", rev, last)
		}
		told[rev], last = ev, rev
	}
	for i, story := range stories[1:] {
		if !slices.Equal(lines(story), first) {
			m.t.Errorf("watch %d tells %d events, the first %d", i+1, len(story), len(first))
		}
	}
	for rev, what := range m.written {
		if ev := told[rev]; ev.Object.Metadata.Name+"="+ev.Object.Data["v"] != what {
			m.t.Errorf("%s was acknowledged at %d, and told is %+v", what, rev, ev)
		}
	}
	for _, l := range lists {
		newest := map[string]int64{}
		for rev, ev := range told {
			if rev <= l.rev {
				newest[ev.Object.Metadata.Name] = max(newest[ev.Object.Metadata.Name], rev)
			}
		}
		if missing := m.names - len(l.items); missing > 0 {
			m.t.Errorf("the list of %d lacks %d objects", l.rev, missing)
		}
		for name, rev := range newest {
			if l.items[name] != rev {
				m.t.Errorf("the list of %d has %s at %d, the watch told %d", l.rev, name, l.items[name], rev)
			}
		}
	}
	if len(lists) == 0 || len(m.written) == 0 {
		m.t.Errorf("%d lists, %d writes", len(lists), len(m.written))
	}
}
