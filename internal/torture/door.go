package torture

// This file is the door between a controller and its server: a proxy through which the controller alone goes, so that all that comes by is the
// controller's. It passes everything on as it is, counts, and asks a plan's tricks at four places:
//
//	request ──▶ before ──▶ server ──▶ after ──▶ answer ──▶ answered
//	                         │
//	                         └─ a watch: each frame ──▶ frame
//
// The server behind it is an ordinary one, which knows nothing of it. What a trick answers in its place is what a server may answer.

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	"google.golang.org/protobuf/encoding/protowire"

	"apilet/internal/request"
)

// A passed is one request that has come by.
type passed struct {
	info     request.Info
	what     string // the verb, the resource and the object, generated names called the same: "create configmaps shop/web-*"
	name     string // of the object, as a refusal tells it
	nth      int    // which of those that succeed it is, or would be: from 1
	writes   bool   // it changes something that counts
	replica  int    // whose it is, from 0
	header   http.Header
	query    string
	code     int   // of the answer; 0: none yet, or none at all
	rev      int64 // that a write was given
	at       time.Time
	finished bool
}

// A refusal is what a trick answers in the server's place.
type refusal struct {
	code    int
	reason  string
	message string
	details map[string]any // of the Status
	retry   int            // seconds, of Retry-After; 0: none
	drop    bool           // no answer at all: the connection is cut
}

// A hold is what is done to a watch before an event is passed on, in this order. The zero hold is nothing.
type hold struct {
	first []byte          // another event comes before
	wait  <-chan struct{} // the event comes when this is closed
	cut   bool            // the watch ends, and the event does not come
}

// tricks are what a plan does at the door. Each may be nil.
type tricks struct {
	before   func(p *passed) *refusal      // in place of asking the server; nil: it is asked
	past     func(p *passed) (rev int64)   // the revision of which a list or get is answered; 0: now
	after    func(p *passed) *refusal      // the server has done it; in place of its answer, nil: that
	answered func(p *passed)               // the controller has the answer
	frame    func(p *passed, f frame) hold // before a watch's event is passed on
}

// A door is where one replica of the controller reaches the server.
type door struct {
	to      *server
	replica int
	counts  func(group, resource string) bool
	tricks  *tricks
	url     string
	http    *http.Server
	through *http.Transport
	agent   string                    // what the client is to be called; "": as it calls itself
	quiet   func(ctx context.Context) // answers quietPath when the controller is quiet; nil: there is no such path

	mu      sync.Mutex // guards what follows
	shut    bool       // whoever comes is sent away: the controller is being killed
	all     []*passed
	done    map[string]int    // writes that succeeded, by what they were
	aliases map[string]string // generated names
	writing int               // writes on their way
	wrote   time.Time         // when the last write went by
	watches int               // that are open, or were since the door was opened
}

// openDoor listens on a free port.
func openDoor(to *server, replica int, counts func(group, resource string) bool, t *tricks) (*door, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &door{to: to, replica: replica, counts: counts, tricks: t, url: "http://" + listener.Addr().String(), done: map[string]int{}, aliases: map[string]string{},
		through: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}}
	d.http = &http.Server{Handler: d, ErrorLog: log.New(io.Discard, "", 0)}
	go d.http.Serve(listener) // until close
	return d, nil
}

func (d *door) close() {
	d.http.Close()
	d.through.CloseIdleConnections()
}

// users makes it a door for a program that is a user. It is called before anybody knows the door.
func (d *door) users(quiet func(context.Context)) { d.agent, d.quiet = agent, quiet }

// setShut shuts the door, or opens it for a new process.
func (d *door) setShut(shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut = shut; !shut {
		d.watches = 0
	}
}

// quietSince is when the controller wrote last, and whether it is about to, or has not begun to watch.
func (d *door) quietSince() (since time.Time, busy bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wrote, d.writing > 0 || d.watches == 0 || d.shut
}

// requests is what has come by until now.
func (d *door) requests() []passed {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]passed, len(d.all))
	for i, p := range d.all {
		all[i] = *p
	}
	return all
}

// watched are the resources that were watched through the door.
func (d *door) watched() map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string]bool{}
	for _, p := range d.all {
		if p.info.Verb == "watch" {
			all[resourceOf(p)] = true
		}
	}
	return all
}

