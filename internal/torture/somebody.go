package torture

// This file implements plans in which another client interferes with the objects of a controller.
// It can edit objects, delete them, recreate them, add a finalizer to them, or remove their labels.
// Changes that can be undone are undone after some time, so that the controller can still reach the
// state of the plain runs.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/history"
)

// isEdited edits an object as another client, either immediately before the controller writes to it
// or at the end of the workload. The edit must still be there at the end.
func (r *run) isEdited() *tricks {
	if r.plan.Write == "" {
		r.afterward = func(ctx context.Context) error {
			for _, path := range r.called(r.plan.Object) {
				if r.mark(ctx, path) {
					r.point()
				}
			}
			return nil
		}
		return &tricks{}
	}
	return &tricks{before: func(p *passed) *refusal {
		if r.at(p) && r.mark(context.Background(), pathOf(p)) {
			r.out.edited = keyOf(p.info.Group, p.info.Resource, p.info.Namespace, p.info.Name)
		}
		return nil
	}}
}

// mark edits an object and reports whether that succeeded.
func (r *run) mark(ctx context.Context, path string) bool {
	body, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{mark: "by somebody else"}}})
	a, err := r.server.send(ctx, "PATCH", path, "application/merge-patch+json", body)
	return err == nil && a.failure() == nil
}

// deletes is called at the end of the workload to delete an object.
func (r *run) deletes(ctx context.Context) error {
	for _, path := range r.called(r.plan.Object) {
		gone, err := r.deleteAt(ctx, path)
		if err != nil {
			return err
		}
		if gone {
			r.point()
			break
		}
	}
	return nil
}

