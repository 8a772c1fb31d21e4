package audit

// This file: who did what, one line of JSON for each request, as Kubernetes' audit log has it (audit.k8s.io/v1, level Metadata: who,
// what, when and how it ended, but no object). What reads kube-apiserver's audit log reads this one:
//
//	jq 'select(.annotations["k8s.io/deprecated"]=="true") | .userAgent' audit.log
//
// A request has one line, at its end (ResponseComplete, or Panic); a watch has one at its head too (ResponseStarted), since its end may
// be hours away. Whoever is refused before it is known who asks has a ResponseStarted alone, as in Kubernetes. The line for the request's
// arrival (RequestReceived) is left out, as most audit policies do.
//
// Each line is one write(2) to a file opened for appending, made while the request waits: what was answered is in the file, lines of
// two requests never mix, and logrotate may truncate the file under us. A goroutine that gathers lines (batcher.go, --audit-log-mode=batch) was measured:
// it is no faster, since making the line costs four times what writing it does, and a kill loses what waits. It is for a disk that hangs.
//
// A disk that is full must not stop the server. Lines that cannot be written wait in memory, up to maxPendingAudit, the rest of a line
// that was written in part before all others; what is beyond that is lost, counted and told.

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"apilet/internal/request"
)

const (
	maxPendingAudit = 1 << 20 // bytes
	maxAuditAgent   = 1024    // bytes of a user agent
)

// A stage says at which moment of a request an event was made.
type stage string

const (
	stageRequestReceived  stage = "RequestReceived"  // it is known who asks; with a policy alone
	stageResponseStarted  stage = "ResponseStarted"  // the head of a watch's response is on its way; or nobody could be made out, as for a 401
	stageResponseComplete stage = "ResponseComplete" // the response is out
	stagePanic            stage = "Panic"            // the handler panicked
)

// An event is what the caller knows about a request at one of its stages. It has no headers and no bodies: nothing secret can get
// into the log by way of them.
type event struct {
	id           string
	stage        stage
	uri          *url.URL
	verb         string
	user         user     // who sent the request; empty when nobody could be made out
	impersonated *user    // whom it was made for, if that is somebody else
	constraint   string   // the narrower permission that allowed it, "" for plain "impersonate"
	sourceIPs    []string // from sourceIPs
	agent        string
	object       *objectRef     // nil for a path that is no resource
	level        string         // "" is Metadata
	sent, answer []byte         // what the request brought and what was answered, as JSON; nil: not told
	code         int            // of the response
	status       *metav1.Status // the Status that was answered, nil when it was another object
	received, at time.Time
	annotations  map[string]string
}

// user is who asks, as a part of the line; its fields are in the line's order.
type user struct {
	Username string              `json:"username,omitempty"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

// objectRef is the part of a line that says what the request was about (audit.k8s.io/v1 ObjectReference).
type objectRef struct {
	Resource        string `json:"resource,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name,omitempty"` // for a create, from the body when that could be read
	UID             string `json:"uid,omitempty"`
	APIGroup        string `json:"apiGroup,omitempty"`
	APIVersion      string `json:"apiVersion,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	Subresource     string `json:"subresource,omitempty"`
}

// auditProof says by which permission somebody is another user.
type auditProof struct {
	ImpersonationConstraint string `json:"impersonationConstraint"`
}

// auditLine is an event on disk; fields in kube-apiserver's order.
type auditLine struct {
	Kind             string            `json:"kind"`
	APIVersion       string            `json:"apiVersion"`
	Level            string            `json:"level"`
	AuditID          string            `json:"auditID"`
	Stage            stage             `json:"stage"`
	RequestURI       string            `json:"requestURI"`
	Verb             string            `json:"verb"`
	User             user              `json:"user"`
	ImpersonatedUser *user             `json:"impersonatedUser,omitempty"`
	Authentication   *auditProof       `json:"authenticationMetadata,omitempty"`
	SourceIPs        []string          `json:"sourceIPs,omitempty"`
	UserAgent        string            `json:"userAgent,omitempty"`
	ObjectRef        *objectRef        `json:"objectRef,omitempty"`
	ResponseStatus   *metav1.Status    `json:"responseStatus,omitempty"`
	RequestObject    json.RawMessage   `json:"requestObject,omitempty"`
	ResponseObject   json.RawMessage   `json:"responseObject,omitempty"`
	RequestReceived  string            `json:"requestReceivedTimestamp"`
	StageTimestamp   string            `json:"stageTimestamp"`
	Annotations      map[string]string `json:"annotations,omitempty"`
}

