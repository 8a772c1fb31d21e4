package boltfile

// This file defines the error for damage, which names the damaged place, and a list of all damaged
// places that were found.

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
)

// ErrDamaged is the error of any damage.
var ErrDamaged = errors.New("the file is damaged: run `apilet check`, restore a backup, or DELETE the affected objects")

// A Damage is an error that describes a damaged place in the file.
type Damage struct {
	Place string // page or tree, and the problem
}

// Error returns the problem and its place.
func (d *Damage) Error() string { return ErrDamaged.Error() + " (" + d.Place + ")" }

// Unwrap returns ErrDamaged.
func (d *Damage) Unwrap() error { return ErrDamaged }

func NewDamage(format string, args ...any) error { return &Damage{fmt.Sprintf(format, args...)} }

// PlaceOf returns the place if err is a Damage. Otherwise it returns the text of the error.
func PlaceOf(err error) string {
	var d *Damage
	if errors.As(err, &d) {
		return d.Place
	}
	return err.Error()
}

func PanicDamage(format string, args ...any) { panic(NewDamage(format, args...)) }

// RecoverFaults calls fn and converts a panic or memory fault to an error. Such faults occur in a
// cursor or in bbolt on a damaged page, or if a mapped file is truncated.
func RecoverFaults(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *Damage:
			err = p
		default:
			err = NewDamage("%v", p)
		}
	}()
	return fn()
}

// A DamageList lists the places where the file was found damaged.
type DamageList struct {
	report func(place string) // if not nil, called once for each place

	mu     sync.Mutex // guards places
	places []string   // the first 100
}

// note adds the place of err to the list. It does nothing if the list is full or already contains
// the place.
func (d *DamageList) note(err error) {
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

// Count returns the number of known damaged places.
func (d *DamageList) Count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.places)
}

// First returns the first place in the list, or "" if the list is empty.
func (d *DamageList) First() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.places) == 0 {
		return ""
	}
	return d.places[0]
}

// Err returns the first damage in the list, or nil if the list is empty.
func (d *DamageList) Err() error {
	if place := d.First(); place != "" {
		return &Damage{place}
	}
	return nil
}

// Clear empties the list. It is called if a scrub of the whole file does not find any damage.
func (d *DamageList) Clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.places = nil
}
