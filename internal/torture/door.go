package torture

// This file implements the door, which is a proxy between a replica of the controller and the
// server. It is not used by anything else, so all requests are known to come from the controller.
// All requests are counted and then forwarded to the server. The functions in tricks are called at
// the following points:
//
//	request ──▶ before ──▶ server ──▶ after ──▶ answer ──▶ answered
//	                         │
//	                         └─ a watch: each frame ──▶ frame
//
// The server itself is not modified and is not aware of the door. A trick must not send a response
// that a real server would never send.

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

// A passed describes a request that was received by the door.
type passed struct {
	info request.Info
	// The verb, the resource and the object, with generated names replaced by their prefix: "create
	// configmaps shop/web-*".
	what     string
	name     string // name of the object for error messages
	nth      int    // one-based index among successful writes with the same value of what
	writes   bool   // it changes a resource that is compared
	replica  int    // number of the replica, starting at 0
	header   http.Header
	query    string
	code     int   // status code of the response, or zero if there is none yet
	rev      int64 // revision that a write received
	at       time.Time
	finished bool
}

// A refusal is a response sent by a trick instead of the server.
type refusal struct {
	code    int
	reason  string
	message string
	details map[string]any // details of the Status
	retry   int            // Retry-After in seconds; 0 means none
	drop    bool           // close the connection without a response
}

// A hold specifies the actions to be performed before an event is forwarded, in this order. The
// zero hold has no effect.
type hold struct {
	first []byte          // another event to send first
	wait  <-chan struct{} // the event is sent when this is closed
	cut   bool            // the watch ends before the event
}

// tricks contains the functions called by the door to implement a plan. Each may be nil.
type tricks struct {
	before func(p *passed) *refusal // if it returns nil, the request is forwarded to the server
	// returns the revision for a list or get, or zero for the latest
	past func(p *passed) (rev int64)
	// called after the server's response; if it returns nil, the response is forwarded
	after    func(p *passed) *refusal
	answered func(p *passed)               // called when the controller has received the response
	frame    func(p *passed, f frame) hold // called before an event is forwarded
}

// A door is a proxy that connects one replica of the controller to the server.
type door struct {
	to      *server
	replica int
	counts  func(group, resource string) bool
	tricks  *tricks
	url     string
	http    *http.Server
	through *http.Transport
	agent   string // overrides the user agent of the client if not empty
	// The handler for quietPath, which waits until the controller is quiet. If it is nil, there is
	// no such endpoint.
	quiet func(ctx context.Context)

	mu      sync.Mutex // guards the fields below
	shut    bool       // reject all requests, because the controller is being killed
	all     []*passed
	done    map[string]int    // number of successful writes by their what
	aliases map[string]string // prefixes of generated names
	writing int               // number of writes in progress
	wrote   time.Time         // when the last write began or ended
	watches int               // number of watches since the door was opened
}

// openDoor opens a door on a free port.
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

// users configures the door for a program that acts as a user. It must be called before the door is
// used.
func (d *door) users(quiet func(context.Context)) { d.agent, d.quiet = agent, quiet }

// setShut shuts the door, or opens it for a new process.
func (d *door) setShut(shut bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut = shut; !shut {
		d.watches = 0
	}
}

// quietSince returns the time of the controller's last write. busy reports whether a write is in
// progress, or the controller has not started a watch yet.
func (d *door) quietSince() (since time.Time, busy bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wrote, d.writing > 0 || d.watches == 0 || d.shut
}

// requests returns a copy of all requests received so far.
func (d *door) requests() []passed {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]passed, len(d.all))
	for i, p := range d.all {
		all[i] = *p
	}
	return all
}

// watched returns the set of resources for which a watch was requested.
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

// resourceOf returns PLURAL.GROUP.
func resourceOf(p *passed) string {
	return strings.TrimSuffix(p.info.Resource+"."+p.info.Group, ".")
}

// mutating lists the verbs that write.
var mutating = []string{"create", "update", "patch", "delete", "deletecollection"}

// deletes reports whether the verb deletes a single object or a collection.
func deletes(verb string) bool { return verb == "delete" || verb == "deletecollection" }

// come records a request. It returns nil if the door is shut.
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
			// the server generates a name even if it rejects the object
			name, plain = generate+"*", generate+"x7k2p"
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

// nameInBody returns the name of the object in a request body, and its generateName. The body is
// either in JSON format or in the protobuf format of Kubernetes, which consists of four bytes
// followed by an envelope that contains the object in field 2. The metadata is stored in field 1 of
// the object, where name and generateName are fields 1 and 2.
func nameInBody(body []byte) (name, generate string) {
	raw, binary := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !binary {
		meta := gjson.GetBytes(body, "metadata")
		return meta.Get("name").String(), meta.Get("generateName").String()
	}
	meta := protoField(protoField(raw, 2), 1)
	return string(protoField(meta, 1)), string(protoField(meta, 2))
}

// protoField returns the first length-delimited field with the given number in a protobuf message,
// or nil.
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

// leave records the end of a request.
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

// quietPath is the path of an endpoint for workloads that are programs. It responds when the
// controller is quiet.
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

// ask forwards a request. It prefers JSON if the client accepts it, because the tricks read the
// response.
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

// plainAccept removes the binary formats from an Accept header, unless there are no others.
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
	_, _ = w.Write(body) // If this fails, the client has gone away.
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

// A frame is an event received from a watch and the time when it was received.
type frame struct {
	raw json.RawMessage
	at  time.Time
}

// relay forwards events from a watch after applying the tricks of the plan.
func (d *door) relay(w http.ResponseWriter, r *http.Request, p *passed, resp *http.Response) {
	d.mu.Lock()
	d.watches++
	d.mu.Unlock()
	copyHeader(w.Header(), resp.Header)
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	_ = control.Flush()
	// no tricks can be applied if the client only accepts protobuf
	if !strings.Contains(resp.Header.Get("Content-Type"), "json") {
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

// send sends a line immediately and reports whether the client is still connected.
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

// write sends the response of a server that rejects the request.
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
