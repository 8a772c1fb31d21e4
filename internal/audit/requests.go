package audit

import (
	"cmp"
	"net/http"
	"time"

	"apilet/internal/request"
)

// Begun writes the audit event of a request that may last for hours and whose response begins. One that nobody could be made out for
// has no other event, so it is left to Done.
func (l *Log) Begun(r *http.Request, rec *request.Request, code int) {
	if rec.User.Name != "" {
		l.event(r, rec, Event{Stage: StageResponseStarted, Code: code, Status: rec.Answered})
	}
}

// Done writes the audit event of a request that has ended.
func (l *Log) Done(r *http.Request, rec *request.Request, code int, cause any) {
	ev := Event{Stage: StageResponseComplete, Code: code, Status: rec.Answered}
	switch {
	case cause != nil && cause != http.ErrAbortHandler:
		ev.Stage, ev.Status = StagePanic, PanicStatus(cause)
	case rec.User.Name == "":
		ev.Stage = StageResponseStarted
	}
	l.event(r, rec, ev)
}

// event writes an audit event; the caller says what the request has come to.
func (l *Log) event(r *http.Request, rec *request.Request, ev Event) {
	ev.ID, ev.Received, ev.At, ev.Annotations = rec.ID, rec.Received, time.Now(), rec.Annotations
	ev.URI, ev.Verb, ev.Agent, ev.SourceIPs = r.URL, rec.Info.Verb, r.UserAgent(), SourceIPs(r)
	ev.User = userOf(rec.User)
	if rec.Impersonator != nil {
		acting := ev.User
		ev.User, ev.Impersonated, ev.Constraint = userOf(*rec.Impersonator), &acting, rec.Constraint
	}
	if info := &rec.Info; info.ResourceRequest {
		ev.Object = &Object{Resource: info.Resource, Namespace: cmp.Or(info.Namespace, rec.Sent.Namespace),
			Name: cmp.Or(info.Name, rec.Sent.Name), UID: rec.Sent.UID, APIGroup: info.Group, APIVersion: info.Version,
			ResourceVersion: rec.Sent.ResourceVersion, Subresource: info.Subresource}
	}
	l.Write(ev)
}

func userOf(u request.User) User {
	return User{Username: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}
