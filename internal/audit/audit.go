package audit

// This file writes audit events as lines of JSON in the format of kube-apiserver (audit.k8s.io/v1):
//
//	jq 'select(.annotations["k8s.io/deprecated"]=="true") | .userAgent' audit.log
//
// One event is written when a request ends (ResponseComplete, or Panic). A watch also has one when
// its response begins (ResponseStarted), because it may end hours later. If a request is rejected
// before its user is known, there is only a ResponseStarted event, as in Kubernetes. If there is no
// policy, no event is written for the arrival of a request (RequestReceived). Most audit policies
// omit it.
//
// Each line is written with one write(2) to a file that was opened for appending, while the request
// waits. So the event of a request that has ended is in the file, lines are never mixed,
// and logrotate may truncate the file at any time. A goroutine that collects lines (batcher.go,
// --audit-log-mode=batch) is not faster, because encoding a line takes four times as long as
// writing it, and a crash loses the collected lines. It is useful if the disk may block.
//
// A full disk must not stop the server. If a line cannot be written, it is kept in memory, up to
// maxPendingAudit. If a line was written in part, its rest is written before all other lines. Lines
// beyond the limit are lost, counted and reported.

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

// A stage is the state of a request when an event is created.
type stage string

const (
	// stageRequestReceived means that the user is known. It is only used with a policy.
	stageRequestReceived stage = "RequestReceived"
	// stageResponseStarted is used at the start of a watch response. It is also used if the user is
	// not known, for example for a 401.
	stageResponseStarted  stage = "ResponseStarted"
	stageResponseComplete stage = "ResponseComplete" // the response has been sent
	stagePanic            stage = "Panic"            // the handler panicked
)

// An event describes the state of a request at a given stage. It does not contain headers, because
// they may be secret.
type event struct {
	id           string
	stage        stage
	uri          *url.URL
	verb         string
	user         user     // the user, empty if not known
	impersonated *user    // the impersonated user, or nil
	constraint   string   // the impersonation mode, "" for plain "impersonate"
	sourceIPs    []string // from the function sourceIPs
	agent        string
	object       *objectRef     // nil if the path is not a resource
	level        string         // "" means Metadata
	sent, answer []byte         // bodies of request and response as JSON, nil if not logged
	code         int            // of the response
	status       *metav1.Status // the Status in the response, nil for other objects
	received, at time.Time
	annotations  map[string]string
}

// user is used to encode a user in a line. The order of the fields is the same as in the line.
type user struct {
	Username string              `json:"username,omitempty"`
	UID      string              `json:"uid,omitempty"`
	Groups   []string            `json:"groups,omitempty"`
	Extra    map[string][]string `json:"extra,omitempty"`
}

