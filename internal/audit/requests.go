package audit

// This file creates the audit events of requests from their records.

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"apilet/internal/request"
)

// RequestReceived must be called when the user of a request is known. It evaluates the policy and
// writes an event for the arrival of the request. Without a policy it does nothing. In ModeStrict
// it returns false if the event cannot be delivered. The request must then be rejected, and has no
// other event.
func (l *Log) RequestReceived(r *http.Request, rec *request.Request) (proceed bool) {
	if l.Policy == nil {
		return true
	}
	if proceed = l.event(r, rec, event{stage: stageRequestReceived}); !proceed {
		rec.AuditData.Level = "None"
	}
	return proceed
}

// ResponseStarted writes the audit event for the beginning of a long response. If the user of the
// request is not known, Done writes its only event.
func (l *Log) ResponseStarted(r *http.Request, rec *request.Request, code int) {
	if rec.User.Name != "" {
		l.event(r, rec, event{stage: stageResponseStarted, code: code, status: rec.ResponseStatus})
	}
}

// Done must be called when a request has ended. It writes the audit event. If the handler has
// panicked, cause is the value.
func (l *Log) Done(r *http.Request, rec *request.Request, code int, cause any) {
	ev := event{stage: stageResponseComplete, code: code, status: rec.ResponseStatus}
	switch {
	case cause != nil && cause != http.ErrAbortHandler:
		ev.stage, ev.status = stagePanic, panicStatus(cause)
	case rec.User.Name == "":
		ev.stage = stageResponseStarted
	}
	l.event(r, rec, ev)
	if rec.AuditData != nil {
		rec.AuditData.ReleaseResponse()
	}
}

// event completes an event with the data of the request and writes it.
func (l *Log) event(r *http.Request, rec *request.Request, ev event) (proceed bool) {
	if l.Policy != nil {
		if rec.AuditData == nil {
			rec.AuditData = l.Policy.choose(rec)
			rec.AuditData.Limit = &l.room
			l.hooks.leveled(rec.AuditData.Level)
		}
		if rec.AuditData.Level == "None" || slices.Contains(rec.AuditData.OmitStages, string(ev.stage)) {
			return true
		}
		ev.level = rec.AuditData.Level
	}
	ev.id, ev.received, ev.at, ev.annotations = rec.ID, rec.Received, time.Now(), rec.Annotations()
	ev.uri, ev.verb, ev.agent, ev.sourceIPs = r.URL, rec.Info.Verb, r.UserAgent(), sourceIPs(r)
	ev.user = userOf(rec.User)
	if rec.Impersonator != nil {
		acting := ev.user
		ev.user, ev.impersonated, ev.constraint = userOf(*rec.Impersonator), &acting, rec.Constraint
	}
	ev.object = objectRefOf(rec)
	if ev.stage == stageRequestReceived {
		ev.at, ev.annotations = rec.Received, nil
	}
	l.addBodies(&ev, rec)
	return l.write(ev)
}

// objectRefOf returns the reference to the requested object, or nil if the request is not for a
// resource.
func objectRefOf(rec *request.Request) *objectRef {
	info := &rec.Info
	if !info.ResourceRequest {
		return nil
	}
	return &objectRef{Resource: info.Resource, Namespace: truncate(cmp.Or(info.Namespace, rec.Sent.Namespace), nameMax),
		Name: truncate(cmp.Or(info.Name, rec.Sent.Name), nameMax), UID: truncate(rec.Sent.UID, nameMax), APIGroup: info.Group, APIVersion: info.Version,
		ResourceVersion: truncate(rec.Sent.ResourceVersion, nameMax), Subresource: info.Subresource}
}

func userOf(u request.User) user {
	return user{Username: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}
