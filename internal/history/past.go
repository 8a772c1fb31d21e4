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

// A Past serves requests about a past moment (/at/MOMENT/...), if the current rules allow them. It
// serves only reads.
type Past struct {
	Moments
	Has func(path string) Answer // classifies a path
	// returns the types served at the given revision
	Types func(ctx context.Context, rev int64) (*scheme.Registry, error)
	// Show handles the request using the state at the given revision. If the answer is Timeless,
	// types is nil.
	Show func(w http.ResponseWriter, r *http.Request, types *scheme.Registry, rev int64)
	// writes an error response
	Fail func(http.ResponseWriter, *http.Request, error)
}

// An Answer specifies how requests for the past state of a path are handled.
type Answer int

const (
	Nothing  Answer = iota // the path has no past
	Timeless               // the response does not depend on the time
	Typed                  // the response depends on the types and objects of that moment
)

// AnswerOf is the Has of a server with Kubernetes' paths.
func AnswerOf(path string) Answer {
	root, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case root == "api" || root == "apis" || path == "/openapi/v2" || path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/"):
		return Typed
	case path == "/version" || path == "/version/":
		return Timeless
	}
	return Nothing
}

// ServeHTTP resolves the moment in the request's record to a revision and its types, and calls
// Show. It checks the path first, so that an unknown path causes no expensive work.
func (p *Past) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := request.From(r.Context())
	if err := readsOnly(r.Method, &rec.Info); err != nil {
		p.Fail(w, r, err)
		return
	}
	has := p.Has(rec.Info.Path)
	if has == Nothing {
		http.NotFound(w, r)
		return
	}
	rev, then, err := p.at(rec.At)
	var types *scheme.Registry
	if rec.Then = then; err == nil && has == Typed {
		types, err = p.typesAt(r.Context(), rev)
	}
	if err != nil {
		// for errors of discovery, kubectl prints only the warnings
		if status, _ := response.ErrorStatus(err); !rec.Info.ResourceRequest {
			warning.AddWarning(r.Context(), "", status.Message)
		}
		p.Fail(w, r, err)
		return
	}
	p.Show(w, r, types, rev)
}

// readsOnly rejects writes and watches.
func readsOnly(method string, info *request.Info) error {
	switch {
	case method != http.MethodGet && method != http.MethodHead:
		return apierror.New(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"what was cannot be changed: paths below "+PathThen+" are for reading")
	case info.Verb == "watch":
		return apierror.New(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"what was does not change any more: a path below "+PathThen+" cannot be watched ("+Path+"?follow=true tells what happens)")
	}
	return nil
}

// at returns the revision and the time for the given moment.
func (p *Past) at(moment string) (rev int64, then time.Time, err error) {
	now := p.Moments.Store.Now()
	m, err := ParseMoment(moment, now)
	if err != nil {
		return 0, then, err
	}
	return p.Moments.At(m, now)
}

// typesAt returns the types served at the given revision.
func (p *Past) typesAt(ctx context.Context, rev int64) (*scheme.Registry, error) {
	types, err := p.Types(ctx, rev)
	if errors.Is(err, store.ErrCompacted) { // the revision was compacted during the read
		err = p.compacted(fmt.Sprintf("revision %d", rev))
	}
	return types, err
}
