package main

// This file sends the requests and reads the meters. All limits of the meters are checked in judge.

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Limits for the cost of a request. They are several times the cost of ordinary requests, to allow
// for a machine that also does other work.
const (
	cpuBase = time.Second
	// bytes that were sent or read. A list of 3 MiB may have a million elements.
	cpuPerByte     = 4 * time.Microsecond
	cpuPerAnswered = time.Microsecond
	// a body of empty elements may decode into 32 MiB of structs, which are also copied
	memoryBase    = 192 << 20
	memoryPerByte = 100
	answerBase    = 1 << 20
	// allows for defaults, managedFields, and indentation, which quadruples the size
	answerPerByte = 16
	crowdBase     = 64 << 20
	perConnection = 3 << 19 // memory for each connection, including a part of a list
	crowdPerByte  = 4       // for each stored byte, because the object is read only once

	// if a request uses more CPU time, it is repeated with half its size
	growthFrom = 500 * time.Millisecond
	// the maximum ratio of the CPU times for the whole and the half
	growth      = 3
	growthSlack = 250 * time.Millisecond // CPU time for the server's other work
	growthTries = 3                      // number of repetitions before the request is reported

	wallLimit   = 2 * time.Minute // the timeout of the server plus extra time for a busy machine
	watchFor    = 1500 * time.Millisecond
	crowdFor    = 8 * time.Second // after the last connection
	answerLimit = 64 << 20        // the rest is not read
	worthACrowd = 4 << 20         // minimum size of the response in bytes
	seldomRead  = 1 << 10         // bytes per second that a trickling connection reads
)

var manners = []string{"never reads", "never reads", "trickles", "leaves"}

// An outcome holds the values of the meters after a request.
type outcome struct {
	code                   int
	sent, stored, answered int64
	cpu                    time.Duration
	memory                 int64 // in addition to the memory used before
	ended                  bool  // the response was complete, or the request was a watch
	longest                time.Duration
	beyond, refused        int
	bound                  time.Duration
	panics                 string
	died                   bool
	connections            int
	answer                 string // its first bytes
}

func (o outcome) String() string {
	return fmt.Sprintf("code %d, sent %d, stored %d, answered %d bytes, %.2f s of CPU, %.1f MiB more memory, bystanders' longest wait %v, %d refused, ended: %t",
		o.code, o.sent, o.stored, o.answered, o.cpu.Seconds(), float64(o.memory)/(1<<20), o.longest.Round(time.Millisecond), o.refused, o.ended)
}

func (o outcome) cpuLimit() time.Duration {
	return cpuBase + time.Duration(o.sent+o.stored)*cpuPerByte + time.Duration(min(o.answered, o.answerLimit()))*cpuPerAnswered + time.Duration(o.connections)*100*time.Millisecond
}

func (o outcome) answerLimit() int64 { return answerBase + answerPerByte*(o.sent+o.stored) }

// judge returns the tripped meters with the reasons, the worst first.
func (o outcome) judge() (tripped []trip) {
	note := func(if_ bool, meter, format string, args ...any) {
		if if_ {
			tripped = append(tripped, trip{meter, fmt.Sprintf(format, args...)})
		}
	}
	note(o.died, "death", "the server ended")
	note(o.panics != "", "panic", "the log says %s", o.panics)
	if o.connections > 0 {
		limit := crowdBase + crowdPerByte*o.stored + perConnection*int64(o.connections)
		note(o.beyond > 1 && o.longest > 2*o.bound || o.refused > 0, "bystander", "others waited %v (bound %v), %d were refused", o.longest.Round(time.Millisecond), o.bound, o.refused)
		note(o.memory > limit, "memory", "%d connections: %d MiB more memory (limit %d MiB) for %d bytes stored", o.connections, o.memory>>20, limit>>20, o.stored)
		return tripped
	}
	note(o.answered > o.answerLimit(), "answer", "%d bytes answered (limit %d) for %d sent and %d stored", o.answered, o.answerLimit(), o.sent, o.stored)
	note(o.cpu > o.cpuLimit(), "cpu", "%.2f s of CPU (limit %.2f s) for %d bytes sent, %d stored, %d answered; ended: %t", o.cpu.Seconds(), o.cpuLimit().Seconds(), o.sent, o.stored, o.answered, o.ended)
	limit := memoryBase + memoryPerByte*(o.sent+o.stored)
	note(o.memory > limit, "memory", "%d MiB more memory (limit %d MiB) for %d bytes sent and %d stored", o.memory>>20, limit>>20, o.sent, o.stored)
	note(o.beyond > 2 && o.longest > 3*o.bound || o.refused > 1, "bystander", "others waited %v (bound %v), %d were refused", o.longest.Round(time.Millisecond), o.bound, o.refused)
	return tripped
}

