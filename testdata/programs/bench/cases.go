package main

// This file is what is measured. A case runs for about as long as it is told, and returns one number.

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// workers is the most clients that a case has; each has an object of its own.
const workers = 64

// A measurement is one number to find.
type measurement struct {
	name, unit, better string
	run                func(ctx context.Context, s *server, length time.Duration) (float64, error)
}

var cases = []measurement{
	{"create, 1 client", "1/s", "more", rate(1, create)},
	{"create, 16 clients", "1/s", "more", rate(16, create)},
	{"create, 64 clients", "1/s", "more", rate(64, create)},
	{"update, 1 client", "1/s", "more", rate(1, update)}, // unconditional, each client its own object
	{"update, 16 clients", "1/s", "more", rate(16, update)},
	{"get, 16 clients", "1/s", "more", rate(16, get)},
	{"LIST, full", "objects/s", "more", lists(full)},
	{"LIST, by 500", "objects/s", "more", lists(chunked)},
	{"LIST, resourceVersion=0", "objects/s", "more", lists(cached)},
	{"LIST, an old revision", "objects/s", "more", lists(old)},
	{"LIST of 100, 16 clients", "1/s", "more", rate(16, few)},
	{"LIST, gzip", "objects/s", "more", lists(zipped)},
	{"watch, 100 watchers", "µs/event", "less", fanOut}, // from the first write to the last event at the last watcher, divided by all events
	{"CPU of an event, alone", "µs", "less", eventCPU},
	{"mixed, 16 clients", "1/s", "more", rate(16, mixed)},
	{"CPU of a create, 16 clients", "µs", "less", processorTime(rate(16, create))}, // the server's own, as its processes were charged for it
	{"CPU of an update, 16 clients", "µs", "less", processorTime(rate(16, update))},
	{"memory now", "MiB", "less", func(_ context.Context, s *server, _ time.Duration) (float64, error) { return s.memory() }},
}

// rate runs requests over n clients and counts those that were answered.
func rate(n int, once func(ctx context.Context, s *server, client int, i int64) error) func(context.Context, *server, time.Duration) (float64, error) {
	return func(ctx context.Context, s *server, length time.Duration) (float64, error) {
		var done atomic.Int64
		start := time.Now()
		err := together(n, func(client int) error {
			for i := int64(0); time.Since(start) < length; i++ {
				if err := once(ctx, s, client, i); err != nil {
					return err
				}
				done.Add(1)
			}
			return nil
		})
		return float64(done.Load()) / time.Since(start).Seconds(), err
	}
}

// processorTime turns a rate into the processor time of the server's processes for one request.
func processorTime(rate func(context.Context, *server, time.Duration) (float64, error)) func(context.Context, *server, time.Duration) (float64, error) {
	return func(ctx context.Context, s *server, length time.Duration) (float64, error) {
		before, err := s.processorTime()
		if err != nil {
			return 0, err
		}
		start := time.Now()
		perSecond, err := rate(ctx, s, length)
		if err != nil {
			return 0, err
		}
		requests := perSecond * time.Since(start).Seconds()
		after, err := s.processorTime()
		return float64((after - before).Microseconds()) / requests, err
	}
}

func create(ctx context.Context, s *server, _ int, i int64) error {
	_, err := s.do(ctx, "POST", s.maps(s.namespace), configMap("", i))
	return err
}

func update(ctx context.Context, s *server, client int, _ int64) error {
	name := fmt.Sprintf("own-%d", client)
	_, err := s.do(ctx, "PUT", s.maps(s.namespace)+"/"+name, configMap(name, time.Now().UnixNano()))
	return err
}

func get(ctx context.Context, s *server, client int, i int64) error {
	return s.read(ctx, s.item(client, i))
}

func getCached(ctx context.Context, s *server, client int, i int64) error {
	return s.read(ctx, s.item(client, i)+"?resourceVersion=0")
}

// item is the path of one of the objects that lists read.
func (s *server) item(client int, i int64) string {
	return fmt.Sprintf("%s/item-%06d", s.maps(s.namespace+"-list"), 1+(int64(client)*7919+i)%int64(s.objects))
}

// few lists what is in a namespace of a usual size.
func few(ctx context.Context, s *server, _ int, _ int64) error {
	return s.read(ctx, s.maps(s.namespace+"-few"))
}

// mixed is what a cluster's clients do: mostly reading one, some lists, some writes.
func mixed(ctx context.Context, s *server, client int, i int64) error {
	switch n := rand.IntN(100); {
	case n < 70:
		return get(ctx, s, client, i)
	case n < 85:
		return update(ctx, s, client, i)
	case n < 95:
		_, err := s.do(ctx, "GET", s.maps(s.namespace+"-list")+"?limit=100", nil)
		return err
	}
	return create(ctx, s, client, i)
}

// ---- Lists

