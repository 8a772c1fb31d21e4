// This file works off what deletion leaves behind: the content of a namespace that is being deleted, and Events that have grown old.
// It is a reader of the store's log like any watcher: it sleeps until a commit, looks at what was written, and does what follows.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	namespaceRange = "//namespaces/"
	eventRange     = "//events/"
	retryEmptying  = time.Second // while objects of a namespace wait for their finalizers
)

// A collector deletes what nobody asks for by name. One goroutine runs it.
type collector struct {
	st       *store
	upkeep   *upkeep
	reg      *registry
	wr       *writes
	eventTTL time.Duration
	log      zerolog.Logger
}

// run follows the namespaces until ctx ends.
func (gc *collector) run(ctx context.Context) {
	for ctx.Err() == nil {
		wake := gc.st.wake(namespaceRange)
		waiting, err := gc.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			gc.log.Error().Err(err).Msg("emptying namespaces")
		}
		var retry <-chan time.Time
		if waiting || err != nil {
			retry = time.After(retryEmptying)
		}
		select {
		case <-ctx.Done():
		case <-wake:
		case <-retry:
		}
	}
}

// sweep empties every namespace that is being deleted; waiting says that one of them could not be finished yet.
func (gc *collector) sweep(ctx context.Context) (waiting bool, err error) {
	var names []string
	err = gc.each(ctx, namespaceRange, func(rec *record) error {
		if rec.deleting {
			_, name := namespacedName(rec.key)
			names = append(names, name)
		}
		return nil
	})
	for _, name := range names {
		done, emptyErr := gc.empty(ctx, name)
		waiting = waiting || !done
		err = errors.Join(err, emptyErr)
	}
	return waiting, err
}

// each calls do for every live object of a range.
func (gc *collector) each(ctx context.Context, prefix string, do func(*record) error) error {
	c := &chunk{}
	for at := (span{prefix: prefix}); ; at.rev, at.start = c.rev, c.next {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := gc.st.chunk(at, c); err != nil {
			return err
		}
		for i := range c.records {
			if err := do(&c.records[i]); err != nil {
				return err
			}
		}
		if c.next == "" {
			return nil
		}
	}
}

// empty deletes what is in a namespace, then lets the namespace go. done is false while something in it waits for a finalizer.
func (gc *collector) empty(ctx context.Context, namespace string) (done bool, err error) {
	done = true
	seen := map[string]bool{}
	for _, res := range gc.reg.all() {
		if !res.namespaced || res.virtual || seen[res.keyPrefix("")] {
			continue
		}
		seen[res.keyPrefix("")] = true
		if objects, _, _ := gc.st.count(res.keyPrefix(namespace)); objects == 0 {
			continue
		}
		gone, err := gc.emptyOf(ctx, res, namespace)
		if err != nil {
			return false, err
		}
		done = done && gone
	}
	if !done {
		return false, nil
	}
	return true, gc.release(ctx, namespace)
}

// emptyOf deletes one resource's objects in a namespace.
func (gc *collector) emptyOf(ctx context.Context, res *resource, namespace string) (gone bool, err error) {
	background := metav1.DeletePropagationBackground
	gone = true
	err = gc.each(ctx, res.keyPrefix(namespace), func(rec *record) error {
		_, name := namespacedName(rec.key)
		_, removed, err := gc.wr.delete(ctx, res, namespace, name, &metav1.DeleteOptions{PropagationPolicy: &background})
		if apierrors.IsNotFound(err) {
			return nil
		}
		gone = gone && removed
		return err
	})
	return gone, err
}

// release removes the finalizer that kept an empty namespace, which then goes unless it has finalizers of its own.
func (gc *collector) release(ctx context.Context, name string) error {
	namespaces := gc.reg.lookup("", "v1", "namespaces")
	t := target{res: namespaces, name: name, sub: "finalize"}
	_, _, err := gc.wr.modify(ctx, t, writeOptions{}, func(old object, _ *record) (object, error) {
		ns := old.DeepCopyObject().(*corev1.Namespace)
		kept := ns.Spec.Finalizers[:0]
		for _, f := range ns.Spec.Finalizers {
			if f != corev1.FinalizerKubernetes {
				kept = append(kept, f)
			}
		}
		ns.Spec.Finalizers = kept
		return ns, nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// expireEvents deletes Events that were last written longer ago than eventTTL. The store knows which revision was current then.
func (gc *collector) expireEvents(ctx context.Context) error {
	if gc.eventTTL <= 0 {
		return nil
	}
	limit := gc.upkeep.revisionBefore(time.Now().Add(-gc.eventTTL))
	for start := ""; limit > 0; {
		records, next, err := gc.st.olderThan(eventRange, limit, 500, start)
		if err != nil {
			return err
		}
		if err := together(len(records), func(i int) error { return gc.expire(ctx, &records[i]) }); err != nil {
			return err
		}
		if start = next; next == "" {
			return nil
		}
	}
	return nil
}

// expire deletes one old Event, unless it has been written again or something holds it back.
func (gc *collector) expire(ctx context.Context, rec *record) error {
	if gjson.GetBytes(rec.json, "metadata.finalizers.#").Int() > 0 {
		return nil
	}
	_, err := gc.st.commit(ctx, tombstone(rec))
	if errors.Is(err, errConflict) || errors.Is(err, errNotFound) {
		return nil
	}
	return err
}
