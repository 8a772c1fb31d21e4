package main

// This file contains the cases. A case runs for about the given time and returns one number.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// workers is the maximum number of clients of a case. Each client has its own object.
const workers = 64

// A measurement describes one number to measure.
type measurement struct {
	name, unit, better string
	run                func(ctx context.Context, s *server, length time.Duration) (float64, error)
}

// watched runs the measurement. It also returns the processor time that this program itself used,
// in microseconds for each counted unit.
func (m measurement) watched(ctx context.Context, s *server, length time.Duration) (value, own float64, err error) {
	s.spent = effort{}
	value, err = m.run(ctx, s, length)
	return value, float64(s.spent.cpu.Microseconds()) / m.count(value, s.spent.took), err
}

// An effort is the processor time of this program and the elapsed time.
type effort struct{ cpu, took time.Duration }

// clocked runs the measured function and adds its effort to the server's. Connections must be open
// before.
func (s *server) clocked(do func() error) error {
	before, err := cpu(os.Getpid())
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := do(); err != nil {
		return err
	}
	after, err := cpu(os.Getpid())
	s.spent.cpu, s.spent.took = s.spent.cpu+after-before, s.spent.took+time.Since(begun)
	return err
}

// count returns the number of units that were counted in the given time. value is their rate, or
// the time for one unit.
func (m measurement) count(value float64, took time.Duration) float64 {
	if m.better == "less" {
		return float64(took.Microseconds()) / value
	}
	return value * took.Seconds()
}

var cases = []measurement{
	{"create, 1 client", "1/s", "more", load{1, create}.rate},
	{"create, 16 clients", "1/s", "more", load{16, create}.rate},
	{"create, 64 clients", "1/s", "more", load{64, create}.rate},
	// there is no precondition, and every client updates its own object
	{"update, 1 client", "1/s", "more", load{1, update}.rate},
	{"update, 16 clients", "1/s", "more", load{16, update}.rate},
	{"get, 16 clients", "1/s", "more", load{16, get}.rate},
	{"LIST, full", "objects/s", "more", lists(full)},
	{"LIST, by 500", "objects/s", "more", lists(chunked)},
	{"LIST, resourceVersion=0", "objects/s", "more", lists(cached)},
	{"LIST, an old revision", "objects/s", "more", lists(old)},
	{"LIST of 100, 16 clients", "1/s", "more", load{16, few}.rate},
	{"LIST, gzip", "objects/s", "more", lists(zipped)},
	// from the first write to the last event at the last watcher, divided by the number of all
	// events
	{"watch, 100 watchers", "µs/event", "less", fanOut},
	{"CPU of an event, alone", "µs", "less", eventCPU},
	{"mixed, 16 clients", "1/s", "more", load{16, mixed}.rate},
	// the processor time of the server's processes
	{"CPU of a create, 16 clients", "µs", "less", load{16, create}.processorTime},
	{"CPU of an update, 16 clients", "µs", "less", load{16, update}.processorTime},
	{"CPU of a get, 16 clients", "µs", "less", load{16, get}.processorTime},
	{"CPU of a LIST, full", "µs", "less", load{1, func(c *client, _ int64) error { return full(c) }}.processorTime},
	// for all chunks
	{"CPU of a LIST, by 500", "µs", "less", load{1, func(c *client, _ int64) error { return chunked(c) }}.processorTime},
	{"CPU of a LIST of 100, 16 clients", "µs", "less", load{16, few}.processorTime},
	// bytes that the kernel writes to the disk
	{"disk for a create, 1 client", "KB", "less", load{1, create}.diskBytes},
	{"disk for a create, 16 clients", "KB", "less", load{16, create}.diskBytes},
	{"disk for an update, 1 client", "KB", "less", load{1, update}.diskBytes},
	{"memory now", "MiB", "less", func(_ context.Context, s *server, _ time.Duration) (float64, error) { return s.memory() }},
}

// A load is a number of clients that repeat the same request.
type load struct {
	clients int
	once    func(c *client, i int64) error
}

// rate returns the number of answered requests per second.
func (l load) rate(ctx context.Context, s *server, length time.Duration) (perSecond float64, err error) {
	err = l.connected(ctx, s, func(do func(worker int, i int64) error) error {
		c, err := repeat(l.clients, length, do)
		perSecond = float64(c.done) / c.took.Seconds()
		return errors.Join(err, s.note(c))
	})
	return perSecond, err
}

// processorTime returns the processor time of the server's processes for each request, in
// microseconds.
func (l load) processorTime(ctx context.Context, s *server, length time.Duration) (float64, error) {
	return l.spent(ctx, s, length, func() (int64, error) {
		spent, err := cpu(s.pids...)
		return spent.Microseconds(), err
	})
}

// diskBytes returns the number of bytes that the server's processes write to the disk for each
// request, in KB.
func (l load) diskBytes(ctx context.Context, s *server, length time.Duration) (float64, error) {
	each, err := l.spent(ctx, s, length, func() (int64, error) { return written(s.pids...) })
	return each / 1000, err
}

