// Package request says what is asked and who asks.
//
//	info := request.Parse(r)                  // GET /api/v1/namespaces/shop/pods: list, pods, shop
//	rec := request.From(ctx)                  // the record of the request that ctx belongs to
//	rec.Annotate("key", "why")                // into the audit event
//
// [Info] is what authorization, flow control, routing and audit decide by; [Parse] reads it off method and path as kube-apiserver does
// (k8s.io/apiserver/pkg/endpoints/request/requestinfo.go). [User] is the identity that authentication found, in the terms of
// k8s.io/apiserver/pkg/authentication/user. Request is the one record of a request: the outermost step of the chain makes it and puts it into
// the context, the steps write into it what they find, and from it log, metrics and audit are written at the end.
//
// Invariants: Parse never fails: what is no resource path is a request for no resource; a User is shared and never changed in place; the
// Info is what the path says, whether or not there is such a path (package routing knows that). It decides nothing: who may do what is
// package auth's. It imports none of our packages.
package request

import (
	"context"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	UserAnonymous        = "system:anonymous"       // who showed no credential
	UserUnsecured        = "system:unsecured"       // everybody on the plain loopback port
	GroupMasters         = "system:masters"         // may do anything, whatever the roles say
	GroupAuthenticated   = "system:authenticated"   // everybody who showed a credential
	GroupUnauthenticated = "system:unauthenticated" // everybody else
	GroupNodes           = "system:nodes"           // every node
	GroupServiceAccounts = "system:serviceaccounts" // every service account; with :NAMESPACE behind it, those of one
	ServiceAccountPrefix = "system:serviceaccount:" // then namespace:name
	NodePrefix           = "system:node:"           // then the node's name
)

// Paths of the server's own that most wildcards in roles do not reach (package rbac).
const (
	PathBackup = "/debug/backup" // the whole file is handed out, with every Secret and the keys that tokens are signed with
	PathUI     = "/debug/ui/"    // the page for people lies under it: what it shows of others' requests, no role of before was written to show
)

// Info is what a request asks for, as Kubernetes' authorizers, flow control and audit see it.
type Info struct {
	ResourceRequest bool       // false: only Verb and Path say something
	Verb            string     // get list watch create update patch delete deletecollection; else the lower-case HTTP method
	APIPrefix       string     // api or apis, "" for non-resource requests
	Group, Version  string     // the core group is ""
	Namespace       string     // "" for a cluster-wide request; of a Namespace its own name
	Resource        string     // the plural, as in the path
	Subresource     string     // "" for the object itself
	Name            string     // "" for a collection
	Path            string     // unescaped
	Rest            string     // what the path holds behind the subresource, for proxies; still percent-encoded
	Form            PathForm   // what the other fields do not tell of the path
	query           *listQuery // what ListOptions tells; nil when there is no query, or it is of no LIST, WATCH or DELETE of a collection
}

// User is who asks. Shared between requests: never changed in place.
type User struct {
	Name, UID string              // the UID is "" where a credential has none
	Groups    []string            // as authenticated, then completed
	Extra     map[string][]string // keys in lower case
}

// Authenticated returns u with the group of everybody who showed a credential.
func (u User) Authenticated() User {
	if u.Name != UserAnonymous && !slices.Contains(u.Groups, GroupAuthenticated) && !slices.Contains(u.Groups, GroupUnauthenticated) {
		u.Groups = append(slices.Clip(u.Groups), GroupAuthenticated)
	}
	return u
}

// IsBare says that u is a name and nothing else: no uid, no groups, no extra.
func (u User) IsBare() bool { return u.UID == "" && len(u.Groups) == 0 && len(u.Extra) == 0 }

// Completed adds the groups that follow from the name.
func (u User) Completed(mode string) User {
	if namespace, _, ok := SplitServiceAccount(u.Name); ok && len(u.Groups) == 0 {
		u.Groups = []string{GroupServiceAccounts, GroupServiceAccounts + ":" + namespace}
	} else if mode == "arbitrary-node" {
		u.Groups = []string{GroupNodes}
	}
	if u.Name == UserAnonymous && !slices.Contains(u.Groups, GroupUnauthenticated) {
		u.Groups = append(slices.Clip(u.Groups), GroupUnauthenticated)
	}
	return u.Authenticated()
}

// Wire is the user as reviews and audit events write it.
func (u User) Wire() authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups}
	for key, values := range u.Extra {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[key] = values
	}
	return info
}