// lists repeats a list and counts objects.
func lists(once func(ctx context.Context, s *server) error) func(context.Context, *server, time.Duration) (float64, error) {
	return func(ctx context.Context, s *server, length time.Duration) (float64, error) {
		n, start := 0, time.Now()
		for n == 0 || time.Since(start) < length {
			if err := once(ctx, s); err != nil {
				return 0, err
			}
			n++
		}
		return float64(n*s.objects) / time.Since(start).Seconds(), nil
	}
}

func full(ctx context.Context, s *server) error {
	return s.read(ctx, s.maps(s.namespace+"-list"))
}

func cached(ctx context.Context, s *server) error {
	return s.read(ctx, s.maps(s.namespace+"-list")+"?resourceVersion=0")
}

// old lists a revision at which other objects of the store have changed since.
func old(ctx context.Context, s *server) error {
	return s.read(ctx, s.maps(s.namespace+"-list")+"?resourceVersionMatch=Exact&resourceVersion="+s.filled)
}

func zipped(ctx context.Context, s *server) error {
	return s.read(ctx, s.maps(s.namespace+"-list"), "Accept-Encoding", "gzip")
}

func chunked(ctx context.Context, s *server) error {
	next := ""
	for {
		text, err := s.do(ctx, "GET", s.maps(s.namespace+"-list")+"?limit=500&continue="+url.QueryEscape(next), nil)
		if err != nil {
			return err
		}
		// The token is looked for in the list's head or tail: decoding all would measure this program.
		if next, err = continueOf(text); err != nil || next == "" {
			return err
		}
	}
}

func continueOf(list []byte) (string, error) {
	text := string(list[:min(len(list), 2000)])
	if !strings.Contains(text, `"continue"`) {
		return "", nil
	}
	_, rest, _ := strings.Cut(text, `"continue":`)
	var token string
	err := json.NewDecoder(strings.NewReader(rest)).Decode(&token)
	return token, err
}

// revisionOf is a list's resourceVersion.
func revisionOf(list []byte) (string, error) {
	var head struct {
		Metadata struct{ ResourceVersion string }
	}
	err := json.Unmarshal(list, &head)
	return head.Metadata.ResourceVersion, err
}

// ---- Watches

const watchers = 100

// fanOut has a hundred watchers of one namespace hear of writes that four clients make.
func fanOut(ctx context.Context, s *server, length time.Duration) (float64, error) {
	const writers = 4
	a, err := s.gather(ctx)
	if err != nil {
		return 0, err
	}
	defer a.leave()
	var written atomic.Int64
	start := time.Now()
	if err := together(writers, func(client int) error {
		for time.Since(start) < length {
			if err := update(ctx, s, client, 0); err != nil {
				return err
			}
			written.Add(1)
		}
		return nil
	}); err != nil {
		return 0, err
	}
	err = a.wait(ctx, written.Load()*watchers)
	return float64(time.Since(start).Microseconds()) / float64(a.heard.Load()), err
}

// eventCPU has one client write, and wait for the last watcher before it writes again: what an event costs the server when events come alone. What
// the writes themselves cost is measured before, and taken off.
func eventCPU(ctx context.Context, s *server, length time.Duration) (float64, error) {
	alone, err := processorTime(rate(1, update))(ctx, s, length/4)
	if err != nil {
		return 0, err
	}
	a, err := s.gather(ctx)
	if err != nil {
		return 0, err
	}
	defer a.leave()
	once := func(ctx context.Context, s *server, client int, i int64) error {
		if err := update(ctx, s, client, i); err != nil {
			return err
		}
		return a.wait(ctx, (i+1)*watchers)
	}
	each, err := processorTime(rate(1, once))(ctx, s, length)
	return (each - alone) / watchers, err
}

// An audience is a hundred watchers of one namespace.
type audience struct {
	heard atomic.Int64  // events
	news  chan struct{} // has a token when there are more
	leave func()
}

func (s *server) gather(ctx context.Context) (*audience, error) {
	text, err := s.do(ctx, "GET", s.maps(s.namespace)+"?limit=1", nil)
	if err != nil {
		return nil, err
	}
	since, err := revisionOf(text)
	if err != nil {
		return nil, err
	}
	a := &audience{news: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	a.leave = func() {
		cancel()
		listening.Wait()
	}
	for range watchers {
		resp, err := s.open(ctx, "GET", s.maps(s.namespace)+"?watch=true&resourceVersion="+since, nil)
		if err != nil {
			a.leave()
			return nil, err
		}
		listening.Go(func() { a.listen(resp.Body) })
	}
	return a, nil
}

// listen counts a watcher's events, each a line.
func (a *audience) listen(body io.ReadCloser) {
	defer body.Close()
	for lines := bufio.NewReaderSize(body, 64<<10); ; {
		if _, err := lines.ReadSlice('\n'); err != nil {
			return
		}
		a.heard.Add(1)
		select {
		case a.news <- struct{}{}:
		default:
		}
	}
}

// wait returns when so many events have been heard.
func (a *audience) wait(ctx context.Context, want int64) error {
	for a.heard.Load() < want {
		select {
		case <-a.news:
		case <-time.After(20 * time.Second):
			return fmt.Errorf("of %d events %d were heard", want, a.heard.Load())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
