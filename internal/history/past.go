package history

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/apierror"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A PastHandler serves requests about a past moment (/at/MOMENT/...), if the current rules allow
// them. It serves only reads.
type PastHandler struct {
	Moments
	Classify func(path string) PathKind // classifies a path
	// returns the types served at the given revision
	Types func(ctx context.Context, rev int64) (*scheme.Registry, error)
	// Serve handles the request using the state at the given revision. If the answer is Timeless,
	// types is nil.
	Serve func(w http.ResponseWriter, r *http.Request, types *scheme.Registry, rev int64)
	// writes an error response
	WriteError func(http.ResponseWriter, *http.Request, error)
}

// A PathKind specifies how requests for the past state of a path are handled.
type PathKind int

const (
	NoHistory PathKind = iota // the path has no past
	Timeless                  // the response does not depend on the time
	Versioned                 // the response depends on the types and objects of that moment
)

// KindOf is the Classify of a server with Kubernetes' paths.
func KindOf(path string) PathKind {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case root == "api" || root == "apis" || path == "/openapi/v2" || path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/"):
		return Versioned
	case path == "/version" || path == "/version/":
		return Timeless
	}
	return NoHistory
}

// ServeHTTP resolves the moment in the request's record to a revision and its types, and calls
// Serve. It checks the path first, so that an unknown path causes no expensive work.
func (p *PastHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := request.From(r.Context())
	if err := checkReadOnly(r.Method, &rec.Info); err != nil {
		p.WriteError(w, r, err)
		return
	}
	has := p.Classify(rec.Info.Path)
	if has == NoHistory {
		http.NotFound(w, r)
		return
	}
	rev, then, err := p.at(rec.Moment)
	var types *scheme.Registry
	if rec.AsOf = then; err == nil && has == Versioned {
		types, err = p.typesAt(r.Context(), rev)
	}
	if err != nil {
		// for errors of discovery, kubectl prints only the warnings
		if status, _ := response.ErrorStatus(err); !rec.Info.ResourceRequest {
			warning.AddWarning(r.Context(), "", status.Message)
		}
		p.WriteError(w, r, err)
		return
	}
	p.Serve(w, r, types, rev)
}

// checkReadOnly rejects writes and watches.
func checkReadOnly(method string, info *request.Info) error {
	switch {
	case method != http.MethodGet && method != http.MethodHead:
		return apierror.New(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"what was cannot be changed: paths below "+PathAt+" are for reading")
	case info.Verb == "watch":
		return apierror.New(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"what was does not change any more: a path below "+PathAt+" cannot be watched ("+Path+"?follow=true tells what happens)")
	}
	return nil
}

// at returns the revision and the time for the given moment.
func (p *PastHandler) at(moment string) (rev int64, then time.Time, err error) {
	now := p.Moments.Store.Now()
	m, err := ParseMoment(moment, now)
	if err != nil {
		return 0, then, err
	}
	return p.Moments.RevisionAt(m, now)
}

// typesAt returns the types served at the given revision.
func (p *PastHandler) typesAt(ctx context.Context, rev int64) (*scheme.Registry, error) {
	types, err := p.Types(ctx, rev)
	if errors.Is(err, store.ErrCompacted) { // the revision was compacted during the read
		err = p.compacted(fmt.Sprintf("revision %d", rev))
	}
	return types, err
}
