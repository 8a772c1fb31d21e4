package audit

// This file makes audit events of requests: at which stages a request has one, and what of its record goes into it.

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"apilet/internal/request"
)

// Received asks the policy what it wants of a request of which it is known who asks, and writes that it has come. Without a policy nothing comes of it.
// In ModeStrict a request whose arrival cannot be told does not go on, and has no other event.
func (l *Log) Received(r *http.Request, rec *request.Request) (goesOn bool) {
	if l.Policy == nil {
		return true
	}
	if goesOn = l.event(r, rec, event{stage: stageRequestReceived}); !goesOn {
		rec.Audited.Level = "None"
	}
	return goesOn
}

// Begun writes the audit event of a request that may last for hours and whose response begins. One that nobody could be made out for
// has no other event, so it is left to Done.
func (l *Log) Begun(r *http.Request, rec *request.Request, code int) {
	if rec.User.Name != "" {
		l.event(r, rec, event{stage: stageResponseStarted, code: code, status: rec.Answered})
	}
}

// Done writes the audit event of a request that has ended.
func (l *Log) Done(r *http.Request, rec *request.Request, code int, cause any) {
	ev := event{stage: stageResponseComplete, code: code, status: rec.Answered}
	switch {
	case cause != nil && cause != http.ErrAbortHandler:
		ev.stage, ev.status = stagePanic, panicStatus(cause)
	case rec.User.Name == "":
		ev.stage = stageResponseStarted
	}
	l.event(r, rec, ev)
	if rec.Audited != nil {
		rec.Audited.GiveBack()
	}
}

// event writes an audit event; the caller says what the request has come to.
func (l *Log) event(r *http.Request, rec *request.Request, ev event) (goesOn bool) {
	if l.Policy != nil {
		if rec.Audited == nil {
			rec.Audited = l.Policy.choose(rec)
			rec.Audited.Room = &l.room
			l.hooks.leveled(rec.Audited.Level)
		}
		if rec.Audited.Level == "None" || slices.Contains(rec.Audited.OmitStages, string(ev.stage)) {
			return true
		}
		ev.level = rec.Audited.Level
	}
	ev.id, ev.received, ev.at, ev.annotations = rec.ID, rec.Received, time.Now(), rec.Annotations()
	ev.uri, ev.verb, ev.agent, ev.sourceIPs = r.URL, rec.Info.Verb, r.UserAgent(), sourceIPs(r)
	ev.user = userOf(rec.User)
	if rec.Impersonator != nil {
		acting := ev.user
		ev.user, ev.impersonated, ev.constraint = userOf(*rec.Impersonator), &acting, rec.Constraint
	}
	ev.object = reference(rec)
	if ev.stage == stageRequestReceived {
		ev.at, ev.annotations = rec.Received, nil
	}
	l.addBodies(&ev, rec)
	return l.write(ev)
}

// reference is what a request is about; nil where that is no resource.
func reference(rec *request.Request) *objectRef {
	info := &rec.Info
	if !info.ResourceRequest {
		return nil
	}
	return &objectRef{Resource: info.Resource, Namespace: cut(cmp.Or(info.Namespace, rec.Sent.Namespace), nameMax),
		Name: cut(cmp.Or(info.Name, rec.Sent.Name), nameMax), UID: cut(rec.Sent.UID, nameMax), APIGroup: info.Group, APIVersion: info.Version,
		ResourceVersion: cut(rec.Sent.ResourceVersion, nameMax), Subresource: info.Subresource}
}

func userOf(u request.User) user {
	return user{Username: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}
