package logcmd

// This file compares two moments. For each type, it lists the objects at both moments in the order
// of their keys. Both lists are read at the same time, so only one chunk of each has to be kept in
// memory.

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"apilet/internal/changes"
)

// A differ prints the differences between the objects of a source at two moments.
type differ struct {
	*printer
	src   source
	q     *query
	found int // number of lists that the source served
	// The error for a list that does not exist. Its type may have been added later or removed
	// earlier.
	absent error
}

// An answer is either an object from a list that is read in the background, or the error or end of
// the list.
type answer struct {
	object
	err  error
	over bool
}

// follow reads a list in the background. The channel is closed at the end of the list. A caller
// that stops reading must cancel ctx.
func follow(ctx context.Context, src source, at moment, k *kind, q *query) <-chan answer {
	ch := make(chan answer, 16) // the buffer allows both lists to be read concurrently
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

// next returns the next object from the list. If the type was not served at that time, the list is
// considered to be empty.
func (d *differ) next(ch <-chan answer) answer {
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

// kind prints the differences between all objects of the given type.
func (d *differ) kind(ctx context.Context, k *kind) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, after := follow(ctx, d.src, d.q.since, k, d.q), follow(ctx, d.src, d.q.until, k, d.q)
	d.found += 2
	a, b := d.next(before), d.next(after)
	for !a.over || !b.over {
		if err := cmp.Or(a.err, b.err); err != nil {
			return err
		}
		var err error
		switch order := compare(&a, &b); {
		case order < 0:
			err = d.pair(k, &a.object, nil)
			a = d.next(before)
		case order > 0:
			err = d.pair(k, nil, &b.object)
			b = d.next(after)
		default:
			if a.revision != b.revision || a.revision == "" {
				err = d.pair(k, &a.object, &b.object)
			}
			a, b = d.next(before), d.next(after)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// compare orders by key. If one of the lists has ended, it comes after all other objects.
func compare(a, b *answer) int {
	switch {
	case a.over:
		return 1
	case b.over:
		return -1
	}
	return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
}

// pair prints the diff of a single object. Either version may be nil if the object did not exist at
// that time.
func (d *differ) pair(k *kind, before, after *object) error {
	name, was, is := "", []byte(nil), []byte(nil)
	if before != nil {
		name, was = nameOf(before.namespace, before.name), before.json
	}
	if after != nil {
		name, is = nameOf(after.namespace, after.name), after.json
	}
	name = k.name() + " " + name
	text, err := changes.Options{Secret: k.group == "" && k.plural == "secrets"}.Diff(was, is, name+" at "+d.q.since.name(), name+" at "+d.q.until.name())
	if err != nil {
		return err
	}
	return d.diffText(text)
}