// resourceOf is PLURAL.GROUP.
func resourceOf(p *passed) string {
	return strings.TrimSuffix(p.info.Resource+"."+p.info.Group, ".")
}

// mutating are the verbs that write.
var mutating = []string{"create", "update", "patch", "delete", "deletecollection"}

// deletes reports whether a verb deletes objects, one or all of a kind.
func deletes(verb string) bool { return verb == "delete" || verb == "deletecollection" }

// come notes a request; nil when the door is shut.
func (d *door) come(r *http.Request, body []byte) *passed {
	info := request.Parse(r)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return nil
	}
	name, plain := info.Name, info.Name
	if info.Verb == "create" && name == "" {
		generate := ""
		name, generate = nameInBody(body)
		if plain = name; name == "" && generate != "" {
			name, plain = generate+"*", generate+"x7k2p" // a server that refuses has made one up
		}
	}
	if alias := d.aliases[name]; alias != "" {
		name = alias
	}
	resource := info.Resource
	if info.Subresource != "" {
		resource += "/" + info.Subresource
	}
	p := &passed{info: info, name: plain, replica: d.replica, at: time.Now(), header: r.Header, query: r.URL.RawQuery,
		what: info.Verb + " " + uidPattern.ReplaceAllString(keyOf(info.Group, resource, info.Namespace, name), "(uid)")}
	p.writes = info.ResourceRequest && slices.Contains(mutating, info.Verb) && d.counts(info.Group, info.Resource)
	if p.writes {
		p.nth = d.done[p.what] + 1
		d.writing++
		d.wrote = p.at
	}
	d.all = append(d.all, p)
	return p
}

// nameInBody is what an object calls itself, in JSON or in Kubernetes' protobuf: four bytes, then an envelope whose field 2 is the object, whose
// field 1 is its metadata, whose fields 1 and 2 are its name and what it is to be generated from.
func nameInBody(body []byte) (name, generate string) {
	raw, binary := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !binary {
		meta := gjson.GetBytes(body, "metadata")
		return meta.Get("name").String(), meta.Get("generateName").String()
	}
	meta := protoField(protoField(raw, 2), 1)
	return string(protoField(meta, 1)), string(protoField(meta, 2))
}

// protoField is the first field of a number in a protobuf message that has a length; nil where there is none.
func protoField(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		if message = message[size:]; n == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			return value
		}
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return nil
		}
		message = message[size:]
	}
	return nil
}

// leave notes that a request is over.
func (d *door) leave(p *passed, code int, body []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.finished {
		return
	}
	p.finished, p.code = true, code
	if !p.writes {
		return
	}
	d.writing--
	d.wrote = time.Now()
	if code > 0 && code < 300 {
		d.done[p.what]++
	}
	meta := gjson.GetBytes(body, "metadata")
	p.rev = meta.Get("resourceVersion").Int()
	if generate := meta.Get("generateName").String(); generate != "" && p.info.Verb == "create" {
		d.aliases[meta.Get("name").String()] = generate + "*"
	}
}

const bodyMax = 16 << 20

// quietPath is for a workload that is a program: it is answered when the controller is quiet.
const quietPath = "/torture/quiet"

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.quiet != nil && r.URL.Path == quietPath {
		d.quiet(r.Context())
		return
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, bodyMax))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	p := d.come(r, body)
	if p == nil {
		panic(http.ErrAbortHandler)
	}
	defer d.leave(p, 0, nil)
	if d.tricks.before != nil {
		if no := d.tricks.before(p); no != nil {
			d.leave(p, no.code, nil)
			no.write(w)
			return
		}
	}
	resp, err := d.ask(r, p, body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	if p.info.Verb == "watch" && resp.StatusCode == http.StatusOK {
		d.relay(w, r, p, resp)
		return
	}
	d.answer(w, p, resp)
}

