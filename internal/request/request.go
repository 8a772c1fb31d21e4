// Package request provides information about a request and its user.
//
//	info := request.Parse(r)                  // GET /api/v1/namespaces/shop/pods: list, pods, shop
//	rec := request.From(ctx)                  // the record of the request that ctx belongs to
//	rec.Annotate("key", "why")                // into the audit event
//
// [Info] is the input of authorization, flow control, routing and audit. [Parse] derives it from
// the method and the URL in the same way as kube-apiserver
// (k8s.io/apiserver/pkg/endpoints/request/requestinfo.go). [User] is the authenticated identity,
// with the fields of k8s.io/apiserver/pkg/authentication/user. [Request] is the record of one
// request. It is created by the outermost middleware and stored in the context. Each later step
// adds its results. At the end, it is used to write the log line, the metrics and the audit event.
//
// Invariants: Parse never fails. If the path is not a resource path, it returns a non-resource
// request. A User is shared and must not be modified. Info describes the path whether or not that
// path is served; package routing decides whether it is. Authorization is implemented in package
// auth. It imports no other package of apilet.
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
	// requests without credentials
	UserAnonymous = "system:anonymous"
	// all requests on the plain HTTP loopback port
	UserUnsecured = "system:unsecured"
	// may do anything, regardless of roles
	GroupMasters = "system:masters"
	// all users with credentials
	GroupAuthenticated = "system:authenticated"
	// all users without credentials
	GroupUnauthenticated = "system:unauthenticated"
	// all nodes
	GroupNodes = "system:nodes"
	// All service accounts are members. The suffix :NAMESPACE restricts it to a namespace.
	GroupServiceAccounts = "system:serviceaccounts"
	// followed by namespace:name
	ServiceAccountPrefix = "system:serviceaccount:"
	// followed by the name of the node
	NodePrefix = "system:node:"
)

// Paths specific to apilet that most wildcards in roles do not match (package rbac).
const (
	// PathBackup serves the whole data file, including every Secret and the token signing keys.
	PathBackup = "/debug/backup"
	// PathUI is the prefix of the dashboard. The dashboard shows the requests of other users,
	// which should not be permitted by existing roles.
	PathUI = "/debug/ui/"
)

// Info describes the target of a request for authorization, flow control and audit.
type Info struct {
	// if false, only Verb and Path are set
	ResourceRequest bool
	// get list watch create update patch delete deletecollection; otherwise the lower-case HTTP
	// method
	Verb string
	// api or apis, "" for non-resource requests
	APIPrefix string
	// the core group is ""
	Group, Version string
	// "" if the request is cluster-wide. If the request is for a Namespace, this is its name.
	Namespace string
	// the plural, as in the path
	Resource string
	// "" for the object itself
	Subresource string
	// "" for a collection
	Name string
	// unescaped
	Path string
	// the percent-encoded rest of the path after the subresource, for proxies
	Rest string
	// additional properties of the path
	Form PathForm
	// the parsed ListOptions; nil if there is no query, or if the request is not a LIST, a
	// WATCH or a DELETE of a collection
	query *listQuery
}

// User is the identity of the client. It is shared between requests and must not be modified.
type User struct {
	Name, UID string              // the UID is "" if the credential does not have one
	Groups    []string            // the authenticated groups, and the groups added by WithImplicitGroups
	Extra     map[string][]string // keys in lower case
}

// WithAuthenticatedGroup returns u with the group system:authenticated, unless u is anonymous or
// already in that group or in system:unauthenticated.
func (u User) WithAuthenticatedGroup() User {
	if u.Name != UserAnonymous && !slices.Contains(u.Groups, GroupAuthenticated) && !slices.Contains(u.Groups, GroupUnauthenticated) {
		u.Groups = append(slices.Clip(u.Groups), GroupAuthenticated)
	}
	return u
}

// HasOnlyName reports whether u has only a name, without UID, groups or extra.
func (u User) HasOnlyName() bool { return u.UID == "" && len(u.Groups) == 0 && len(u.Extra) == 0 }