// Request is the one record of a request, made by the outermost middleware and carried in the context. Log line, metrics and
// audit event are written from it at the end.
type Request struct {
	ID           string         // Audit-Id
	Received     time.Time      // when its head had come
	Info         Info           // what it asks for
	User         User           // who acts (after impersonation)
	Impersonator *User          // who really asks, when that is somebody else
	Agent        string         // the program that asks, as it calls itself
	Remote       string         // the address that it came from
	Manager      string         // of fields, where the request names one
	At           string         // the moment that is asked about, as named; "": now
	Then         time.Time      // that moment, as far as it is known: what ages count to; zero: now
	Follows      bool           // the answer goes on for as long as the client likes, or may: a watch is one
	Applies      bool           // it is a patch that says what is wanted: an apply
	Constraint   string         // the verb that allowed the impersonation, "" for plain "impersonate"; audit writes it
	FlowSchema   string         // that classified it; "" without flow control
	Priority     string         // the level; "" without flow control
	Waited       time.Duration  // in flow control's queue
	Decision     string         // Allowed or Forbidden, by authorization; "" before it
	Reason       string         // for the decision
	Sent         BodyID         // what the body calls its object
	Answered     *metav1.Status // the Status that was answered; nil when it was another object
	Written      Write          // what became of the object; of a collection nothing is told
	Audited      *Audited       // what an audit policy wants of it; nil: there is none, or it has not been asked yet

	CommitWait, HookWait Waits // for the store, and for webhooks: what flow control does not take for work

	mu          sync.Mutex        // guards annotations: a collection's objects are deleted side by side
	annotations map[string]string // audit annotations, without the decision, which every request has
}

// Audited is what an audit policy wants of a request, and what has been kept for it. One goroutine works on it: the request's.
type Audited struct {
	Level         string      // None, Metadata, Request or RequestResponse
	OmitStages    []string    // that are not told
	WithoutFields bool        // managedFields are left out of the bodies
	Unkept        bool        // nothing of the answer is: it goes on for as long as the client likes, or is another server's
	Sent          []byte      // the object or patch that the request brought, as JSON; nil: none
	Answer        []byte      // the answer's bytes as they went out
	Header        http.Header // the answer's
	TooLong       bool        // the answer has more than MostKept bytes, or there was no room: none is kept
	Room          *Room       // for the answers of all requests; nil: without bound
}

const (
	MostKept = 10 << 20 // bytes of an answer that are kept for an audit event
	roomFor  = 64 << 20 // bytes of all answers that are
)

// Room is what answers that are kept for audit events take together.
type Room struct{ used atomic.Int64 }

// WantsSent says that what the request brings is to be kept.
func (a *Audited) WantsSent() bool {
	return a != nil && (a.Level == "Request" || a.Level == "RequestResponse")
}

// WantsAnswer says that the answer is to be kept.
func (a *Audited) WantsAnswer() bool { return a != nil && a.Level == "RequestResponse" && !a.Unkept }

// Keep adds a part of the answer.
func (a *Audited) Keep(header http.Header, part []byte) {
	a.Header = header
	if a.Room != nil && !a.TooLong && a.Room.used.Add(int64(len(part))) > roomFor {
		a.Room.used.Add(-int64(len(part)))
		a.GiveBack()
		a.TooLong = true
		return
	}
	if a.TooLong {
		return
	}
	if a.Answer = append(a.Answer, part...); len(a.Answer) > MostKept {
		a.GiveBack()
		a.TooLong = true
	}
}

// GiveBack forgets the answer.
func (a *Audited) GiveBack() {
	if a.Room != nil {
		a.Room.used.Add(-int64(len(a.Answer)))
	}
	a.Answer = nil
}

// What authorization decides.
const (
	Allowed   = "allow"
	Forbidden = "forbid"
)

// Waits is the time that a request has waited for something, by all goroutines that work for it.
type Waits struct{ nanos atomic.Int64 }

// Total is the time until now.
func (w *Waits) Total() time.Duration { return time.Duration(w.nanos.Load()) }

// NoteCommit adds a wait that began then and has just ended; NoteHook likewise. A nil request notes nothing.
func (rec *Request) NoteCommit(began time.Time) {
	if rec != nil {
		rec.CommitWait.nanos.Add(int64(time.Since(began)))
	}
}

// NoteHook is NoteCommit's like for webhooks.
func (rec *Request) NoteHook(began time.Time) {
	if rec != nil {
		rec.HookWait.nanos.Add(int64(time.Since(began)))
	}
}

