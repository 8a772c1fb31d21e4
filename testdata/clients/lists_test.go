package clients

// This file tests lists in chunks, both with the pager and without it. The revision of the list is
// compacted in the meantime.

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"
)

const many = 2000

func TestLongListsAreWhole(t *testing.T) {
	t.Parallel()
	s := startOnFile(t)
	createMaps(t, s.typed(), "cm", many)
	t.Run("by the pager, compacted half way", func(t *testing.T) { listByPager(t, s) })
	t.Run("by hand, across a restart", func(t *testing.T) { listAcrossRestart(t, s) })
	t.Run("by hand, compacted half way", func(t *testing.T) { listWithFreshToken(t, s) })
}

func listByPager(t *testing.T, s *server) {
	ctx, cs := t.Context(), s.typed()
	pages := 0
	p := pager.New(func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
		list, err := cs.CoreV1().ConfigMaps(ns).List(ctx, opts)
		if pages++; pages == 5 && err == nil {
			setData(t, cs, "cm-0000", "passed already")
			s.expire(ctx, list.ResourceVersion)
		}
		return list, err
	})
	p.PageSize = many / 10
	// the pager requests the next page after the current page has been processed
	p.PageBufferSize = 0
	list, _, err := p.List(ctx, metav1.ListOptions{})
	check(t, "pager", err)
	if n := meta.LenList(list); n != many || pages != 7 {
		t.Errorf("%d objects after %d requests; want %d after 5 pages, a 410 and a full list", n, pages, many)
	}
	err = p.EachListItem(ctx, metav1.ListOptions{}, func(runtime.Object) error { return nil })
	check(t, "each item", err)
}

// chunk returns a page with the token for the next.
func chunk(ctx context.Context, cs kubernetes.Interface, token string) (*corev1.ConfigMapList, error) {
	return cs.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{Limit: 600, Continue: token})
}

// names adds the names of a page to the listed ones, and checks for duplicates.
func names(t *testing.T, listed sets.Set[string], list *corev1.ConfigMapList) {
	t.Helper()
	for _, m := range list.Items {
		if listed.Has(m.Name) {
			t.Fatalf("%s is listed twice", m.Name)
		}
		listed.Insert(m.Name)
	}
}

func listAcrossRestart(t *testing.T, s *server) {
	ctx, cs, listed := t.Context(), s.typed(), sets.New[string]()
	list, err := chunk(ctx, cs, "")
	check(t, "first chunk", err)
	if left := list.RemainingItemCount; left == nil || *left != many-600 {
		t.Errorf("%v remain after the first chunk, want %d", left, many-600)
	}
	names(t, listed, list)
	rv := list.ResourceVersion
	for list.Continue != "" {
		s.Restart()
		list, err = chunk(ctx, cs, list.Continue)
		check(t, "next chunk", err)
		names(t, listed, list)
		if list.ResourceVersion != rv {
			t.Errorf("a chunk at revision %s, want %s", list.ResourceVersion, rv)
		}
	}
	if len(listed) != many {
		t.Errorf("%d objects, want %d", len(listed), many)
	}
}

// listWithFreshToken uses the token in a 410 response: it continues after the same name at the
// newest revision.
func listWithFreshToken(t *testing.T, s *server) {
	ctx, cs, listed := t.Context(), s.typed(), sets.New[string]()
	list, err := chunk(ctx, cs, "")
	check(t, "first chunk", err)
	names(t, listed, list)
	remove(t, cs, "cm-1999")
	s.expire(ctx, list.ResourceVersion)
	_, err = chunk(ctx, cs, list.Continue)
	status, ok := err.(apierrors.APIStatus)
	if !apierrors.IsResourceExpired(err) || !ok || status.Status().Continue == "" {
		t.Fatalf("a chunk of a compacted revision: %v, want Expired with a token", err)
	}
	for token := status.Status().Continue; token != ""; token = list.Continue {
		list, err = chunk(ctx, cs, token)
		check(t, "chunk with the fresh token", err)
		names(t, listed, list)
	}
	if len(listed) != many-1 {
		t.Errorf("%d objects, want %d", len(listed), many-1)
	}
}