// WithImplicitGroups returns u with the groups that follow from its name and from the mode of
// impersonation.
func (u User) WithImplicitGroups(mode string) User {
	if namespace, _, ok := SplitServiceAccount(u.Name); ok && len(u.Groups) == 0 {
		u.Groups = []string{GroupServiceAccounts, GroupServiceAccounts + ":" + namespace}
	} else if mode == "arbitrary-node" {
		u.Groups = []string{GroupNodes}
	}
	if u.Name == UserAnonymous && !slices.Contains(u.Groups, GroupUnauthenticated) {
		u.Groups = append(slices.Clip(u.Groups), GroupUnauthenticated)
	}
	return u.WithAuthenticatedGroup()
}

// UserInfo returns the user in the form used by reviews and audit events.
func (u User) UserInfo() authenticationv1.UserInfo {
	info := authenticationv1.UserInfo{Username: u.Name, UID: u.UID, Groups: u.Groups}
	for key, values := range u.Extra {
		if info.Extra == nil {
			info.Extra = map[string]authenticationv1.ExtraValue{}
		}
		info.Extra[key] = values
	}
	return info
}

// Request is the record of one request. The outermost middleware creates it and stores it in the
// context. The log line, the metrics and the audit event are written from it at the end.
type Request struct {
	// Audit-Id
	ID string
	// when the header of the request had arrived
	Received time.Time
	// the target of the request
	Info Info
	// the effective user, after impersonation
	User User
	// the authenticated user, if it impersonates another user
	Impersonator *User
	// the User-Agent of the client
	Agent string
	// the address of the client
	Remote string
	// the field manager, if the request names one
	Manager string
	// the point in time to read at, as the client wrote it; "" means now
	Moment string
	// If set, ages are computed relative to this time. It is zero if Moment is "" or if the time is
	// not known.
	AsOf time.Time
	// the response may be an endless stream, such as a watch
	Streaming bool
	// the request is a server-side apply patch
	IsApply bool
	// the verb that permitted the impersonation, for the audit log; "" for plain "impersonate"
	Constraint string
	// the flow schema of the request; "" without flow control
	FlowSchema string
	// its priority level; "" without flow control
	Priority string
	// the time spent in the queue of flow control
	Waited time.Duration
	// Allowed or Forbidden; "" before authorization
	Decision string
	// the reason for Decision
	Reason string
	// the identity of the object in the body
	Sent BodyID
	// the Status in the response; nil if the response was another object
	ResponseStatus *metav1.Status
	// the result of the write; unset for collections
	Written Write
	// data for the audit event, or nil if there is no audit policy or if it has not been
	// evaluated yet
	AuditData *AuditData

	// The time spent waiting for the store and for webhooks, which flow control does not count
	// as work.
	CommitWait, HookWait WaitTime

	// guards annotations, because the objects of a collection are deleted concurrently
	mu sync.Mutex
	// audit annotations (not including the authorization decision)
	annotations map[string]string
}

// AuditData holds the instructions of the audit policy for a request and the recorded data. Only
// the goroutine of the request uses it.
type AuditData struct {
	// None, Metadata, Request or RequestResponse
	Level string
	// stages that are not logged
	OmitStages []string
	// omit managedFields from the bodies
	OmitManagedFields bool
	// the response is not recorded, because it is a stream or comes from another server
	SkipResponse bool
	// the object or patch in the request, as JSON
	RequestObject []byte
	// the response body as sent
	ResponseBody []byte
	// the header of the response
	Header http.Header
	// set if the response was not recorded because it was larger than MaxRecordedResponse or Limit
	// was reached
	TooLong bool
	// limits the total size of recorded responses, unless it is nil
	Limit *ByteLimit
}

const (
	MaxRecordedResponse = 10 << 20 // maximum size of a recorded response
	maxRecordedTotal    = 64 << 20 // maximum size of all recorded responses
)

// ByteLimit counts the bytes of the responses recorded for audit events.
type ByteLimit struct{ used atomic.Int64 }

// RecordsRequest reports whether the body of the request is recorded.
func (a *AuditData) RecordsRequest() bool {
	return a != nil && (a.Level == "Request" || a.Level == "RequestResponse")
}