// Hooks tell the caller how it goes.
type Hooks struct {
	Written func(events int)                // events that are in the log since the last call
	Dropped func(plugin string, events int) // events that are lost since the last call, and where: as kube-apiserver counts them
	Failing func(err error)                 // writing began to fail, or (nil) works again; not told for each event
	Leveled func(level string)              // a policy has chosen; nil: nobody counts
}

func (h *Hooks) leveled(level string) {
	if h.Leveled != nil {
		h.Leveled(level)
	}
}

// auditOutcome is what is to be told after the lock is given back.
type auditOutcome struct {
	written, lost int
	waits         bool  // some are in memory
	failing       error // writing has begun to fail
	workingAgain  bool
}

// Config says what is written, and where to. The zero value of all but Path is what a server does that is not told otherwise.
type Config struct {
	Path     string // of the file; "-" is standard output, "" none
	Policy   *Policy
	Legacy   bool    // --audit-log-format=legacy: lines for people
	Mode     Mode    // "": ModeBlocking
	Batches  Batches // in ModeBatch
	Rotation Rotation
	Truncate Truncate
	Webhook  *Sender                             // nil: none
	Unseal   func(sealed []byte) ([]byte, error) // protobuf as JSON
}

// Truncate has what is too long shortened: at first the bodies go, then the event.
type Truncate struct {
	Enabled                bool
	MaxEventSize, MaxBatch int64 // bytes
}

// Where events are lost.
const (
	pluginLog      = "log"      // the file
	pluginWebhook  = "webhook"  // it did not take them
	pluginBuffered = "buffered" // there was no room for them to wait
	pluginTruncate = "truncate" // they were too long, without bodies, too
)

// A Log appends events to a file, and hands them to a webhook.
type Log struct {
	Config
	path    string   // "-" is standard output, "" none
	queue   *batcher // nil: requests wait until their events are written
	hooks   Hooks
	room    request.Room          // for answers that events tell
	failing atomic.Pointer[error] // why events cannot be written; nil: they can

	mu      sync.Mutex // guards what follows; held over the write, so that the rest of a torn line comes right after it
	out     io.Writer  // an *os.File, but in tests
	pending []byte     // lines that could not be written yet
	torn    bool       // pending begins in the middle of a line, whose first part is in the file
	closed  bool
}

// Open opens the file for appending.
func Open(cfg Config, hooks Hooks) (*Log, error) {
	a := &Log{Config: cfg, path: cfg.Path, hooks: hooks}
	switch cfg.Path {
	case "":
	case "-":
		a.out = os.Stdout
	default:
		f, err := a.open()
		if err != nil {
			return nil, err
		}
		a.out = f
	}
	if a.Mode == ModeBatch && a.out != nil {
		a.queue = startBatcher(cfg.Batches, 0, func(_ context.Context, batch [][]byte) { a.tell(a.append(bytes.Join(batch, nil))) })
	}
	return a, nil
}

func (a *Log) open() (io.Writer, error) {
	if a.Rotation.MaxSize > 0 {
		return openRotating(a.path, a.Rotation)
	}
	return openAppend(a.path)
}

func openAppend(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600) // who reads it learns names and habits
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return f, nil
}

// Reopen opens the path anew: logrotate, without copytruncate, has moved the file. If that fails the old file stays in use.
func (a *Log) Reopen() error {
	if a.path == "-" || a.path == "" {
		return nil
	}
	f, err := a.open()
	if err != nil {
		return err
	}
	old, lost := a.swap(f)
	a.tell(auditOutcome{lost: lost})
	return closeOutput(old)
}

// swap makes f the file and returns the one to close.
func (a *Log) swap(f io.Writer) (old io.Writer, lost int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return f, 0
	}
	old, a.out = a.out, f
	if a.torn { // its beginning is in the old file
		a.pending = a.pending[bytes.IndexByte(a.pending, '\n')+1:]
		a.torn = false
		lost = 1
	}
	return old, lost
}

