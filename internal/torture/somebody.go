package torture

// This file is what somebody else does to the objects of a controller: edits them, deletes them, makes them again, holds them, takes their labels off. What
// can be undone is undone after a while, so that there is a state to come to: that of plain runs.

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

// isEdited has somebody else edit an object right before the controller writes it, or when all is done. The edit has to be there in the end.
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

// mark edits an object, and tells whether it could.
func (r *run) mark(ctx context.Context, path string) bool {
	body, _ := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{mark: "by somebody else"}}})
	a, err := r.server.send(ctx, "PATCH", path, "application/merge-patch+json", body)
	return err == nil && a.failure() == nil
}

// deletes is for plans whose point is the end of the workload: somebody deletes something.
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

// called are the paths of all that has an alias, each once, in the order in which they came.
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

// deleteAt deletes an object, and tells whether there was one.
func (r *run) deleteAt(ctx context.Context, path string) (was bool, err error) {
	a, err := r.server.send(ctx, "DELETE", path, "", nil)
	if err != nil || a.code == 404 {
		return false, err
	}
	return true, a.failure()
}

// edit changes an object's metadata as it is now, and tells whether there was one. A change that another writer has got in before is made again.
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
	return false, fmt.Errorf("%s: others write to it all the time", path)
}

// ---- Held

const finalizer = "apilet.dev/held"

// hold sets a finalizer of somebody else's on an object, and takes it off after a while. It tells whether there is such an object.
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
		if _, err := r.edit(ctx, path, off); err != nil { // it holds for ever, and the judge tells what
			r.record.touch()
		}
	})
	return true, nil
}

// isHeld has a finalizer of somebody else's hold what is deleted for a while: by the controller, or by somebody when all is done.
func (r *run) isHeld() *tricks {
	if r.plan.Write == "" {
		r.afterward = r.deletesWhatIsHeld
		return &tricks{}
	}
	return &tricks{before: func(p *passed) *refusal {
		if r.at(p) {
			_, _ = r.hold(context.Background(), pathOf(p)) // what is not there any more is not held
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

// ---- Without its labels

// takesLabelsOff has somebody take all labels off an object, and put them back after a while.
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
		return err // the controller may have deleted it: then there is nothing to put back
	}
	return nil
}

// ---- Made again

// isRemade has somebody delete what a user has made, in the middle of the controller's work, and make it again.
func (r *run) isRemade() *tricks {
	return &tricks{after: func(p *passed) *refusal {
		if !r.at(p) {
			return nil
		}
		r.pending.Add(1)
		go func() { // until it is made again, or there is no more patience
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

// remake deletes an object, waits until it is gone, and makes it as it was.
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
			return errors.New("it does not go: a finalizer holds it")
		case err != nil:
			return err
		case now.code == 404:
			made, err := r.server.send(ctx, "POST", path[:strings.LastIndex(path, "/")], "application/json", asNew(a.body))
			if err == nil && made.code != 409 { // the workload was faster
				err = made.failure()
			}
			return err
		}
		time.Sleep(retryEvery)
	}
}

// asNew is an object as its user made it: without what the server and controllers have added.
func asNew(object []byte) []byte {
	var doc map[string]any
	_ = json.Unmarshal(object, &doc) // the server's own JSON
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
