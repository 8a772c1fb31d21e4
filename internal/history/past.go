package history

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/apierror"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A Past answers what is asked about a moment (/at/MOMENT/...), to whom the rules of now allow it. All that it has is for reading.
type Past struct {
	Moments
	Has   func(path string) Answer                                                        // what a path had for an answer
	Types func(ctx context.Context, rev int64) (*scheme.Registry, error)                  // what was served at a revision
	Show  func(w http.ResponseWriter, r *http.Request, types *scheme.Registry, rev int64) // answers the request as of a revision; types is nil for Timeless
	Fail  func(http.ResponseWriter, *http.Request, error)                                 // answers with an error
}

// An Answer is what a path had at a moment.
type Answer int

const (
	Nothing  Answer = iota // the path is about now
	Timeless               // the same at all times
	Typed                  // what the types of then, and their objects, make it
)

// ServeHTTP finds the revision and the types of the moment that the request's record has, and shows them. What costs more than a look at the
// path is done for what has an answer.
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
		if status, _ := response.ErrorStatus(err); !rec.Info.ResourceRequest { // of an error of discovery kubectl shows nothing but warnings
			warning.AddWarning(r.Context(), "", status.Message)
		}
		p.Fail(w, r, err)
		return
	}
	p.Show(w, r, types, rev)
}

// readsOnly refuses what is no question about the past.
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

// at finds the revision of a moment, and when it was.
func (p *Past) at(moment string) (rev int64, then time.Time, err error) {
	now := p.Moments.Store.Now()
	m, err := ParseMoment(moment, now)
	if err != nil {
		return 0, then, err
	}
	return p.Moments.At(m, now)
}

// typesAt is what was served at a revision.
func (p *Past) typesAt(ctx context.Context, rev int64) (*scheme.Registry, error) {
	types, err := p.Types(ctx, rev)
	if errors.Is(err, store.ErrCompacted) { // while it was read
		err = p.compacted(fmt.Sprintf("revision %d", rev))
	}
	return types, err
}