// Close writes what waits, if it can, and closes the file. Events that come later are lost.
func (a *Log) Close() error {
	a.queue.close()
	out, wasClosed := a.stop()
	a.tell(out)
	a.Webhook.close()
	if wasClosed || a.path == "-" || a.path == "" {
		return nil
	}
	return closeOutput(a.out)
}

func (a *Log) stop() (out auditOutcome, wasClosed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	out, wasClosed = a.flushLocked(), a.closed
	out.lost += countLines(a.pending)
	a.closed, a.pending = true, nil
	return out, wasClosed
}

func closeOutput(w io.Writer) error {
	if c, ok := w.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

var auditBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// write has one event where it belongs, or on its way, as the modes say, and says whether its request may go on.
func (a *Log) write(ev event) (goesOn bool) {
	buf := auditBuffers.Get().(*bytes.Buffer)
	defer putBuffer(buf)
	line := lineOf(&ev)
	goesOn = true
	if a.Webhook != nil {
		if encodeWithin(buf, line, a.Webhook.Truncate) {
			goesOn = a.Webhook.add(bytes.Clone(buf.Bytes()))
		} else {
			a.Webhook.Lost(pluginTruncate, 1, nil)
		}
	}
	switch {
	case a.path == "" && a.out == nil:
	case !encodeWithin(buf, line, a.Truncate):
		a.dropped(pluginTruncate, 1)
	case a.Legacy:
		goesOn = a.put([]byte(legacyLine(&ev, line))) && goesOn
	default:
		goesOn = a.put(buf.Bytes()) && goesOn
	}
	return goesOn
}

// put has a line in the file, or on its way there, and says whether its request may go on.
func (a *Log) put(line []byte) (goesOn bool) {
	if a.queue == nil {
		out := a.append(line)
		a.tell(out)
		return out.written > 0 && !out.waits || a.Mode != ModeStrict
	}
	if !a.queue.add(bytes.Clone(line)) {
		a.dropped(pluginBuffered, 1)
	}
	return true
}

func (a *Log) dropped(plugin string, events int) {
	if a.hooks.Dropped != nil {
		a.hooks.Dropped(plugin, events)
	}
}

// putBuffer leaves what a large event needed to the collector.
func putBuffer(buf *bytes.Buffer) {
	if buf.Cap() <= 64<<10 {
		auditBuffers.Put(buf)
	}
}

// encodeWithin encodes an event with its bodies, or without where it would be too long; false when that is too long, too.
func encodeWithin(buf *bytes.Buffer, line *auditLine, limit Truncate) bool {
	encode(buf, line)
	if !limit.Enabled || int64(buf.Len()) <= limit.MaxEventSize {
		return true
	}
	if line.Level != "Request" && line.Level != "RequestResponse" {
		return false
	}
	encode(buf, line.truncated())
	return int64(buf.Len()) <= limit.MaxEventSize
}

// encode leaves out bodies that are no JSON: nothing else can fail.
func encode(buf *bytes.Buffer, line *auditLine) {
	buf.Reset()
	if err := json.NewEncoder(buf).Encode(line); err != nil {
		buf.Reset()
		_ = json.NewEncoder(buf).Encode(line.truncated())
	}
}

// truncated is the event without bodies, which says so.
func (line *auditLine) truncated() *auditLine {
	short := *line
	short.RequestObject, short.ResponseObject, short.Annotations = nil, nil, maps.Clone(line.Annotations)
	if short.Annotations == nil {
		short.Annotations = map[string]string{}
	}
	short.Annotations[truncatedNote] = "true"
	return &short
}

const truncatedNote = "audit.k8s.io/truncated" // the annotation of an event whose bodies were too long

// append writes lines after all that wait.
func (a *Log) append(lines []byte) auditOutcome {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return auditOutcome{lost: countLines(lines)}
	}
	if len(a.pending) > 0 {
		return a.appendPendingLocked(lines)
	}
	n, err := a.out.Write(lines)
	out := auditOutcome{written: countLines(lines[:n])}
	if err == nil {
		return out
	}
	out.failing, out.waits, a.torn = err, true, n > 0 && lines[n-1] != '\n'
	a.pending, out.lost = boundLines(nil, lines[n:])
	return out
}

func countLines(text []byte) int { return bytes.Count(text, []byte("\n")) }