// try measures a request and judges it. It also compares an expensive request with its half.
func (s *siege) try(ctx context.Context, q *request) (outcome, []trip) {
	o := s.measure(ctx, q)
	trips := o.judge()
	if len(trips) > 0 || o.cpu < growthFrom || !o.ended || q.Connections > 0 || q.Method == "GET" || len(q.Before) > 0 {
		return o, trips
	}
	less := clone(q)
	if !less.halve() {
		return o, nil
	}
	half := s.measure(ctx, less)
	if s.grows(ctx, q, less, o, half) {
		trips = []trip{{"growth", fmt.Sprintf("%.2f s of CPU for %d bytes sent, and %.2f s for %d", o.cpu.Seconds(), o.sent, half.cpu.Seconds(), half.sent)}}
	}
	return o, trips
}

// grows reports whether the CPU time grows faster than the size of the request. It uses the minimum
// of several measurements, because some of them may be affected by a garbage collection or another
// process.
func (s *siege) grows(ctx context.Context, q, less *request, o, half outcome) bool {
	whole, part := o.cpu, half.cpu
	for range growthTries {
		if half.code != o.code || whole <= growth*part+growthSlack || ctx.Err() != nil {
			return false
		}
		whole, part = min(whole, s.measure(ctx, q).cpu), min(part, s.measure(ctx, less).cpu)
	}
	return whole > growth*part+growthSlack
}

// A trip describes a meter that has exceeded its limit.
type trip struct{ meter, why string }

// measure sends the request and reads the meters. It first stores the objects that are needed by
// the request.
func (s *siege) measure(ctx context.Context, q *request) outcome {
	for _, b := range q.Before {
		s.send(ctx, b, nil)
	}
	o := outcome{stored: s.stored(ctx, q), connections: q.Connections}
	body := q.Body.bytes()
	o.sent = int64(len(body) + len(q.target()) + len(q.Accept))
	s.by.mark()
	s.server.forgetPeak()
	cpu := s.server.cpu()
	memory, _ := s.server.memory()
	switch {
	case q.Connections > 0 && o.stored < worthACrowd: // the object did not become large
		o.ended = true
	case q.Connections > 0:
		s.besiege(ctx, q, body, &o)
	default:
		s.single(ctx, q, body, cpu, &o)
	}
	o.cpu = s.server.cpu() - cpu
	_, most := s.server.memory()
	o.memory = most - memory
	o.longest, o.beyond, o.refused = s.by.suffered()
	o.bound = s.by.bound
	o.died = !s.server.alive()
	o.panics, s.logSeen = s.server.panics(s.logSeen)
	return o
}

// single sends a request and cancels it if it becomes too expensive.
func (s *siege) single(ctx context.Context, q *request, body []byte, cpu time.Duration, o *outcome) {
	ctx, cancel := context.WithTimeout(ctx, wallLimit)
	defer cancel()
	done := make(chan struct{})
	a := &answering{}
	go func() { s.send(ctx, q, a); close(done) }()
	began, cut := time.Now(), false
	for ticker := time.NewTicker(2 * tick); ; {
		select {
		case <-done:
			ticker.Stop()
			o.answered, o.code, o.answer = a.bytes.Load(), a.code, a.beginning
			o.ended = a.err == nil || cut
			return
		case <-ticker.C:
		}
		o.answered = a.bytes.Load()
		if q.endless() && time.Since(began) > watchFor {
			cut = true
			cancel()
		}
		if s.server.cpu()-cpu > o.cpuLimit()*5/4+time.Second/2 || !s.server.alive() {
			cancel()
		}
	}
}