// objectRef is the part of a line that describes the requested object (audit.k8s.io/v1
// ObjectReference).
type objectRef struct {
	Resource        string `json:"resource,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name,omitempty"` // for a create, from the body if it could be parsed
	UID             string `json:"uid,omitempty"`
	APIGroup        string `json:"apiGroup,omitempty"`
	APIVersion      string `json:"apiVersion,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	Subresource     string `json:"subresource,omitempty"`
}

// auditProof is the part of a line that contains the impersonation mode.
type auditProof struct {
	ImpersonationConstraint string `json:"impersonationConstraint"`
}

// auditLine is an event in the log file. Its fields are in kube-apiserver's order.
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

// Hooks are callbacks that report the progress of a log. They may be nil.
type Hooks struct {
	Written func(events int) // called with the number of written events
	// Dropped is called with the number of lost events. plugin is used in the metrics.
	Dropped func(plugin string, events int)
	// Failing is called when writing begins to fail, and with nil when it works again. It is not
	// called for each event.
	Failing func(err error)
	Leveled func(level string) // called with the level of a request if there is a policy
}

func (h *Hooks) leveled(level string) {
	if h.Leveled != nil {
		h.Leveled(level)
	}
}

// writeResult is the result of a write, which is reported after the lock has been released.
type writeResult struct {
	written, lost int
	waits         bool  // some lines are in memory
	failing       error // not nil if writing has begun to fail
	recovered     bool
}

// Config configures a log. The zero values of all fields except Path are the defaults.
type Config struct {
	Path     string // path of the file, "-" for standard output, or "" for no file
	Policy   *Policy
	Legacy   bool    // --audit-log-format=legacy: human-readable lines
	Mode     Mode    // default: ModeBlocking
	Batches  Batches // for ModeBatch
	Rotation Rotation
	Truncate Truncate
	Webhook  *Sender                             // may be nil
	Unseal   func(sealed []byte) ([]byte, error) // converts protobuf to JSON
}

// Truncate limits the size of events. A large event first loses its bodies. If it is still too
// large, it is dropped.
type Truncate struct {
	Enabled                bool
	MaxEventSize, MaxBatch int64 // bytes
}

// The plugins that can lose events.
const (
	pluginLog      = "log"      // the file
	pluginWebhook  = "webhook"  // the webhook rejected the events
	pluginBuffered = "buffered" // the queue was full
	pluginTruncate = "truncate" // too large, even without bodies
)

// A Log appends events to a file and sends them to a webhook.
type Log struct {
	Config
	path    string   // "-" is standard output, "" means no file
	queue   *batcher // nil unless the mode is ModeBatch
	hooks   Hooks
	room    request.ByteLimit     // memory for response bodies
	failing atomic.Pointer[error] // the error if events cannot be written, or nil

	// mu guards the fields below. It is held during writes, so that the rest of an incomplete line
	// is written next.
	mu      sync.Mutex
	out     io.Writer // an *os.File, except in tests
	pending []byte    // lines that could not be written yet
	torn    bool      // the first part of pending's first line is in the file
	closed  bool
}

// Open opens the file for appending and returns the log.
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
		a.queue = startBatcher(cfg.Batches, 0, func(_ context.Context, batch [][]byte) { a.report(a.append(bytes.Join(batch, nil))) })
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
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600) // the file contains names and habits of users
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return f, nil
}

// Reopen opens the path again after logrotate has moved the file. If that fails, the old file stays
// in use.
func (a *Log) Reopen() error {
	if a.path == "-" || a.path == "" {
		return nil
	}
	f, err := a.open()
	if err != nil {
		return err
	}
	old, lost := a.swap(f)
	a.report(writeResult{lost: lost})
	return closeOutput(old)
}

// swap replaces the file and returns the one that the caller must close.
func (a *Log) swap(f io.Writer) (old io.Writer, lost int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return f, 0
	}
	old, a.out = a.out, f
	if a.torn { // the old file contains the beginning of the line
		a.pending = a.pending[bytes.IndexByte(a.pending, '\n')+1:]
		a.torn = false
		lost = 1
	}
	return old, lost
}

// Close tries to write the pending lines, and closes the file. Later events are lost.
func (a *Log) Close() error {
	a.queue.close()
	out, wasClosed := a.stop()
	a.report(out)
	a.Webhook.close()
	if wasClosed || a.path == "-" || a.path == "" {
		return nil
	}
	return closeOutput(a.out)
}

func (a *Log) stop() (out writeResult, wasClosed bool) {
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

// write writes or queues one event, depending on the modes. It reports whether the request may
// continue.
func (a *Log) write(ev event) (proceed bool) {
	buf := auditBuffers.Get().(*bytes.Buffer)
	defer putBuffer(buf)
	line := lineOf(&ev)
	proceed = true
	if a.Webhook != nil {
		if encodeWithin(buf, line, a.Webhook.Truncate) {
			proceed = a.Webhook.add(bytes.Clone(buf.Bytes()))
		} else {
			a.Webhook.Lost(pluginTruncate, 1, nil)
		}
	}
	switch {
	case a.path == "" && a.out == nil:
	case !encodeWithin(buf, line, a.Truncate):
		a.dropped(pluginTruncate, 1)
	case a.Legacy:
		proceed = a.put([]byte(legacyLine(&ev, line))) && proceed
	default:
		proceed = a.put(buf.Bytes()) && proceed
	}
	return proceed
}

// put writes or queues one line. It reports whether the request may continue.
func (a *Log) put(line []byte) (proceed bool) {
	if a.queue == nil {
		out := a.append(line)
		a.report(out)
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

// putBuffer returns a buffer to the pool unless it is large.
func putBuffer(buf *bytes.Buffer) {
	if buf.Cap() <= 64<<10 {
		auditBuffers.Put(buf)
	}
}

// encodeWithin encodes an event, without bodies if it would be too large. It returns false if the
// event is still too large.
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

// encode encodes an event. It omits bodies that are not JSON, because nothing else can fail.
func encode(buf *bytes.Buffer, line *auditLine) {
	buf.Reset()
	if err := json.NewEncoder(buf).Encode(line); err != nil {
		buf.Reset()
		_ = json.NewEncoder(buf).Encode(line.truncated())
	}
}

// truncated returns a copy of the event without bodies. It adds an annotation.
func (line *auditLine) truncated() *auditLine {
	short := *line
	short.RequestObject, short.ResponseObject, short.Annotations = nil, nil, maps.Clone(line.Annotations)
	if short.Annotations == nil {
		short.Annotations = map[string]string{}
	}
	short.Annotations[truncatedNote] = "true"
	return &short
}

// truncatedNote is an annotation. It is set if the bodies of an event were omitted.
const truncatedNote = "audit.k8s.io/truncated"

// append writes lines after all pending lines.
func (a *Log) append(lines []byte) writeResult {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return writeResult{lost: countLines(lines)}
	}
	if len(a.pending) > 0 {
		return a.appendPendingLocked(lines)
	}
	n, err := a.out.Write(lines)
	out := writeResult{written: countLines(lines[:n])}
	if err == nil {
		return out
	}
	out.failing, out.waits, a.torn = err, true, n > 0 && lines[n-1] != '\n'
	a.pending, out.lost = boundLines(nil, lines[n:])
	return out
}

func countLines(text []byte) int { return bytes.Count(text, []byte("\n")) }

// boundLines appends lines to the pending ones as long as they fit, and returns the number of lost
// lines. The rest of an incomplete line is always kept.
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

func (a *Log) appendPendingLocked(lines []byte) writeResult {
	var out writeResult
	if len(a.pending)+len(lines) > maxPendingAudit {
		out = a.flushLocked() // makes room if writing works again
	}
	a.pending, out.lost = boundLines(a.pending, lines)
	last := a.flushLocked()
	last.written, last.lost = last.written+out.written, out.lost
	last.recovered = last.recovered || out.recovered && len(a.pending) == 0
	last.waits = len(a.pending) > 0
	return last
}

// flushLocked writes the pending lines.
func (a *Log) flushLocked() writeResult {
	if len(a.pending) == 0 || a.closed {
		return writeResult{}
	}
	n, err := a.out.Write(a.pending)
	out := writeResult{written: countLines(a.pending[:n]), recovered: err == nil}
	if n > 0 {
		a.torn = a.pending[n-1] != '\n'
	}
	if err == nil {
		a.pending = nil // releases the memory
	} else {
		a.pending = slices.Delete(a.pending, 0, n)
	}
	return out
}

// CheckHealth returns an error if events cannot be written.
func (a *Log) CheckHealth() error {
	if err := a.failing.Load(); err != nil {
		return fmt.Errorf("the audit log cannot be written, and events that do not fit in memory are lost: %w", *err)
	}
	return nil
}

func (a *Log) report(out writeResult) {
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
	case out.recovered:
		a.failing.Store(nil)
	default:
		return
	}
	if h.Failing != nil {
		h.Failing(out.failing)
	}
}

// --- Encoding

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

func auditAgent(agent string) string { return truncate(agent, maxAuditAgent) }

// secretNames are parts of the names of query parameters with secret values. No Kubernetes API has
// such parameters, but clients may send them if they mistake this server for another one.
var secretNames = []string{"token", "secret", "password", "authorization"}

// URI returns the request's target. It redacts the values of secret parameters.
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

// secretParameter reports whether the value of name=value must be redacted. It returns true if the
// name cannot be decoded.
func secretParameter(part string) bool {
	name, _, _ := strings.Cut(part, "=")
	name, err := url.QueryUnescape(name)
	if err != nil {
		return true
	}
	name = strings.ToLower(name)
	return slices.ContainsFunc(secretNames, func(secret string) bool { return strings.Contains(name, secret) })
}

// auditStatus returns the Status without its kind. For other objects it only contains the code.
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
	if len(status.Message) > messageMax { // it may also have many causes
		status.Message = truncate(status.Message, messageMax)
		if status.Details != nil {
			status.Details = &metav1.StatusDetails{Name: truncate(status.Details.Name, nameMax), Group: status.Details.Group, Kind: status.Details.Kind}
		}
	}
	// Errors of parsers and validators may quote the request.
	refused := ev.code == http.StatusBadRequest || ev.code == http.StatusUnprocessableEntity
	if refused && status.Status == metav1.StatusFailure && holdsSecrets(ev.object) && !ev.bodies() {
		status.Message = "(not shown, because it may quote a secret)"
		status.Details = nil
	}
	return status
}

const (
	// nameMax is the maximum length of a text chosen by a client, in bytes. Stored names are not
	// longer.
	nameMax    = 256
	messageMax = 1024 // bytes of the message of a Status
)

// truncate truncates a text to most bytes, so that the event of a request is not much larger than
// the request.
func truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "...TRUNCATED"
}

// bodies reports whether the event contains the request's body.
func (ev *event) bodies() bool { return ev.level == "Request" || ev.level == "RequestResponse" }

// legacyLine returns an event as human-readable text, in the format of Kubernetes' first audit log.
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

// panicStatus returns the status for a panic in a handler.
func panicStatus(cause any) *metav1.Status {
	return &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Code: http.StatusInternalServerError,
		Message: fmt.Sprintf("APIServer panic'd: %v", cause)}
}

// sourceIPs returns the addresses that proxies claim, followed by the address of the connection,
// which cannot be forged.
func sourceIPs(r *http.Request) []string {
	ips := utilnet.SourceIPs(r)
	texts := make([]string, len(ips))
	for i, ip := range ips {
		texts[i] = ip.String()
	}
	return texts
}
