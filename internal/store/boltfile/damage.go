package boltfile

// This file is what damage is: an error that names its place, and a book of the places that were found.

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
)

// ErrDamaged is what every damage is.
var ErrDamaged = errors.New("the file is damaged: run `apilet check`, restore a backup, or DELETE what lies there")

// A Damage is what is wrong at one place of the file.
type Damage struct {
	Place string // which page or tree, and what is wrong there
}

// Error is what is wrong, and where.
func (d *Damage) Error() string { return ErrDamaged.Error() + " (" + d.Place + ")" }

// Unwrap makes every damage an ErrDamaged.
func (d *Damage) Unwrap() error { return ErrDamaged }

func Damaged(format string, args ...any) error { return &Damage{fmt.Sprintf(format, args...)} }

// PlaceOf is the place of a damage, without what to do about it; any other error's text.
func PlaceOf(err error) string {
	var d *Damage
	if errors.As(err, &d) {
		return d.Place
	}
	return err.Error()
}

func PanicDamaged(format string, args ...any) { panic(Damaged(format, args...)) }

// WithoutFaults turns a panic or memory fault under fn (a cursor or bbolt on a damaged page, a file truncated while mapped) into an error.
func WithoutFaults(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *Damage:
			err = p
		default:
			err = Damaged("%v", p)
		}
	}()
	return fn()
}

// A DamageBook remembers where the file was found damaged.
type DamageBook struct {
	report func(place string) // told of each place once; may be nil

	mu     sync.Mutex // guards places
	places []string   // the first 100
}

// note adds the place of a damage, unless it is known or there are too many.
func (d *DamageBook) note(err error) {
	place := PlaceOf(err)
	d.mu.Lock()
	fresh := len(d.places) < ProblemsMax && !slices.Contains(d.places, place)
	if fresh {
		d.places = append(d.places, place)
	}
	d.mu.Unlock()
	if fresh && d.report != nil {
		d.report(place)
	}
}

// Count is how many places of the file are known to be damaged.
func (d *DamageBook) Count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.places)
}

// First is the place found first, "" while there is none.
func (d *DamageBook) First() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.places) == 0 {
		return ""
	}
	return d.places[0]
}

// Err is the damage that was found first, nil while there is none.
func (d *DamageBook) Err() error {
	if place := d.First(); place != "" {
		return &Damage{place}
	}
	return nil
}

// Forget is for a scrub that has looked everywhere and found nothing.
func (d *DamageBook) Forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.places = nil
}