// spent returns the increase of a counter for each request.
func (l load) spent(ctx context.Context, s *server, length time.Duration, count func() (int64, error)) (each float64, err error) {
	err = l.connected(ctx, s, func(do func(worker int, i int64) error) error {
		before, err := count()
		if err != nil {
			return err
		}
		c, err := repeat(l.clients, length, do)
		if err != nil {
			return err
		}
		after, err := count()
		each = float64(after-before) / float64(c.done)
		return errors.Join(err, s.note(c))
	})
	return each, err
}

// connected opens the connections of the clients and closes them after calling use. The measurement
// does not include handshakes.
func (l load) connected(ctx context.Context, s *server, use func(do func(worker int, i int64) error) error) error {
	clients := make([]*client, l.clients)
	for i := range clients {
		clients[i] = s.newClient(ctx, i)
		defer clients[i].close()
	}
	if err := together(l.clients, func(i int) error { return clients[i].connect() }); err != nil {
		return err
	}
	return s.clocked(func() error {
		return use(func(worker int, i int64) error { return l.once(clients[worker], i) })
	})
}

// A tally counts the results of workers.
type tally struct {
	done, wrong int64
	first       error // the first wrong result
	took        time.Duration
}

// repeat makes n workers call do repeatedly for the given time. Wrong answers are counted and do
// not stop it.
func repeat(n int, length time.Duration, do func(worker int, i int64) error) (tally, error) {
	counts, start := make([]tally, n), time.Now()
	err := together(n, func(worker int) error {
		var c tally
		defer func() { counts[worker] = c }()
		for i := int64(0); time.Since(start) < length; i++ {
			err := do(worker, i)
			if err == nil {
				c.done++
				continue
			}
			if wrong := (*wrongAnswer)(nil); !errors.As(err, &wrong) {
				return err
			}
			c.wrong, c.first = c.wrong+1, cmp.Or(c.first, err)
		}
		return nil
	})
	all := tally{took: time.Since(start)}
	for _, c := range counts {
		all.done, all.wrong, all.first = all.done+c.done, all.wrong+c.wrong, cmp.Or(all.first, c.first)
	}
	return all, err
}

// note prints the number of wrong answers. It returns an error if there was no correct answer.
func (s *server) note(c tally) error {
	if c.done == 0 {
		return c.first
	}
	if c.wrong > 0 {
		fmt.Fprintf(os.Stderr, "%s: %d of %d answers were wrong, the first: %v\n", s.name, c.wrong, c.wrong+c.done, c.first)
	}
	return nil
}

func create(c *client, i int64) error {
	c.body = appendConfigMap(c.body[:0], nil, i)
	return c.ask(request{method: "POST", path: c.own, body: c.body, status: 201, least: bodyBytes})
}

func update(c *client, _ int64) error {
	c.name = strconv.AppendInt(append(c.name[:0], "/own-"...), int64(c.number), 10)
	c.body = appendConfigMap(c.body[:0], c.name[1:], time.Now().UnixNano())
	return c.ask(request{method: "PUT", path: c.own, name: c.name, body: c.body, least: bodyBytes})
}

func get(c *client, i int64) error { return c.get(i, "") }

func getCached(c *client, i int64) error { return c.get(i, "?resourceVersion=0") }

// get reads one of the objects that were created by prepare.
func (c *client) get(i int64, query string) error {
	c.name = appendItem(c.name[:0], 1+(int64(c.number)*7919+i)%int64(c.objects))
	return c.ask(request{path: c.listed, name: c.name, query: query, least: bodyBytes})
}

// appendItem appends /item-%06d, the name that make has used.
func appendItem(b []byte, number int64) []byte {
	b = append(b, "/item-"...)
	for least := int64(100_000); least > number; least /= 10 {
		b = append(b, '0')
	}
	return strconv.AppendInt(b, number, 10)
}

// few lists a namespace with a typical number of objects.
func few(c *client, _ int64) error {
	return c.ask(request{path: c.few, least: fewObjects * bodyBytes})
}

// mixed sends a mix of requests that is typical for a cluster: mostly GETs, some lists and some
// writes.
func mixed(c *client, i int64) error {
	switch n := rand.IntN(100); {
	case n < 70:
		return get(c, i)
	case n < 85:
		return update(c, i)
	case n < 95:
		return c.ask(request{path: c.listed, query: "?limit=100", least: min(100, c.objects) * bodyBytes})
	}
	return create(c, i)
}

// ---- Lists

// lists measures how fast a client can list the objects. It counts objects.
func lists(once func(c *client) error) func(context.Context, *server, time.Duration) (float64, error) {
	return func(ctx context.Context, s *server, length time.Duration) (perSecond float64, err error) {
		c := s.newClient(ctx, 0)
		defer c.close()
		if err := c.connect(); err != nil {
			return 0, err
		}
		err = s.clocked(func() error {
			n, start := 0, time.Now()
			for n == 0 || time.Since(start) < length {
				if err := once(c); err != nil {
					return err
				}
				n++
			}
			perSecond = float64(n*s.objects) / time.Since(start).Seconds()
			return nil
		})
		return perSecond, err
	}
}