// boundLines adds lines to those that wait, as many as there is room for, and counts the others. Of one that is torn the rest finds room, however long.
func boundLines(pending, lines []byte) (_ []byte, lost int) {
	kept := lines
	if room := maxPendingAudit - len(pending); len(lines) > room {
		end := 0
		if len(pending) == 0 {
			end = bytes.IndexByte(lines, '\n') + 1
		}
		if room > end {
			end = bytes.LastIndexByte(lines[:room], '\n') + 1
		}
		kept = lines[:end]
	}
	return append(pending, kept...), countLines(lines) - countLines(kept)
}

func (a *Log) appendPendingLocked(lines []byte) auditOutcome {
	var out auditOutcome
	if len(a.pending)+len(lines) > maxPendingAudit {
		out = a.flushLocked() // there may be room by now
	}
	a.pending, out.lost = boundLines(a.pending, lines)
	last := a.flushLocked()
	last.written, last.lost = last.written+out.written, out.lost
	last.workingAgain = last.workingAgain || out.workingAgain && len(a.pending) == 0
	last.waits = len(a.pending) > 0
	return last
}

// flushLocked writes what waits.
func (a *Log) flushLocked() auditOutcome {
	if len(a.pending) == 0 || a.closed {
		return auditOutcome{}
	}
	n, err := a.out.Write(a.pending)
	out := auditOutcome{written: countLines(a.pending[:n]), workingAgain: err == nil}
	if n > 0 {
		a.torn = a.pending[n-1] != '\n'
	}
	if err == nil {
		a.pending = nil // given back: it may have grown to maxPendingAudit
	} else {
		a.pending = slices.Delete(a.pending, 0, n)
	}
	return out
}

// Works is why events cannot be written, while they cannot.
func (a *Log) Works() error {
	if err := a.failing.Load(); err != nil {
		return fmt.Errorf("the audit log cannot be written, and what does not fit in memory is lost: %w", *err)
	}
	return nil
}

func (a *Log) tell(out auditOutcome) {
	h := &a.hooks
	if out.written > 0 && h.Written != nil {
		h.Written(out.written)
	}
	if out.lost > 0 {
		a.dropped(pluginLog, out.lost)
	}
	switch {
	case out.failing != nil:
		err := out.failing
		a.failing.Store(&err)
	case out.workingAgain:
		a.failing.Store(nil)
	default:
		return
	}
	if h.Failing != nil {
		h.Failing(out.failing)
	}
}

// --- From event to line

func lineOf(ev *event) *auditLine {
	line := &auditLine{
		Kind: "Event", APIVersion: "audit.k8s.io/v1", Level: cmp.Or(ev.level, "Metadata"),
		AuditID:          ev.id,
		Stage:            ev.stage,
		RequestURI:       URI(ev.uri),
		Verb:             ev.verb,
		User:             ev.user,
		ImpersonatedUser: ev.impersonated,
		SourceIPs:        ev.sourceIPs,
		UserAgent:        auditAgent(ev.agent),
		ObjectRef:        ev.object,
		ResponseStatus:   auditStatus(ev),
		RequestObject:    ev.sent,
		ResponseObject:   ev.answer,
		RequestReceived:  ev.received.UTC().Format(metav1.RFC3339Micro),
		StageTimestamp:   ev.at.UTC().Format(metav1.RFC3339Micro),
		Annotations:      ev.annotations,
	}
	if ev.constraint != "" {
		line.Authentication = &auditProof{ev.constraint}
	}
	return line
}

func auditAgent(agent string) string { return cut(agent, maxAuditAgent) }

// Parts of names of query parameters whose values are nobody's business. No Kubernetes API has such parameters; clients that mistake
// this server for another one may.
var secretNames = []string{"token", "secret", "password", "authorization"}

// URI is the request's target with the values of secret parameters taken out; otherwise as it was sent.
func URI(u *url.URL) string {
	if u == nil {
		return ""
	}
	parts := strings.Split(u.RawQuery, "&")
	if !slices.ContainsFunc(parts, secretParameter) {
		return u.RequestURI()
	}
	for i, part := range parts {
		if secretParameter(part) {
			name, _, _ := strings.Cut(part, "=")
			parts[i] = name + "=REDACTED"
		}
	}
	clean := *u
	clean.RawQuery = strings.Join(parts, "&")
	return clean.RequestURI()
}

