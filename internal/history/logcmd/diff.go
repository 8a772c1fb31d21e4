package logcmd

// This file compares two moments. For each type it reads the objects of both moments in key order,
// side by side, so that memory holds at most one chunk of each list.

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"apilet/internal/changes"
)

// A differ compares two moments of a source.
type differ struct {
	*printer
	src    source
	q      *query
	found  int   // number of lists that the source served
	absent error // the error for a list that was not found: its type may have been added later, or deleted
}

// An answer is the next object of a list that is read in the background, or the end of that list.
type answer struct {
	object
	err  error
	over bool
}

// follow reads a list in the background. The channel is closed at the end of the list. A caller
// that stops reading must cancel ctx.
func follow(ctx context.Context, src source, at moment, k *kind, q *query) <-chan answer {
	ch := make(chan answer, 16) // so that both lists are requested at the same time
	go func() {
		defer close(ch)
		send := func(a answer) error {
			select {
			case ch <- a:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := src.list(ctx, at, k, q, func(o object) error { return send(answer{object: o}) }); err != nil {
			_ = send(answer{err: err})
		}
	}()
	return ch
}

// take returns the next object of a list. A list of a type that was not served counts as empty.
func (d *differ) take(ch <-chan answer) answer {
	a, ok := <-ch
	var refused *refusal
	switch {
	case !ok:
		a.over = true
	case errors.As(a.err, &refused) && refused.code == http.StatusNotFound:
		d.absent, a = refused, answer{over: true}
		d.found--
	}
	return a
}

// kind prints the differences between the objects of a type.
func (d *differ) kind(ctx context.Context, k *kind) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, after := follow(ctx, d.src, d.q.since, k, d.q), follow(ctx, d.src, d.q.until, k, d.q)
	d.found += 2
	a, b := d.take(before), d.take(after)
	for !a.over || !b.over {
		if err := cmp.Or(a.err, b.err); err != nil {
			return err
		}
		var err error
		switch order := compare(&a, &b); {
		case order < 0:
			err = d.pair(k, &a.object, nil)
			a = d.take(before)
		case order > 0:
			err = d.pair(k, nil, &b.object)
			b = d.take(after)
		default:
			if a.revision != b.revision || a.revision == "" {
				err = d.pair(k, &a.object, &b.object)
			}
			a, b = d.take(before), d.take(after)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compare orders by key. A list that has ended sorts after all objects.
func compare(a, b *answer) int {
	switch {
	case a.over:
		return 1
	case b.over:
		return -1
	}
	return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
}

// pair prints the diff of one object. nil means that the object did not exist at that moment.
func (d *differ) pair(k *kind, before, after *object) error {
	name, was, is := "", []byte(nil), []byte(nil)
	if before != nil {
		name, was = nameOf(before.namespace, before.name), before.json
	}
	if after != nil {
		name, is = nameOf(after.namespace, after.name), after.json
	}
	name = k.name() + " " + name
	text, err := changes.Rules{Secret: k.group == "" && k.plural == "secrets"}.Diff(was, is, name+" at "+d.q.since.name(), name+" at "+d.q.until.name())
	if err != nil {
		return err
	}
	return d.diffText(text)
}