// An answering is the state of a response while it is read.
type answering struct {
	bytes     atomic.Int64
	code      int
	err       error
	beginning string
}

// send sends a request and discards the response. The progress is recorded in a unless it is nil.
func (s *siege) send(ctx context.Context, q *request, a *answering) {
	if a == nil {
		a = &answering{}
	}
	r, err := q.http(s.server.url, q.Body.bytes())
	if err != nil {
		a.err = err
		return
	}
	client := s.server.clients[q.As]
	if client == nil {
		a.err = errors.New("the server has not started")
		return
	}
	response, err := client.Do(r.WithContext(ctx))
	if err != nil {
		a.err = err
		return
	}
	defer response.Body.Close()
	a.code = response.StatusCode
	for _, values := range response.Header {
		for _, value := range values {
			a.bytes.Add(int64(len(value)))
		}
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := response.Body.Read(buffer)
		if a.beginning == "" {
			a.beginning = string(buffer[:min(n, 400)])
		}
		if a.bytes.Add(int64(n)); a.bytes.Load() > answerLimit {
			a.err = errors.New("more than is read of an answer")
			return
		}
		if err != nil {
			if err != io.EOF {
				a.err = err
			}
			return
		}
	}
}

// stored returns the size of the object or list at the request's path as plain JSON.
func (s *siege) stored(ctx context.Context, q *request) int64 {
	if q.Method == "POST" {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	path := q.Path
	if at := strings.Index(path, "/status"); at > 0 {
		path = path[:at]
	}
	plain := &request{As: "administrator", Method: "GET", Path: path, Accept: "application/json"}
	if strings.HasPrefix(path, "/debug/") { // for these paths the query selects the data
		plain.Query = slices.DeleteFunc(slices.Clone(q.Query), func(p [2]string) bool { return p[0] == "pretty" })
	}
	a := &answering{}
	s.send(ctx, plain, a)
	return a.bytes.Load()
}

// ---- Crowds ----

// besiege sends the request on q.Connections connections, each in the crowd's manner. The
// connections stay open until a bystander is affected or the time limit is reached.
func (s *siege) besiege(ctx context.Context, q *request, body []byte, o *outcome) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	var answered atomic.Int64
	for i := range q.Connections {
		all.Go(func() {
			time.Sleep(time.Duration(i) * 5 * time.Millisecond)
			for ok := true; ok && ctx.Err() == nil; ok = q.Manner == "leaves" {
				answered.Add(s.join(ctx, q, body))
			}
		})
	}
	for end := time.Now().Add(crowdFor + time.Duration(q.Connections)*5*time.Millisecond); time.Now().Before(end) && ctx.Err() == nil && s.server.alive(); time.Sleep(5 * tick) {
		if longest, _, refused := s.by.suffered(); longest > 4*s.by.bound || refused > 2 {
			break
		}
	}
	cancel()
	all.Wait()
	o.ended, o.answered = true, answered.Load()
}

// join is one connection of a crowd. It returns the number of bytes that were read.
func (s *siege) join(ctx context.Context, q *request, body []byte) int64 {
	conn, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, "tcp", strings.TrimPrefix(s.server.url, "https://"))
	if err != nil {
		return 0
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	config := s.server.tls()
	config.ServerName = "127.0.0.1"
	secure := tls.Client(conn, config)
	r, err := q.http(s.server.url, body)
	if err != nil || r.Write(secure) != nil {
		return 0
	}
	switch q.Manner {
	case "trickles":
		return trickle(ctx, bufio.NewReader(secure))
	case "leaves":
		n, _ := io.CopyN(io.Discard, secure, seldomRead)
		return n
	}
	<-ctx.Done()
	return 0
}

func trickle(ctx context.Context, from io.Reader) (n int64) {
	for ctx.Err() == nil {
		got, err := io.CopyN(io.Discard, from, seldomRead)
		n += got
		if err != nil {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return n
}

// worst returns the first trip of the meter, or the first of any meter if meter is empty.
func worst(trips []trip, meter string) (trip, bool) {
	for _, t := range trips {
		if t.meter == cmp.Or(meter, t.meter) {
			return t, true
		}
	}
	return trip{}, false
}