// Annotate adds an audit annotation.
func (rec *Request) Annotate(key, value string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.annotations == nil {
		rec.annotations = map[string]string{}
	}
	rec.annotations[key] = value
}

// AnnotateOnce adds an audit annotation, unless there is one of that key.
func (rec *Request) AnnotateOnce(key, value string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.annotations == nil {
		rec.annotations = map[string]string{}
	}
	if _, told := rec.annotations[key]; !told {
		rec.annotations[key] = value
	}
}

// Annotations are the audit annotations, the caller's own copy: what was decided, and what else was added.
func (rec *Request) Annotations() map[string]string {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	all := maps.Clone(rec.annotations)
	if rec.Decision == "" {
		return all
	}
	if all == nil {
		all = map[string]string{}
	}
	all["authorization.k8s.io/decision"], all["authorization.k8s.io/reason"] = rec.Decision, rec.Reason
	return all
}

// NoteBody keeps what the body of a create or an update calls its object: the path of a create does not say.
func (rec *Request) NoteBody(obj metav1.Object) {
	rec.Sent = BodyID{obj.GetNamespace(), obj.GetName(), string(obj.GetUID()), obj.GetResourceVersion()}
}

// A Write is what a request has made of its object.
type Write struct {
	Done     bool   // it came as far as the store; a dry run does not
	Key      string // the store's
	Old, New int64  // revisions before and after: equal when nothing changed, 0 when there is no object
	Was, Is  []byte // what was stored before and after an update; nobody changes them
}

// NoteWrite keeps what a request has made of its object: the last of several writes counts. The server's own work has no record.
func (rec *Request) NoteWrite(w Write) {
	if rec == nil || rec.Info.Verb == "deletecollection" { // whose objects are written side by side
		return
	}
	w.Done = true
	rec.Written = w
}

// ActAs makes u the request's user and keeps the one before as its Impersonator; constraint is the mode of impersonation, for the audit log.
func (rec *Request) ActAs(u User, constraint string) {
	impersonator := rec.User
	rec.User, rec.Impersonator, rec.Constraint = u, &impersonator, constraint
}

// BodyID is what a body calls its object, in its metadata; what it leaves out is "".
type BodyID struct{ Namespace, Name, UID, ResourceVersion string }

// Key is the context key of a request's record.
type Key struct{}

// From returns the record of the request that ctx belongs to; never nil behind the outermost middleware.
func From(ctx context.Context) *Request {
	rec, _ := ctx.Value(Key{}).(*Request)
	return rec
}

// Parse reads Info off method and URL; it never fails: what is no resource path is a non-resource request.
//
//	/api/VERSION/…   /apis/GROUP/VERSION/…   and then, [] being optional,
//	[watch|proxy] [namespaces/NAMESPACE] RESOURCE [NAME [SUBRESOURCE [rest]]]
//
// namespaces/x, namespaces/x/status and namespaces/x/finalize are the namespace itself (as a resource in the namespace x: roles in
// x may grant it). Unlike kube-apiserver's, segments are split before they are unescaped: pods/a%2Fb is the (impossible) pod "a/b",
// not the subresource b of a.
func Parse(r *http.Request) Info {
	info := Info{Verb: lowerMethod(r.Method), Path: r.URL.Path}
	p := pathSegments(r.URL)
	prefix := p.next()
	if prefix != "api" && prefix != "apis" {
		return info
	}
	res := Info{Path: info.Path, APIPrefix: prefix, ResourceRequest: true}
	if prefix == "apis" {
		res.Group = p.next()
	}
	res.Version, res.Verb = p.next(), resourceVerb(r.Method)
	if p.done {
		return info // a discovery document
	}
	res.Resource = p.next()
	if res.Resource == "watch" || res.Resource == "proxy" { // deprecated since 1.16, but still a verb in a path
		if p.done {
			info.Form.InPath = true
			return info
		}
		res.Verb, res.Resource, res.Form.InPath = res.Resource, p.next(), true
	}
	if res.Resource == "namespaces" && !p.done {
		res.Namespace = p.next()
		res.Name = res.Namespace
		if !p.done && !isNamespaceSubresource(p.peek()) {
			res.Resource, res.Name, res.Form.Nested = p.next(), p.next(), true
		}
	} else {
		res.Name = p.next()
	}
	if res.Verb != "proxy" {
		res.Subresource = p.next()
	}
	res.Rest, res.Form.Named = p.rest, res.Name != ""
	res.readQuery(r.URL.RawQuery)
	return res
}

// segments yields the parts of a path between slashes; behind the last one they are "".
type segments struct {
	rest    string
	escaped bool // rest is percent-encoded
	done    bool // nothing is left
}

