package history

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A Past answers what is asked about a moment (/at/MOMENT/...), to whom the rules of now allow it. All that it has is for reading.
type Past struct {
	Moments
	Types func(rev int64) (*scheme.Registry, error)                                       // what was served at a revision
	Show  func(w http.ResponseWriter, r *http.Request, types *scheme.Registry, rev int64) // answers the request as of a revision
	Fail  func(http.ResponseWriter, *http.Request, error)                                 // answers with an error
}

// ServeHTTP finds the revision and the types of the moment that the request's record has, and shows them.
func (p *Past) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := request.From(r.Context())
	if err := readsOnly(r.Method, &rec.Info); err != nil {
		p.Fail(w, r, err)
		return
	}
	types, rev, then, err := p.at(rec.At)
	if rec.Then = then; err != nil {
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
		return scheme.StatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"what was cannot be changed: paths below "+PathThen+" are for reading")
	case info.Verb == "watch":
		return scheme.StatusError(http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed,
			"what was does not change any more: a path below "+PathThen+" cannot be watched ("+Path+"?follow=true tells what happens)")
	}
	return nil
}

// at finds what was served at a moment, its revision, and when it was.
func (p *Past) at(moment string) (types *scheme.Registry, rev int64, then time.Time, err error) {
	now := time.Now()
	m, err := ParseMoment(moment, now)
	if err != nil {
		return nil, 0, then, err
	}
	if rev, then, err = p.Moments.At(m, now); err != nil {
		return nil, 0, then, err
	}
	types, err = p.Types(rev)
	if errors.Is(err, store.ErrCompacted) { // while it was read
		err = p.compacted(fmt.Sprintf("revision %d", rev))
	}
	return types, rev, then, err
}