func full(c *client) error { return c.list("") }

func cached(c *client) error { return c.list("?resourceVersion=0") }

// old lists a revision after which other objects of the store have changed.
func old(c *client) error { return c.list("?resourceVersionMatch=Exact&resourceVersion=" + c.filled) }

func (c *client) list(query string) error {
	return c.ask(request{path: c.listed, query: query, least: c.objects * bodyBytes})
}

// zipped does not decompress the list. The minimum size is the size of all UIDs, because they
// cannot be compressed.
func zipped(c *client) error {
	return c.ask(request{path: c.listed, header: "Accept-Encoding: gzip\r\n", least: c.objects * 16})
}

// chunked only keeps the beginning of each chunk, which contains the continue token. Decoding whole
// chunks would measure this program instead.
func chunked(c *client) error {
	const chunk, head = 500, 2000
	next := ""
	for left := c.objects; ; left -= chunk { // the server may have created additional objects
		query := fmt.Sprintf("?limit=%d&continue=%s", chunk, url.QueryEscape(next))
		err := c.ask(request{path: c.listed, query: query, least: max(0, min(left, chunk)) * bodyBytes, keep: head})
		if err != nil {
			return err
		}
		if next, err = continueOf(c.kept); err != nil {
			return err
		}
		if next == "" && left > chunk {
			return fmt.Errorf("the chunks end %d objects early", left-chunk)
		}
		if next == "" {
			return nil
		}
	}
}

// continueOf returns the continue token in the start of a list.
func continueOf(head []byte) (string, error) {
	text := string(head)
	if !strings.Contains(text, `"continue"`) {
		return "", nil
	}
	_, rest, _ := strings.Cut(text, `"continue":`)
	var token string
	err := json.NewDecoder(strings.NewReader(rest)).Decode(&token)
	return token, err
}

// revisionOf returns the resourceVersion of a list.
func revisionOf(list []byte) (string, error) {
	var head struct {
		Metadata struct{ ResourceVersion string }
	}
	err := json.Unmarshal(list, &head)
	return head.Metadata.ResourceVersion, err
}

// ---- Watches

const watchers = 100

// fanOut measures the delivery of four clients' writes to a hundred watchers of one namespace.
func fanOut(ctx context.Context, s *server, length time.Duration) (perEvent float64, err error) {
	a, err := s.gather(ctx)
	if err != nil {
		return 0, err
	}
	defer a.leave()
	err = load{4, update}.connected(ctx, s, func(do func(worker int, i int64) error) error {
		start := time.Now()
		written, err := repeat(4, length, do)
		if err == nil {
			err = a.wait(ctx, written.done*watchers)
		}
		perEvent = float64(time.Since(start).Microseconds()) / float64(a.heard.Load())
		return errors.Join(err, s.note(written))
	})
	return perEvent, err
}

// eventCPU measures the CPU time for a single event. The client does not send the next write until
// all watchers have received the event. The cost of a write is measured separately and subtracted.
func eventCPU(ctx context.Context, s *server, length time.Duration) (float64, error) {
	alone, err := load{1, update}.processorTime(ctx, s, length/4)
	if err != nil {
		return 0, err
	}
	a, err := s.gather(ctx)
	if err != nil {
		return 0, err
	}
	defer a.leave()
	each, err := load{1, func(c *client, i int64) error {
		if err := update(c, i); err != nil {
			return err
		}
		return a.wait(ctx, (i+1)*watchers)
	}}.processorTime(ctx, s, length)
	return (each - alone) / watchers, err
}

// An audience is a group of a hundred watchers in the same namespace.
type audience struct {
	heard atomic.Int64  // number of events
	news  chan struct{} // has a token if there are new events
	leave func()
}

func (s *server) gather(ctx context.Context) (*audience, error) {
	text, err := s.do(ctx, "GET", s.own+"?limit=1", nil)
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
	for i := range watchers {
		c := s.newClient(ctx, i)
		if err := c.open(request{path: s.own, query: "?watch=true&resourceVersion=" + since}); err != nil {
			a.leave()
			return nil, err
		}
		listening.Go(func() { a.listen(c) })
	}
	return a, nil
}

// listen counts the events that are received by a watcher. Each event is a line.
func (a *audience) listen(c *client) {
	defer c.close()
	for {
		piece, err := c.next()
		if err != nil {
			return
		}
		if n := bytes.Count(piece, newline); n > 0 {
			a.heard.Add(int64(n))
			select {
			case a.news <- struct{}{}:
			default:
			}
		}
	}
}

var newline = []byte("\n")

// wait returns when the given number of events has arrived.
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