// ask passes a request on. Answers are to be JSON where the client takes that, too: tricks read it.
func (d *door) ask(r *http.Request, p *passed, body []byte) (*http.Response, error) {
	path := r.URL.RequestURI()
	if d.tricks.past != nil {
		if rev := d.tricks.past(p); rev > 0 {
			values := r.URL.Query()
			values.Del("resourceVersion")
			values.Del("resourceVersionMatch")
			path = "/at/" + strconv.FormatInt(rev, 10) + r.URL.EscapedPath() + "?" + values.Encode()
		}
	}
	out, err := http.NewRequestWithContext(r.Context(), r.Method, d.to.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	out.Header = r.Header.Clone()
	out.Header.Set("Accept", plainAccept(r.Header.Get("Accept")))
	if d.agent != "" {
		out.Header.Set("User-Agent", d.agent)
	}
	for _, hop := range []string{"Connection", "Accept-Encoding"} {
		out.Header.Del(hop)
	}
	return d.through.RoundTrip(out)
}

// plainAccept leaves the binary forms out of what a client takes.
func plainAccept(accept string) string {
	var plain []string
	for form := range strings.SplitSeq(accept, ",") {
		if !strings.Contains(form, "protobuf") && !strings.Contains(form, "cbor") {
			plain = append(plain, form)
		}
	}
	if len(plain) == 0 {
		return accept
	}
	return strings.Join(plain, ",")
}

func (d *door) answer(w http.ResponseWriter, p *passed, resp *http.Response) {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	d.leave(p, resp.StatusCode, body)
	if d.tricks.after != nil {
		if no := d.tricks.after(p); no != nil {
			no.write(w)
			return
		}
	}
	copyHeader(w.Header(), resp.Header)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(body) // the client is gone otherwise
	if d.tricks.answered != nil {
		_ = http.NewResponseController(w).Flush()
		d.tricks.answered(p)
	}
}

func copyHeader(to, from http.Header) {
	for name, values := range from {
		if name != "Connection" && name != "Transfer-Encoding" && name != "Content-Length" {
			to[name] = values
		}
	}
}

// A frame is one event of a watch, and when it came.
type frame struct {
	raw json.RawMessage
	at  time.Time
}

// relay passes a watch's events on, each when the plan says so.
func (d *door) relay(w http.ResponseWriter, r *http.Request, p *passed, resp *http.Response) {
	d.mu.Lock()
	d.watches++
	d.mu.Unlock()
	copyHeader(w.Header(), resp.Header)
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	_ = control.Flush()
	if !strings.Contains(resp.Header.Get("Content-Type"), "json") { // a client that takes nothing else: it is not tricked
		passOn(w, control, resp.Body)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	frames := make(chan frame, 1024) // closed when the server ends the watch
	go readFrames(ctx, resp.Body, frames)
	for f := range frames {
		var h hold
		if d.tricks.frame != nil {
			h = d.tricks.frame(p, f)
		}
		if h.first != nil && !send(w, control, h.first) {
			return
		}
		if h.wait != nil {
			select {
			case <-h.wait:
			case <-ctx.Done():
				return
			}
		}
		if h.cut || !send(w, control, f.raw) {
			return
		}
	}
}

// send sends a line at once, and tells whether the client is there.
func send(w io.Writer, control *http.ResponseController, line []byte) bool {
	_, err := w.Write(append(line, '\n'))
	return err == nil && control.Flush() == nil
}

func readFrames(ctx context.Context, from io.Reader, to chan<- frame) {
	defer close(to)
	for stream := json.NewDecoder(from); ; {
		var f frame
		if stream.Decode(&f.raw) != nil {
			return
		}
		f.at = time.Now()
		select {
		case to <- f:
		case <-ctx.Done():
			return
		}
	}
}

func passOn(w io.Writer, control *http.ResponseController, from io.Reader) {
	for buf := make([]byte, 32<<10); ; {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil || control.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// write answers as a server does that refuses.
func (no *refusal) write(w http.ResponseWriter) {
	if no.drop {
		panic(http.ErrAbortHandler)
	}
	status := map[string]any{"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure", "code": no.code, "reason": no.reason, "message": no.message}
	if no.details != nil {
		status["details"] = no.details
	}
	if no.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(no.retry))
		status["details"] = map[string]any{"retryAfterSeconds": no.retry}
	}
	body, _ := json.Marshal(status)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(no.code)
	fmt.Fprintln(w, string(body))
}
