package rules

// This file runs the Writer of apilet with a separate store. No plug-ins are enabled, and the user
// has all permissions.

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/allocator"
	"apilet/internal/auth"
	"apilet/internal/auth/serviceaccount"
	"apilet/internal/registry"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A candidate answers requests as apilet does.
type candidate struct {
	st *store.Store
	wr *registry.Writer
}

func newCandidate(t *testing.T, types *scheme.Registry) *candidate {
	st, err := store.Open(filepath.Join(t.TempDir(), "a.db"), store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	wr := &registry.Writer{Store: st, Types: types, Validating: true, Allocator: allocator.New(st, netip.MustParsePrefix(serviceRange)),
		Auth: &auth.Authenticator{Accounts: &serviceaccount.Tokens{}}}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := wr.Insert(t.Context(), types.Lookup("", "v1", "namespaces"), namespace, registry.Options{Trusted: true}); err != nil {
		t.Fatal(err)
	}
	return &candidate{st, wr}
}

func (cand *candidate) close(t *testing.T) {
	if err := cand.st.Close(); err != nil {
		t.Error(err)
	}
}

// do handles a request like serveResource in the server.
func (cand *candidate) do(c *call) (a answer) {
	defer func() {
		if r := recover(); r != nil {
			a = answer{panicked: fmt.Sprint(r), body: debug.Stack()}
		}
	}()
	r, notes := c.request()
	rec := &request.Request{Received: time.Now(), Info: request.Parse(r), User: request.User{Name: userName, Groups: []string{groupName}}}
	r = r.WithContext(context.WithValue(r.Context(), request.Key{}, rec))
	w := httptest.NewRecorder()
	var err error
	switch {
	case c.sub == "scale":
		err = registry.ServeScale(cand.wr, w, r, rec, c.row)
	case c.method == http.MethodPost:
		err = cand.wr.Create(w, r, rec, c.row)
	case c.method == http.MethodPut:
		err = cand.wr.Update(w, r, rec, c.row)
	default:
		err = cand.wr.Patch(w, r, rec, c.row)
	}
	if err != nil {
		response.WriteError(w, r, err)
	}
	return answer{code: w.Code, body: w.Body.Bytes(), warnings: notes.texts}
}

// typesOf returns all built-in types, including the versions that are off by default.
func typesOf() *scheme.Registry {
	rows, err := scheme.Served([]string{"api/all=true"})
	return scheme.NewRegistry(must(rows, err)...)
}

// remove deletes all objects of a row's type except for the namespace "default".
func (cand *candidate) remove(row *scheme.Resource) error {
	span := store.Span{Prefix: row.KeyPrefix("")}
	for rec, err := range cand.st.All(span) {
		if err != nil {
			return err
		}
		if rec.Key == registry.NamespaceKey("default") {
			continue
		}
		if _, err := cand.st.Commit(context.Background(), registry.Tombstone(rec)); err != nil {
			return err
		}
	}
	return nil
}