// called returns the paths of all objects with the given alias in the order of their first
// appearance.
func (r *run) called(alias string) (paths []string) {
	for _, line := range r.record.all() {
		if path := pathOfLine(&line); aliasOf(&line) == alias && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

func pathOfLine(line *history.Line) string {
	k := kind{strings.TrimPrefix(line.Group+"/"+line.Version, "/"), line.Resource, line.Namespace != "" && line.Resource != "namespaces"}
	return k.path(line.Namespace, line.Name)
}

func pathOf(p *passed) string {
	k := kind{strings.TrimPrefix(p.info.Group+"/"+p.info.Version, "/"), p.info.Resource, p.info.Namespace != "" && p.info.Resource != "namespaces"}
	return k.path(p.info.Namespace, p.info.Name)
}

// deleteAt deletes an object and reports whether it existed.
func (r *run) deleteAt(ctx context.Context, path string) (was bool, err error) {
	a, err := r.server.send(ctx, "DELETE", path, "", nil)
	if err != nil || a.code == 404 {
		return false, err
	}
	return true, a.failure()
}

// edit changes the metadata of an object and reports whether the object exists. It tries again if
// another writer changes the object in the meantime.
func (r *run) edit(ctx context.Context, path string, change func(meta gjson.Result) map[string]any) (was bool, err error) {
	for range 10 {
		a, err := r.server.send(ctx, "GET", path, "", nil)
		if err != nil || a.code == 404 {
			return false, err
		}
		if err := a.failure(); err != nil {
			return false, err
		}
		meta := gjson.GetBytes(a.body, "metadata")
		patch := change(meta)
		patch["resourceVersion"] = meta.Get("resourceVersion").String()
		body, _ := json.Marshal(map[string]any{"metadata": patch})
		a, err = r.server.send(ctx, "PATCH", path, "application/merge-patch+json", body)
		if err == nil && a.code == 409 {
			continue
		}
		if err != nil || a.code == 404 {
			return false, err
		}
		return true, a.failure()
	}
	return false, fmt.Errorf("%s: other clients write to it continuously", path)
}

// ---- Finalizers

const finalizer = "apilet.dev/held"

// hold adds a finalizer to an object and removes it again after some time. It reports whether the
// object exists.
func (r *run) hold(ctx context.Context, path string) (bool, error) {
	finalizers := func(keep func(all []any) []any) func(gjson.Result) map[string]any {
		return func(meta gjson.Result) map[string]any {
			all, _ := meta.Get("finalizers").Value().([]any)
			return map[string]any{"finalizers": keep(all)}
		}
	}
	was, err := r.edit(ctx, path, finalizers(func(all []any) []any { return append(all, finalizer) }))
	if !was || err != nil {
		return false, err
	}
	r.pending.Add(1)
	time.AfterFunc(lasting, func() {
		defer r.pending.Add(-1)
		off := finalizers(func(all []any) []any { return slices.DeleteFunc(all, func(one any) bool { return one == finalizer }) })
		// the finalizer is not removed, which will be reported by judge
		if _, err := r.edit(ctx, path, off); err != nil {
			r.record.touch()
		}
	})
	return true, nil
}

// isHeld adds a finalizer to an object that is about to be deleted, which delays the deletion for
// some time. The object is deleted either by the controller or, at the end of the workload, by
// another client.
func (r *run) isHeld() *tricks {
	if r.plan.Write == "" {
		r.afterward = r.deletesWhatIsHeld
		return &tricks{}
	}
	return &tricks{before: func(p *passed) *refusal {
		if r.at(p) {
			_, _ = r.hold(context.Background(), pathOf(p)) // ignore the error if the object no longer exists
		}
		return nil
	}}
}

func (r *run) deletesWhatIsHeld(ctx context.Context) error {
	for _, path := range r.called(r.plan.Object) {
		was, err := r.hold(ctx, path)
		if err == nil && was {
			_, err = r.deleteAt(ctx, path)
		}
		if err != nil {
			return err
		}
		if was {
			r.point()
			break
		}
	}
	return nil
}

// ---- Labels

// takesLabelsOff temporarily removes all labels from an object.
func (r *run) takesLabelsOff(ctx context.Context) error {
	for _, path := range r.called(r.plan.Object) {
		var labels map[string]any
		was, err := r.edit(ctx, path, func(meta gjson.Result) map[string]any {
			labels, _ = meta.Get("labels").Value().(map[string]any)
			return map[string]any{"labels": nil}
		})
		if err != nil {
			return err
		}
		if !was {
			continue
		}
		r.point()
		select {
		case <-time.After(lasting):
		case <-ctx.Done():
			return ctx.Err()
		}
		_, err = r.edit(ctx, path, func(gjson.Result) map[string]any { return map[string]any{"labels": labels} })
		return err // if the controller has deleted the object, there is nothing to restore
	}
	return nil
}

// ---- Deletion and new creation

// isRemade deletes an object that was created by a user and creates it again while the controller
// is still working.
func (r *run) isRemade() *tricks {
	return &tricks{after: func(p *passed) *refusal {
		if !r.at(p) {
			return nil
		}
		r.pending.Add(1)
		go func() { // runs until the object has been recreated or the timeout has expired
			defer r.pending.Add(-1)
			ctx, cancel := context.WithTimeout(context.Background(), r.cfg.Patience)
			defer cancel()
			for _, path := range r.called(r.plan.Object) {
				if err := r.remake(ctx, path); err != nil {
					r.out.noteOdd(fmt.Sprintf("%s was deleted by somebody, to be made again: %v", r.plan.Object, err))
				}
			}
		}()
		return nil
	}}
}

// remake deletes an object, waits until it no longer exists, and then creates it again.
func (r *run) remake(ctx context.Context, path string) error {
	a, err := r.server.send(ctx, "GET", path, "", nil)
	if err != nil || a.code == 404 {
		return err
	}
	was, err := r.deleteAt(ctx, path)
	if err != nil || !was {
		return err
	}
	for {
		now, err := r.server.send(ctx, "GET", path, "", nil)
		switch {
		case ctx.Err() != nil:
			return errors.New("it is not removed: a finalizer is pending")
		case err != nil:
			return err
		case now.code == 404:
			made, err := r.server.send(ctx, "POST", path[:strings.LastIndex(path, "/")], "application/json", asNew(a.body))
			if err == nil && made.code != 409 { // the workload has already created it
				err = made.failure()
			}
			return err
		}
		time.Sleep(retryEvery)
	}
}

// asNew returns the object without the fields that were added by the server or by controllers.
func asNew(object []byte) []byte {
	var doc map[string]any
	_ = json.Unmarshal(object, &doc) // cannot fail, because the server sent valid JSON
	delete(doc, "status")
	if meta, _ := doc["metadata"].(map[string]any); meta != nil {
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "selfLink", "finalizers", "ownerReferences",
			"deletionTimestamp", "deletionGracePeriodSeconds"} {
			delete(meta, field)
		}
	}
	body, _ := json.Marshal(doc)
	return body
}