func (p *segments) peek() string {
	q := *p
	return q.next()
}

func (p *segments) next() string {
	segment, rest, more := strings.Cut(p.rest, "/")
	p.rest, p.done = rest, !more
	if p.escaped {
		if plain, err := url.PathUnescape(segment); err == nil {
			return plain
		}
	}
	return segment
}

func pathSegments(u *url.URL) segments {
	p := segments{rest: u.Path, escaped: u.RawPath != ""}
	if p.escaped {
		p.rest = u.EscapedPath()
	}
	p.rest = strings.Trim(p.rest, "/")
	p.done = p.rest == ""
	return p
}

func isNamespaceSubresource(s string) bool { return s == "status" || s == "finalize" }

func resourceVerb(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch, http.MethodDelete:
		return lowerMethod(method)
	}
	return ""
}

// lowerMethod spares the common methods an allocation.
func lowerMethod(method string) string {
	switch method {
	case http.MethodGet:
		return "get"
	case http.MethodPost:
		return "post"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return strings.ToLower(method)
}

// SplitServiceAccount takes system:serviceaccount:NAMESPACE:NAME apart; ok is false for any other username.
func SplitServiceAccount(username string) (namespace, name string, ok bool) {
	account, ok := strings.CutPrefix(username, ServiceAccountPrefix)
	namespace, name, _ = strings.Cut(account, ":")
	ok = ok && len(validation.ValidateNamespaceName(namespace, false)) == 0 && len(validation.ValidateServiceAccountName(name, false)) == 0
	return namespace, name, ok
}

// IsLoopback is about the text: a name that happens to resolve to loopback may resolve to something else tomorrow.
func IsLoopback(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// IsNode says that a username is system:node:NAME, with a name that a Node may have.
func IsNode(name string) bool {
	node, ok := strings.CutPrefix(name, NodePrefix)
	return ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

// IsServiceAccount says that a username is that of a service account.
func IsServiceAccount(name string) bool {
	_, _, ok := SplitServiceAccount(name)
	return ok
}

// A PathForm is what Info's other fields do not tell of a path.
type PathForm struct {
	Nested bool // RESOURCE stands behind namespaces/NAMESPACE
	Named  bool // the path goes down to one object; a list gets a name from its field selector, too
	InPath bool // the verb stands in the path: watch/ or proxy/. No resource may follow it; kube-apiserver answers 500 then
}

// LongRunning are the requests that may take for ever, as in kube-apiserver.
func LongRunning(info *Info) bool {
	if !info.ResourceRequest {
		return strings.HasPrefix(info.Path, "/debug/pprof/")
	}
	return Connects(info.Subresource) || info.Verb == "watch" || info.Verb == "proxy"
}

// Connects says that a subresource is a stream to or from a pod.
func Connects(subresource string) bool {
	switch subresource {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return false
}

// IsMutating says that a request may change what is stored, by its verb.
func IsMutating(info *Info) bool {
	return info.Verb != "get" && info.Verb != "list" && info.Verb != "watch"
}

// ListOptions are what the query of a LIST, a WATCH or a DELETE of a collection asks for; they are empty for any other request. err names
// the number that is none, for a 400. Selectors are not parsed: what a type may be asked for is package selector's to know.
func (info *Info) ListOptions() (metav1.ListOptions, error) {
	if info.query == nil {
		return metav1.ListOptions{}, nil
	}
	return info.query.options, info.query.err
}

// Selecting is info as if its query had this field selector: the way in which access reviews, and expressions, ask about a part of a collection.
func (info Info) Selecting(fieldSelector string) Info {
	if fieldSelector != "" {
		info.query = &listQuery{options: metav1.ListOptions{FieldSelector: fieldSelector}}
	}
	return info
}

// readQuery reads the query of a request that is for more than one object, and finds its verb by it: a GET that names no object is a list
// or a watch, a DELETE one of a collection. A list of a single name through the field selector is authorized, and counted by flow control,
// as one for that name.
func (info *Info) readQuery(raw string) {
	switch {
	case info.Verb == "watch":
	case info.Name == "" && info.Verb == "delete":
		info.Verb = "deletecollection"
	case info.Name == "" && info.Verb == "get":
		info.Verb = "list"
	default:
		return
	}
	if raw == "" {
		return
	}
	info.query = parseListQuery(raw)
	if info.Verb == "list" {
		if info.query.options.Watch {
			info.Verb = "watch"
		}
		info.Name = info.query.selectedName()
	}
}