// secretParameter says whether name=value is one whose value is to be kept out. What cannot be decoded is too.
func secretParameter(part string) bool {
	name, _, _ := strings.Cut(part, "=")
	name, err := url.QueryUnescape(name)
	if err != nil {
		return true
	}
	name = strings.ToLower(name)
	return slices.ContainsFunc(secretNames, func(secret string) bool { return strings.Contains(name, secret) })
}

// auditStatus is the Status without its kind; for other objects it is the code alone.
func auditStatus(ev *event) *metav1.Status {
	if ev.stage == stageRequestReceived {
		return nil
	}
	status := &metav1.Status{}
	if ev.status != nil {
		*status = *ev.status
		status.TypeMeta = metav1.TypeMeta{}
	}
	status.Code = cmp.Or(status.Code, int32(ev.code))
	if len(status.Message) > messageMax { // and its causes are as many
		status.Message = cut(status.Message, messageMax)
		if status.Details != nil {
			status.Details = &metav1.StatusDetails{Name: cut(status.Details.Name, nameMax), Group: status.Details.Group, Kind: status.Details.Kind}
		}
	}
	// Parsers and validators quote what they refuse.
	refused := ev.code == http.StatusBadRequest || ev.code == http.StatusUnprocessableEntity
	if refused && status.Status == metav1.StatusFailure && holdsSecrets(ev.object) && !ev.bodies() {
		status.Message = "(not shown, because it may quote a secret)"
		status.Details = nil
	}
	return status
}

const (
	nameMax    = 256  // bytes of a text of an object that a client chose: what may be stored is no longer
	messageMax = 1024 // bytes of a Status' message
)

// cut shortens a text that is too long: a line about a request must not be many times as long as the request.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "...TRUNCATED"
}

// bodies says that what a client sends is told anyway.
func (ev *event) bodies() bool { return ev.level == "Request" || ev.level == "RequestResponse" }

// legacyLine is an event for people, in the form of Kubernetes' audit log before there was a format.
func legacyLine(ev *event, line *auditLine) string {
	quoted := func(list []string) string {
		parts := make([]string, len(list))
		for i, one := range list {
			parts[i] = strconv.Quote(one)
		}
		return strings.Join(parts, ",")
	}
	who, groups, as, asGroups, namespace, code, from := "<none>", "<none>", "<self>", "<lookup>", "<none>", "<deferred>", "<unknown>"
	if who = cmp.Or(line.User.Username, who); line.User.Username != "" && len(line.User.Groups) > 0 {
		groups = quoted(line.User.Groups)
	}
	if line.ImpersonatedUser != nil {
		as = line.ImpersonatedUser.Username
		if line.ImpersonatedUser.Groups != nil {
			asGroups = quoted(line.ImpersonatedUser.Groups)
		}
	}
	if line.ObjectRef != nil {
		namespace = cmp.Or(line.ObjectRef.Namespace, namespace)
	}
	if line.ResponseStatus != nil {
		code = strconv.Itoa(int(line.ResponseStatus.Code))
	}
	if len(line.SourceIPs) > 0 {
		from = line.SourceIPs[0]
	}
	return fmt.Sprintf("%s AUDIT: id=%q stage=%q ip=%q method=%q user=%q groups=%q as=%q asgroups=%q user-agent=%q namespace=%q uri=%q response=\"%s\"\n",
		ev.received.Format(time.RFC3339Nano), line.AuditID, line.Stage, from, line.Verb, who, groups, as, asGroups, line.UserAgent, namespace, line.RequestURI, code)
}

func holdsSecrets(o *objectRef) bool {
	return o != nil && (o.Resource == "secrets" || o.Resource == "tokenreviews" || o.Subresource == "token")
}

// panicStatus is the status of a request whose handler panicked.
func panicStatus(cause any) *metav1.Status {
	return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: fmt.Sprintf("APIServer panic'd: %v", cause)}
}

// sourceIPs are the client's address and those that proxies claim, the one that cannot be made up last.
func sourceIPs(r *http.Request) []string {
	ips := utilnet.SourceIPs(r)
	texts := make([]string, len(ips))
	for i, ip := range ips {
		texts[i] = ip.String()
	}
	return texts
}