// RecordsResponse reports whether the response is recorded.
func (a *AuditData) RecordsResponse() bool {
	return a != nil && a.Level == "RequestResponse" && !a.SkipResponse
}

// RecordResponse records a part of the response.
func (a *AuditData) RecordResponse(header http.Header, part []byte) {
	a.Header = header
	if a.Limit != nil && !a.TooLong && a.Limit.used.Add(int64(len(part))) > maxRecordedTotal {
		a.Limit.used.Add(-int64(len(part)))
		a.ReleaseResponse()
		a.TooLong = true
		return
	}
	if a.TooLong {
		return
	}
	if a.ResponseBody = append(a.ResponseBody, part...); len(a.ResponseBody) > MaxRecordedResponse {
		a.ReleaseResponse()
		a.TooLong = true
	}
}

// ReleaseResponse drops the recorded response and returns its bytes to Limit.
func (a *AuditData) ReleaseResponse() {
	if a.Limit != nil {
		a.Limit.used.Add(-int64(len(a.ResponseBody)))
	}
	a.ResponseBody = nil
}

// Decisions of authorization.
const (
	Allowed   = "allow"
	Forbidden = "forbid"
)

// WaitTime is the total time that the goroutines of a request have spent waiting for something.
type WaitTime struct{ nanos atomic.Int64 }

// Total returns the time spent so far.
func (w *WaitTime) Total() time.Duration { return time.Duration(w.nanos.Load()) }

// AddCommitWait adds a wait for the store that started at began and ends now. It does nothing if
// rec is nil.
func (rec *Request) AddCommitWait(began time.Time) {
	if rec != nil {
		rec.CommitWait.nanos.Add(int64(time.Since(began)))
	}
}

// AddHookWait adds a wait for a webhook that started at began and ends now. It does nothing if rec
// is nil.
func (rec *Request) AddHookWait(began time.Time) {
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

// AnnotateOnce adds an audit annotation, unless the key already has one.
func (rec *Request) AnnotateOnce(key, value string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.annotations == nil {
		rec.annotations = map[string]string{}
	}
	if _, exists := rec.annotations[key]; !exists {
		rec.annotations[key] = value
	}
}

// Annotations returns a copy of the audit annotations, including the authorization decision.
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

// RecordBody records the identity of the object in the body of a create or an update. The path of a
// create does not contain the name.
func (rec *Request) RecordBody(obj metav1.Object) {
	rec.Sent = BodyID{obj.GetNamespace(), obj.GetName(), string(obj.GetUID()), obj.GetResourceVersion()}
}

// Write is the result of a write.
type Write struct {
	// the write reached the store, so it was not a dry run
	Done bool
	// the key in the store
	Key string
	// revisions before and after the write, or 0 if the object does not exist (equal if the
	// object was not changed)
	Old, New int64
	// stored data before and after an update, which must not be modified
	Before, After []byte
}

// RecordWrite records the result of a write. If a request writes several times, the last write is
// kept. It does nothing if rec is nil, as for writes of the server itself.
func (rec *Request) RecordWrite(w Write) {
	// The objects of a collection are deleted concurrently.
	if rec == nil || rec.Info.Verb == "deletecollection" {
		return
	}
	w.Done = true
	rec.Written = w
}

// Impersonate makes u the effective user and keeps the previous user as Impersonator. constraint is
// the mode of impersonation for the audit log.
func (rec *Request) Impersonate(u User, constraint string) {
	impersonator := rec.User
	rec.User, rec.Impersonator, rec.Constraint = u, &impersonator, constraint
}

// BodyID identifies the object in a body by its metadata. Omitted fields are "".
type BodyID struct{ Namespace, Name, UID, ResourceVersion string }

// Key is the context key of the request's record.
type Key struct{}

// From returns the record of the request that ctx belongs to. It is never nil after the outermost
// middleware.
func From(ctx context.Context) *Request {
	rec, _ := ctx.Value(Key{}).(*Request)
	return rec
}

// Parse derives Info from the method and the URL. If the path is not a resource path, it returns a
// non-resource request. It never fails.
//
//	/api/VERSION/…   /apis/GROUP/VERSION/…   followed by (the parts in [] are optional)
//	[watch|proxy] [namespaces/NAMESPACE] RESOURCE [NAME [SUBRESOURCE [rest]]]
//
// The paths namespaces/x, namespaces/x/status and namespaces/x/finalize refer to the Namespace
// itself, as a resource in the namespace x, so roles in x may grant access to it. Unlike
// kube-apiserver, Parse splits segments before it unescapes them: pods/a%2Fb is the (impossible)
// pod "a/b", not the subresource b of a.
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
	// deprecated since 1.16, but still a verb in a path
	if res.Resource == "watch" || res.Resource == "proxy" {
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

// segments iterates over the segments of a path. After the last segment it returns "".
type segments struct {
	rest    string
	escaped bool // rest is percent-encoded
	done    bool // no segments are left
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

// lowerMethod returns the method in lower case without an allocation for the common methods.
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

// SplitServiceAccount splits system:serviceaccount:NAMESPACE:NAME. ok is false for any other
// username.
func SplitServiceAccount(username string) (namespace, name string, ok bool) {
	account, ok := strings.CutPrefix(username, ServiceAccountPrefix)
	namespace, name, _ = strings.Cut(account, ":")
	ok = ok && len(validation.ValidateNamespaceName(namespace, false)) == 0 && len(validation.ValidateServiceAccountName(name, false)) == 0
	return namespace, name, ok
}

// IsLoopback reports whether host is localhost or a loopback address. It does not resolve names,
// because the address of a name may change.
func IsLoopback(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// IsNode reports whether a username is system:node:NAME with a valid name of a Node.
func IsNode(name string) bool {
	node, ok := strings.CutPrefix(name, NodePrefix)
	return ok && len(validation.NameIsDNSSubdomain(node, false)) == 0
}

// IsServiceAccount reports whether a username belongs to a service account.
func IsServiceAccount(name string) bool {
	_, _, ok := SplitServiceAccount(name)
	return ok
}

// PathForm describes properties of the path that the other fields of Info do not show.
type PathForm struct {
	Nested bool // RESOURCE follows namespaces/NAMESPACE
	// the path contains a name (Name may also be set by a field selector)
	Named bool
	// the path starts with a verb, watch/ or proxy/; if no resource follows, kube-apiserver
	// returns 500
	InPath bool
}

// IsLongRunning reports whether a request may run indefinitely. The rules are those of
// kube-apiserver.
func IsLongRunning(info *Info) bool {
	if !info.ResourceRequest {
		return strings.HasPrefix(info.Path, "/debug/pprof/")
	}
	return IsConnect(info.Subresource) || info.Verb == "watch" || info.Verb == "proxy"
}

// IsConnect reports whether a subresource is a stream to or from a pod.
func IsConnect(subresource string) bool {
	switch subresource {
	case "attach", "exec", "log", "portforward", "proxy":
		return true
	}
	return false
}

// IsMutating reports whether a request may modify stored data, judging by its verb.
func IsMutating(info *Info) bool {
	return info.Verb != "get" && info.Verb != "list" && info.Verb != "watch"
}

// ListOptions returns the options in the query of a LIST, a WATCH or a DELETE of a collection. For
// all other requests it returns empty options. The error names the invalid number, for a 400
// response. Selectors are not parsed here, because only package selector knows which fields a type
// supports.
func (info *Info) ListOptions() (metav1.ListOptions, error) {
	if info.query == nil {
		return metav1.ListOptions{}, nil
	}
	return info.query.options, info.query.err
}

// WithFieldSelector returns info as if its query had the given field selector. Access reviews and
// CEL expressions use it to check access to a part of a collection.
func (info Info) WithFieldSelector(fieldSelector string) Info {
	if fieldSelector != "" {
		info.query = &listQuery{options: metav1.ListOptions{FieldSelector: fieldSelector}}
	}
	return info
}

// readQuery parses the query of a request for a collection and sets the verb. If there is no name,
// a GET becomes a list or a watch, and a DELETE becomes a deletecollection. If the field selector
// of a list requires a name, authorization and flow control treat the list as a request for that
// name.
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
